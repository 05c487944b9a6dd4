"""``fedge knowledge`` lists, shows, imports, exports and forgets; files that fit nowhere are one line."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from contracts.launching import SMALL, Launcher

from experiments.backends.run_knowledge import make_relative, recall_for_run
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.devices.board_kinds import load_references
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, ServingSpec, list_boards
from fedge.knowledge.recall import read_run_knowledge

WORK = "resnet18-imagenet"
NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Launcher:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDGE_KNOWLEDGE", raising=False)
    (tmp_path / "exp.yaml").write_text(SMALL, encoding="utf-8")
    return Launcher(monkeypatch, capsys)


@pytest.fixture
def table(fedge: Launcher) -> Path:
    """The profile of an emulated board: nano-1 of the experiment's seed."""
    outcome = fedge(
        "profile", "--board", "emulated:nano", "--workload", WORK, "--modes", "24", "--seed", "3", "--out", "nano.csv"
    )
    assert outcome.code == 0, outcome.err
    return Path("nano.csv").resolve()


def test_a_profile_is_imported_with_its_label_and_its_board(fedge, table):
    assert "24 modes, estimated" in fedge("knowledge", "import", str(table), "--knowledge", "k").out

    (entry,) = json.loads(fedge("knowledge", "list", "--knowledge", "k", "--json").out)
    assert (entry["form"], entry["device"], entry["workload"], entry["batch_size"]) == ("table", "nano", WORK, 16)
    assert (entry["label"], entry["boards"]) == ("estimated", ["nano-1@seed-3"])
    assert json.loads(fedge("knowledge", "show", "table", "--knowledge", "k", "--json").out) == entry
    assert len(entry["errors"]) == 24
    assert "errors      time 0." in fedge("knowledge", "show", "table", "--knowledge", "k").out
    assert fedge("knowledge", "list", "--knowledge", "k", "--board", "tx2").out.startswith("nothing is known yet")


@pytest.mark.parametrize(("name", "got"), [("gone", "no such folder"), ("empty", "a folder without run.yaml")])
def test_what_cannot_be_imported_is_told_with_all_that_can(fedge, name, got):
    Path("empty").mkdir()

    outcome = fedge("knowledge", "import", name, "--knowledge", "k")

    assert outcome.code == 2
    assert f"{name}: got {got}; the folder of a run or of knowledge, or the path of a table (.csv)" in outcome.message


def test_what_is_exported_is_there_and_what_is_forgotten_is_gone(fedge, table):
    fedge("knowledge", "import", str(table), "--knowledge", "k")
    assert fedge("knowledge", "export", "table", "--knowledge", "k", "--folder", "other").code == 0
    assert fedge("knowledge", "forget", "table", "--knowledge", "k").code == 0

    assert json.loads(fedge("knowledge", "list", "--knowledge", "k", "--json").out) == []
    assert len(json.loads(fedge("knowledge", "list", "--knowledge", "other", "--json").out)) == 1
    assert "imported" in fedge("knowledge", "import", "other", "--knowledge", "k").out


def test_a_damaged_entry_is_named_and_the_command_goes_on(fedge, table):
    fedge("knowledge", "import", str(table), "--knowledge", "k")
    Path("k/entries/bad.json").write_text("{", encoding="utf-8")
    outcome = fedge("knowledge", "list", "--knowledge", "k")

    assert outcome.code == 0
    assert "bad.json: a damaged description" in outcome.err
    assert "nano" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "nothing.csv"), "nothing.csv: got no such file"),
        (("import", "exp.yaml"), "exp.yaml"),
        (("show", "x"), "x, no such entry"),
        (("forget", "x"), "x, no such entry"),
    ],
)
def test_what_does_not_fit_is_one_line(fedge, arguments, message):
    outcome = fedge("knowledge", *arguments, "--knowledge", "k")

    assert outcome.code == 2
    assert message in outcome.message


def test_a_boards_own_profile_is_recalled_as_its_own_and_learnt_as_a_reference(table, tmp_path):
    experiment = load_experiment(Path("exp.yaml"), [f"fleet.0.references=[{table}]"])
    experiment_checks.check_experiment(experiment)
    recalled = recall_for_run(experiment, tmp_path / "run", name="a", now=NOW)

    known = read_run_knowledge(tmp_path / "run")
    assert {board: len(rows) for board, rows in known.own.items()} == {"nano-1": 24}
    assert recalled.fleet[0].references == (str(table),)
    assert len(load_references(list_boards(recalled)[0], recalled.workload)[0].modes) == 24


