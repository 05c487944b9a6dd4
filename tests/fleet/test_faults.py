"""Boards that break in the middle of a run: it goes on, their rows say what happened, and they are used again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from statistics import median

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.faulty_run import FaultyRun, faulty_run, slowed
from fleet.fleet_view import until_told
from fleet.hosts import Hosts

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
GONE = ("the board was lost", "no reply within", "connection lost")
"""What a row says of a board that the server cannot reach: Flower's word after a minute, or the server's own before."""


@pytest.fixture(scope="module")
def run(provisioned: Hosts) -> Iterator[FaultyRun]:
    with faulty_run(provisioned) as found:
        yield found


def done_again(run: FaultyRun, board: str) -> None:
    assert run.next_row(board, lambda row: row.error is None).status == "done"


def test_a_board_whose_power_is_cut_is_a_row_and_works_again_after_its_start(run):
    board = run.fleet.boards["nano-1"]
    board.kill()
    row = run.next_row("nano-1", lambda row: row.error is not None)
    board.start()

    assert any(words in (row.error or "") for words in GONE), row.error
    done_again(run, "nano-1")


def test_a_board_that_is_rebooted_works_again(run):
    board = run.fleet.boards["orin-nano-1"]
    board.stop()
    board.start()

    done_again(run, "orin-nano-1")


def test_a_board_that_is_cut_off_is_a_row_and_works_again_when_its_cable_is_back(run):
    board = run.fleet.boards["agx-orin-1"]
    board.cut()
    row = run.next_row("agx-orin-1", lambda row: row.error is not None)
    board.mend()

    assert any(words in (row.error or "") for words in GONE), row.error
    done_again(run, "agx-orin-1")


def test_a_full_disk_is_named_with_its_file_and_the_board_works_again_when_there_is_room(run):
    board = run.fleet.boards["xavier-nx-1"]
    board.fill_disk()
    row = run.next_row("xavier-nx-1", lambda row: row.error is not None)
    board.empty_disk()

    # Which file of the folder is the first without room depends on the moment.
    assert re.fullmatch(r"no space left on xavier-nx-1 \(/var/lib/fedge/node(/[^)]*)?\): free some", row.error or "")
    done_again(run, "xavier-nx-1")


def test_a_board_that_is_ten_times_as_slow_is_waited_for_and_its_row_shows_it(run):
    usual_s = median(row.work_s for row in run.rows() if row.board == "orin-nano-1" and row.error is None)
    with slowed(run.fleet.boards["orin-nano-1"]):
        row = run.next_row("orin-nano-1", lambda row: row.error is None and row.work_s > 2 * usual_s)

    assert row.status == "done"


def test_a_clock_ten_minutes_off_keeps_a_board_out_and_status_names_the_clock(run, tmp_path):
    board = run.fleet.boards["xavier-nx-1"]
    board.clock_off(600)
    row = run.next_row("xavier-nx-1", lambda row: row.error is not None)
    words = "with a clock more than 5 s ahead or 5 min behind"
    told = until_told(run.fleet, tmp_path, {"xavier-nx-1": words})
    board.clock_off(0)

    assert row.status == "failed"
    assert words in told["xavier-nx-1"], told
    done_again(run, "xavier-nx-1")


def test_nothing_that_was_received_is_lost(run):
    rows = run.rows()

    assert {row.round for row in rows} == set(range(1, run.played + 1))
    assert set(Counter((row.round, row.board) for row in rows).values()) == {1}
    assert [row for row in rows if row.error is None and row.work_j <= 0] == []
