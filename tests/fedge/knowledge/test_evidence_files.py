"""Files as entries: what is emulated, whose measurements they are, and where they lie in the knowledge."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from contracts.boards import MAXN, coefficients, made_up_table, write_table

from fedge.knowledge.evidence_files import describe_file
from fedge.knowledge.knowledge_folder import KnowledgeEntry
from fedge.knowledge.model_file import BoardModel, ModelInfo, ModelOrigin, save_model
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
def test_a_table_without_its_record_and_its_model_are_emulated_by_their_label(
    tmp_path: Path, label: Label, emulated: bool
) -> None:
    table, model = describe_table(tmp_path / "net.csv", label), describe_model(tmp_path / "net.safetensors", label)

    assert table.conditions == model.conditions == ({"truth": "model"} if emulated else {})
    assert table.boards == ()


def test_a_table_whose_record_says_so_is_emulated_whatever_its_label(tmp_path: Path) -> None:
    entry = describe_table(tmp_path / "net.csv", record={"emulated": True, "board": "nano", "seed": 4})

    assert entry.conditions == {"truth": "model"}
    assert entry.boards == ("nano-1@seed-4",)


def test_a_table_of_a_recorded_folder_is_its_boards_own_and_no_models(tmp_path: Path) -> None:
    record = {"emulated": True, "recorded": True, "board": "nano", "seed": 4, "inventory_name": "shelf-1"}
    entry = describe_table(tmp_path / "net.csv", "estimated", record)

    assert (entry.conditions, entry.boards, entry.label) == ({"truth": "recorded"}, ("shelf-1",), "estimated")


@pytest.mark.parametrize("date", ["2024-03-01T10:00:00Z", "2024-3-1T10:0:0Z", None, "2024-99-01T10:00:00Z", 7])
def test_a_table_is_as_old_as_its_record_says_or_else_as_its_file(tmp_path: Path, date: object) -> None:
    path = tmp_path / "net.csv"
    write_table(path)
    path.with_name("net.csv.json").write_text(json.dumps({"date": date} if date else {}), encoding="utf-8")
    os.utime(path, (1_700_000_000, 1_700_000_000))

    assert describe_file(path).date == (
        "2024-03-01T10:00:00Z" if str(date).startswith(("2024-03", "2024-3")) else "2023-11-14T22:13:20Z"
    )