def test_a_start_recalls_nothing_of_one_that_was_killed_in_its_folder(table, tmp_path):
    recall_for_run(load_experiment(Path("exp.yaml"), [f"fleet.0.references=[{table}]"]), tmp_path, name="a", now=NOW)
    assert read_run_knowledge(tmp_path).own

    recall_for_run(load_experiment(Path("exp.yaml"), ["knowledge=none"]), tmp_path, name="b", now=NOW)
    assert not read_run_knowledge(tmp_path).own


def test_a_table_and_the_model_that_was_fitted_to_it_are_one_evidence(fedge, table, tmp_path):
    what = ("--board", "nano", "--workload", WORK)
    assert fedge("predict", "fit", str(table), *what, "--out", "nano.safetensors").code == 0
    for file in (str(table), "nano.safetensors"):
        assert fedge("knowledge", "import", file, "--knowledge", "k").code == 0

    experiment = load_experiment(Path("exp.yaml"), ["knowledge=k"])
    recall_for_run(experiment, tmp_path / "run", name="a", now=NOW)

    known = read_run_knowledge(tmp_path / "run")
    assert {board: len(rows) for board, rows in known.own.items()} == {"nano-1": 24}
    assert known.peers == ()
    assert [note.partition(" holds ")[0][:6] for note in known.notes] == ["model-"]


def test_a_file_named_for_two_fleet_entries_is_of_either_as_it_works(table, tmp_path):
    experiment = load_experiment(Path("exp.yaml"), ["seed=4"])
    plain = FleetEntry(device="nano", references=(str(table),))
    service = ServingSpec(cost="resnet50-imagenet", rate_hz=5, latency_s=1)
    busy = FleetEntry(device="nano", name="busy", references=(str(table),), serving=service)
    recall_for_run(experiment.model_copy(update={"fleet": (plain, busy)}), tmp_path / "run", name="a", now=NOW)

    known = read_run_knowledge(tmp_path / "run")
    assert [(peer.like, len(peer.measurements)) for peer in known.peers] == [("nano-1", 24), ("busy-1", 24)]


def test_a_model_file_of_the_workload_starts_a_run(fedge, table, tmp_path):
    made = fedge("predict", "fit", str(table), "--board", "nano", "--workload", WORK, "--out", "nano.safetensors")
    assert made.code == 0, made.err
    experiment = load_experiment(Path("exp.yaml"), ["fleet.0.references=[nano.safetensors]"])
    experiment_checks.check_experiment(experiment)
    recalled = recall_for_run(experiment, tmp_path / "run", name="a", now=NOW)

    assert [len(peer.measurements) for peer in read_run_knowledge(tmp_path / "run").peers] == [24]
    (copy,) = recalled.fleet[0].references
    assert copy.startswith(str(tmp_path / "run"))
    assert len(load_references(list_boards(recalled)[0], recalled.workload)[0].modes) == 24


def test_references_of_other_workloads_are_named_before_the_run(fedge, table):
    strange = table.with_name("resnet18-imagnet.csv")
    strange.write_bytes(table.read_bytes())

    def load(*overrides: str) -> Experiment:
        return load_experiment(Path("exp.yaml"), overrides)

    both = load(f"fleet.0.references=[{table},{strange}]")
    experiment_checks.check_experiment(both)
    (line,) = experiment_checks.describe_other_references(both)
    assert strange.name in line
    assert "fedge knows no such workload" in line
    outcome = fedge("run", "exp.yaml", "--dry-run", "--set", f"fleet.0.references=[{strange}]")
    assert strange.name in outcome.out
    experiment_checks.check_experiment(load(f"fleet.0.references=[{table},{strange}]", "predictor=physical"))
    with pytest.raises(BadInput, match=r"fleet\[0\].references: got resnet18-imagnet, .*; a file of resnet18-imagenet"):
        experiment_checks.check_experiment(load(f"fleet.0.references=[{strange}]", "predictor=physical"))


def test_a_table_of_inference_steps_is_no_reference(table, tmp_path):
    steps = tmp_path / "infer" / table.name
    steps.parent.mkdir()
    steps.write_bytes(table.read_bytes())

    with pytest.raises(BadInput, match=r"fleet\[0\].references\[0\].*a table of inference steps"):
        experiment_checks.check_experiment(load_experiment(Path("exp.yaml"), [f"fleet.0.references=[{steps}]"]))


def test_a_small_model_of_another_workload_is_refused_in_one_line(fedge):
    fedge("predict", "fit", "--board", "nano", "--workload", "vit-b16-cifar10", "--out", "vit.safetensors")
    experiment = load_experiment(Path("exp.yaml"), ["fleet.0.references=[vit.safetensors]"])

    with pytest.raises(BadInput, match=r"fleet\[0\].references\[0\].*10 modes of another workload.*at least 20"):
        experiment_checks.check_experiment(experiment)


