"""``fedge study transfer`` prints, writes and documents one table of figures."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
from contracts.boards import write_table

from experiments.report.predictors.transfer_report import BLOCK_END, write_figures
from experiments.report.run.loaded_runs import Course
from experiments.report.tables import Table, text_cell, value_cell
from experiments.sweeps.sweep_summary import SweepSummary
from fedge.errors import BadInput
from fedge.studies.transfer_models import TransferRow


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    write_table(tmp_path / "tables" / "agx-orin" / "train" / "resnet18-imagenet.csv", rows=slice(None, None, 9))
    return tmp_path / "tables"


def test_rows_page_and_document_hold_the_same_figures(fedge, tables, tmp_path):
    out, page, document = tmp_path / "rows.json", tmp_path / "page.html", tmp_path / "page.md"
    document.write_text(f"# Page\n\n<!-- figures: transfer -->\nold\n{BLOCK_END}\n\nafter\n", encoding="utf-8")

    outcome = fedge(
        "study", "transfer", tables, "--part", "layers", "--jobs", "1", "--out", out, "--html", page, "--docs", document
    )  # fmt: skip

    assert outcome.code == 0, outcome.err
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert [tuple(row) for row in rows] == [tuple(field.name for field in fields(TransferRow))] * len(rows)
    assert {row["left_out"] for row in rows} == {"workload", "board", "family"}
    text = document.read_text(encoding="utf-8")
    assert "`fedge study transfer TABLES --part layers --modes 0,3,5,10,50 --seeds 3`, 20" in text
    assert text.startswith("# Page")
    assert text.endswith(f"{BLOCK_END}\n\nafter\n")
    assert "old" not in text
    error = next(row["error"] for row in rows if (row["left_out"], row["quantity"]) == ("workload", "time"))
    for shown in (outcome.out, text, page.read_text(encoding="utf-8")):
        assert f"{error:.1f}" in shown


def test_a_page_without_the_block_is_refused_before_anything_is_judged(fedge, tables, tmp_path):
    page, out = tmp_path / "page.md", tmp_path / "rows.json"
    page.write_text("# Page\n", encoding="utf-8")

    outcome = fedge("study", "transfer", tables, "--part", "layers", "--jobs", "1", "--out", out, "--docs", page)

    assert outcome.code == 2
    assert "a page with the lines" in " ".join(outcome.err.split())
    assert not out.exists()
    assert outcome.out == ""


def test_a_page_without_the_block_is_left_alone(tmp_path):
    table = Table("transfer", ("model", "error"), ((text_cell("a|b"), value_cell(1.25, ".1f")),))
    page = tmp_path / "page.md"
    page.write_text("# Page\n", encoding="utf-8")

    with pytest.raises(BadInput, match="a page with the lines <!-- figures: transfer -->"):
        write_figures(page, table, "command", "2026-01-01")
    with pytest.raises(BadInput, match="a Markdown page that can be read"):
        write_figures(tmp_path / "none.md", table, "command", "2026-01-01")

    assert page.read_text(encoding="utf-8") == "# Page\n"
    assert table.markdown == "|model|error|\n|---|---:|\n|a&#124;b|1.2|"


def test_the_table_of_an_arena_is_written_into_the_block_of_its_folder(fedge, tmp_path, monkeypatch):
    course = Course((0.5, 0.9, 0.9), (5.0, 10.0, 15.0), (1.0, 2.0, 3.0))
    summary = SweepSummary("swept", planned=1, packages=(), best=None, variants=())
    monkeypatch.setattr("experiments.sweeps.arena.read_courses", lambda folder: {"joint": {1: course}})
    monkeypatch.setattr("experiments.sweeps.sweep_summary.read_summary", lambda folder: summary)
    page = tmp_path / "page.md"
    blocks = [f"<!-- figures: arena {name} -->\nold {name}\n{BLOCK_END}\n" for name in ("other", "swept")]
    page.write_text("".join(blocks), encoding="utf-8")

    outcome = fedge("study", "arena", tmp_path / "swept", "--target-accuracy", "0.8", "--docs", page)

    assert outcome.code == 0, outcome.err
    text = page.read_text(encoding="utf-8")
    assert f"`fedge study arena {tmp_path / 'swept'} --target-accuracy 0.8`, 20" in text
    assert "|joint|1|" in text
    assert text.startswith(blocks[0])
    assert "old swept" not in text
