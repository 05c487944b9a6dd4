"""``chaos.sh`` on real processes: systemd's programs are stand-ins that signal them, and a timer that is a process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.chaos_board import ChaosBoard
from contracts.processes import wait_for

UNIT = "[Service]\nExecStart=/usr/bin/flower-supernode \\\n    --superlink {} \\\n    --host 127.0.0.1\n"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[ChaosBoard]:
    made = ChaosBoard(tmp_path)
    yield made
    made.call("undo", "me")
    made.end()


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ("kill-worker", {"worker"}),
        ("kill-powerd", {"powerd"}),
        ("kill-supernode", {"supernode"}),
        ("kill-client", {"ready", "superexec"}),
    ],
)
def test_a_killed_service_is_started_when_the_fault_is_undone(board, fault, names):
    assert board.call("begin", "me", fault, "60").returncode == 0
    wait_for(lambda: all(board.state(name) == "Z" for name in names))

    assert {name for name in board.services if board.state(name) == "Z"} == names
    assert board.read("started") == []
    assert board.call("undo", "me").returncode == 0
    assert set(board.read("started")) == {f"fedge-{name}" for name in names}


@pytest.mark.parametrize("name", ["worker", "supernode"])
def test_a_stopped_service_goes_on_when_the_fault_is_undone_and_the_board_takes_the_next(board, name):
    for _ in range(2):
        assert board.call("begin", "me", f"stop-{name}", "60").returncode == 0
        wait_for(lambda: board.state(name) == "T")
        assert board.call("undo", "me").returncode == 0
        wait_for(lambda: board.state(name) != "T")


def test_the_boards_timer_ends_a_fault_that_nobody_undoes(board):
    began_s = time.monotonic()
    board.call("begin", "me", "stop-worker", "1")
    wait_for(lambda: board.state("worker") == "T")

    wait_for(lambda: board.state("worker") != "T")
    assert time.monotonic() - began_s >= 1.0
    assert board.call("undo", "me").returncode == 0


def test_the_link_is_cut_by_the_servers_addresses_alone_and_mended(board):
    (board.root / "etc/systemd/system/fedge-supernode.service").write_text(UNIT.format("[127.0.0.9]:9443"))

    assert board.call("begin", "me", "cut-link", "60").returncode == 0
    assert board.call("undo", "me").returncode == 0

    assert board.read("routes") == ["route add blackhole 127.0.0.9", "route del blackhole 127.0.0.9"]


def test_a_server_that_cannot_be_found_is_no_cut(board):
    (board.root / "etc/systemd/system/fedge-supernode.service").write_text(UNIT.format("nowhere.invalid:9443"))

    assert board.call("begin", "me", "cut-link", "60").returncode != 0
    assert board.read("routes") == []


def test_a_second_command_neither_adds_a_fault_nor_undoes_the_first_one_s(board):
    board.call("begin", "me", "stop-worker", "60")

    second = board.call("begin", "other", "stop-supernode", "60")
    board.call("undo", "other")

    assert second.returncode == 1
    assert "another fedge chaos works on this board" in second.stderr
    assert (board.state("worker"), board.state("supernode")) == ("T", "S")


def test_an_undoing_that_failed_is_reported_and_nothing_is_begun_on_top_of_it(board):
    board.call("begin", "me", "cut-link", "60")  # without the unit that names the server: half done
    (board.root / "run/fedge-chaos/addresses").unlink(missing_ok=True)

    assert board.call("undo", "me").returncode != 0
    again = board.call("begin", "me", "stop-worker", "60")

    assert "an earlier fault was not undone" in again.stderr
    assert board.state("worker") == "S"


def test_an_unknown_fault_is_refused(board):
    assert "is no fault of this board" in board.call("begin", "me", "reboot", "60").stderr
