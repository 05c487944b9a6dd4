"""A long run on a test fleet that goes on in the background while its boards are troubled."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from fleet.hosts import Host, Hosts, list_processes

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow

NAME = "faulty"
REPLY_TIMEOUT_S = 60
ROUND_LIMIT_S = 300.0
EXPERIMENT = f"""
name: {NAME}
seed: 1
rounds: 200
backend: fleet
fleet:
  - {{device: nano, name: nano}}
  - {{device: xavier-nx, name: xavier-nx}}
  - {{device: agx-orin-64gb, name: agx-orin}}
  - {{device: orin-nano, name: orin-nano}}
workload: {{task: synthetic-cnn, local_epochs: 0.2}}
exploration: {{probes: 1, probe_s: 0.1}}
superlink: {{address: "127.0.0.1:8000", root_certificates: /etc/fedge/tls/ca.crt, connect_timeout_s: 60}}
reply_timeout_s: {REPLY_TIMEOUT_S}
"""
HOME, ENVIRONMENT = "/var/lib/fedge-link", "/opt/fedge/.venv"
LAUNCHER = b"/bin/fedge\0run\0"
"""In the arguments of the run's process on the server."""
END_LIMIT_S = 60.0
DUTY_S, PERIOD_S = 0.05, 0.5
"""A trainer that may work for this much of every period is ten times as slow."""


@dataclass(frozen=True, slots=True)
class FaultyRun:
    """The run on the server of ``fleet``; its rows are read as they come."""

    fleet: Hosts
    folder: Path

    def rows(self) -> list[ClientRow]:
        """All rows until now."""
        with suppress(OSError, ValueError):
            return list(read_rows(self.folder, ClientRow))
        return []

    def next_row(self, board: str, fits: Callable[[ClientRow], bool]) -> ClientRow:
        """The first row of ``board`` in a round that ends from now on and that ``fits``; fails when none comes."""
        begun, end_s = self.played, time.monotonic() + ROUND_LIMIT_S
        while time.monotonic() < end_s:
            found = [row for row in self.rows() if row.board == board and row.round > begun and fits(row)]
            if found:
                return found[0]
            time.sleep(1.0)
        said = self.fleet.server.run(f"tail -n 20 {HOME}/{NAME}.log")
        raise AssertionError(f"no such row of {board} within {ROUND_LIMIT_S:.0f} s after round {begun}:\n{said}")

    @property
    def played(self) -> int:
        """Rounds whose rows are there."""
        return max((row.round for row in self.rows()), default=0)


def experiment_of(fleet: Hosts) -> dict[str, Any]:
    """The experiment with the boards that the fleet has."""
    experiment: dict[str, Any] = yaml.safe_load(EXPERIMENT)
    entries = [one for one in experiment["fleet"] if f"{one['name']}-1" in fleet.boards]
    return {**experiment, "fleet": entries}


@contextmanager
def faulty_run(fleet: Hosts) -> Iterator[FaultyRun]:
    """The run from its first round on; interrupted with the block."""
    (fleet.server.root / HOME.lstrip("/") / f"{NAME}.yaml").write_text(yaml.safe_dump(experiment_of(fleet)))
    path = f"{HOME}/runs/{NAME}"
    command = f"fedge run {NAME}.yaml --folder {path} > {NAME}.log 2>&1 < /dev/null"
    fleet.server.run(
        f"rm -rf {path}; cd {HOME} &&"
        f" sudo -u fedge-link env HOME={HOME} PATH={ENVIRONMENT}/bin:$PATH setsid sh -c '{command} &'"
    )
    run = FaultyRun(fleet, fleet.server.root / path.lstrip("/"))
    try:
        run.next_row("nano-1", lambda row: row.error is None)
        yield run
    finally:
        # Not SIGINT: a shell lets its background jobs ignore that.
        for process in list_processes(fleet.server, LAUNCHER):
            os.kill(process, signal.SIGTERM)
        end_s = time.monotonic() + END_LIMIT_S
        while list_processes(fleet.server, LAUNCHER) and time.monotonic() < end_s:
            time.sleep(0.5)


@contextmanager
def slowed(host: Host) -> Iterator[None]:
    """The board's trainer at a tenth of its speed, as a board that throttles badly: stopped and let go on in turn."""
    over = threading.Event()

    def brake() -> None:
        while not over.is_set():
            trainers = list_processes(host, b"fedge.worker.trainer_process")
            _tell(trainers, signal.SIGSTOP)
            over.wait(PERIOD_S - DUTY_S)
            _tell(trainers, signal.SIGCONT)
            over.wait(DUTY_S)

    thread = threading.Thread(target=brake, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tell(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
