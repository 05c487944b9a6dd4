"""Cleanup of processes: none of a playbook outlives the command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from experiments.backends.run_processes import find_descendants, find_marked_processes, send_signal

END_WITHIN_S = 5.0
"""Default grace period before an interrupted playbook is killed, in seconds."""
LISTED_WITHIN_S = 10.0
Alive = Callable[[], set[int]]


@contextlib.contextmanager
def end_playbook_on_error(mark: str) -> Iterator[None]:
    """End all processes that carry the mark, each by its id, if the block raises.

    Ansible's workers run in sessions of their own, so a signal to the process group of the first one would miss them.
    """
    try:
        yield
    except BaseException:
        orphans_too = Path("/proc/self/environ").exists()
        alive = partial(find_marked_processes, mark) if orphans_too else watch_descendants(os.getpid())
        end_s = time.monotonic() + END_WITHIN_S
        send_signal(signal.SIGTERM, alive())
        while alive() and time.monotonic() < end_s:
            time.sleep(0.05)
        while left := alive():
            send_signal(signal.SIGKILL, left)
            time.sleep(0.05)
        raise


def watch_descendants(root: int) -> Alive:
    """Return a function that lists the living descendants of ``root``, for systems without /proc (macOS).

    Processes seen as descendants in an earlier call still count after their parent has ended.
    """
    ours: set[int] = set()

    def alive() -> set[int]:
        parents = read_process_table()
        ours.update(find_descendants(parents, {root, *ours}))
        return ours & set(parents)

    return alive


def read_process_table() -> dict[int, int]:
    """Return the parent's id by process id from ``ps``, without zombies and without ``ps`` itself."""
    columns = [word for name in ("pid", "ppid", "stat") for word in ("-o", f"{name}=")]
    with subprocess.Popen(
        ["ps", "-A", *columns], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as listing:
        output, _ = listing.communicate(timeout=LISTED_WITHIN_S)
    rows = (line.split() for line in output.splitlines())
    found = {int(pid): int(parent) for pid, parent, state, *_ in rows if not state.startswith("Z")}
    found.pop(listing.pid, None)
    return found
