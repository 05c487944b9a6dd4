"""Causes: each way to end is told from the others, and an old out-of-memory kill is not taken for this one."""

import signal

import pytest

from fedge.worker.exit_causes import (
    ExitEvidence,
    OomCounters,
    diagnose_exit,
    group_counter_paths,
    parse_oom_kills,
    restart_pause_s,
)

NONE_COUNTED = OomCounters(None, None)
QUIET = OomCounters(3, 1)


def evidence(status, **fields):
    known = {"pid": 71, "status": status, "before": QUIET, "after": QUIET, "last_words": ""}
    known.update(fields)
    return ExitEvidence(**known)


def exited(code):
    return code << 8


@pytest.mark.parametrize(
    ("given", "cause", "says"),
    [
        (evidence(exited(3), last_words="disk full\n"), "exit", "exit status 3; it said: disk full"),
        (evidence(exited(0)), "exit", "exit status 0"),
        (evidence(signal.SIGSEGV), "crashed", "SIGSEGV"),
        (evidence(signal.SIGABRT | 0x80), "crashed", "SIGABRT"),
        (evidence(signal.SIGTERM), "killed", "from outside with SIGTERM"),
        (evidence(signal.SIGKILL), "killed", "from outside with SIGKILL"),
        (evidence(signal.SIGKILL, after=OomCounters(4, 1)), "oom-killed", "the machine's count"),
        (evidence(signal.SIGKILL, after=OomCounters(3, 2)), "oom-killed", "control group"),
        (evidence(signal.SIGKILL, before=NONE_COUNTED, after=OomCounters(4, 2)), "killed", "SIGKILL"),
        (evidence(signal.SIGKILL, kernel_log="Killed process 71 (python3)"), "oom-killed", "names process 71"),
        (evidence(signal.SIGKILL, kernel_log="Killed process 712 (python3)"), "killed", "SIGKILL"),
        (evidence(signal.SIGTERM, after=OomCounters(4, 2)), "killed", "SIGTERM"),
        (evidence(exited(1), after=OomCounters(4, 2)), "exit", "exit status 1"),
        (evidence(signal.SIGKILL, fault="answered nobody for 301 s"), "killed", "answered nobody for 301 s"),
        (evidence(signal.SIGKILL, before=NONE_COUNTED, after=NONE_COUNTED), "killed", "`dmesg` tells"),
        (evidence(signal.SIGRTMIN + 2), "killed", "signal"),
    ],
)
def test_the_cause_follows_from_the_evidence(given, cause, says):
    found = diagnose_exit(given)
    assert found.cause == cause
    assert says in found.text


def test_of_a_long_log_only_the_end_is_told_and_a_crash_report_from_its_start():
    told = diagnose_exit(evidence(exited(1), last_words="early\n" + "x" * 5000 + "\nlate")).text
    assert "late" in told
    assert "early" not in told
    assert len(told) < 1500
    crash = "noise\nFatal Python error: Segmentation fault\n\nCurrent thread:\n  File a.py" + "\nframe" * 500
    told = diagnose_exit(evidence(signal.SIGSEGV, last_words=crash)).text
    assert "it said: Fatal Python error: Segmentation fault" in told
    assert "noise" not in told


def test_the_kernels_counters_are_found_in_its_files():
    assert parse_oom_kills("nr_free_pages 12\noom_kill 5\n") == 5
    assert parse_oom_kills("nr_free_pages 12\n") is None
    assert parse_oom_kills("low 0\nhigh 0\nmax 2\noom 1\noom_kill 4\n") == 4
    assert parse_oom_kills("oom_kill_disable 0\nunder_oom 0\n") is None
    assert parse_oom_kills("oom_kill x\n") is None


def test_the_control_group_of_both_versions_is_found():
    second = group_counter_paths("0::/system.slice/fedge-worker.service\n")
    assert second[0] == "/sys/fs/cgroup/system.slice/fedge-worker.service/memory.events"
    first = group_counter_paths("5:cpuset:/\n4:cpu,memory:/board\n0::/\n")
    assert first[0] == "/sys/fs/cgroup/memory/board/memory.oom_control"
    assert "/sys/fs/cgroup/memory.events" in first
    assert group_counter_paths("") == []
    assert group_counter_paths("nonsense\n") == []


def test_the_first_restarts_come_at_once_and_later_ones_ever_slower():
    pauses = [restart_pause_s(deaths) for deaths in range(20)]
    assert pauses[:3] == [0.0, 0.0, 0.0]
    assert pauses[3:6] == [0.5, 1.0, 2.0]
    assert pauses[-1] == 30.0
    assert pauses == sorted(pauses)
