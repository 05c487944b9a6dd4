"""A real board: power modes through the power daemon, work timed by the clock, energy integrated from the sensors."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from fedge.atomic_files import write_text
from fedge.devices.board_spec import mode_from_wire, mode_to_wire
from fedge.devices.sensing.energy_integral import account_for_gaps, join_windows
from fedge.errors import BadInput, ModeNotSet
from fedge.json_reader import read_json
from fedge.powerd.powerd_client import PowerdError
from fedge.protocols import Clock
from fedge.types import DeviceSpec, Energy, Measurement, PowerMode, Workload

logger = logging.getLogger(__name__)
LEASE_S = 15.0
"""Seconds after which the daemon restores a board whose client has gone silent. A default: longer leases keep a board
in a foreign mode for longer, shorter ones may expire while the client is only slow.
"""
LEASE_RENEWAL_S = LEASE_S / 3
CLOCK_TOLERANCE = 0.001
"""Relative difference below which two clocks are equal: some kernels list a table in kHz and report Hz."""
IDLE_SETTLE_S = 2.0
"""Seconds before a measurement of idle power in which clocks and power settle: ``benchmarks/profiling.py`` assumes that
power follows a change of mode with a time constant of 1 s.
"""
IDLE_S = 5.0
"""Seconds of a measurement of idle power: 50 samples at 10 Hz."""
ENERGY_WINDOW_S = 60.0
"""Seconds after which the energy of long work is read from the meter, so that a lost sensor ends it; a default."""


class EnergyMeter(Protocol):
    """Meter of energy over a period; ``fedge.devices.sensing.sampler.Sampler`` is the real one."""

    def energy_between(self, start_s: float, end_s: float) -> Energy: ...

    def follow(self, start_s: float) -> None: ...

    def record_mode_change(self) -> None: ...


class ModeControl(Protocol):
    """Sets a board's modes: a client of the power daemon, or ``fedge.devices.gpu_workstation.GpuPowerLimits``."""

    def hold(self, name: str, seconds: float, token: str | None = None) -> Mapping[str, Any]: ...

    def set_mode(self, mode: dict[str, int], token: str | None = None) -> Mapping[str, Any]: ...

    def restore(self, token: str | None = None) -> Mapping[str, Any]: ...

    def get(self) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


