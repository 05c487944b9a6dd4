"""Diagnose why a process ended, from its exit status, the kernel's out-of-memory counters and its last output.

Pure functions: the supervisor reads the files and passes their texts. The counters cover the whole machine or control
group, so a SIGKILL while one of them rose is attributed to the kernel. A kernel log line with the process's own number
is conclusive, and is the only evidence on kernels before 4.13 (JetPack 4), which have no counter.
"""

import os
import re
import signal
from typing import List, NamedTuple, Optional, Tuple

OOM_KILLED = "oom-killed"
KILLED = "killed"
CRASHED = "crashed"
EXIT = "exit"

CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP")
"""Signals that a process causes itself; any other comes from outside."""
LAST_WORDS_LETTERS = 1200
"""Characters of standard error that are reported: enough for a traceback's end without flooding an error message."""
YOUNG_S = 10.0
"""A process that lives for less than this many seconds counts as failed at start, which delays the next restart."""
LONGEST_PAUSE_S = 30.0


class ExitCause(NamedTuple):
    """Why a process ended.

    Attributes:
        cause: ``oom-killed``, ``killed``, ``crashed`` or ``exit``.
    """

    cause: str
    text: str


class OomCounters(NamedTuple):
    """Numbers of out-of-memory kills so far, on the machine and in the control group; None without a counter."""

    machine: Optional[int]
    group: Optional[int]


class ExitEvidence(NamedTuple):
    """The evidence about a process that ended.

    Attributes:
        status: Exit status as returned by ``os.waitpid``.
        kernel_log: New lines of the kernel log, if it may be read.
        fault: Why its parent killed it, such as "answered nobody for 301 s"; empty if it did not.
    """

    pid: int
    status: int
    before: OomCounters
    after: OomCounters
    last_words: str
    kernel_log: str = ""
    fault: str = ""


def diagnose_exit(evidence: ExitEvidence) -> ExitCause:
    """Return why the process ended."""
    words = _format_last_words(evidence.last_words)
    if not os.WIFSIGNALED(evidence.status):
        code = os.WEXITSTATUS(evidence.status)
        return ExitCause(EXIT, f"the trainer ended by itself with exit status {code}{words}")
    name = signal_name(os.WTERMSIG(evidence.status))
    if name in CRASHES:
        return ExitCause(CRASHED, f"the trainer crashed with {name}{words}")
    if evidence.fault:
        return ExitCause(KILLED, f"the trainer {evidence.fault}, and so its supervisor ended it{words}")
    if name != "SIGKILL":
        return ExitCause(KILLED, f"the trainer was ended from outside with {name}{words}")
    proof = _oom_proof(evidence)
    if proof:
        text = f"the kernel killed the trainer for want of memory ({proof}); a smaller batch or model needs less{words}"
        return ExitCause(OOM_KILLED, text)
    return ExitCause(KILLED, f"the trainer was ended from outside with SIGKILL{_oom_doubt_text(evidence)}{words}")


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _oom_proof(evidence: ExitEvidence) -> str:
    """Return the evidence that the kernel's out-of-memory killer ended the process; empty if there is none."""
    if re.search(rf"Kill(?:ed)? process {evidence.pid}\b", evidence.kernel_log):
        return f"its log names process {evidence.pid}"
    if _has_risen(evidence.before.group, evidence.after.group):
        return "its control group's count of such kills rose"
    if _has_risen(evidence.before.machine, evidence.after.machine):
        return "the machine's count of such kills rose"
    return ""


def _has_risen(before: Optional[int], after: Optional[int]) -> bool:
    return before is not None and after is not None and after > before


def _oom_doubt_text(evidence: ExitEvidence) -> str:
    if evidence.after.machine is None and evidence.after.group is None and not evidence.kernel_log:
        return " (perhaps for want of memory: this kernel does not count such kills; `dmesg` tells)"
    return ""


def _format_last_words(text: str) -> str:
    """Return the end of the output, starting at the crash report if there is one."""
    words = text.strip()
    crash = words.rfind("Fatal Python error")
    if crash >= 0:
        return f"; it said: {words[crash : crash + LAST_WORDS_LETTERS]}"
    return f"; it said: {words[-LAST_WORDS_LETTERS:]}" if words else ""


def parse_oom_kills(text: str) -> Optional[int]:
    """Return the counter ``oom_kill``, which kernels before 4.13 lack.

    Args:
        text: Content of /proc/vmstat, or of a control group's memory.events (version 2) or memory.oom_control (1).
    """
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "oom_kill" and words[1].isdigit():
            return int(words[1])
    return None


def group_counter_paths(cgroup: str) -> List[str]:
    """Return the candidate paths of a process's control group counters, most specific first.

    Args:
        cgroup: Content of /proc/PID/cgroup.
    """
    files: List[str] = []
    for controllers, path in _parse_groups(cgroup):
        if controllers == "":
            files.append(f"/sys/fs/cgroup{path}/memory.events")
            files.append(f"/sys/fs/cgroup/unified{path}/memory.events")
        elif "memory" in controllers.split(","):
            files.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
            files.append("/sys/fs/cgroup/memory/memory.oom_control")  # a container sees its own group as the root
    return files


def _parse_groups(cgroup: str) -> List[Tuple[str, str]]:
    """Return (controllers, path) of each line ``number:controllers:path``."""
    parts = [line.split(":", 2) for line in cgroup.splitlines()]
    return [(part[1], part[2].rstrip("/")) for part in parts if len(part) == 3]


def restart_pause_s(young_deaths: int) -> float:
    """Return the seconds to wait before the next start.

    The first two early deaths are followed at once (the next round may well kill the trainer for the same reason, which
    a pause does not change); from then on the pause doubles, from half a second to ``LONGEST_PAUSE_S``.

    Args:
        young_deaths: Consecutive deaths within ``YOUNG_S`` of their start.
    """
    return 0.0 if young_deaths <= 2 else min(LONGEST_PAUSE_S, 0.5 * 2.0 ** min(young_deaths - 3, 20))
