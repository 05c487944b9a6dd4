"""A real fleet on the page: boards that speak all the time, with a run and without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from contracts.board_runs import begin, play

from fedge.telemetry.intake import BoardLedger
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_records import SampleRow
from server.dashboard.run_source import (
    RUN_SEARCH_PERIOD_S,
    FleetSource,
    find_newest_run,
    merge_last_sample,
    restrict_to_run,
)
from server.dashboard.views import SILENT_AFTER_S

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
    return BoardLedger(**told)  # type: ignore[arg-type]


def test_boards_are_shown_without_any_run(tmp_path: Path) -> None:
    boards = Boards(nano_1=heard(counts={"taken": 9, "malformed": 2}), nano_2=heard(SILENT_AFTER_S + 1))
    view = FleetSource(boards, tmp_path, None, lambda: NOW_S).view()
    assert (view.run.state, view.run.real, view.problem) == ("none", True, "")
    assert [(board.name, board.state) for board in view.boards] == [("nano-1", "training"), ("nano-2", "offline")]
    first = view.boards[0]
    assert (first.power_w, first.temperature_c, first.seen_at_s) == (6.0, 41.0, NOW_S - 1.0)
    assert first.refused == view.refused == {"malformed": 2}


def test_when_a_board_was_heard_is_on_the_servers_clock() -> None:
    said = merge_last_sample("nano-1", heard(3.0))
    assert said.at_s == NOW_S - 3.0
    assert merge_last_sample("nano-1", BoardLedger(heard_s=NOW_S)).state == "idle"


def test_the_run_that_was_begun_last_is_shown(tmp_path: Path) -> None:
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


def test_a_run_that_was_sent_from_the_control_node_is_shown_out_of_its_jobs_folder(tmp_path: Path) -> None:
    begin(tmp_path / "runs" / "by-hand", 3, backend="fleet", name="by-hand")
    os.utime(tmp_path / "runs" / "by-hand" / "run.yaml", (1e9, 1e9))
    begin(tmp_path / "runs" / "sent-x1" / "run", 3, backend="fleet", name="sent")

    assert FleetSource(Boards(), tmp_path / "store", tmp_path / "runs", lambda: NOW_S).view().run.name == "sent"


@pytest.mark.parametrize(("run", "round_"), [("demo (/runs/x, 12ab34cd)", 7), ("demo (/runs/y, 12ab34cd)", 0), ("", 7)])
def test_a_round_of_another_run_is_none_of_this_ones(run: str, round_: int) -> None:
    said = BoardProgress("nano-1", NOW_S, "training", run=run, round=7, steps=10, steps_done=5)
    assert restrict_to_run(said, Path("/runs/x")).round == round_
    assert restrict_to_run(said, None) == said


def test_the_claim_that_a_run_makes_is_known_again(tmp_path: Path) -> None:
    from experiments.spec.experiment_loader import load_experiment
    from server.run import read_claim_name

    experiment = load_experiment(ROOT / "experiments" / "configs" / "quickstart.yaml")
    said = BoardProgress("nano-1", NOW_S, "training", run=read_claim_name(experiment, tmp_path), round=7)
    assert restrict_to_run(said, tmp_path).round == 7
    assert restrict_to_run(said, tmp_path / "other").round == 0


def test_a_boards_history_is_its_last_hour_from_the_fleets_store(tmp_path: Path) -> None:
    store = RunTables(tmp_path / "store")
    store.append([sample(NOW_S - 7200.0), sample(NOW_S - 20.0), sample(NOW_S - 19.0, 8.0)])
    source = FleetSource(Boards(nano_1=heard()), tmp_path / "store", None, lambda: NOW_S)
    source.view()
    found = source.history("nano-1")
    assert found is not None
    assert (found.clock, found.sampled, found.curve.power_w) == ("unix", True, (6.0, 8.0))
    assert found.curve.at_s == pytest.approx((NOW_S - 20.0, NOW_S - 19.0))
    assert source.history("nobody") is None
    assert source.round(1) is None
