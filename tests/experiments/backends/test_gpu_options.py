"""``backend_options.num_gpus`` trains emulated clients on CUDA, labels the run, and is refused where that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from experiments.backends import launcher, sim_backend
from experiments.backends.local_backend import count_jobs
from experiments.cli.run_experiment import _list_notes
from experiments.spec.resource_checks import check_gpus
from fedge import workloads
from fedge.errors import BadInput
from fedge.experiment import BackendOptionsSpec, Experiment, FleetEntry, WorkloadSpec
from fedge.protocols import LearningTask
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import NOT_REPRODUCIBLE, EventRow


def build(num_gpus: float = 0.5, task: str = "digits-cnn", **changes: Any) -> Experiment:
    return Experiment(
        backend=changes.pop("backend", "local"),
        rounds=1,
        fleet=(FleetEntry(device="nano", count=4),),
        workload=WorkloadSpec(task=task, local_epochs=0.1),
        backend_options=BackendOptionsSpec(num_gpus=num_gpus),
        **changes,
    )


@pytest.mark.parametrize(
    ("experiment", "elsewhere", "told"),
    [
        (build(task="none"), False, "0: nothing is trained"),
        (build(task="mine:Task"), True, "0: mine:Task chooses its own device"),
        (build(), False, "0, or a machine with CUDA: torch "),
    ],
)
def test_gpus_that_clients_cannot_use_are_refused(experiment, elsewhere, told, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput) as refused:
        check_gpus(experiment, elsewhere)

    assert str(refused.value).startswith(f"backend_options.num_gpus: got 0.5; {told}")
    assert "\n" not in str(refused.value)


def test_gpus_of_a_cluster_are_not_looked_for_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    check_gpus(build(backend="sim"), elsewhere=True)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    launcher.check_runnable(build(backend="sim"))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(BadInput, match="finds no CUDA device here"):
        launcher.check_runnable(build(backend="sim"))


def test_a_run_on_cuda_trains_there_and_is_labelled(tmp_path, monkeypatch):
    """The device is replaced by the CPU when the task is built: this machine may have no other."""
    devices = list[str]()
    load_task = workloads.load_task

    def load_on_cpu(*given: Any, device: str = "cpu", **more: Any) -> LearningTask:
        devices.append(device)
        return load_task(*given, **more)

    monkeypatch.setattr(workloads, "load_task", load_on_cpu)
    workloads._cached_task.cache_clear()
    summary = launcher.start_run(build(), tmp_path / "run", lambda: None)
    workloads._cached_task.cache_clear()

    assert devices == ["cpu", "cuda"], "tests on the server, training of the clients"
    assert summary["bit_reproducible"] is False
    kinds = {row.kind: row.message for row in read_rows(tmp_path / "run", EventRow)}
    assert "not the same bits" in kinds[NOT_REPRODUCIBLE]
    assert "not bit-reproducible" in (tmp_path / "run/report.html").read_text("utf-8")
    assert "note: the clients trained on CUDA: another run gives other bits" in list(_list_notes(summary))


def test_flower_reserves_the_share_of_a_device_for_each_process():
    env = {"RAY_ADDRESS": "local"}

    assert "client-resources-num-gpus=0.25 " in sim_backend.federation_config(8, env, 0.25)
    assert "client-resources-num-gpus=0.0 " in sim_backend.federation_config(8, env)


@pytest.mark.parametrize(
    ("num_gpus", "jobs", "expected"), [(1.0, 8, 1), (0.5, 8, 2), (0.3, 8, 3), (0.0, 8, 4), (0.5, 1, 1)]
)
def test_no_more_processes_share_the_device_than_it_has_room_for(num_gpus, jobs, expected):
    assert count_jobs(build(num_gpus, jobs=jobs)) == expected
