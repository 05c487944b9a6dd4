"""A command gives a sign of life when it has been silent for too long, and its own output is never mixed with it."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from experiments.cli import heartbeat
from experiments.cli.heartbeat import Heartbeat, show_signs_of_life
from fedge import phases


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(heartbeat, "time", made)
    return made


def test_a_log_has_each_announced_phase_and_a_line_after_each_silence(clock):
    log = io.StringIO()
    beat = Heartbeat("run", log)
    beat.begin("starting Ray", announce=True)
    beat.begin("round 1 of 2", announce=False)
    for _ in range(24):
        clock.now_s += 0.25
        beat.tick()

    assert log.getvalue().splitlines() == [
        "fedge: starting Ray",
        "fedge: round 1 of 2, 2 s",
        "fedge: round 1 of 2, 4 s",
        "fedge: round 1 of 2, 6 s",
    ]


def test_nothing_is_said_between_lines_that_keep_coming_until_they_stop(clock):
    log = io.StringIO()
    beat = Heartbeat("run", log)
    beat.begin("round 1 of 9", announce=True)
    for quarter in range(1, 100):
        clock.now_s += 0.25
        if quarter % 16 == 0 and quarter <= 80:  # a line every four seconds
            beat.note_output()
        beat.tick()

    at_s = [int(line.split(", ")[1].removesuffix(" s")) for line in log.getvalue().splitlines()[1:]]
    assert [one for one in at_s if one <= 12] == [2, 6, 10], "before two pauses are known"
    assert [one for one in at_s if one > 12] == []
    for _ in range(24):
        clock.now_s += 0.25
        beat.tick()
    assert log.getvalue().splitlines()[-2:] == ["fedge: round 1 of 9, 28 s", "fedge: round 1 of 9, 30 s"]


def test_a_phase_that_is_announced_has_no_lines_to_wait_for(clock):
    log = io.StringIO()
    beat = Heartbeat("run", log)
    for _ in range(4):
        clock.now_s += 8.0
        beat.note_output()
    beat.begin("ending the run", announce=True)
    beat.note_output()
    clock.now_s += 2.0
    beat.tick()

    assert log.getvalue().splitlines()[-1] == "fedge: ending the run, 2 s"


@pytest.mark.parametrize(("length_s", "most"), [(60, 31), (300, 56), (3600, 176)])
def test_the_log_of_a_long_phase_stays_short(clock, length_s, most):
    log = io.StringIO()
    beat = Heartbeat("run", log)
    for _ in range(4 * length_s):
        clock.now_s += 0.25
        beat.tick()

    assert length_s / 30 < len(log.getvalue().splitlines()) <= most


def test_a_phase_that_is_not_announced_has_its_own_time_too(clock):
    log = io.StringIO()
    beat = Heartbeat("run", log)
    beat.begin("round 1 of 2", announce=True)
    clock.now_s += 200.0
    beat.begin("round 2 of 2", announce=False)
    clock.now_s += 4.0
    beat.begin("round 2 of 2", announce=False)
    clock.now_s += 6.0
    beat.tick()

    assert log.getvalue().splitlines() == ["fedge: round 1 of 2", "fedge: round 2 of 2, 10 s"]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_nothing_is_written_while_nothing_is_under_way(clock, kind):
    shown = kind()
    beat = Heartbeat("board", shown)
    beat.begin("", announce=False)
    clock.now_s += 600.0
    beat.tick()

    assert shown.getvalue() == ""


def test_the_first_sign_comes_at_once_after_a_slow_start(clock):
    log = io.StringIO()
    Heartbeat("run", log, age_s=4.0).tick()

    assert log.getvalue() == "fedge: run, 0 s\n"


PROGRAM = """
import sys
from experiments.cli.heartbeat import show_signs_of_life
from fedge.phases import begin_phase
with show_signs_of_life("run"):
    begin_phase("starting Ray", announce=True)
    sys.stderr.write("a note\\n")
    sys.stdout.write("result\\n")
"""


def test_a_command_goes_on_if_nobody_reads_standard_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as broken:
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=broken, check=False)

    assert (done.returncode, done.stdout) == (0, b"result\n")


def test_output_of_the_command_delays_the_sign_and_removes_the_line_of_a_terminal(clock):
    shown = Terminal()
    beat = Heartbeat("run", shown)
    clock.now_s += 1.0
    beat.tick()
    assert shown.getvalue().endswith("fedge: run, 1 s")

    beat.note_output()
    assert shown.getvalue().endswith(heartbeat.CLEAR_LINE)
    beat.tick()
    assert shown.getvalue().endswith(heartbeat.CLEAR_LINE)


def test_the_standard_streams_are_given_back(capsys):
    out, err = sys.stdout, sys.stderr
    with show_signs_of_life("run"):
        phases.begin_phase("starting Ray", announce=True)
        sys.stdout.write("result\n")

    assert (sys.stdout, sys.stderr) == (out, err)
    assert capsys.readouterr() == ("result\n", "fedge: starting Ray\n")
