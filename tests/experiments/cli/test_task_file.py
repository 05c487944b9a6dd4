"""A task file beside the experiment is found from any folder, trains, and is refused in one line where it is wrong."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch", reason="a task trains with torch")

from contracts.free_tasks import CHARACTERS, TABLE

from experiments.spec.experiment_checks import check_experiment
from experiments.spec.experiment_loader import load_experiment
from fedge.client import emulated
from fedge.costs.layered_work import count_priced_bytes, find_priced_network
from fedge.devices.board_kinds import build_kind
from fedge.errors import BadInput
from fedge.experiment import list_boards

TASK = """
from torch import nn

def model(shape):
    pixels = shape.channels * shape.side ** 2
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, shape.classes))
"""

DATA = """
def data(source):
    from fedge.worker import sources
    return sources.read({"synthetic": {"samples": 64, "channels": 1, "side": 8, "classes": 10}})
"""


def written(tmp_path: Path, task: str, text: str = TASK) -> Path:
    (tmp_path / "linear.py").write_text(text, encoding="utf-8")
    path = tmp_path / "exp.yaml"
    path.write_text(f"fleet: [{{device: orin-nano}}]\nworkload: {{task: {task}}}\n", encoding="utf-8")
    return path


def test_a_task_file_that_is_not_there_is_named(tmp_path):
    experiment = load_experiment(written(tmp_path, "other.py"))

    with pytest.raises(BadInput, match=r"other\.py"):
        check_experiment(experiment)


def test_a_task_file_without_a_model_is_refused_with_what_it_needs(tmp_path):
    experiment = load_experiment(written(tmp_path, "linear.py", "def loss(scores, labels):\n    return scores.sum()\n"))

    with pytest.raises(BadInput, match=r"model\(shape\)"):
        check_experiment(experiment)


@pytest.mark.parametrize(
    "mistake",
    [
        TASK.replace("nn.Linear(pixels,", "nn.Linear(3,"),
        TASK + "\ndef loss(scores, labels):\n    return nn.functional.cross_entropy(scores, labels, nope=1)\n",
    ],
)
def test_a_mistake_that_shows_only_in_training_is_told_once_before_the_run(tmp_path, mistake):
    path = written(tmp_path, "linear.py", mistake + DATA)

    with pytest.raises(BadInput, match=r"linear\.py"):
        check_experiment(load_experiment(path))


def test_a_task_file_alone_is_priced_by_its_own_layers(tmp_path):
    experiment = load_experiment(written(tmp_path, "linear.py", TASK + DATA), ["workload.batch_size=8"])
    kind = build_kind(list_boards(experiment)[0], experiment.workload)

    network = find_priced_network(experiment.fleet[0], experiment.workload)
    assert (experiment.workload.cost, network.input_shape, network.parameters) == ("linear.py", (1, 8, 8), 650)
    assert kind.truth_label == "estimated"
    assert kind.truth_source.startswith("layers of linear on orin-nano")
    assert emulated.load_client(experiment, 0).setup.workload.batch_size == 8
    assert emulated.load_client(experiment, 0).setup.model_bytes == 4 * 650


@pytest.mark.parametrize(
    ("text", "shape", "parameters"), [(CHARACTERS, (16,), 5633), (TABLE, (5,), 57)], ids=["text", "table"]
)
def test_samples_of_any_shape_price_their_network(tmp_path, text, shape, parameters):
    experiment = load_experiment(written(tmp_path, "linear.py", text))
    network = find_priced_network(experiment.fleet[0], experiment.workload)

    assert (experiment.workload.cost, network.input_shape, network.parameters) == ("linear.py", shape, parameters)
    assert build_kind(list_boards(experiment)[0], experiment.workload).truth_label == "estimated"


def test_another_cost_is_charged_when_it_is_named_also_in_a_saved_run(tmp_path):
    path = written(tmp_path, "linear.py", TASK + DATA)
    saved = tmp_path / "run.yaml"
    saved.write_text(yaml.safe_dump(load_experiment(path).model_dump(mode="json")), encoding="utf-8")

    for config in (path, saved):
        work = load_experiment(config, ["workload.cost=vit-b16-cifar10"]).workload
        assert (work.cost, work.network) == ("vit-b16-cifar10", None)


def test_another_task_in_a_saved_run_is_priced_anew(tmp_path):
    saved = tmp_path / "run.yaml"
    first = load_experiment(written(tmp_path, "linear.py", TASK + DATA))
    saved.write_text(yaml.safe_dump(first.model_dump(mode="json")), encoding="utf-8")
    (tmp_path / "other.py").write_text(TASK.replace("pixels,", "pixels, 2), nn.Linear(2,") + DATA, encoding="utf-8")

    assert load_experiment(saved) == first
    other = load_experiment(saved, ["workload.task=other.py"])
    assert (other.workload.cost, count_priced_bytes(other.fleet[0], other.workload)) == ("other.py", 4 * (130 + 30))


def test_a_network_that_no_rule_prices_asks_for_a_cost(tmp_path):
    text = TASK.replace("nn.Flatten(),", "nn.Flatten(), Odd(),") + DATA
    text = text.replace(
        "def model", "class Odd(nn.Module):\n    def forward(self, x):\n        return x.logcumsumexp(1)\n\ndef model"
    )
    path = written(tmp_path, "linear.py", text)

    with pytest.raises(BadInput, match=r"no rule counts .*logcumsumexp.*a workload.cost to price it as: resnet18-im"):
        load_experiment(path)
    assert load_experiment(path, ["workload.cost=resnet18-imagenet"]).workload.network is None


def test_a_forward_that_fails_is_told_with_its_own_error_and_place(tmp_path):
    text = TASK.replace("nn.Flatten(),", "nn.Flatten(), Odd(),") + DATA
    text = text.replace(
        "def model", "class Odd(nn.Module):\n    def forward(self, x):\n        return y * 2\n\ndef model"
    )
    line = text[: text.index("return y")].count("\n") + 1

    with pytest.raises(BadInput) as raised:
        load_experiment(written(tmp_path, "linear.py", text))
    assert f"NameError: name 'y' is not defined (linear.py, line {line})" in str(raised.value)
    assert "cost" not in str(raised.value)


def test_a_fleet_whose_data_is_elsewhere_starts_from_the_default_cost(tmp_path):
    work = load_experiment(written(tmp_path, "linear.py"), ["backend=fleet"]).workload
    assert (work.cost, work.network) == ("resnet18-imagenet", None)
