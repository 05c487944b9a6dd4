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
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedge.atomic_files import FileLock
from fedge.clock import RealClock
from fedge.devices import catalogue
from fedge.devices.board_spec import BoardIdentity, match_board_spec
from fedge.devices.local_board import SETTINGS_PATH, NodeSettings, TelemetrySettings, read_settings
from fedge.devices.sensing import open_sensor
from fedge.devices.sensing.sampler import Sampler
from fedge.errors import BadInput, FedgeError, SensorLost
from fedge.powerd.board_control import identify_board
from fedge.powerd.machine import Machine
from fedge.powerd.mode_records import PowerdRefusal
from fedge.protocols import Clock
from fedge.strict_json import BOARD
from fedge.telemetry.live_records import COLUMN_RANGES, OVERLAP_S, BoardProgress, keep_plausible, plausible_or_none
from fedge.telemetry.outbox import Outbox, Spool
from fedge.telemetry.progress_files import read_progress
from fedge.telemetry.trace_operations import shift_trace, trace_from_samples
from fedge.telemetry.uplink import HttpsUplink, TelemetrySender, Uplink
from fedge.types import EMPTY_TRACE, DeviceSpec, SensorSample, Trace

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


# Sensor samples as stretches of one second, also between runs ---------------------------------------------------------


STRETCH_S = 1.0
GAP_S = 3.0
"""Longest interval between samples that is interpolated, in seconds; a longer one leaves a gap in the trace."""
CLOCK_SET_S = 0.05
"""Shift of unix time against the monotonic clock, in seconds, that counts as the clock being set."""
CLOCK_IS_SET_S = 1_735_689_600.0
"""2025-01-01: a board without a clock battery starts in an earlier year, where its stretches would be misplaced."""
SHOW_END_S = 60.0
"""Seconds for which a round's end is reported before the board counts as idle."""
STALE_S = 900.0
"""Seconds without a report after which a run counts as gone: longer than any single part of its work."""


class SensorStretches:
    """Cuts samples into stretches of one second in unix time; successive calls return each stretch once.

    After the wall clock was set back, nothing is returned until it passes the last returned stretch, so that no time is
    reported twice.

    Attributes:
        lost: Number of stretches that could not be dated.
    """

    def __init__(self, now_s: Callable[[], float], wall_s: Callable[[], float]) -> None:
        """Start at the present time."""
        self._now_s, self._wall_s = now_s, wall_s
        self._from_s = now_s()
        """End of what was returned, on the sensor's clock."""
        self._ahead_s = wall_s() - now_s()
        self._until_s = 0.0
        """End of what was returned, unix time."""
        self.lost = 0

    def take_new(self, samples: Sequence[SensorSample]) -> Trace:
        """Return the whole seconds since the last call, as far as samples cover them."""
        whole = int((samples[-1].at_s - self._from_s) // STRETCH_S) if samples else 0
        if whole < 1:
            return EMPTY_TRACE
        first = max(0, bisect_left(samples, self._from_s, key=lambda sample: sample.at_s) - 1)
        start_s, self._from_s = self._from_s, self._from_s + whole * STRETCH_S
        trace = keep_plausible(
            trace_from_samples(samples[first:], start_s=start_s, end_s=self._from_s, period_s=STRETCH_S, gap_s=GAP_S)
        )
        return self._date_trace(trace)

    def _date_trace(self, trace: Trace) -> Trace:
        ahead_s = self._wall_s() - self._now_s()
        if abs(ahead_s - self._ahead_s) > CLOCK_SET_S:
            self._ahead_s = ahead_s
        dated = shift_trace(trace, self._ahead_s)
        if not dated:
            return EMPTY_TRACE
        if dated.start_s[0] < max(self._until_s - OVERLAP_S, CLOCK_IS_SET_S):
            self.lost += len(dated)
            return EMPTY_TRACE
        self._until_s = dated.start_s[-1] + dated.span_s[-1]
        return dated


def describe_progress(
    report: BoardProgress | None, board: str, device: str, sample: SensorSample | None, now_s: float
) -> BoardProgress:
    """Combine a run's last report, while it is recent, with the sensor's newest values; otherwise the board is idle."""
    idle = BoardProgress(board, now_s, "idle", device)
    limit_s = SHOW_END_S if report is not None and report.state in {"done", "failed"} else STALE_S
    base = (
        idle
        if report is None or not 0 <= now_s - report.at_s <= limit_s
        else replace(report, at_s=now_s, device=device)
    )
    if sample is None:
        return replace(base, power_w=None, temperature_c=None)
    return replace(
        base,
        power_w=plausible_or_none(sample.total_w, COLUMN_RANGES["power_w"]),
        temperature_c=plausible_or_none(sample.hottest_c, COLUMN_RANGES["temperature_c"]),
    )


def find_board_spec(settings: NodeSettings) -> DeviceSpec | None:
    """Return the catalogue's entry of this board, found without its daemon; None if it is unknown."""
    try:
        if settings.device is not None:
            return catalogue.find(settings.device, where="device")
        tree = identify_board(Machine(settings.root))
        identity = BoardIdentity(tree.model, tuple(tree.compatible), tree.l4t)
        return match_board_spec(identity, (), catalogue.load_catalogue())
    except (FedgeError, PowerdRefusal, OSError) as error:
        logger.warning("the board's kind is not known: %s", error)
        return None


if __name__ == "__main__":
    sys.exit(main())
