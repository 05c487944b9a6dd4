"""A run folder and a real fleet as the page reads them: while they grow, when they are finished, resumed or broken."""

import dataclasses
import os
import time
from pathlib import Path

import pytest
from contracts import board_runs
from contracts.board_runs import begin, finish, play

from fedge.telemetry import open_run
from fedge.telemetry.intake import BoardLedger
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import write_progress
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_records import SampleRow
from server.dashboard.http_server import _poll_source
from server.dashboard.run_source import (
    QUIET_AFTER_S,
    RUN_SEARCH_PERIOD_S,
    FleetSource,
    RunSource,
    find_newest_run,
    merge_last_sample,
    restrict_to_run,
)
from server.dashboard.views import SILENT_AFTER_S


def sum_of(folder: Path, sql: str) -> float:
    with open_run(folder) as run:
        return float(run.query(sql).columns[0][0].as_py())


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path):
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


def test_every_figure_equals_the_store_after_every_round(tmp_path):
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


def test_what_the_boards_say_is_shown_until_their_row_comes(tmp_path):
    folder = tmp_path / "run"
    tables, source = begin(folder, 3), RunSource(folder)
    write_progress(folder / "live", BoardProgress("nano-1", time.time(), "training", round=1, steps=10, steps_done=4))
    board = source.view().boards[0]
    assert (board.state, board.progress) == ("training", 0.4)
    assert source.view().run.state == "going"
    play(tables, 3, 1)
    assert source.view().boards[0].state == "done"


def test_what_did_not_change_is_the_same_object(tmp_path):
    folder = tmp_path / "run"
    begin(folder, 3, played=1)
    source = RunSource(folder)
    before = source.view()
    write_progress(folder / "live", BoardProgress("nano-1", time.time(), "training", round=2, steps=10, steps_done=4))
    after = source.view()
    assert [a is b for a, b in zip(before.boards, after.boards, strict=True)] == [False, True, True]


def test_a_resumed_run_that_plays_rounds_again_counts_them_once(tmp_path):
    folder = tmp_path / "run"
    tables, source = begin(folder, 3, played=3), RunSource(folder)
    assert source.view().summary.round == 3
    tables.forget_after(1)
    play(tables, 3, 2)
    view = source.view()
    assert [point.round for point in view.rounds] == [1, 2]
    assert view.summary.energy_j == pytest.approx(sum(board.energy_j for board in view.boards))


def test_a_finished_run_tells_where_its_figures_come_from(tmp_path):
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


def test_a_run_that_says_nothing_for_long_is_quiet(tmp_path):
    now_s = [time.time()]
    begin(tmp_path / "run", 3, played=1)
    source = RunSource(tmp_path / "run", now_s=lambda: now_s[0])
    assert source.view().run.state == "going"
    now_s[0] += QUIET_AFTER_S + 60
    assert source.view().run.state == "quiet"


def test_a_broken_folder_becomes_a_line_and_the_last_figures_stay(tmp_path):
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


def test_a_history_has_the_samples_of_the_store_and_the_rounds_of_the_board(tmp_path):
    folder = tmp_path / "run"
    begin(folder, 50, played=41)
    source = RunSource(folder)
    source.view()
    found = source.history("nano-1")
    assert found.sampled
    joules = sum(span * power for span, power in zip(found.curve.span_s, found.curve.power_w, strict=True))
    stored = sum_of(folder, "select sum(power_w * span_s) from samples where board = 'nano-1'")
    assert joules == pytest.approx(stored)
    assert [row.round for row in found.rounds] == list(range(1, 42))
    assert [event.round for event in found.events] == [row.round for row in found.rounds if row.status == "failed"]
    assert found.events
    assert source.history("nobody") is None


def test_a_name_with_quotes_is_only_a_name(tmp_path):
    name = "a' or '1'='1"
    tables, source = begin(tmp_path / "run", 3), RunSource(tmp_path / "run")
    row = dataclasses.replace(board_runs.client(1, "nano-1", "nano", 0), board=name)
    tables.append([row, board_runs.client(1, "nano-2", "nano", 1), board_runs.round_of(1, [row])])
    source.view()
    found = source.history(name)
    assert len(found.rounds) == 1


def test_a_timeline_has_every_board_of_its_round(tmp_path):
    begin(tmp_path / "run", 50, played=1)
    source = RunSource(tmp_path / "run")
    source.view()
    found = source.round(1)
    assert len(found.bars) == 50
    assert {bar.start_s for bar in found.bars} == {0.0}
    assert {bar.status for bar in found.bars} == {"done", "late", "failed"}
    assert source.round(2) is None


ROOT = Path(__file__).resolve().parents[3]
NOW_S = 1_800_000_000.0


def sample(at_s: float, power_w: float = 6.0) -> SampleRow:
    return SampleRow(at_s, 1.0, 0, "nano-1", power_w, 41.0)


