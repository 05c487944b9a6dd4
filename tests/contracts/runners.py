"""The runners of ClientApps of a fleet on loopback: as Flower starts them, or through the process that waits."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contracts.loopback_fleet import flower
from contracts.processes import wait_for

READY = Path(__file__).resolve().parents[2] / "ansible" / "roles" / "supernode" / "files" / "ready.py"
STAND_IN = '#!/bin/sh\nexec {python} -I -S {ready} flwr-clientapp "$@"\n'
"""As the role puts it there, with this machine's paths."""


@contextmanager
def runner(runtime: str, home: Path, changes: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The runner of one board's ClientApps; their output is in ``home``/log."""
    command = ["flower-superexec", "--insecure", "--runtime-api-address", runtime]
    with flower(command, home, "", changes) as process:
        yield process


@contextmanager
def waiting(folder: Path, *options: str) -> Iterator[tuple[dict[str, str], subprocess.Popen[bytes]]]:
    """The process that waits, and what a runner's environment needs for it; its log is ``folder``/log."""
    (folder / "bin").mkdir(parents=True)
    folder.chmod(0o700)
    stand_in = folder / "bin" / "flwr-clientapp"
    stand_in.write_text(STAND_IN.format(python=sys.executable, ready=READY), encoding="utf-8")
    stand_in.chmod(0o755)
    path, log = folder / "s", folder / "log"
    command = [sys.executable, "-P", str(READY), "serve", "--socket", str(path), *options]
    silent = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | silent, cwd="/")
    try:
        wait_for(lambda: "waits at" in log.read_text(encoding="utf-8") or process.poll() is not None, log)
        assert process.poll() is None, log.read_text(encoding="utf-8")
        beside = [str(folder / "bin"), sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
        yield {"FEDGE_READY_SOCKET": str(path), "PATH": os.pathsep.join(beside)}, process
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def runners(runtimes: Mapping[str, str], folder: Path, ready: bool) -> Iterator[None]:
    """A runner for every board, each with a process of its own that waits where they are ``ready``."""
    with ExitStack() as stack:
        for name, runtime in runtimes.items():
            changes = stack.enter_context(waiting(folder / f"{name}-ready"))[0] if ready else None
            stack.enter_context(runner(runtime, folder / name, changes))
        yield
