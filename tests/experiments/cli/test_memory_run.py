"""The example of boards with little memory, run and reported: who lowered what, why, and that the fleet learns."""

import json
from pathlib import Path

import plotly.graph_objects as go
import pytest
from rich.console import Console

pytest.importorskip("torch", reason="boards really train")

from contracts.launching import run_here

from experiments.report.run import board_sections, run_summary
from experiments.report.run.live_terminal import print_run_summary
from experiments.report.run.loaded_runs import LoadedRun, load_run
from experiments.report.run.run_page import write_report, write_report_tables
from experiments.spec.experiment_loader import load_experiment
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow

# One process for all, so that the run that most of them look at is played once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("memory run")]

ENOUGH = ("fleet.1.memory_mb=8000", "fleet.2.memory_mb=8000")
SHORT = ("workload.local_epochs=1",)
"""Half of the example's work, which is as good to see what boards lower."""
POINTS = 0.05
"""How much less accurate the fleet with narrow clients may be."""


def played(root: Path, out: Path, *settings: str) -> Path:
    words = [part for one in settings for part in ("--set", one)]
    assert called("run", root / "experiments/configs/memory.yaml", "--folder", out, *words) == 0
    return out


def called(*words: str | Path) -> int:
    """The command's exit code."""
    with pytest.MonkeyPatch.context() as patch:
        return run_here(patch, *words)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> LoadedRun:
    return load_run(played(project_root, tmp_path_factory.mktemp("memory") / "run", *SHORT))


def scales(rows: list[ClientRow]) -> set[tuple[int | None, float | None]]:
    return {(row.batch_size, row.width) for row in rows if row.status == "done"}


def test_boards_with_little_memory_train_smaller_and_the_others_as_asked(run):
    by_kind = {
        kind: scales([row for row in run.clients if row.board.startswith(kind)])
        for kind in ("agx-orin-64gb", "shared", "nano")
    }
    assert by_kind["agx-orin-64gb"] == {(8, 1.0)}
    assert (4, 1.0) in by_kind["shared"]
    assert any(width is not None and width < 1.0 for _, width in by_kind["nano"])
    for row in run.clients:
        if row.status == "done":
            assert row.memory_mb is not None
            assert row.memory_limit_mb is not None
            assert row.memory_mb <= row.memory_limit_mb


@pytest.mark.long
def test_it_learns_nearly_as_well_as_a_fleet_with_memory_enough(run, tmp_path, project_root):
    full = load_run(played(project_root, tmp_path / "full", *SHORT, *ENOUGH))
    assert {row.width for row in full.clients} == {1.0}
    assert run.summary["final_accuracy"] > full.summary["final_accuracy"] - POINTS
    assert "lowered" not in full.summary
    assert list(board_sections.build_memory_sections(full)) == []


def test_the_summary_and_the_yaml_say_what_was_lowered_and_the_yaml_still_runs(run):
    lowered = run.summary["lowered"]
    assert any("batch 8 -> 4" in told["why"] and "MB allowed" in told["why"] for told in lowered.values())
    text = (run.folder / "run.yaml").read_text(encoding="utf-8")
    for board, told in lowered.items():
        assert f"#   {board}, round {told['round']}: {told['why']}" in text
    assert load_experiment(run.folder / "run.yaml") == run.experiment
    run_summary.write_memory_notes(run.folder, run.summary)
    assert (run.folder / "run.yaml").read_text(encoding="utf-8") == text
    assert json.dumps(lowered)


def test_the_report_has_a_section_whose_chart_plotly_takes(run, tmp_path):
    (section,) = board_sections.build_memory_sections(run)
    (chart,) = section.charts
    go.Figure(chart.data, chart.layout)
    assert len({trace["name"] for trace in chart.data}) == len(run.summary["lowered"])
    write_report([run.folder], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h2>Memory</h2>" in page
    assert "batch 8 -&gt; 4" in page
    assert tmp_path / "tables/memory.csv" in write_report_tables([run.folder], tmp_path / "tables")


@pytest.mark.parametrize(
    "settings",
    [
        ("strategy.name=FedAsync", "rounds=6"),
        pytest.param(("late.action=partial", "policy.name=maxn", "late.grace=0"), marks=pytest.mark.long),
    ],
)
def test_narrow_clients_go_with_every_way_of_merging(tmp_path, project_root, settings):
    out = played(project_root, tmp_path / "run", "rounds=4", "workload.local_epochs=0.5", *settings)
    rows = read_rows(out, RoundRow)
    assert rows[-1].accuracy > 0.5
    assert any((row.width or 1.0) < 1.0 for row in read_rows(out, ClientRow))


def test_a_board_on_which_nothing_fits_is_left_out_and_the_others_savings_are_shown(tmp_path, project_root):
    settings = ("rounds=3", "workload.memory.guard=false", "fleet.1.memory_mb=8000", "fleet.2.count=1")
    run = load_run(played(project_root, tmp_path / "run", *SHORT, *settings))

    assert [(row.round, row.status) for row in run.clients if row.board == "nano-1"] == [(1, "failed")]
    assert list(run.summary["left_out"]) == ["nano-1"]
    assert len(run.compared_rounds) == 3
    assert run.summary["saving_vs_maxn_parked"] is not None
    assert max(row.deadline_s or 0.0 for row in run.rounds[1:]) < (run.rounds[0].deadline_s or 0.0)
    console = Console(width=200)
    with console.capture() as capture:
        print_run_summary(console, run.summary)
    assert "left out" in capture.get()
    assert "nano-1 after round 1: out of memory at batch 8" in capture.get()
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "not asked again, nothing fits into their memory: nano-1" in page
    assert "not asked again, and no deadline waits for it" in page
