"""What a client's knowledge must match: the board, what it works on, and what else it does meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedge.experiment import Experiment, FleetEntry, LoaderSpec, ServingSpec, WorkloadSpec, list_boards
from fedge.knowledge.client_identity import identify_client
from fedge.knowledge.recall import ClientIdentity

SERVICE = ServingSpec(cost="resnet50-imagenet", rate_hz=5, latency_s=1)


def identify(entry: FleetEntry | None = None, **changes: object) -> ClientIdentity:
    experiment = Experiment(fleet=(entry or FleetEntry(device="nano"),), **changes)
    return identify_client(experiment, list_boards(experiment)[0])


def test_an_emulated_board_works_on_the_priced_workload_and_is_another_board_with_another_seed() -> None:
    found = identify(seed=5)

    assert (found.device, found.workload, found.batch_size) == ("nano", "resnet18-imagenet", 16)
    assert found.board == "nano-1@seed-5" != identify(seed=6).board
    assert found.kind == identify(seed=6).kind


def test_a_real_board_is_its_name_and_works_on_its_task_whatever_that_is_priced_as(tmp_path: Path) -> None:
    found = identify(backend="fleet", workload=WorkloadSpec(task="synthetic-cnn", batch_size=8))
    assert (found.board, found.workload, found.batch_size, found.conditions) == ("nano-1", "synthetic-cnn", 8, {})

    task = tmp_path / "mine.py"
    kinds = set()
    for source in ("a = 1", "a = 2"):
        task.write_text(source, encoding="utf-8")
        kinds.add(identify(backend="fleet", workload=WorkloadSpec(task=str(task))).kind)
    assert len(kinds) == 2, "another network of the same file name"


def test_an_alias_is_the_same_kind_of_board() -> None:
    assert identify(FleetEntry(device="agx-orin")).kind == identify(FleetEntry(device="agx-orin-64gb")).kind


@pytest.mark.parametrize(
    "entry",
    [
        FleetEntry(device="nano", serving=SERVICE),
        FleetEntry(device="nano", loader=LoaderSpec(workers=2)),
        FleetEntry(device="nano", cost="vit-b16-cifar10"),
        FleetEntry(device="nano", truth="table:/a.csv"),
        FleetEntry(device="tx2"),
    ],
)
def test_boards_that_do_something_else_are_of_another_kind(entry: FleetEntry) -> None:
    assert identify(entry).kind != identify().kind
