"""A run of the task ``none`` is a run without accuracy: rows, summary, report, comparison and sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.backends import launcher
from experiments.cli.run_experiment import _list_start_notes
from experiments.report.run.sweep_report import sweep_table
from experiments.spec.experiment_checks import check_experiment
from experiments.spec.experiment_loader import load_experiment
from experiments.sweeps.point_plan import plan_sweep
from experiments.sweeps.sweep_driver import run_sweep
from fedge.errors import BadInput
from fedge.experiment import DataSpec, Experiment, FleetEntry, WorkloadSpec
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.workloads import NULL_TASK

YAML = """
name: untrained
rounds: 2
backend: local
policy: {policy}
fleet: [{{device: nano, count: 2}}]
workload: {{task: none, local_epochs: 1, memory: {{margin: 0.05}}}}
data: {{samples: 320, partition: iid}}
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Path]:
    def run(policy: str = "balanced") -> Path:
        config = tmp_path / f"{policy}.yaml"
        config.write_text(YAML.format(policy=policy), encoding="utf-8")
        experiment = load_experiment(config)
        launcher.check_runnable(experiment)
        launcher.start_run(experiment, tmp_path / policy, lambda: None)
        return tmp_path / policy

    return run


def test_a_run_that_trains_nothing_has_every_row_but_no_accuracy(start):
    folder = start()
    rounds, clients = read_rows(folder, RoundRow), read_rows(folder, ClientRow)

    assert [(row.loss, row.accuracy, row.done) for row in rounds] == [(None, None, 2)] * 2
    assert [(row.steps, row.loss, row.accuracy) for row in clients] == [(10, None, None)] * 4
    assert all(row.energy_j > 0 and row.oracle_energy_j is not None for row in rounds)
    assert min(row.down_s for row in clients) > 46.7 * 8 / 50, "resnet18 is transferred"
    page = (folder / "report.html").read_text("utf-8")
    assert "nothing (task <code>none</code>)" in page
    assert "Final accuracy" not in page
    assert "Test accuracy" not in page


def test_the_table_of_a_sweep_leaves_out_figures_that_no_run_has(tmp_path):
    (tmp_path / "base.yaml").write_text(YAML.format(policy="balanced"), encoding="utf-8")
    sweep = "experiment: base.yaml\nseeds: 1\ngrid: {policy: [balanced, maxn]}\n"
    (tmp_path / "sweep.yaml").write_text(sweep, "utf-8")

    summary = run_sweep(plan_sweep(tmp_path / "sweep.yaml"), tmp_path / "out", 1)

    figures = {row[0].content for row in sweep_table(summary).rows}
    assert summary.failures == {}
    assert "energy (J)" in figures
    assert not any("accuracy" in figure for figure in figures)


def untrained(**changes: object) -> Experiment:
    given = {"fleet": (FleetEntry(device="nano"),), "workload": WorkloadSpec(task=NULL_TASK), "backend": "local"}
    return Experiment.model_validate(given | changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"backend": "fleet"}, "workload.task: got 'none'; a task that boards can train"),
        ({"workload": WorkloadSpec(), "data": DataSpec(samples=5)}, "data.samples: got 5; nothing: digits-cnn has"),
        ({"data": DataSpec(samples=1), "fleet": (FleetEntry(device="nano", count=2),)}, "fleet: got 2 clients"),
    ],
)
def test_what_does_not_fit_is_refused(changes, told, monkeypatch):
    monkeypatch.setattr("experiments.fleet.superlink_check.check_superlink", lambda _: None)
    with pytest.raises(BadInput) as refused:
        check_experiment(untrained(**changes))

    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    ("task", "count", "advised"), [("none", 300, True), ("none", 150, False), ("digits-cnn", 2000, False)]
)
def test_a_large_untrained_fleet_is_pointed_to_the_column_engine(task, count, advised):
    experiment = untrained(fleet=(FleetEntry(device="nano", count=count),), workload=WorkloadSpec(task=task))

    told = " ".join(_list_start_notes(experiment, Path("big.yaml")))

    assert ("fedge study fleet big.yaml --engine columns --rounds 10" in told) == advised
