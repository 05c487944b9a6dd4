"""Child processes that end with their parent, or with its use of them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import threading


def end_process(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Terminate a child process, kill it if it is still there after ``limit_s`` seconds, and reap it."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def exit_with_parent() -> None:
    """Let this process, started by ``multiprocessing``, end when its parent does, however that ends."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
