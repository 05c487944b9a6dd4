"""Files as entries: what is emulated, whose measurements they are, and where they lie in the knowledge."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from contracts.boards import MAXN, coefficients, made_up_table, write_table

from fedge.devices.tables.mode_table import read_mode_table
from fedge.experiment import Experiment, FleetEntry, LoaderSpec, ServingSpec, WorkloadSpec, list_boards
from fedge.knowledge.evidence_files import describe_file, find_kinds, identify_client, read_evidence
from fedge.knowledge.knowledge_folder import KnowledgeEntry
from fedge.knowledge.model_file import BoardModel, ModelInfo, ModelOrigin, save_model
from fedge.knowledge.recall import ClientIdentity
from fedge.physics.model_fit import THROTTLED_SD, UNSURE_SE_LOG
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.types import Label, Measurement


def describe_model(path: Path, label: Label) -> KnowledgeEntry:
    table = made_up_table(every=100)
    columns = zip(table.modes, table.step_s.tolist(), table.power_w.tolist(), strict=True)
    rows = tuple(Measurement(mode, 40, step_s, power_w) for mode, step_s, power_w in columns)
    about = ModelInfo("physical", "board", "net", 16, ModelOrigin(label, "net.csv", 7, "a" * 64), "the table's modes")
    save_model(path, BoardModel(about, rows, table.modes, PriorKnowledge(MAXN, (coefficients(),), (), 1.0)))
    return describe_file(path)


def describe_table(path: Path, label: Label = "measured", record: object = None) -> KnowledgeEntry:
    write_table(path, label=label)
    if record is not None:
        path.with_name(f"{path.name}.json").write_text(json.dumps(record), encoding="utf-8")
    return describe_file(path)


@pytest.mark.parametrize(
    ("label", "emulated"), [("measured", False), ("unknown", False), ("calibrated", True), ("estimated", True)]
)
def test_a_table_without_its_record_and_its_model_are_emulated_by_their_label(tmp_path, label, emulated):
    table, model = describe_table(tmp_path / "net.csv", label), describe_model(tmp_path / "net.safetensors", label)

    assert table.conditions == model.conditions == ({"truth": "model"} if emulated else {})
    assert table.boards == ()


def test_a_table_whose_record_says_so_is_emulated_whatever_its_label(tmp_path):
    entry = describe_table(tmp_path / "net.csv", record={"emulated": True, "board": "nano", "seed": 4})

    assert entry.conditions == {"truth": "model"}
    assert entry.boards == ("nano-1@seed-4",)


def test_a_table_of_a_recorded_folder_is_its_boards_own_and_no_models(tmp_path):
    record = {"emulated": True, "recorded": True, "board": "nano", "seed": 4, "inventory_name": "shelf-1"}
    entry = describe_table(tmp_path / "net.csv", "estimated", record)

    assert (entry.conditions, entry.boards, entry.label) == ({"truth": "recorded"}, ("shelf-1",), "estimated")


def test_the_rows_of_a_profile_bring_their_errors_and_those_that_did_not_settle_wide_ones(tmp_path):
    path = write_table(tmp_path / "net.csv", rows=slice(0, 4))
    table = read_mode_table(path)
    common = {"settled": True, "throttled": False, "time_se_log": 0.004, "power_se_log": 0.007}
    rows = [
        {**dataclasses.asdict(mode), **common, **own}
        for mode, own in zip(
            table.modes,
            [{}, {"settled": False}, {"settled": False, "time_se_log": 0.3, "power_se_log": None}, {"throttled": True}],
            strict=True,
        )
    ]
    record = path.with_name("net.csv.json")

    def read() -> list[tuple[float, float]]:
        measured = read_evidence(tmp_path, dataclasses.replace(describe_file(path), file="net.csv"))[0].measurements
        return [(one.time_se_log, one.power_se_log) for one in measured]

    record.write_text(json.dumps({"modes": rows[::-1]}), encoding="utf-8")
    wide = UNSURE_SE_LOG
    assert read() == [(0.004, 0.007), (wide, wide), (0.3, wide), (THROTTLED_SD, THROTTLED_SD)]
    record.write_text(json.dumps({"modes": rows[1:]}), encoding="utf-8")
    assert read() == [(0.0, 0.0)] * 4


@pytest.mark.parametrize("date", ["2024-03-01T10:00:00Z", "2024-3-1T10:0:0Z", None, "2024-99-01T10:00:00Z", 7])
def test_a_table_is_as_old_as_its_record_says_or_else_as_its_file(tmp_path, date):
    path = tmp_path / "net.csv"
    write_table(path)
    path.with_name("net.csv.json").write_text(json.dumps({"date": date} if date else {}), encoding="utf-8")
    os.utime(path, (1_700_000_000, 1_700_000_000))

    assert describe_file(path).date == (
        "2024-03-01T10:00:00Z" if str(date).startswith(("2024-03", "2024-3")) else "2023-11-14T22:13:20Z"
    )


SERVICE = ServingSpec(cost="resnet50-imagenet", rate_hz=5, latency_s=1)


def identify(entry: FleetEntry | None = None, **changes: object) -> ClientIdentity:
    experiment = Experiment(fleet=(entry or FleetEntry(device="nano"),), **changes)
    return identify_client(experiment, list_boards(experiment)[0])


def test_an_emulated_board_works_on_the_priced_workload_and_is_another_board_with_another_seed():
    found = identify(seed=5)

    assert (found.device, found.workload, found.batch_size) == ("nano", "resnet18-imagenet", 16)
    assert found.board == "nano-1@seed-5" != identify(seed=6).board
    assert found.kind == identify(seed=6).kind


def test_a_real_board_is_its_name_and_works_on_its_task_whatever_that_is_priced_as(tmp_path):
    found = identify(backend="fleet", workload=WorkloadSpec(task="synthetic-cnn", batch_size=8))
    assert (found.board, found.workload, found.batch_size, found.conditions) == ("nano-1", "synthetic-cnn", 8, {})

    task = tmp_path / "mine.py"
    kinds = set()
    for source in ("a = 1", "a = 2"):
        task.write_text(source, encoding="utf-8")
        kinds.add(identify(backend="fleet", workload=WorkloadSpec(task=str(task))).kind)
    assert len(kinds) == 2, "another network of the same file name"


def test_a_real_boards_steps_in_mixed_precision_are_of_another_kind():
    single, mixed = (
        identify(backend="fleet", workload=WorkloadSpec(task="synthetic-cnn", mixed_precision=mixed))
        for mixed in (False, True)
    )
    assert single.kind != mixed.kind


def test_an_alias_is_the_same_kind_of_board():
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
def test_boards_that_do_something_else_are_of_another_kind(entry):
    assert identify(entry).kind != identify().kind


def test_a_fitted_loader_is_known_by_its_content_not_by_its_place():
    here, moved, other = (
        identify(FleetEntry(device="nano", loader=LoaderSpec(workers=2, model=model, sha256=sha256))).kind
        for model, sha256 in (("/a.json", "1f"), ("/moved/b.json", "1f"), ("/a.json", "2e"))
    )
    assert here == moved != other


def test_boards_of_one_device_one_truth_and_one_cost_are_of_one_kind():
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
