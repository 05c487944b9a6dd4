"""The board's telemetry service: ``python -m fedge.node.telemetry --settings FILE`` tells the server what it sees."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
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
from fedge.devices.sensing import sensor_for
from fedge.devices.sensing.sampler import Sampler
from fedge.errors import BadInput, FedgeError, SensorLost
from fedge.interfaces import Clock
from fedge.node.settings import SETTINGS, NodeSettings, TelemetrySettings, read_settings
from fedge.node.telemetry_link import HttpsLink, Link
from fedge.node.telemetry_outbox import Outbox
from fedge.node.telemetry_sending import Sender
from fedge.node.telemetry_watching import GAP_S, Remembered, Stretches, doing, kind_of, said_here
from fedge.powerd.machine import Machine
from fedge.telemetry.live import Progress
from fedge.telemetry.spool import Spool
from fedge.telemetry.strict import BOARD
from fedge.types import Sample

MEGABYTE = 1e6
TICK_S = 1.0
SENSOR_AGAIN_S = 10.0
"""A sensor that is not there is looked for so often. Chosen by us."""
KEEP_S = 10.0
"""The sampler's own memory is not used here."""
USAGE = 2
"""The exit code of a user's mistake."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class World:
    """What the service has of the world around it: two clocks, chance, and the way to the server."""

    clock: Clock
    wall_s: Callable[[], float]
    random: Callable[[], float]
    link: Link


class Service:
    """Watches the sensor and sends what it sees, until it is told to stop."""

    def __init__(self, settings: NodeSettings, telemetry: TelemetrySettings, stream: str, world: World) -> None:
        self._settings, self._world = settings, world
        self._kind = kind_of(settings)
        spool = Spool(telemetry.spool_dir, int(telemetry.spool_mb * MEGABYTE), telemetry.spool_age_s)
        self._outbox = Outbox(settings.board, stream, spool)
        self._stretches = Stretches(world.clock.now_s, world.wall_s)
        self._sender = Sender(self._outbox, world.link, self._doing, world.wall_s, world.random)
        self._sensor: Remembered | None = None
        self._stop = threading.Event()

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def run(self) -> None:
        """Work until ``stop``; what could not be sent is on disk then."""
        thread = threading.Thread(target=self._sender.run, name="fedge-sender", daemon=True)
        thread.start()
        while not self._stop.is_set():
            try:
                with self._sampling() as sensor:
                    self._watch(sensor)
            except SensorLost as error:
                logger.warning("nothing is measured: %s", error)
                self._stop.wait(SENSOR_AGAIN_S)
        self._sender.stop()
        self._outbox.save(self._world.wall_s(), at_once=True)
        thread.join(TICK_S)  # a message under way may still come through; if not, it lies on disk and goes again

    @contextmanager
    def _sampling(self) -> Iterator[Remembered]:
        """The board's sensor, read at the settings' rate."""
        place, clock = self._settings.place, self._world.clock
        formula = self._kind.total_power if self._kind else None
        with closing(sensor_for(place.sensor, Machine(place.root), clock, formula)) as found:
            sensor = self._sensor = Remembered(found)
            try:
                with Sampler(sensor, clock, place.sample_hz, KEEP_S):
                    yield sensor
            finally:
                self._sensor = None

    def _watch(self, sensor: Remembered) -> None:
        while not self._stop.wait(TICK_S):
            self._take(sensor)
        self._take(sensor)

    def _take(self, sensor: Remembered) -> None:
        now_s, lost = self._world.wall_s(), self._stretches.lost
        trace = self._stretches.new(sensor.samples())
        self._outbox.lose(self._stretches.lost - lost)
        if trace:
            self._outbox.add(trace, now_s)
        self._outbox.save(now_s)
        self._sender.more()

    def _doing(self) -> Progress:
        board = self._settings.board
        said, device = said_here(self._settings.live_dir, board), self._kind.name if self._kind else ""
        return doing(said, board, device, self._newest(), self._world.wall_s())

    def _newest(self) -> Sample | None:
        sensor = self._sensor
        samples = sensor.samples()[-1:] if sensor is not None else []
        return samples[0] if samples and self._world.clock.now_s() - samples[0].at_s <= GAP_S else None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """The spool's folder for this process only; raises ``BadInput`` when another one has it, or it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadInput("telemetry.spool_dir", str(error), "a folder that this user may write to") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        right = "one service at a time: systemctl status fedge-telemetry"
        raise BadInput("telemetry.spool_dir", f"{folder}, which another process uses", right) from error
    finally:
        os.close(lock)


def serve(settings: NodeSettings) -> None:
    """Tell the settings' server until SIGTERM or SIGINT; raises ``BadInput`` where it cannot begin."""
    telemetry = settings.telemetry
    if telemetry is None:
        right = "a section telemetry with url, ca, certificate and key (docs/live.md)"
        raise BadInput("telemetry", "no section telemetry in the settings", right)
    if not BOARD.fullmatch(settings.board):
        raise BadInput("board", repr(settings.board), "a name of at most 64 letters, digits, ., _ and -")
    world = World(RealClock(), time.time, random.random, HttpsLink(telemetry))
    with alone(telemetry.spool_dir):
        service = Service(settings, telemetry, secrets.token_hex(8), world)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.stop())
        logger.info("%s tells %s what it sees", settings.board, telemetry.url)
        service.run()


def main(argv: Sequence[str] | None = None) -> int:
    """The program's exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog="python -m fedge.node.telemetry", description=__doc__)
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="the board's settings (%(default)s)")
    asked = parser.parse_args(argv)
    try:
        serve(read_settings(asked.settings))
    except FedgeError as error:
        logger.error("%s", error)  # noqa: TRY400  a user's mistake, told in one line
        return USAGE if isinstance(error, BadInput) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
