"""The machine's commands: what they print comes back, and one that hangs is ended with all that it started."""

import time
from pathlib import Path

import pytest

from fedge.powerd import machine as of_machine
from fedge.powerd.machine import Machine

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


def test_both_streams_and_the_exit_code_come_back(bench) -> None:
    assert bench.run(["talk", "echo well; echo odd >&2; exit 3"]) == (3, "well\nodd\n")


def test_a_command_has_nothing_to_read(bench) -> None:
    assert bench.run(["talk", "read answer || echo none"]) == (0, "none\n")


def test_a_command_that_is_not_there_is_told(bench) -> None:
    with pytest.raises(OSError, match="no command nvpmodel"):
        bench.run(["nvpmodel", "-q"])


@pytest.mark.parametrize("then", ["wait", "exit 0"])
def test_a_command_that_hangs_is_ended_in_time_with_the_child_that_holds_its_output(bench, then) -> None:
    began_s = time.monotonic()
    with pytest.raises(OSError, match="did not end within"):
        bench.run(["talk", f"sleep 30 & echo $! > {bench.root}/child; {then}"])
    assert time.monotonic() - began_s < LIMIT_S
    child = int(Path(bench.root, "child").read_text())
    until_s = time.monotonic() + LIMIT_S
    while alive(child):
        assert time.monotonic() < until_s
        time.sleep(0.01)
