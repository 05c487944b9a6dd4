"""Ray exporter: shows the boards of a run as named actors with Ray metrics, from a thread that never blocks the run."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment, list_boards
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import read_progress
from fedge.telemetry.run_folder import LIVE
from fedge.telemetry.store import Row
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.types import PowerMode
from server.exporters.ray_boards import ActorLayout, BoardActors, BoardFigures, FleetFigures, encode_line

MAX_OWN_ACTORS = 64
"""Boards that each get an actor; above it there is one actor per board kind. A default: an actor takes about 60 MB."""
POLL_S = 1.0
"""Seconds between reads of the boards' progress files; a default that is as fast as Ray's gauges are repeated."""
END_TIMEOUT_S = 10.0


class MirrorState:
    """The latest figures of every board, and which of them have changed."""

    def __init__(self, devices: Mapping[str, str]) -> None:
        self._shown = {board: BoardFigures(board, device) for board, device in devices.items()}
        self._known_s = dict.fromkeys(devices, 0.0)
        self._news: dict[str, BoardFigures] = {}
        self._spent_j = 0.0
        self._fleet: FleetFigures | None = None

    def apply_rows(self, rows: Iterable[Row], at_s: float) -> None:
        """Apply rows stored at unix time ``at_s``; older progress is ignored from then on."""
        for row in rows:
            if isinstance(row, ClientRow) and row.board in self._shown:
                self._known_s[row.board] = at_s
                self._update_board(_update_from_row(self._shown[row.board], row))
            elif isinstance(row, RoundRow):
                self._spent_j += row.energy_j
                self._fleet = FleetFigures(row.round, row.round_s, self._spent_j, row.accuracy)

    def apply_progress(self, reports: Mapping[str, BoardProgress]) -> None:
        """Apply progress reported between replies; progress from before a board's last row is ignored."""
        for board, report in reports.items():
            if board in self._shown and report.at_s > self._known_s[board]:
                self._known_s[board] = report.at_s
                self._update_board(_update_from_progress(self._shown[board], report))

    def take_changes(self) -> tuple[list[BoardFigures], FleetFigures | None]:
        """Return the figures that changed since the last call; the fleet's are None if no round has ended."""
        boards, fleet = list(self._news.values()), self._fleet
        self._news, self._fleet = {}, None
        return boards, fleet

    def _update_board(self, shown: BoardFigures) -> None:
        before = self._news.get(shown.board)
        self._shown[shown.board] = shown
        # A progress report must not hide the figures of a round that have not been sent yet.
        self._news[shown.board] = dataclasses.replace(shown, live=shown.live and (before is None or before.live))


def _update_from_row(shown: BoardFigures, row: ClientRow) -> BoardFigures:
    """Return a board's figures after a round; a failed board has no new mode."""
    known = row.cores is not None
    mode = PowerMode(row.cores or 0, row.cpu_mhz or 0.0, row.gpu_mhz or 0.0, row.mem_mhz or 0.0)
    return dataclasses.replace(
        shown,
        energy_j=shown.energy_j + row.energy_j,
        power_w=row.power_w,
        round_s=row.end_s - row.start_s,
        progress=row.steps / (row.asked_steps or row.steps) if row.steps else 0.0,
        temperature_c=row.temperature_c,
        mode=str(mode) if known else shown.mode,
        live=False,
    )


def _update_from_progress(shown: BoardFigures, report: BoardProgress) -> BoardFigures:
    return dataclasses.replace(
        shown,
        power_w=report.power_w,
        progress=min(1.0, report.steps_done / report.steps) if report.steps else None,
        temperature_c=report.temperature_c,
        mode=report.mode or shown.mode,
        live=True,
    )


class ActorLink(Protocol):
    """Connection to the actors, in this process or another."""

    def show(self, boards: Sequence[BoardFigures], fleet: FleetFigures | None) -> None: ...

    def close(self) -> None: ...