class JetsonBoard:
    """A ``fedge.protocols.Device`` on real hardware.

    Inside ``hold`` no other client can change the mode; ``use_mode`` holds the board by itself. All methods raise
    ``BoardError``.

    Args:
        knobs: Values of each knob by its name in the power daemon.
        connect: Opens another connection, for the lease.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        knobs: Mapping[str, Sequence[int]],
        power: ModeControl,
        connect: Callable[[], ModeControl],
        meter: EnergyMeter,
        clock: Clock,
        *,
        idle: IdlePowerStore | None = None,
        holder: str = "fedge",
    ) -> None:
        self.spec = spec
        self.total_power = spec.total_power
        self._knobs = knobs
        self._connect = connect
        self._power = power
        self._meter = meter
        self._clock = clock
        self._idle = idle or IdlePowerStore()
        self._holder = holder
        self._lease: BoardLease | None = None
        self._mode: PowerMode | None = None
        self._worked: PowerMode | None = None
        """Mode of the last work."""
        self._cold = True
        """True until the first step after a mode change, which may take longer."""
        self._set_s = 0.0
        """Seconds that it took to set the present mode; 0 once they are booked."""

    def idle_w(self, mode: PowerMode) -> float:
        """Return the idle power in ``mode`` in watts; measured when it is first needed, then stored."""
        known = self._idle.find_w(mode)
        if known is not None:
            return known
        with self.use_mode(mode):
            self._clock.sleep_s(IDLE_SETTLE_S)
            start_s = self._clock.now_s()
            self._clock.sleep_s(IDLE_S)
            watts = self._measure_energy(start_s, self._clock.now_s()).mean_w
            self._check_mode_kept(mode)
        self._idle.record(mode, watts)
        return watts

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the board for this client; the original state is restored at the end, even if the client dies."""
        if self._lease is not None:
            yield
            return
        with BoardLease(self._connect, self._holder) as lease:
            self._lease = lease
            try:
                yield
            finally:
                self._lease, self._mode = None, None

    @contextmanager
    def use_mode(self, mode: PowerMode) -> Iterator[None]:
        with self.hold():
            outer = self._mode
            self._set_mode(mode)
            try:
                yield
            except BaseException as error:
                with _keep_first_error(error):
                    self._restore_mode(outer)
                raise
            self._restore_mode(outer)

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        mode = self._mode or self._read_mode()
        since_s = seen_s = self._clock.now_s()
        self._meter.follow(since_s)  # one step may be a whole training, longer than the meter keeps samples
        chunks, energies = list[TimedChunk](), list[Energy]()
        last, left, spent_s = None, steps, 0.0
        while (count := count_next_steps(last, left, None if limit_s is None else limit_s - spent_s)) > 0:
            if seen_s - since_s >= ENERGY_WINDOW_S:  # up to the previous chunk, whose next sample has already arrived
                energies.append(self._measure_energy(since_s, seen_s))
                since_s = seen_s
                self._meter.follow(since_s)
            seen_s = self._clock.now_s()
            work(count)
            last = TimedChunk(count, self._clock.now_s() - seen_s)
            chunks.append(last)
            left, spent_s = left - count, spent_s + last.seconds
        energies.append(self._measure_energy(since_s, self._clock.now_s()))
        self._check_mode_kept(mode)
        return self._build_measurement(mode, chunks, join_windows(energies))

    def _measure_energy(self, start_s: float, end_s: float) -> Energy:
        """Return the energy of a period; raise ``SensorLost`` for large gaps, ``ModeNotSet`` for a mode change."""
        energy = account_for_gaps(self._meter.energy_between(start_s, end_s))
        if energy.mode_changes:
            raise ModeNotSet(f"the power mode was changed {energy.mode_changes} times during the work; it has to stay")
        return energy

    def _build_measurement(self, mode: PowerMode, chunks: Sequence[TimedChunk], energy: Energy) -> Measurement:
        timing, self._cold = estimate_step_timing(chunks, self._cold), False
        first, switched = self._worked is None, self._worked not in (None, mode)
        set_s, self._set_s, self._worked = self._set_s, 0.0, mode
        return Measurement(
            mode,
            sum(chunk.steps for chunk in chunks),
            timing.step_s,
            energy.mean_w,
            peak_c=energy.peak_c,
            throttled=energy.throttled,
            warm_up_s=timing.warm_up_s + (set_s if first else 0.0),
            switch_s=set_s if switched else None,
            time_se_log=timing.se_log,
            power_se_log=energy.power_se_log,
        )

    def _set_mode(self, mode: PowerMode) -> None:
        assert self._lease is not None
        start_s = self._clock.now_s()
        with _translate_errors(f"set {mode}"):
            self._power.set_mode(mode_to_wire(mode, self._knobs), token=self._lease.token)
        self._meter.record_mode_change()
        self._mode, self._set_s, self._cold = mode, self._clock.now_s() - start_s, True

    def _restore_mode(self, outer: PowerMode | None) -> None:
        """Restore the enclosing mode, or the original state."""
        assert self._lease is not None
        self._mode = None
        if outer is not None:
            self._set_mode(outer)
            return
        with _translate_errors("put back what was found"):
            self._power.restore(token=self._lease.token)
        self._meter.record_mode_change()
        self._cold = True

    def _read_mode(self) -> PowerMode:
        return mode_from_wire(self._read_state()["mode"], self.spec)

    def _read_state(self) -> Mapping[str, Any]:
        """Return the state that the daemon reads back; raise ``ModeNotSet`` if it cannot read the mode."""
        with _translate_errors("read the mode"):
            now: Mapping[str, Any] = self._power.get()
        if not now["mode"]:
            raise ModeNotSet(f"the board's mode cannot be read: {now.get('stopped') or 'the daemon does not say why'}")
        return now

    def _check_mode_kept(self, mode: PowerMode) -> None:
        """Raise ``ModeNotSet`` if the board left ``mode``: work counts for a mode only if the board stayed in it."""
        now, wished = self._read_state(), mode_to_wire(mode, self._knobs)
        if any(abs(now["mode"].get(knob, value) - value) > CLOCK_TOLERANCE * value for knob, value in wished.items()):
            why = now.get("stopped") or "something else changed it"
            raise ModeNotSet(f"the board left {mode} during the work: got {now['mode']}; {why}")


class BoardLease:
    """Exclusive lease on a board, renewed by a thread until the block ends; then the original state is restored."""

    def __init__(self, connect: Callable[[], ModeControl], holder: str) -> None:
        self._power, self._holder = connect(), holder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self.token = ""

    def __enter__(self) -> Self:
        try:
            with _translate_errors("hold the board"):
                self.token = str(self._power.hold(self._holder, LEASE_S)["token"])
        except ModeNotSet:
            self._power.close()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        with contextlib.closing(self._power), _keep_first_error(error), _translate_errors("give the board back"):
            self._power.hold(self._holder, 0, token=self.token)

    def _renew(self) -> None:
        while not self._over.wait(LEASE_RENEWAL_S):
            try:
                self._power.hold(self._holder, LEASE_S, token=self.token)
            except PowerdError as error:  # reported by the calls of the main thread
                logger.warning("the lease on the board could not be renewed: %s", error)


@contextmanager
def _keep_first_error(first: BaseException | None) -> Iterator[None]:
    """Suppress a ``ModeNotSet`` during clean-up if ``first`` is already being raised."""
    try:
        yield
    except ModeNotSet as error:
        if first is None:
            raise
        logger.warning("the board could not be put back at once, the end of its lease does it: %s", error)


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    """Convert errors of the power daemon to ``ModeNotSet``, with the state that was read back."""
    try:
        yield
    except PowerdError as error:
        untold = error.got is not None and str(error.got) not in error.text
        raise ModeNotSet(f"could not {what}: {error}{f' (read back {error.got})' if untold else ''}") from error


