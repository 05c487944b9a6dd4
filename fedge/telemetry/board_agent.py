"""The board's telemetry service: ``python -m fedge.telemetry.board_agent --settings FILE`` reports to the server."""

from __future__ import annotations

import argparse
import logging
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedge.clock import RealClock
from fedge.devices.node_settings import SETTINGS_PATH, NodeSettings, TelemetrySettings, read_settings
from fedge.devices.sensing import open_sensor
from fedge.devices.sensing.sampler import Sampler
from fedge.errors import BadInput, FedgeError, SensorLost
from fedge.file_lock import FileLock
from fedge.powerd.machine import Machine
from fedge.protocols import Clock
from fedge.strict_json import BOARD
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.outbox import Outbox
from fedge.telemetry.progress_files import read_progress
from fedge.telemetry.sensor_stretches import GAP_S, SensorStretches, describe_progress, find_board_spec
from fedge.telemetry.spool import Spool
from fedge.telemetry.uplink import HttpsUplink, TelemetrySender, Uplink
from fedge.types import SensorSample

MEGABYTE = 1e6
TICK_S = 1.0
SENSOR_RETRY_S = 10.0
"""Seconds between attempts to open a missing sensor."""
MAX_KEPT_SAMPLES = 400
"""Samples kept: twenty seconds' worth at the highest sampling rate."""
USAGE_EXIT_CODE = 2
"""Exit code of a user's mistake."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentEnvironment:
    """The service's environment, replaced in tests.

    Attributes:
        wall_s: Unix time in seconds.
        random: Random numbers from 0 to 1.
    """

    clock: Clock
    wall_s: Callable[[], float]
    random: Callable[[], float]
    link: Uplink


class TelemetryAgent:
    """Samples the board's sensor and sends the samples until it is stopped."""

    def __init__(
        self, settings: NodeSettings, telemetry: TelemetrySettings, stream: str, world: AgentEnvironment
    ) -> None:
        self._settings, self._world = settings, world
        self._kind = find_board_spec(settings)
        spool = Spool(telemetry.spool_dir, int(telemetry.spool_mb * MEGABYTE), telemetry.spool_age_s)
        self._outbox = Outbox(settings.board, stream, spool)
        self._stretches = SensorStretches(world.clock.now_s, world.wall_s)
        self._sender = TelemetrySender(
            self._outbox, link=world.link, progress=self._current_progress, wall_s=world.wall_s, random=world.random
        )
        self._sampler: Sampler | None = None
        self._stop = threading.Event()

    def stop(self) -> None:
        """Stop at the next tick."""
        self._stop.set()

    def run(self) -> None:
        """Run until ``stop``; unsent batches are then on disk."""
        thread = threading.Thread(target=self._sender.run, name="fedge-sender", daemon=True)
        thread.start()
        while not self._stop.is_set():
            try:
                with self._open_sampler() as sampler:
                    while not self._stop.wait(TICK_S):
                        self._collect(sampler.samples())
                    self._collect(sampler.samples())
            except SensorLost as error:
                logger.warning("nothing is measured: %s", error)
                self._stop.wait(SENSOR_RETRY_S)
        self._sender.stop()
        self._outbox.save(self._world.wall_s(), at_once=True)
        thread.join(TICK_S)  # a message in progress may still be sent; otherwise it is on disk and is sent again later

    @contextmanager
    def _open_sampler(self) -> Iterator[Sampler]:
        """Open the board's sensor and sample it at the configured rate."""
        place, clock = self._settings.place, self._world.clock
        formula, keep_s = self._kind.total_power if self._kind else None, MAX_KEPT_SAMPLES / place.sample_hz
        with (
            closing(open_sensor(place.sensor, Machine(place.root), clock, formula)) as sensor,
            Sampler(sensor, clock, place.sample_hz, keep_s) as sampler,
        ):
            self._sampler = sampler
            try:
                yield sampler
            finally:
                self._sampler = None

    def _collect(self, samples: Sequence[SensorSample]) -> None:
        now_s, lost = self._world.wall_s(), self._stretches.lost
        trace = self._stretches.take_new(samples)
        self._outbox.count_lost(self._stretches.lost - lost)
        if trace:
            self._outbox.add(trace, now_s)
        self._outbox.save(now_s)
        self._sender.notify()

    def _current_progress(self) -> BoardProgress:
        board = self._settings.board
        return describe_progress(
            read_progress(self._settings.live_dir).get(board),
            board=board,
            device=self._kind.name if self._kind else "",
            sample=self._newest_sample(),
            now_s=self._world.wall_s(),
        )

    def _newest_sample(self) -> SensorSample | None:
        sampler = self._sampler
        samples = sampler.samples()[-1:] if sampler is not None else ()
        return samples[0] if samples and self._world.clock.now_s() - samples[0].at_s <= GAP_S else None


def lock_spool_folder(folder: Path) -> FileLock:
    """Lock the spool's folder for this process.

    Raises:
        BadInput: Another process holds the lock, or the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / ".lock", "a spool")
    except OSError as error:
        raise BadInput("telemetry.spool_dir", str(error), "a folder that this user may write to") from error
    except BadInput as error:
        right = f"{error.right} (systemctl status fedge-telemetry)"
        raise BadInput("telemetry.spool_dir", f"{folder}: {error.got}", right) from error


def run_agent(settings: NodeSettings) -> None:
    """Send the board's telemetry to the configured server until SIGTERM or SIGINT.

    Raises:
        BadInput: The settings are incomplete, or another process uses the spool.
    """
    telemetry = settings.telemetry
    if telemetry is None:
        right = "a section telemetry with url, ca, certificate and key (docs/explanation/live.md)"
        raise BadInput("telemetry", "no section telemetry in the settings", right)
    if not BOARD.fullmatch(settings.board):
        raise BadInput("board", repr(settings.board), "a name of at most 64 letters, digits, ., _ and -")
    world = AgentEnvironment(RealClock(), time.time, random.random, HttpsUplink(telemetry))
    lock = lock_spool_folder(telemetry.spool_dir)
    service = TelemetryAgent(settings, telemetry, secrets.token_hex(8), world)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    logger.info("%s tells %s what it sees", settings.board, telemetry.url)
    service.run()
    lock.release()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service and return the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog="python -m fedge.telemetry.board_agent", description=__doc__)
    parser.add_argument("--settings", type=Path, default=SETTINGS_PATH, help="the board's settings (%(default)s)")
    options = parser.parse_args(argv)
    try:
        run_agent(read_settings(options.settings))
    except FedgeError as error:
        logger.error("%s", error)  # noqa: TRY400  a user's mistake, reported in one line
        return USAGE_EXIT_CODE if isinstance(error, BadInput) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
