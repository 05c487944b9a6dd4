"""An experiment's file with its overrides: networks are counted, and options of another policy leave."""

from pathlib import Path

import pytest
import yaml
from contracts.free_tasks import TABLE
from contracts.variants import write_variant

from experiments.spec.experiment_loader import load_experiment
from experiments.sweeps.sweep_spec import read_sweep
from fedge.costs.layered_work import build_workload, find_priced_network
from fedge.devices.board_kinds import build_kind
from fedge.errors import BadInput
from fedge.experiment import list_boards

SMALL = {"fleet": ["nano"], "rounds": 1, "backend": "local", "workload": {"network": "resnet18", "batch_size": 4}}


def _written(folder: Path, **workload: object) -> Path:
    path = folder / "exp.yaml"
    content = SMALL | {"workload": {**SMALL["workload"], **workload}}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_a_bare_name_becomes_a_counted_network_that_names_the_cost(tmp_path):
    experiment = load_experiment(_written(tmp_path))
    network = experiment.workload.network
    assert (network.model, network.input, experiment.workload.cost) == ("resnet18", (3, 224, 224), "resnet18")
    found = find_priced_network(experiment.fleet[0], experiment.workload)
    assert len(found.convolutions) == 20


def test_paths_given_to_an_experiment_of_fedge_s_are_relative_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    experiment = load_experiment(Path("quickstart"), ["fleet.0.truth=table:mine.csv"])

    assert experiment.fleet[0].truth == f"table:{tmp_path / 'mine.csv'}"


def test_a_name_that_is_too_long_for_a_file_is_no_file(tmp_path):
    with pytest.raises(BadInput, match="got no such file; a YAML file, or a name"):
        load_experiment(tmp_path / ("x" * 5000))


def test_a_variant_is_named_by_its_folder_which_may_stand_for_it(tmp_path):
    write_variant(tmp_path / "small" / "digits-cnn-0.550")

    experiment = load_experiment(_written(tmp_path, network="small/digits-cnn-0.550"))

    assert experiment.workload.cost == "digits-cnn-0.550"
    assert load_experiment(_written(tmp_path, network="small/digits-cnn-0.550/variant.json")) == experiment
    with pytest.raises(BadInput, match=r"did you mean .*/small/digits-cnn-0.550\?"):
        load_experiment(_written(tmp_path, network=str(tmp_path / "small")))


def test_a_task_file_with_a_metric_of_its_own_does_not_report_accuracy(tmp_path):
    pytest.importorskip("torch", reason="the task file is loaded")
    (tmp_path / "table.py").write_text(TABLE, encoding="utf-8")

    def load(**workload: object) -> str:
        path = tmp_path / "own.yaml"
        path.write_text(yaml.safe_dump({"fleet": ["nano"], "workload": {"task": "table.py", **workload}}))
        return load_experiment(path).workload.metric

    assert load() == "metric"
    assert load(metric="explained variance") == "explained variance"
    assert load_experiment(_written(tmp_path)).workload.metric == "accuracy"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", 1.0),
        ("import torch\ndef optimizer(parameters, *_):\n    return torch.optim.AdamW(parameters)\n", 2.0),
        ("import torch\noptimizer = lambda parameters, *_: torch.optim.LBFGS(parameters)\n", None),
    ],
)
def test_the_state_of_a_task_file_s_optimiser_is_counted(tmp_path, text, state):
    pytest.importorskip("torch", reason="the task file is loaded")
    (tmp_path / "table.py").write_text(TABLE + text, encoding="utf-8")
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"fleet": ["nano"], "workload": {"task": "table.py"}}))
    found = load_experiment(path)
    assert found.workload.optimizer_state == state
    assert build_workload(found.fleet[0], found.workload).layers.optimizer_state == (state or 1.0)
    saved = found.model_dump(mode="json")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(saved))
    changed = load_experiment(tmp_path / "run.yaml", ["workload.task=digits-cnn"])
    assert changed.workload.optimizer_state is None
    given = load_experiment(tmp_path / "run.yaml", ["workload.optimizer_state=0.5", "workload.task=digits-cnn"])
    assert given.workload.optimizer_state == 0.5

    (tmp_path / "table.py").unlink()
    assert load_experiment(tmp_path / "run.yaml").workload.optimizer_state == state
    del saved["workload"]["optimizer_state"]  # as an earlier version wrote it
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(saved))
    assert load_experiment(tmp_path / "run.yaml").workload.optimizer_state == 1.0


def test_a_plan_that_cannot_be_read_names_the_experiment(tmp_path):
    path = tmp_path / "exp.yaml"
    serving = {"placement": "none.json", "latency_s": 1.0}
    path.write_text(yaml.safe_dump({"fleet": [{"device": "nano", "serving": serving}]}), encoding="utf-8")

    with pytest.raises(BadInput, match=r"exp.yaml: fleet\[0\].serving.placement: got .*none.json"):
        load_experiment(path)


def test_a_board_s_truth_and_first_prior_come_from_the_layers_and_say_so(tmp_path):
    experiment = load_experiment(_written(tmp_path))
    kind = build_kind(list_boards(experiment)[0], experiment.workload)
    assert kind.truth_label == "estimated"
    assert "layers of resnet18 on nano" in kind.truth_source
    assert "layers of resnet18 on nano" in kind.priors[0].source