# Timing of steps in chunks: the size of the next chunk, and step time with its standard error; pure functions ---------


CHUNK_S = 0.5
"""Seconds of a chunk of steps that is timed as one; a default of two samples of a slow power sensor."""
UNKNOWN_STEP_SE_LOG = 0.05
"""Standard error (log units) assumed for a step time from a single chunk; a default that gives such a measurement
little weight.
"""
MIN_SE_LOG = 0.001
"""Lower bound of the standard error (log units), since equal chunks do not exclude an error common to all. A
default.
"""


@dataclass(frozen=True, slots=True)
class TimedChunk:
    """A number of steps and the seconds that they took together."""

    steps: int
    seconds: float

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Estimate of the step time.

    Attributes:
        step_s: Seconds per step, without warm-up.
        se_log: Standard error of ``step_s`` in log units.
    """

    step_s: float
    se_log: float
    warm_up_s: float


def count_next_steps(last: TimedChunk | None, left: int, room_s: float | None) -> int:
    """Return the number of steps of the next chunk; the first step is timed alone, and run whatever the limit.

    ``last`` is the previous chunk and ``room_s`` are the seconds until the time limit, if there are any.

    Returns:
        0 if the steps are done or the time is up.
    """
    if last is None or left <= 0:
        return min(1, max(0, left))
    step_s = last.step_s
    count = max(1, int(CHUNK_S / step_s)) if step_s > 0 else left
    if room_s is not None:
        count = min(count, int(room_s / step_s) if step_s > 0 else left)
    return max(0, min(count, left))


def estimate_step_timing(chunks: Sequence[TimedChunk], cold: bool = True) -> StepTiming:
    """Estimate the step time; ``steps * step_s + warm_up_s`` equals the total time.

    Args:
        chunks: The chunks; at least one, and the first has one step.
        cold: True if the first step is the first in its mode, so that its extra time is warm-up. Otherwise it is an
            ordinary step: excluding it whenever it is slow would bias the estimate.
    """
    first, rest = chunks[0], chunks[1:]
    if not rest:
        return StepTiming(first.step_s, UNKNOWN_STEP_SE_LOG, 0.0)
    usual_s = _mean_step_s(rest)
    if cold and first.step_s > usual_s:
        return StepTiming(usual_s, _se_log(rest), first.seconds - usual_s)
    return StepTiming(_mean_step_s(chunks), _se_log(chunks), 0.0)


def _mean_step_s(chunks: Sequence[TimedChunk]) -> float:
    return sum(chunk.seconds for chunk in chunks) / sum(chunk.steps for chunk in chunks)


def _se_log(chunks: Sequence[TimedChunk]) -> float:
    """Return the standard error of the weighted mean step time, in log units, from the scatter of the chunks."""
    if len(chunks) < 2:
        return UNKNOWN_STEP_SE_LOG
    weights = np.array([chunk.steps for chunk in chunks], dtype=np.float64)
    times = np.array([chunk.step_s for chunk in chunks])
    mean = float(np.average(times, weights=weights))
    variance = float(np.average((times - mean) ** 2, weights=weights)) * len(chunks) / (len(chunks) - 1)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    return max(MIN_SE_LOG, math.sqrt(variance / effective) / mean)


# Measured idle power --------------------------------------------------------------------------------------------------


class IdlePowerStore:
    """Idle power by mode, with an optional file.

    Args:
        path: The file; None keeps measurements in memory only.
        meter: Sensor and rails of the measurements. Those of other meters are kept in the file but not used.
    """

    def __init__(self, path: Path | None = None, meter: str = "") -> None:
        self._path, self._meter = path, meter
        self._watts: dict[str, float] = _read(path).get(meter, {}) if path is not None else {}

    def find_w(self, mode: PowerMode) -> float | None:
        """Return the measured idle power in ``mode`` in watts, or None."""
        return self._watts.get(str(mode))

    def record(self, mode: PowerMode, watts: float) -> None:
        """Store a measurement; the file is replaced atomically, and a write error is logged as a warning."""
        self._watts[str(mode)] = watts
        if self._path is None:
            return
        try:
            write_text(self._path, json.dumps(_read(self._path) | {self._meter: self._watts}, indent=1))
        except OSError as error:
            logger.warning("%s cannot be written (%s): the next program measures idle power again", self._path, error)


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Read idle power in watts by meter and mode; empty if there is no readable file."""
    if not path.exists():
        return {}
    try:
        written = read_json(path, "watts by meter and mode")
        return {str(meter): {str(mode): float(w) for mode, w in seen.items()} for meter, seen in written.items()}
    except (BadInput, ArithmeticError, ValueError, AttributeError, TypeError) as error:
        logger.warning("%s cannot be read (%s): idle power is measured again", path, error)
        return {}
