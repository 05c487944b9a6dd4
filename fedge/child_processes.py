"""Child processes that end with their parent's use of them."""

from __future__ import annotations

import subprocess


def end_process(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Terminate a child process, kill it if it is still there after ``limit_s`` seconds, and reap it."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
