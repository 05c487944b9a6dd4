"""What a client's knowledge must match: the board, what it works on, and what else it does meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedge.experiment import Experiment, FleetEntry, LoaderSpec, ServingSpec, WorkloadSpec, list_boards
from fedge.knowledge.evidence_files import find_kinds, identify_client
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


def test_a_fitted_loader_is_known_by_its_content_not_by_its_place() -> None:
    here, moved, other = (
        identify(FleetEntry(device="nano", loader=LoaderSpec(workers=2, model=model, sha256=sha256))).kind
        for model, sha256 in (("/a.json", "1f"), ("/moved/b.json", "1f"), ("/a.json", "2e"))
    )
    assert here == moved != other


def test_boards_of_one_device_one_truth_and_one_cost_are_of_one_kind() -> None:
    fleet = (
        FleetEntry(device="agx-orin", count=2),
        FleetEntry(device="agx-orin-64gb", name="shelf", ambient_c=40.0),
        FleetEntry(device="agx-orin", name="replayed", truth="table:/a.csv"),
        FleetEntry(device="nano"),
        FleetEntry(device="nano", name="heavy", cost="resnet50-tinyimagenet224"),
        FleetEntry(device="nano", name="named", cost=WorkloadSpec().cost),
        FleetEntry(device="nano", name="tables", count=2, truth="table:/{board}.csv"),
    )
    kinds = find_kinds(Experiment(fleet=fleet))

    assert kinds["agx-orin-1"] == kinds["agx-orin-2"] == kinds["shelf-1"]
    assert kinds["nano-1"] == kinds["named-1"]
    assert kinds["tables-1"] == kinds["tables-2"] != kinds["nano-1"]
    assert len({kinds["agx-orin-1"], kinds["replayed-1"], kinds["nano-1"], kinds["heavy-1"]}) == 4
