"""Files through a child process: what a driver that never answers costs, and that nothing else changes."""

import errno
import os
import time
from pathlib import Path

import pytest
from contracts.running_powerd import Running, board_root

from fedge.powerd import machine
from fedge.powerd.machine import TimedMachine

LIMIT_S = 20.0


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A machine with a file, and one that never answers: nobody is at the other end of a pipe."""
    monkeypatch.setattr(machine, "FILE_LIMIT_S", 0.5)
    (tmp_path / "whole").write_text("17\n")
    os.mkfifo(tmp_path / "hung")
    return TimedMachine(str(tmp_path))


def test_files_are_read_and_written_and_errors_are_those_of_the_files(bench) -> None:
    assert bench.read("/whole") == "17"
    bench.write("/whole", "3")
    assert bench.read("/whole") == "3"
    with pytest.raises(FileNotFoundError):
        bench.read("/gone")
    with pytest.raises(OSError) as caught:
        bench.write("/", "3")
    assert caught.value.errno == errno.EISDIR


def test_a_large_file_arrives_whole(bench) -> None:
    text = "\u00fc0123456789" * 30000
    Path(bench.root, "whole").write_text(text, encoding="utf-8")
    assert bench.read("/whole") == text


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_file_that_never_answers_is_an_error_and_the_others_go_on(bench, verb) -> None:
    arguments = ("/hung",) if verb == "read" else ("/hung", "3")
    with pytest.raises(OSError, match="did not answer"):
        getattr(bench, verb)(*arguments)
    assert bench.read("/whole") == "17"


def test_a_file_that_did_not_answer_is_not_read_again_for_a_while(bench, monkeypatch) -> None:
    with pytest.raises(OSError, match="did not answer within"):
        bench.read("/hung")
    with pytest.raises(OSError, match="asked again"):
        bench.read("/hung")
    later_s = machine.HUNG_REST_S
    os.waitid(os.P_PID, bench._hung["/hung"].child, os.WEXITED | os.WNOWAIT)  # else it may not have ended yet
    monkeypatch.setattr(machine.time, "monotonic", lambda real=time.monotonic: real() + later_s)
    with pytest.raises(OSError, match="did not answer within"):
        bench.read("/hung")


def test_a_file_whose_child_still_waits_in_its_driver_gets_no_other_one(bench, monkeypatch) -> None:
    monkeypatch.setattr(machine.os, "kill", lambda *_: None)  # as if the kernel could not end it
    with pytest.raises(OSError, match="did not answer within"):
        bench.write("/hung", "3")
    for _ in range(20):
        with pytest.raises(OSError, match="has not answered since"):
            bench.write("/hung", "3")
    assert bench.read("/whole") == "17"
    Path(bench.root, "hung").read_text(encoding="ascii")  # the driver answers at last, and the child ends
    Path(bench.root, "hung").unlink()
    Path(bench.root, "hung").write_text("4")
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            bench.write("/hung", "5")
        except OSError:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        else:
            return


def test_a_child_that_was_killed_is_replaced(bench) -> None:
    assert bench.read("/whole") == "17"
    os.kill(bench._child.pid, 9)
    with pytest.raises(OSError, match="ended"):
        bench.read("/whole")
    assert bench.read("/whole") == "17"


@pytest.mark.slow
def test_a_sensor_that_hangs_stops_neither_the_daemon_nor_its_guard(tmp_path) -> None:
    root = board_root("nano", tmp_path)
    with Running(root, program=("-m", "fedge.powerd")) as one:
        client = one.wait_until_up()
        zones = sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))
        for zone in zones:
            zone.unlink()
            os.mkfifo(zone)
        ends_s = time.monotonic() + LIMIT_S + 3 * machine.FILE_LIMIT_S * len(zones)
        while client.get()["stopped"] is None:
            assert time.monotonic() < ends_s
            time.sleep(0.1)
        assert "cannot be read" in client.get()["stopped"]
        assert one.end() == 0
