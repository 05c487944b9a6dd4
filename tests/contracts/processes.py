"""Programs beside a test, and waiting for what they, or other threads, do."""

import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from experiments.backends.run_processes import RUN_MARK, private_environment

LIMIT_S, START_LIMIT_S = 60.0, 90.0
T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str | Path = "", limit_s: float = LIMIT_S) -> T:
    """What ``condition`` gives as soon as it is true; looks every few milliseconds. ``what`` may be a log."""
    until_s = time.monotonic() + limit_s
    while not (found := condition()):
        said = what.read_text(encoding="utf-8") if isinstance(what, Path) else what
        assert time.monotonic() < until_s, f"did not happen within {limit_s:g} s: {said}"
        time.sleep(0.01)
    return found


def list_commands(variable: str) -> list[str]:
    """Command lines of the live processes with this variable (``NAME=value``) in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def program(name: str) -> str:
    """The environment's own program of that name, if it has one."""
    path = Path(sysconfig.get_path("scripts")) / name
    return str(path) if path.exists() else name


@contextmanager
def running(
    command: Sequence[str], home: Path, up: Callable[[str], bool], changes: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A program and the path of its log, once it is ``up`` or has ended; it and its helpers end with the block.

    ``changes``: to the environment that all of them have.
    """
    home.mkdir(parents=True)
    env = private_environment(os.environ, home) | dict(changes or {})
    del env[RUN_MARK]  # `fedge run` ends every process that carries its mark
    log, call = home / "log", [program(command[0]), *command[1:]]
    with log.open("wb") as output:
        process = subprocess.Popen(call, stdout=output, stderr=output, env=env, cwd=home, start_new_session=True)
    try:
        wait_for(lambda: up(log.read_text(encoding="utf-8")) or process.poll() is not None, log, START_LIMIT_S)
        yield process, log
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
