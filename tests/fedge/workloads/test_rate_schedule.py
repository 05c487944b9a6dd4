"""Learning rates over the rounds: torch's schedulers, stepped once a round and used by the clients."""

import math
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="schedules are torch's")

from contracts.free_tasks import TABLE

from experiments.backends.local_backend import run_local
from experiments.spec.experiment_checks import check_experiment
from experiments.spec.experiment_loader import load_experiment
from fedge.costs.layered_work import build_workload
from fedge.errors import BadInput
from fedge.experiment import ScheduleSpec, WorkloadSpec
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import RoundRow
from fedge.workloads.rate_schedule import check_schedule, find_rate

EXPERIMENT = """
name: schedule
rounds: 3
backend: local
fleet: [{device: nano, count: 2}]
workload: {task: task.py, batch_size: 8, local_epochs: 1, learning_rate: 0.01, SETTING}
data: {partition: iid}
"""


def work_with(name: str, **options: object) -> WorkloadSpec:
    return WorkloadSpec(learning_rate=0.1, schedule=ScheduleSpec.model_validate({"name": name, "options": options}))


def test_a_round_has_the_rate_of_torchs_scheduler():
    cosine, steps = work_with("CosineAnnealingLR", T_max=10, eta_min=0.01), work_with("MultiStepLR", milestones=[2, 4])

    for number in range(1, 12):
        expected = 0.01 + 0.045 * (1 + math.cos(math.pi * (number - 1) / 10))
        assert find_rate(cosine, number) == pytest.approx(expected)
    assert [find_rate(steps, number) for number in (1, 2, 3, 4, 5)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])
    assert find_rate(WorkloadSpec(learning_rate=0.2), 7) == 0.2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Cosine", {}, "name: got 'Cosine'.*CosineAnnealingLR"),
        ("StepLR", {"gamma": 0.5}, "step_size"),
        ("LambdaLR", {"lr_lambda": "half"}, "needs numbers alone"),
        ("ReduceLROnPlateau", {}, "metrics"),
        ("StepLR", {"step_size": 1, "gamma": -1}, "got a learning rate of -0.1; a schedule that stays at 0"),
        ("StepLR", {"step_size": 1, "gamma": 1e200}, "got a learning rate of inf; a schedule that stays at 0"),
        ("StepLR", {"step_size": 1, "gamma": math.nan}, "got a learning rate of nan; a schedule that stays at 0"),
        ("OneCycleLR", {"max_lr": 0.1, "total_steps": 2}, "needs numbers alone.*total steps"),
    ],
)
def test_a_schedule_that_does_not_work_is_one_clear_line(name, options, message):
    with pytest.raises(BadInput, match=message) as caught:
        check_schedule(work_with(name, **options), 4)
    assert "\n" not in str(caught.value)


def test_the_rates_of_a_run_take_one_step_of_the_scheduler_each(monkeypatch):
    torch, steps = pytest.importorskip("torch"), []

    class Counted(torch.optim.lr_scheduler.StepLR):
        def step(self, epoch: int | None = None) -> None:
            steps.append(epoch)
            super().step(epoch)

    monkeypatch.setattr(torch.optim.lr_scheduler, "Counted", Counted, raising=False)
    work = work_with("Counted", step_size=20, gamma=0.5)

    check_schedule(work, 50)

    rates = [find_rate(work, number) for number in range(1, 51)]
    assert rates == pytest.approx([0.1] * 20 + [0.05] * 20 + [0.025] * 10)
    assert len(steps) == 50  # the first by the scheduler itself


def run_with(folder: Path, setting: str) -> list[RoundRow]:
    folder.mkdir()
    (folder / "task.py").write_text(TABLE, encoding="utf-8")
    (folder / "exp.yaml").write_text(EXPERIMENT.replace("SETTING", setting), encoding="utf-8")
    experiment = load_experiment(folder / "exp.yaml")
    check_experiment(experiment)
    run_local(experiment, folder, lambda: None)
    return read_rows(folder, RoundRow)


def test_clients_train_at_the_rounds_rate(tmp_path):
    rows = run_with(tmp_path / "a", "schedule: {name: StepLR, options: {step_size: 2, gamma: 0.0}}")

    assert rows[1].loss < rows[0].loss
    assert rows[2].loss == rows[1].loss


def test_half_precision_reaches_the_clients_and_the_cost_of_their_steps(tmp_path):
    whole, half = (run_with(tmp_path / name, f"mixed_precision: {name}") for name in ("false", "true"))
    costs = [
        build_workload(experiment.fleet[0], experiment.workload)
        for experiment in (load_experiment(tmp_path / name / "exp.yaml") for name in ("false", "true"))
    ]

    assert half[-1].loss != whole[-1].loss
    assert half[-1].loss < half[0].loss
    assert [work.layers is not None and work.layers.mixed for work in costs] == [False, True]
