"""A round that tells how far it is: a device and a training in front of those that work, which change nothing."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedge.client.round_context import RoundContext
from fedge.protocols import Device, Training
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_reporter import ProgressReporter
from fedge.types import DeviceSpec, Measurement, PowerMode, TrainResult, Workload


class ProgressDevice:
    """A ``fedge.protocols.Device``; of ``steps`` minibatches in all, at most ``trial_steps`` are trials.

    A part that is not all that is left, and early enough to be a trial, is told as one.
    """

    def __init__(self, device: Device, teller: ProgressReporter, steps: int, trial_steps: float) -> None:
        self._device, self._teller = device, teller
        self._steps, self._trial_steps, self._done = steps, trial_steps, 0

    @property
    def spec(self) -> DeviceSpec:
        return self._device.spec

    def idle_w(self, mode: PowerMode) -> float:
        return self._device.idle_w(mode)

    @contextmanager
    def use_mode(self, mode: PowerMode) -> Iterator[None]:
        with self._device.use_mode(mode):
            self._teller.report(mode=str(mode))
            yield

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        after = self._done + steps
        self._teller.report("probing" if after < self._steps and after <= self._trial_steps else "training")
        measured = self._device.measure(workload, steps, work, limit_s)
        self._done += measured.steps
        self._teller.report(power_w=measured.power_w, temperature_c=measured.peak_c)
        return measured


def attach_progress(player: RoundContext, teller: ProgressReporter, steps: int) -> RoundContext:
    """The player of a round of ``steps`` minibatches, whose device tells."""
    trial_steps = player.exploration.share * steps
    return dataclasses.replace(player, device=ProgressDevice(player.device, teller, steps, trial_steps))


class ProgressTraining:
    """A ``fedge.protocols.Training``."""

    def __init__(self, training: Training, teller: ProgressReporter) -> None:
        self._training, self._teller = training, teller

    def advance(self, steps: int) -> None:
        self._training.advance(steps)
        self._teller.add_steps(steps)

    def result(self) -> TrainResult:
        self._teller.report("sending")
        return self._training.result()


LIVE_FOLDER = "live"
"""The folder in a run's folder."""
REPORT_PERIOD_S = 0.2
"""Chosen by us: emulated rounds may take milliseconds, and a file's writing a tenth of one."""
MAX_REMEMBERED_BOARDS = 4096

_last_report_s: OrderedDict[tuple[Path, str], float] = OrderedDict()
"""When a board told something last in this process, unix time: over its rounds, of which each may be very short."""


@contextmanager
def open_emulated_reporter(
    run_folder: Path | None, begun: BoardProgress, wall_s: Callable[[], float]
) -> Iterator[ProgressReporter]:
    """The teller of one round of a run, which ends as done or failed; None: nobody listens."""
    if run_folder is None:
        yield ProgressReporter(None, begun, wall_s)
        return
    key = run_folder, begun.board
    begun = replace(begun, run=run_folder.name)
    last_s = _last_report_s.get(key, float("-inf"))
    teller = ProgressReporter(
        run_folder / LIVE_FOLDER, begun, wall_s, REPORT_PERIOD_S, states_at_once=False, last_s=last_s
    )
    try:
        yield teller
        teller.finish("done")
    except BaseException as error:
        teller.finish("failed", error=str(error))
        raise
    finally:
        _last_report_s[key] = teller.told_s
        _last_report_s.move_to_end(key)
        while len(_last_report_s) > MAX_REMEMBERED_BOARDS:
            _last_report_s.popitem(last=False)
