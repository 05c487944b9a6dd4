"""The machine's commands: what they print comes back, and one that hangs is ended with all that it started."""

import errno
import os
import time
from pathlib import Path

import pytest
from contracts.running_powerd import Running, board_root

from fedge.powerd import machine
from fedge.powerd import machine as of_machine
from fedge.powerd.machine import Machine, TimedMachine

LIMIT_S = 10.0


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A machine whose only command is ``talk``, with what it does as an argument."""
    command = tmp_path / "usr/bin/talk"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\neval "$1"\n')
    command.chmod(0o755)
    monkeypatch.setattr(of_machine, "COMMAND_LIMIT_S", 0.3)
    return Machine(str(tmp_path))


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_both_streams_and_the_exit_code_come_back(bench):
    assert bench.run(["talk", "echo well; echo odd >&2; exit 3"]) == (3, "well\nodd\n")


def test_a_command_has_nothing_to_read(bench):
    assert bench.run(["talk", "read answer || echo none"]) == (0, "none\n")


def test_a_file_that_cannot_be_run_hides_no_command_of_its_name(bench):
    other = bench.path("/usr/sbin/talk")
    other.parent.mkdir()
    other.write_text("no program")
    assert bench.run(["talk", "echo well"]) == (0, "well\n")


def test_a_command_that_is_not_there_is_told(bench):
    with pytest.raises(OSError, match="no command nvpmodel"):
        bench.run(["nvpmodel", "-q"])


@pytest.mark.parametrize("then", ["wait", "exit 0"])
def test_a_command_that_hangs_is_ended_in_time_with_the_child_that_holds_its_output(bench, then):
    began_s = time.monotonic()
    with pytest.raises(OSError, match="did not end within"):
        bench.run(["talk", f"sleep 30 & echo $! > {bench.root}/child; {then}"])
    assert time.monotonic() - began_s < LIMIT_S
    child = int(Path(bench.root, "child").read_text())
    until_s = time.monotonic() + LIMIT_S
    while alive(child):
        assert time.monotonic() < until_s
        time.sleep(0.01)


LIMIT_S_TIMED = 20.0


@pytest.fixture
def bench_timed(tmp_path, monkeypatch):
    """A machine with a file, and one that never answers: nobody is at the other end of a pipe."""
    monkeypatch.setattr(machine, "FILE_LIMIT_S", LIMIT_S_TIMED)
    monkeypatch.setattr(machine, "SLOW_LIMITS_S", {"/hung": 0.5})
    (tmp_path / "whole").write_text("17\n")
    os.mkfifo(tmp_path / "hung")
    return TimedMachine(str(tmp_path))


def test_files_are_read_and_written_and_errors_are_those_of_the_files(bench_timed):
    assert bench_timed.read("/whole") == "17"
    bench_timed.write("/whole", "3")
    assert bench_timed.read("/whole") == "3"
    with pytest.raises(FileNotFoundError, match=r"^\[Errno 2\] No such file or directory: '/gone'$"):
        bench_timed.read("/gone")
    with pytest.raises(OSError) as caught:
        bench_timed.write("/", "3")
    assert caught.value.errno == errno.EISDIR


def test_a_large_file_arrives_whole(bench_timed):
    text = "\u00fc0123456789" * 30000
    Path(bench_timed.root, "whole").write_text(text, encoding="utf-8")
    assert bench_timed.read("/whole") == text


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_file_that_never_answers_is_an_error_and_the_others_go_on(bench_timed, verb):
    arguments = ("/hung",) if verb == "read" else ("/hung", "3")
    with pytest.raises(OSError, match="did not answer"):
        getattr(bench_timed, verb)(*arguments)
    assert bench_timed.read("/whole") == "17"


def test_a_file_that_did_not_answer_is_not_read_again_for_a_while(bench_timed, monkeypatch):
    with pytest.raises(OSError, match="did not answer within"):
        bench_timed.read("/hung")
    with pytest.raises(OSError, match="asked again"):
        bench_timed.read("/hung")
    later_s = machine.HUNG_REST_S
    os.waitid(os.P_PID, bench_timed._hung["/hung"].child, os.WEXITED | os.WNOWAIT)  # else it may not have ended yet
    monkeypatch.setattr(machine.time, "monotonic", lambda real=time.monotonic: real() + later_s)
    with pytest.raises(OSError, match="did not answer within"):
        bench_timed.read("/hung")


def test_a_file_whose_child_still_waits_in_its_driver_gets_no_other_one(bench_timed, monkeypatch):
    monkeypatch.setattr(machine.os, "kill", lambda *_: None)  # as if the kernel could not end it
    with pytest.raises(OSError, match="did not answer within"):
        bench_timed.write("/hung", "3")
    for _ in range(20):
        with pytest.raises(OSError, match="has not answered since"):
            bench_timed.write("/hung", "3")
    assert bench_timed.read("/whole") == "17"
    Path(bench_timed.root, "hung").read_text(encoding="ascii")  # the driver answers at last, and the child ends
    Path(bench_timed.root, "hung").unlink()
    Path(bench_timed.root, "hung").write_text("4")
    until_s = time.monotonic() + LIMIT_S_TIMED
    while True:
        try:
            bench_timed.write("/hung", "5")
        except OSError:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        else:
            return


def test_a_child_that_was_killed_is_replaced(bench_timed):
    assert bench_timed.read("/whole") == "17"
    os.kill(bench_timed._child.pid, 9)
    with pytest.raises(OSError, match="ended"):
        bench_timed.read("/whole")
    assert bench_timed.read("/whole") == "17"


@pytest.mark.slow
def test_a_sensor_that_hangs_stops_neither_the_daemon_nor_its_guard(tmp_path):
    root = board_root("nano", tmp_path)
    with Running(root, program=("-m", "fedge.powerd")) as one:
        client = one.wait_until_up()
        zones = sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))
        for zone in zones:
            zone.unlink()
            os.mkfifo(zone)
        ends_s = time.monotonic() + LIMIT_S_TIMED + 3 * machine.FILE_LIMIT_S * len(zones)
        while client.get()["stopped"] is None:
            assert time.monotonic() < ends_s
            time.sleep(0.1)
        assert "cannot be read" in client.get()["stopped"]
        assert one.end() == 0