def test_a_model_of_another_kind_of_board_is_refused(fedge):
    fedge("predict", "fit", "--board", "tx2", "--workload", WORK, "--out", "tx2.safetensors")
    experiment = load_experiment(Path("exp.yaml"), ["fleet.0.references=[tx2.safetensors]"])

    with pytest.raises(BadInput, match="is it this board's table"):
        experiment_checks.check_experiment(experiment)


def test_a_calibration_goes_into_the_knowledge_and_is_listed(fedge, table, monkeypatch, tmp_path):
    arguments = ("calibrate", str(table), "--board", "nano", "--workload", "our-net", "--to-knowledge")
    assert "--to-knowledge: got no FEDGE_KNOWLEDGE" in fedge(*arguments).message

    monkeypatch.setenv("FEDGE_KNOWLEDGE", str(tmp_path / "k"))
    assert fedge(*arguments).code == 0
    (entry,) = json.loads(fedge("knowledge", "list", "--json").out)
    assert (entry["form"], entry["device"], entry["workload"], entry["rows"]) == ("calibration", "nano", "our-net", 24)
    assert (tmp_path / "k" / entry["file"]).name == "nano--our-net.yaml"


def test_two_calibrations_in_files_of_one_name_are_both_kept(fedge, table):
    for workload in ("our-net", "their-net"):
        arguments = ("calibrate", str(table), "--board", "nano", "--workload", workload, "--folder", workload)
        assert fedge(*arguments).code == 0
        Path(workload, f"nano--{workload}.yaml").rename(Path(workload, "net.yaml"))
    imported = fedge("knowledge", "import", "our-net/net.yaml", "their-net/net.yaml", "--knowledge", "k")

    assert imported.code == 0, imported.err
    assert sorted(path.name for path in Path("k/costs").iterdir()) == ["nano--our-net.yaml", "nano--their-net.yaml"]
    assert all(
        fedge("knowledge", "show", f"calibration-nano--{one}", "--knowledge", "k").code == 0
        for one in ("our-net", "their-net")
    )


def test_a_table_of_another_workload_is_a_reference_where_nothing_closer_is_known(fedge, table, tmp_path):
    fedge("knowledge", "import", str(table), "--knowledge", "k")
    overrides = ["workload.cost=vit-b16-cifar10", "workload.batch_size=16", "knowledge=k"]
    recalled = recall_for_run(load_experiment(Path("exp.yaml"), overrides), tmp_path / "run", name="a", now=NOW)
    same = recall_for_run(load_experiment(Path("exp.yaml"), ["knowledge=k"]), tmp_path / "same", name="a", now=NOW)

    (copy,) = recalled.fleet[0].references
    assert len(load_references(list_boards(recalled)[0], recalled.workload)[0].modes) == 24
    assert read_run_knowledge(tmp_path / "run").references == {}, "emulated boards read the file"
    assert (Path(copy).stem, recalled.fleet[1].references) == (WORK, ())
    assert [one.relation for one in read_run_knowledge(tmp_path / "run").origins["nano-1"]] == ["other workload"]
    assert same.fleet[0].references == (), "its own measurements are closer"


def test_a_real_board_gets_the_rows_of_another_workload_where_nothing_closer_is_known(fedge, table, tmp_path):
    measured = tmp_path / "nano" / "train" / "other-net.csv"
    measured.parent.mkdir(parents=True)
    measured.write_text(table.read_text().replace("estimated", "measured"))
    fedge("knowledge", "import", str(measured), "--knowledge", "k")
    experiment = load_experiment(Path("exp.yaml"), ["backend=fleet", "knowledge=k"])
    recalled = recall_for_run(experiment, tmp_path / "run", name="a", now=NOW)

    known = read_run_knowledge(tmp_path / "run")
    assert list(known.references) == ["nano-1"]
    (sent,) = known.references["nano-1"]
    assert (sent.workload, sent.label, len(sent.rows)) == ("other-net", "measured", 24)
    assert [one.relation for one in known.origins["nano-1"]] == ["other workload"]
    (copy,) = recalled.fleet[0].references
    assert Path(copy).is_relative_to(tmp_path / "run"), "for a run that is resumed"
    (stored,) = make_relative(recalled.fleet, tmp_path / "run")[0].references
    assert str(tmp_path / "run" / stored) == copy, "for a run that is fetched"