class ActorProcess:
    """The actors' driver as a separate process, because Ray ends a process that loses its cluster."""

    def __init__(self, address: str, cast: ActorLayout, log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "server.exporters.ray_boards"]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RAY_USAGE_STATS_ENABLED": "0"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=env, text=True
            )
        self._write(json.dumps({"address": address, "cast": dataclasses.asdict(cast)}) + "\n")

    def show(self, boards: Sequence[BoardFigures], fleet: FleetFigures | None) -> None:
        """Send figures to the process.

        Raises:
            RunFailed: The process has ended.
        """
        self._write(encode_line(boards, fleet))

    def close(self) -> None:
        """End the input and wait for the process to end, at most ``END_TIMEOUT_S``."""
        try:
            self._process.communicate(timeout=END_TIMEOUT_S)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            self.kill()

    def kill(self) -> None:
        """Kill the process; its actors end with it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):  # what nobody reads any more
                self._process.stdin.close()

    def _write(self, line: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(line)
            stdin.flush()
        except OSError as error:
            raise RunFailed(f"the process that shows them has ended; {self._log} says why") from error


class RayMirror:
    """Shows every board on a Ray cluster.

    Without ``address``, a run that started its own Ray without a dashboard is not mirrored, since nobody could see it.

    Args:
        address: Address of the cluster; None for the one that the run uses.
        own_actors: Maximum number of boards that each get an actor (about 60 MB of memory each); above it there is one
            per board kind.
    """

    def __init__(
        self, experiment: Experiment, folder: Path, *, address: str | None = None, own_actors: int = MAX_OWN_ACTORS
    ) -> None:
        named = {board.name: board.entry.device for board in list_boards(experiment)}
        titles = {name: spec.title for name, spec in load_catalogue().items()}
        self._cast = ActorLayout(folder.name, named, titles, own_actors)
        self._folder, self._address = folder, address
        self._picture, self._lock = MirrorState(named), threading.Lock()
        self._wake, self._over = threading.Event(), threading.Event()
        self._child: ActorProcess | None = None
        self._thread: threading.Thread | None = None
        self._failure = ""

    @staticmethod
    def check_options(*, address: str | None = None, own_actors: int = MAX_OWN_ACTORS) -> None:
        """Check the exporter's options.

        Raises:
            BadInput: The address is empty or ``own_actors`` is negative.
        """
        if address is not None and not address:
            raise BadInput("options.address", "nothing", "a Ray cluster's address, such as 10.0.0.5:6379")
        if own_actors < 0:
            raise BadInput("options.own_actors", str(own_actors), "a number of boards, 0 or more")

    def append(self, rows: Iterable[Row]) -> None:
        """Record rows for the thread, which starts with the first rows; does not block.

        Raises:
            RunFailed: The mirror has ended because of an error, such as a missing cluster.
        """
        if self._failure:
            raise RunFailed(self._failure)
        rows = tuple(rows)
        if self._thread is None and rows:
            first = min(row.round for row in rows)
            earlier: tuple[ClientRow | RoundRow, ...] = (
                *read_rows(self._folder, ClientRow),
                *read_rows(self._folder, RoundRow),
            )
            self._picture.apply_rows((row for row in earlier if row.round < first), 0.0)
            self._thread = threading.Thread(target=self._mirror, name="ray-mirror", daemon=True)
            self._thread.start()
        with self._lock:
            self._picture.apply_rows(rows, time.time())
        self._wake.set()

    def close(self) -> None:
        """Send the remaining figures and end the actors; an unresponsive cluster is waited for at most 20 s."""
        self._over.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(2 * END_TIMEOUT_S)
        if self._child is not None:
            self._child.kill()

    def _mirror(self) -> None:
        """Connect, send and end, in the thread; any error ends the mirror only."""
        try:
            link = self._attach()
            while not self._over.is_set():
                self._send_changes(link)
                self._wake.wait(POLL_S)
                self._wake.clear()
            self._send_changes(link)
            link.close()
        except Exception as error:  # noqa: BLE001 - problems of the cluster must not end the run
            self._failure = f"the boards are no longer shown on Ray: {str(error) or type(error).__name__}"
            if self._child is not None:
                self._child.kill()

    def _send_changes(self, link: ActorLink) -> None:
        reports = read_progress(self._folder / LIVE)
        with self._lock:
            self._picture.apply_progress(reports)
            boards, fleet = self._picture.take_changes()
        if boards or fleet is not None:
            link.show(boards, fleet)

    def _attach(self) -> ActorLink:
        if self._address is not None:
            self._child = ActorProcess(self._address, self._cast, self._folder / "logs" / "ray-mirror.log")
            return self._child
        import ray

        if os.environ.get("RAY_ADDRESS", "local") == "local" or not ray.is_initialized():
            raise RunFailed("no cluster with a dashboard; use --ray-dashboard, RAY_ADDRESS or the option address")
        return BoardActors(self._cast)
