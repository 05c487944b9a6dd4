"""A run folder as the page reads it: while it grows, when it is finished, resumed or broken."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from contracts import board_runs
from contracts.board_runs import begin, finish, play

from fedge.telemetry import open_run
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import write_progress
from server.dashboard.http_server import _poll_source
from server.dashboard.run_source import QUIET_AFTER_S, RunSource


def sum_of(folder: Path, sql: str) -> float:
    with open_run(folder) as run:
        return float(run.query(sql).columns[0][0].as_py())


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    source = RunSource(tmp_path / "demo")
    before = source.view()
    assert (before.run.name, before.run.state, before.boards, before.problem) == ("demo", "waiting", (), "")
    tables = begin(tmp_path / "demo", 3)
    waiting = source.view()
    assert (waiting.run.state, [board.state for board in waiting.boards]) == ("waiting", ["unknown"] * 3)
    play(tables, 3, 1)
    view = source.view()
    assert (view.run.state, view.summary.round) == ("going", 1)
    assert {board.state for board in view.boards} == {"done"}


def test_every_figure_equals_the_store_after_every_round(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tables, source = begin(folder, 50), RunSource(folder)
    for number in range(1, 6):
        play(tables, 50, number, sampled=False)
        view = source.view()
        assert view.summary.energy_j == pytest.approx(sum_of(folder, "select sum(energy_j) from clients"))
        for board in view.boards[::7]:
            joules = sum_of(folder, f"select sum(energy_j) from clients where board = '{board.name}'")
            assert board.energy_j == pytest.approx(joules)
        assert sum(board.mark == "failed" for board in view.boards) == view.rounds[-1].failed
    assert view.summary.energy_j == pytest.approx(sum(board.energy_j for board in view.boards))


def test_what_the_boards_say_is_shown_until_their_row_comes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tables, source = begin(folder, 3), RunSource(folder)
    write_progress(folder / "live", BoardProgress("nano-1", time.time(), "training", round=1, steps=10, steps_done=4))
    board = source.view().boards[0]
    assert (board.state, board.progress) == ("training", 0.4)
    assert source.view().run.state == "going"
    play(tables, 3, 1)
    assert source.view().boards[0].state == "done"


def test_what_did_not_change_is_the_same_object(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(folder, 3, played=1)
    source = RunSource(folder)
    before = source.view()
    write_progress(folder / "live", BoardProgress("nano-1", time.time(), "training", round=2, steps=10, steps_done=4))
    after = source.view()
    assert [a is b for a, b in zip(before.boards, after.boards, strict=True)] == [False, True, True]


def test_a_resumed_run_that_plays_rounds_again_counts_them_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tables, source = begin(folder, 3, played=3), RunSource(folder)
    assert source.view().summary.round == 3
    tables.forget_after(1)
    play(tables, 3, 2)
    view = source.view()
    assert [point.round for point in view.rounds] == [1, 2]
    assert view.summary.energy_j == pytest.approx(sum(board.energy_j for board in view.boards))


def test_a_finished_run_tells_where_its_figures_come_from(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tables, source = begin(folder, 3, played=1), RunSource(folder)
    assert source.view().run.state == "going"
    finish(folder, 1)
    write_progress(folder / "live", BoardProgress("nano-1", time.time(), "training", round=2, steps=10))
    view = source.view()
    assert (view.run.state, view.boards[0].state, view.boards[0].seen_at_s) == ("finished", "done", None)
    assert [(origin.truth, origin.prior) for origin in view.origins] == [("measured", "estimated")]
    play(tables, 3, 2)
    assert source.view().run.state == "going", "it was resumed: its summary is an older one"


def test_a_run_that_says_nothing_for_long_is_quiet(tmp_path: Path) -> None:
    now_s = [time.time()]
    begin(tmp_path / "run", 3, played=1)
    source = RunSource(tmp_path / "run", now_s=lambda: now_s[0])
    assert source.view().run.state == "going"
    now_s[0] += QUIET_AFTER_S + 60
    assert source.view().run.state == "quiet"


def test_a_broken_folder_becomes_a_line_and_the_last_figures_stay(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(folder, 3, played=1)
    source = RunSource(folder)
    good = source.view()
    (folder / "run.yaml").write_text("{", encoding="utf-8")
    broken, event, _ = _poll_source(source, good, b"")
    assert "\n" not in broken.problem
    assert broken.problem
    assert broken.problem.encode()[:20] in (event or b"")
    assert broken.boards == good.boards
    (folder / "run.yaml").write_text("name: mended", encoding="utf-8")
    assert (source.view().problem, source.view().run.name) == ("", "mended")


def test_a_history_has_the_samples_of_the_store_and_the_rounds_of_the_board(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(folder, 50, played=41)
    source = RunSource(folder)
    source.view()
    found = source.history("nano-1")
    assert found is not None
    assert found.sampled
    joules = sum(span * power for span, power in zip(found.curve.span_s, found.curve.power_w, strict=True))
    stored = sum_of(folder, "select sum(power_w * span_s) from samples where board = 'nano-1'")
    assert joules == pytest.approx(stored)
    assert [row.round for row in found.rounds] == list(range(1, 42))
    assert [event.round for event in found.events] == [row.round for row in found.rounds if row.status == "failed"]
    assert found.events
    assert source.history("nobody") is None


def test_without_samples_the_curve_comes_from_the_reports(tmp_path: Path) -> None:
    tables, source = begin(tmp_path / "run", 3), RunSource(tmp_path / "run")
    play(tables, 3, 1, sampled=False)
    source.view()
    found = source.history("nano-1")
    assert found is not None
    assert not found.sampled
    assert len(found.curve.at_s) == 4


def test_a_name_with_quotes_is_only_a_name(tmp_path: Path) -> None:
    name = "a' or '1'='1"
    tables, source = begin(tmp_path / "run", 3), RunSource(tmp_path / "run")
    row = dataclasses.replace(board_runs.client(1, "nano-1", "nano", 0), board=name)
    tables.append([row, board_runs.client(1, "nano-2", "nano", 1), board_runs.round_of(1, [row])])
    source.view()
    found = source.history(name)
    assert found is not None
    assert len(found.rounds) == 1


def test_a_timeline_has_every_board_of_its_round(tmp_path: Path) -> None:
    begin(tmp_path / "run", 50, played=1)
    source = RunSource(tmp_path / "run")
    source.view()
    found = source.round(1)
    assert found is not None
    assert len(found.bars) == 50
    assert {bar.start_s for bar in found.bars} == {0.0}
    assert {bar.status for bar in found.bars} == {"done", "late", "failed"}
    assert source.round(2) is None
