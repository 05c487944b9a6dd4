"""A run that tells TensorBoard as it goes, one that is told afterwards, and exporters that are wrong or fail."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contracts.launching import SMALL, Launcher

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")

FAILING = """\
class Failing:
    def __init__(self, experiment, folder):
        pass

    def append(self, rows):
        raise ConnectionError("nobody there")

    def close(self):
        pass
"""


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Launcher]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "exp.yaml").write_text(SMALL, encoding="utf-8")
    (tmp_path / "failing_exporter.py").write_text(FAILING, encoding="utf-8")
    yield Launcher(monkeypatch, capsys)
    sys.modules.pop("failing_exporter", None)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader: Any = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_told_while_it_goes_on_and_told_afterwards_are_the_same(fedge, tmp_path):
    fedge("run", "exp.yaml", "--folder", "run", "--set", "exporters=[tensorboard]", "--set", "rounds=2")

    exported = fedge("export", "run", "--to", "tensorboard", "--folder", "elsewhere")

    assert exported.code == 0, exported.err
    assert exported.out == "2 rounds exported to tensorboard\n"
    told = scalars(tmp_path / "run" / "tensorboard")
    rounds = read_rows(tmp_path / "run", RoundRow)
    assert told == scalars(tmp_path / "elsewhere")
    assert told["round/energy_j"] == [(row.round, pytest.approx(row.energy_j)) for row in rounds]


def test_a_run_with_an_exporter_that_fails_has_the_rows_of_one_without(fedge, tmp_path):
    fedge("run", "exp.yaml", "--folder", "without")
    own = ("--set", "plugins=[failing_exporter.py]", "--set", "exporters=['failing_exporter:Failing']")

    outcome = fedge("run", "exp.yaml", "--folder", "with", *own)

    assert outcome.code == 0, outcome.err
    for kind in (RoundRow, ClientRow):
        assert read_rows(tmp_path / "with", kind) == read_rows(tmp_path / "without", kind)
    [event] = [row for row in read_rows(tmp_path / "with", EventRow) if row.kind == "exporter"]
    assert "failing_exporter:Failing was ended, the run goes on: ConnectionError: nobody there" in event.message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[wandb]", "--set exporters[0].name: got 'wandb'; known: mlflow"),
        ("[3]", "--set exporters[0]: got 3; a name, or a mapping with some of name, options"),
        (
            "[{name: tensorboard, option: 3}]",
            "exporters[0].option: got an unknown key; did you mean options? known here: name, options",
        ),
        ("tensorboard", "--set exporters: got 'tensorboard'; a list"),
    ],
)
def test_a_wrong_exporter_is_one_line_before_anything_is_written(fedge, tmp_path, given, message):
    outcome = fedge("run", "exp.yaml", "--folder", "run", "--set", f"exporters={given}")

    assert outcome.code == 2
    assert message in outcome.message
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_exported_is_one_line(fedge, tmp_path):
    fedge("run", "exp.yaml", "--folder", "run", "--set", "plugins=[failing_exporter.py]")
    outcomes = {
        "known: mlflow": fedge("export", "run", "--to", "wandb"),
        "no such folder": fedge("export", "gone", "--to", "tensorboard"),
        "key=value": fedge("export", "run", "--to", "tensorboard", "--option", "out"),
        "a number, text, true or false": fedge("export", "run", "--to", "tensorboard", "--option", "out=[1]"),
    }
    failed = fedge("export", "run", "--to", "failing_exporter:Failing")

    for message, outcome in outcomes.items():
        assert outcome.code == 2
        assert message in outcome.message
    assert failed.code == 1
    assert failed.message == "fedge: failing_exporter:Failing did not take run: ConnectionError: nobody there"


@pytest.mark.slow
def test_mlflow_gets_the_rounds_and_at_the_end_the_report(fedge, tmp_path):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from server.exporters.mlflow import build_mlflow_client

    assert fedge("run", "exp.yaml", "--folder", "run", "--set", "exporters=[mlflow]").code == 0

    client = build_mlflow_client(f"sqlite:///{tmp_path / 'run' / 'mlflow' / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    [row] = read_rows(tmp_path / "run", RoundRow)
    kept = {path.path for path in client.list_artifacts(run.info.run_id)}
    assert run.data.metrics["round/energy_j"] == pytest.approx(row.energy_j)
    assert kept == {"experiment.yaml", "report.html", "summary.json"}
    assert run.info.status == "FINISHED"
