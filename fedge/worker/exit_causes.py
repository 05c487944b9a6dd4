"""Why a process ended, told from its exit status, the kernel's out-of-memory counters and its last words.

Pure: the supervisor reads the files and hands their texts in. The counters count for the whole machine or control
group, so a SIGKILL while one of them rose is taken for the kernel's; a line of the kernel's log with the process's own
number is certain, and is the only sign on kernels before 4.13 (JetPack 4), which have no counter.
"""

import os
import re
import signal
from typing import Dict, List, NamedTuple, Optional, Tuple

OOM_KILLED = "oom-killed"
KILLED = "killed"
CRASHED = "crashed"
EXIT = "exit"

CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP")
"""Signals that a process brings on itself; any other comes from outside."""
LAST_WORDS_LETTERS = 1200
"""How much of standard error is told; the end says most. Chosen by us."""
YOUNG_S = 10.0
"""A process that lives shorter has not come to work at all. Chosen by us."""
LONGEST_PAUSE_S = 30.0


class ExitCause(NamedTuple):
    """``cause`` is one of the four words above; ``text`` says it for a person."""

    cause: str
    text: str

    def as_dict(self) -> Dict[str, str]:
        """The form on the wire."""
        return {"cause": self.cause, "text": self.text}


class OomCounters(NamedTuple):
    """Out-of-memory kills so far, on the machine and in the control group; None where the kernel does not count."""

    machine: Optional[int]
    group: Optional[int]


class ExitEvidence(NamedTuple):
    """What is known of a process that ended.

    ``status`` is as os.waitpid gives it, ``kernel_log`` the kernel's lines where they may be read, ``stopped_s`` how
    long the process had been stopped (SIGSTOP) when its parent ended it for that; 0 when it was not.
    """

    pid: int
    status: int
    before: OomCounters
    after: OomCounters
    last_words: str
    kernel_log: str = ""
    stopped_s: float = 0.0


def diagnose_exit(evidence: ExitEvidence) -> ExitCause:
    """Why the process ended."""
    words = _format_last_words(evidence.last_words)
    if not os.WIFSIGNALED(evidence.status):
        code = os.WEXITSTATUS(evidence.status)
        return ExitCause(EXIT, f"the trainer ended by itself with exit status {code}{words}")
    name = signal_name(os.WTERMSIG(evidence.status))
    if name in CRASHES:
        return ExitCause(CRASHED, f"the trainer crashed with {name}{words}")
    if evidence.stopped_s:
        text = f"the trainer was stopped (SIGSTOP) for {evidence.stopped_s:.0f} s, and so its supervisor ended it"
        return ExitCause(KILLED, text)
    if name != "SIGKILL":
        return ExitCause(KILLED, f"the trainer was ended from outside with {name}{words}")
    proof = _oom_proof(evidence)
    if proof:
        text = f"the kernel killed the trainer for want of memory ({proof}); a smaller batch or model needs less{words}"
        return ExitCause(OOM_KILLED, text)
    return ExitCause(KILLED, f"the trainer was ended from outside with SIGKILL{_oom_doubt_text(evidence)}{words}")


def signal_name(number: int) -> str:
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _oom_proof(evidence: ExitEvidence) -> str:
    """What shows that the kernel's out-of-memory killer did it; empty when nothing does."""
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
    """The end of what it wrote, from the report of a crash on when there is one."""
    words = text.strip()
    crash = words.rfind("Fatal Python error")
    if crash >= 0:
        return f"; it said: {words[crash : crash + LAST_WORDS_LETTERS]}"
    return f"; it said: {words[-LAST_WORDS_LETTERS:]}" if words else ""


def parse_machine_oom_kills(vmstat: str) -> Optional[int]:
    """``oom_kill`` of /proc/vmstat; None before Linux 4.13."""
    return _parse_counter(vmstat, "oom_kill")


def parse_group_oom_kills(events: str) -> Optional[int]:
    """``oom_kill`` of a control group's memory.events (version 2) or memory.oom_control (version 1)."""
    return _parse_counter(events, "oom_kill")


def _parse_counter(text: str, name: str) -> Optional[int]:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def group_counter_paths(cgroup: str) -> List[str]:
    """Where the counters of a process's control group may lie, most specific first, from its /proc/PID/cgroup."""
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
    """(controllers, path) of each line ``number:controllers:path``."""
    parts = [line.split(":", 2) for line in cgroup.splitlines()]
    return [(part[1], part[2].rstrip("/")) for part in parts if len(part) == 3]


def restart_pause_s(young_deaths: int) -> float:
    """How long to wait before the next start, after so many deaths in a row within ``YOUNG_S`` of their start.

    The first two are followed at once (a round that kills the trainer may well be the next round too); from then on the
    pause doubles, from half a second to ``LONGEST_PAUSE_S``.
    """
    return 0.0 if young_deaths <= 2 else min(LONGEST_PAUSE_S, 0.5 * 2.0 ** min(young_deaths - 3, 20))