class Boards:
    """What was heard, set by the test."""

    def __init__(self, **known: BoardLedger) -> None:
        self.known = {name.replace("_", "-"): heard for name, heard in known.items()}

    def board_telemetry(self) -> dict[str, BoardLedger]:
        return dict(self.known)


def heard(age_s: float = 1.0, **more: object) -> BoardLedger:
    progress = BoardProgress("nano-1", NOW_S - 500.0, "training", device="nano", round=1, steps=10, steps_done=5)
    told = {"heard_s": NOW_S - age_s, "latest": sample(NOW_S - age_s), "progress": progress, **more}
    return BoardLedger(**told)


def test_boards_are_shown_without_any_run(tmp_path):
    boards = Boards(nano_1=heard(counts={"taken": 9, "malformed": 2}), nano_2=heard(SILENT_AFTER_S + 1))
    view = FleetSource(boards, tmp_path, None, lambda: NOW_S).view()
    assert (view.run.state, view.run.real, view.problem) == ("none", True, "")
    assert [(board.name, board.state) for board in view.boards] == [("nano-1", "training"), ("nano-2", "offline")]
    first = view.boards[0]
    assert (first.power_w, first.temperature_c, first.seen_at_s) == (6.0, 41.0, NOW_S - 1.0)
    assert first.refused == view.refused == {"malformed": 2}


def test_when_a_board_was_heard_is_on_the_servers_clock():
    said = merge_last_sample("nano-1", heard(3.0))
    assert said.at_s == NOW_S - 3.0
    assert merge_last_sample("nano-1", BoardLedger(heard_s=NOW_S)).state == "idle"


def test_the_run_that_was_begun_last_is_shown(tmp_path):
    runs, now_s = tmp_path / "runs", [NOW_S]
    first = begin(runs / "b", 3, backend="fleet", name="first")
    play(first, 3, 1)
    os.utime(runs / "b" / "run.yaml", (1e9, 1e9))
    (runs / "no-run").mkdir()
    source = FleetSource(Boards(nano_1=heard()), tmp_path / "store", runs, lambda: now_s[0])
    assert (source.view().run.name, source.view().summary.round) == ("first", 1)
    begin(runs / "a", 3, backend="fleet", name="second")
    now_s[0] += RUN_SEARCH_PERIOD_S
    view = source.view()
    assert (view.run.name, view.summary.round) == ("second", 0)
    assert find_newest_run(tmp_path / "nowhere") is None


def test_a_run_that_was_sent_from_the_control_node_is_shown_out_of_its_jobs_folder(tmp_path):
    begin(tmp_path / "runs" / "by-hand", 3, backend="fleet", name="by-hand")
    os.utime(tmp_path / "runs" / "by-hand" / "run.yaml", (1e9, 1e9))
    begin(tmp_path / "runs" / "sent-x1" / "run", 3, backend="fleet", name="sent")

    assert FleetSource(Boards(), tmp_path / "store", tmp_path / "runs", lambda: NOW_S).view().run.name == "sent"


@pytest.mark.parametrize(("run", "round_"), [("demo (/runs/x, 12ab34cd)", 7), ("demo (/runs/y, 12ab34cd)", 0), ("", 7)])
def test_a_round_of_another_run_is_none_of_this_ones(run, round_):
    said = BoardProgress("nano-1", NOW_S, "training", run=run, round=7, steps=10, steps_done=5)
    assert restrict_to_run(said, Path("/runs/x")).round == round_
    assert restrict_to_run(said, None) == said


def test_the_claim_that_a_run_makes_is_known_again(tmp_path):
    from experiments.spec.experiment_loader import load_experiment
    from server.run import read_claim_name

    experiment = load_experiment(ROOT / "experiments" / "configs" / "quickstart.yaml")
    said = BoardProgress("nano-1", NOW_S, "training", run=read_claim_name(experiment, tmp_path), round=7)
    assert restrict_to_run(said, tmp_path).round == 7
    assert restrict_to_run(said, tmp_path / "other").round == 0


def test_a_boards_history_is_its_last_hour_from_the_fleets_store(tmp_path):
    store = RunTables(tmp_path / "store")
    store.append([sample(NOW_S - 7200.0), sample(NOW_S - 20.0), sample(NOW_S - 19.0, 8.0)])
    source = FleetSource(Boards(nano_1=heard()), tmp_path / "store", None, lambda: NOW_S)
    source.view()
    found = source.history("nano-1")
    assert (found.clock, found.sampled, found.curve.power_w) == ("unix", True, (6.0, 8.0))
    assert found.curve.at_s == pytest.approx((NOW_S - 20.0, NOW_S - 19.0))
    assert source.history("nobody") is None
    assert source.round(1) is None
