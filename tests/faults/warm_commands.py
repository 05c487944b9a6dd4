"""``fedge`` commands as processes that start at once: each is forked from one that has imported what it needs.

As a program it takes an order in JSON a line, and answers with the process id and, at its end, the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    "experiments.cli.main",
    "experiments.backends.local_backend",
    "experiments.report.run.run_page",
    "experiments.sweeps.sweep_driver",
    "experiments.backends.strategy_check",
    "server.run",
    "server.exporters.exporting_tables",
    "fedge.worker.trainer",
    "fedge.predictors.blended_predictor",
    "fedge.studies.task_pool",
    "pyarrow.parquet",
    "safetensors.numpy",
    "sklearn.datasets",
    "torch",
    "plotly.graph_objects",
)
POINT = "FEDGE_FAULT_POINT"
"""Variable of the environment by which the processes that a command started are found."""
LIMIT_S = 900.0


class WarmCommands:
    """Starts one command at a time; the processes are gone with the block."""

    _pid = 0

    def __enter__(self) -> Self:
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__))]
        self._server = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self._server.stdin is not None
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL) if self._pid else None
        self._server.stdin.close()
        self._server.wait(LIMIT_S)

    def start(self, words: Sequence[str | Path], log: Path, **order: Any) -> int:
        """Start ``fedge`` with these words; its output goes to ``log``.

        Args:
            words: The command line.
            log: Appended to.
            **order: ``file_bytes``: the largest file that it may write; ``memory_mb``: what it may take besides what it
                has; ``clock``: seed of a clock that jumps; ``point``: mark of its processes; ``call``: a function that
                is called with the words instead, as ``module:name``.

        Returns:
            The process id.
        """
        assert self._server.stdin is not None
        log.touch()
        self._server.stdin.write(json.dumps(order | {"words": [*map(str, words)], "log": str(log)}).encode() + b"\n")
        self._pid = int(self._read(LIMIT_S) or 0)
        return self._pid

    def wait(self, limit_s: float = LIMIT_S) -> int | None:
        """Return the exit code of the command, negative for a signal; None if it goes on after ``limit_s``.

        One that goes on after ``LIMIT_S`` is killed.
        """
        code = self._read(limit_s)
        if code is None and limit_s >= LIMIT_S:
            os.kill(self._pid, signal.SIGKILL)
            self._read(LIMIT_S)
        if code is not None or limit_s >= LIMIT_S:
            self._pid = 0
        return code

    def run(self, words: Sequence[str | Path], log: Path, **order: Any) -> int | None:
        self.start(words, log, **order)
        return self.wait()

    def _read(self, limit_s: float) -> int | None:
        assert self._server.stdout is not None
        ready, _, _ = select.select([self._server.stdout], [], [], max(0.0, limit_s))
        return int(self._server.stdout.readline()) if ready else None


def find_processes(point: str) -> list[int]:
    """Return the processes, besides the forked one, that a command with this mark started and that still live."""
    found, wanted = [], f"{POINT}={point}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ended = (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            if not ended and wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            sys.exit(run_order(json.loads(line)))
        answer(child)
        answer(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def answer(number: int) -> None:
    os.write(1, b"%d\n" % number)


def run_order(order: dict[str, Any]) -> int:
    """Do in this process what was ordered, and return its exit code."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the suite runs in the background
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(file, number)
    os.environ[POINT] = order.get("point", "")
    if "clock" in order:
        let_clock_jump(random.Random(order["clock"]))
    if "file_bytes" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"], resource.RLIM_INFINITY))
    if "memory_mb" in order:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + order["memory_mb"] * 1_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        call(order)
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def call(order: dict[str, Any]) -> None:
    if "call" in order:
        module, name = order["call"].split(":")
        getattr(importlib.import_module(module), name)(*order["words"])
        return
    from experiments.cli.main import main as fedge

    sys.argv = ["fedge", *order["words"]]
    fedge()


def let_clock_jump(chance: random.Random) -> None:
    """Let the wall clock jump by up to two hours, now and then, in either direction."""
    real, offset_s = time.time, 0.0

    def jumping() -> float:
        nonlocal offset_s
        if chance.random() < 0.05:
            offset_s = chance.uniform(-7200.0, 7200.0)
        return real() + offset_s

    time.time = jumping


if __name__ == "__main__":
    main()
