"""Progress reporting of a round: wrappers of device and training that report, but do not change any result."""

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
    """A ``fedge.protocols.Device`` that reports mode, power and phase.

    A part counts as a probe if steps remain after it and it ends within the first ``trial_steps`` steps.
    """

    def __init__(self, device: Device, reporter: ProgressReporter, steps: int, trial_steps: float) -> None:
        self._device, self._teller = device, reporter
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


def attach_progress(context: RoundContext, reporter: ProgressReporter, steps: int) -> RoundContext:
    """Return the context with a device that reports progress over a round of ``steps`` steps."""
    trial_steps = context.exploration.share * steps
    return dataclasses.replace(context, device=ProgressDevice(context.device, reporter, steps, trial_steps))


class ProgressTraining:
    """A ``fedge.protocols.Training`` that reports the steps done."""

    def __init__(self, training: Training, reporter: ProgressReporter) -> None:
        self._training, self._teller = training, reporter

    def advance(self, steps: int) -> None:
        self._training.advance(steps)
        self._teller.add_steps(steps)

    def result(self) -> TrainResult:
        self._teller.report("sending")
        return self._training.result()


LIVE_FOLDER = "live"
"""Name of the folder for live records within a run's folder."""
REPORT_PERIOD_S = 0.2
# Default: emulated rounds may take milliseconds, and writing the file takes a tenth of one.
MAX_REMEMBERED_BOARDS = 4096

_last_report_s: OrderedDict[tuple[Path, str], float] = OrderedDict()
"""Unix time of each board's last report in this process, kept across rounds because a round may be very short."""


@contextmanager
def open_emulated_reporter(
    run_folder: Path | None, begun: BoardProgress, wall_s: Callable[[], float]
) -> Iterator[ProgressReporter]:
    """Open the reporter of one round, which ends with the state ``done`` or ``failed``.

    Args:
        run_folder: Folder of the run; None disables reporting.
        begun: Initial progress.
        wall_s: Returns Unix time in seconds.
    """
    if run_folder is None:
        yield ProgressReporter(None, begun, wall_s)
        return
    key = run_folder, begun.board
    begun = replace(begun, run=run_folder.name)
    last_s = _last_report_s.get(key, float("-inf"))
    reporter = ProgressReporter(
        run_folder / LIVE_FOLDER, begun, wall_s, REPORT_PERIOD_S, states_at_once=False, last_s=last_s
    )
    try:
        yield reporter
        reporter.finish("done")
    except BaseException as error:
        reporter.finish("failed", error=str(error))
        raise
    finally:
        _last_report_s[key] = reporter.told_s
        _last_report_s.move_to_end(key)
        while len(_last_report_s) > MAX_REMEMBERED_BOARDS:
            _last_report_s.popitem(last=False)