def test_what_was_counted_is_not_counted_again(tmp_path, monkeypatch):
    first = load_experiment(_written(tmp_path))
    saved = tmp_path / "run.yaml"
    saved.write_text(yaml.safe_dump(first.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    monkeypatch.setattr("experiments.spec.experiment_loader.load_network_cost", lambda *_: pytest.fail("counted again"))
    assert load_experiment(saved) == first


def test_a_file_of_layers_is_found_beside_the_experiment(tmp_path):
    with pytest.raises(BadInput, match=r"workload\.network\.model"):
        load_experiment(_written(tmp_path, network="nothing.json"))


def _saved(folder: Path) -> Path:
    """The YAML of a run that was launched with ResNet-18."""
    saved = folder / "run.yaml"
    first = load_experiment(_written(folder))
    saved.write_text(yaml.safe_dump(first.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    return saved


@pytest.mark.parametrize("override", ["workload.network.model=resnet34", "workload.network=resnet34"])
def test_another_network_in_a_run_s_yaml_is_counted_anew_and_gives_the_name(tmp_path, override):
    experiment = load_experiment(_saved(tmp_path), [override])
    found = find_priced_network(experiment.fleet[0], experiment.workload)
    assert experiment.workload.cost == "resnet34"
    assert len(found.convolutions) == 36


USERS = """
import sys
from torch import nn

class Nothing(nn.Module):
    def forward(self, x):
        return x

class Leaves(nn.Module):
    def forward(self, x):
        sys.exit(0)
"""


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"network": "resnet18-imagenet"}, r"network\.model: got 'resnet18-imagenet'; workload\.cost"),
        ({"cost": "resnet18-imagenet"}, r"workload\.cost: got 'resnet18-imagenet'; no cost beside a network"),
        ({"network": "users_nets:Nothing"}, r"network\.input: got nothing; .* as \[3, 224, 224\]$"),
        ({"network": {"model": "users_nets:Nothing", "input": [8]}}, "which computes nothing"),
        ({"network": {"model": "users_nets:Leaves", "input": [8]}}, r"SystemExit: 0 .*\(workload\.network\.input\)"),
        ({"network": {"model": "resnet18", "speed": 1}}, r"network\.speed: got an unknown key; known here: model"),
        ({"batchsize": 4}, r"workload\.batchsize: got an unknown key; did you mean batch_size\? known here: "),
        ({"network": {"input": [3, 8, 8]}}, r"network\.model: got nothing; this key is needed"),
        ({"network": []}, r"network: got \[\]; a name, or a mapping with some of model"),
    ],
)
def test_a_network_that_cannot_be_meant_is_one_line_that_names_the_key(tmp_path, monkeypatch, workload, message):
    (tmp_path / "users_nets.py").write_text(USERS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=message) as caught:
        load_experiment(_written(tmp_path, **workload))
    assert "\n" not in str(caught.value)


FILE = "fleet: [nano]\npolicy: {name: energy-budget, budget_j: 9000, confidence: 0.9, options: {}}\n"


@pytest.mark.parametrize(
    ("overrides", "limits", "noted"),
    [
        (["policy.name=balanced"], {"confidence": 0.9}, ["budget_j"]),
        (["policy.name=maxn"], {}, ["budget_j, confidence"]),
        (["policy.deadline_s=9", "policy.name=least-energy"], {"confidence": 0.9, "deadline_s": 9.0}, ["budget_j"]),
        (["policy.name=energy-budget"], {"budget_j": 9000.0, "confidence": 0.9}, []),
        (["policy.budget_j=5"], {"budget_j": 5.0, "confidence": 0.9}, []),
        (["policy.name=mine:choose"], {"budget_j": 9000.0, "confidence": 0.9}, []),
        (["policy=maxn"], {}, ["budget_j, confidence"]),
        (["policy.confidence=0.8", "policy=balanced"], {"confidence": 0.8}, ["budget_j"]),
        (["policy=balanced", "policy.time_weight=0.7"], {"time_weight": 0.7}, ["budget_j, confidence"]),
        (["policy.name=maxn", "policy=least-energy"], {}, ["budget_j, confidence"]),
    ],
)
def test_options_of_the_file_s_policy_follow_if_the_other_takes_them(overrides, limits, noted, tmp_path):
    path = tmp_path / "exp.yaml"
    path.write_text(FILE, encoding="utf-8")
    notes: list[str] = []

    found = load_experiment(path, overrides, note=notes.append)

    assert found.policy.limits == limits
    assert [note.partition(" of the file's policy ")[0] for note in notes] == noted


def test_the_file_of_a_sweep_and_that_of_an_experiment_are_told_apart(tmp_path):
    (tmp_path / "sweep.yaml").write_text("experiment: quickstart\ngrid: {seed: [1]}\n", encoding="utf-8")
    (tmp_path / "exp.yaml").write_text("fleet: [nano]\n", encoding="utf-8")

    with pytest.raises(BadInput, match=r"got the file of a sweep; .*`fedge sweep .*sweep.yaml`"):
        load_experiment(tmp_path / "sweep.yaml")
    with pytest.raises(BadInput, match=r"got the file of an experiment; .*`fedge run .*exp.yaml`"):
        read_sweep(tmp_path / "exp.yaml")


def test_a_width_of_the_plan_is_refused_with_the_key_of_today_and_passed_over_in_runs_of_an_earlier_version():
    with pytest.raises(BadInput, match="joint chooses among"):
        load_experiment(Path("quickstart"), ["policy.narrow_width=0.5"])

    assert load_experiment(Path("quickstart"), ["policy.narrow_width=null"]) == load_experiment(Path("quickstart"))


def test_a_bare_name_stands_for_the_section_that_it_names():
    found = load_experiment(Path("quickstart"), ["compression=topk", "compression.keep=0.1", "selection=planner"])

    assert (found.compression.kind, found.compression.keep, found.selection.name) == ("topk", 0.1, "planner")
    with pytest.raises(BadInput, match=r"compression\.kind: got 'int4'; 'none', 'fp16'"):
        load_experiment(Path("quickstart"), ["compression=int4"])
