"""``chaos.sh`` on real processes: systemd's programs are stand-ins that signal them, and a timer that is a process."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.processes import wait_for

SCRIPT = Path(__file__).resolve().parents[2] / "ansible" / "chaos.sh"
SYSTEMCTL = """#!/bin/sh
units=$CHAOS_ROOT/units
case $1 in
kill) signal=${2#--signal=}; shift 2; for unit; do kill -s "$signal" "$(cat "$units/$unit")" || exit 1; done ;;
start)
    shift
    for unit; do
        case $unit in
        fedge-chaos.service)
            [ -f "$units/undo" ] || exit 5
            if sh "$units/undo"; then rm "$units/undo"; else touch "$units/failed"; exit 1; fi
            ;;
        *) echo "$unit" >> "$CHAOS_ROOT/started" ;;
        esac
    done ;;
stop) [ ! -f "$units/timer" ] || { kill "$(cat "$units/timer")"; rm "$units/timer"; } ;;
is-active) [ -f "$units/timer" ] ;;
is-failed) [ -f "$units/failed" ] ;;
esac
"""
SYSTEMD_RUN = """#!/bin/sh
for word; do
    case $word in --on-active=*) after=${word#*=} ;; --*) ;; *) break ;; esac
    shift
done
shift $(( $# - 4 ))
echo "$1 $2 $3 $4" > "$CHAOS_ROOT/units/undo"
(sleep "$after"; rm "$CHAOS_ROOT/units/timer"; systemctl start fedge-chaos.service) > /dev/null 2>&1 &
echo $! > "$CHAOS_ROOT/units/timer"
"""
IP = """#!/bin/sh
echo "$*" >> "$CHAOS_ROOT/routes"
"""
UNIT = "[Service]\nExecStart=/usr/bin/flower-supernode \\\n    --superlink {} \\\n    --host 127.0.0.1\n"


class Board:
    """A root folder with a process for each of the services."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.services: dict[str, subprocess.Popen[bytes]] = {}
        for folder in ("bin", "units", "run", "etc/systemd/system"):
            (root / folder).mkdir(parents=True)
        for name, text in {"systemctl": SYSTEMCTL, "systemd-run": SYSTEMD_RUN, "ip": IP}.items():
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        for name in ("worker", "powerd", "supernode", "ready", "superexec"):
            self.services[name] = subprocess.Popen(["sleep", "300"])
            (root / "units" / f"fedge-{name}").write_text(str(self.services[name].pid))

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        env = {**os.environ, "CHAOS_ROOT": str(self.root), "PATH": path}
        return subprocess.run(["sh", SCRIPT, *words], env=env, capture_output=True, text=True, check=False)

    def state(self, service: str) -> str:
        return Path(f"/proc/{self.services[service].pid}/stat").read_text().rpartition(")")[2].split()[0]

    def read(self, name: str) -> list[str]:
        path = self.root / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path)
    yield made
    made.call("undo", "me")
    for process in made.services.values():
        process.kill()
        process.wait()


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
