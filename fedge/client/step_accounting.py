"""Step counts of a round, the cost of warm-up and mode changes, and merging consecutive measurements."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from fedge.serving import standing_service
from fedge.types import Measurement

DEFAULT_MODE_SWITCH_S = 0.1
# Default until a mode change has been measured: a larger value makes two-mode rounds rarer, a smaller one risks the
# deadline.


def count_steps(samples: int, batch_size: int, local_epochs: float) -> int:
    """Return the number of steps in a client's share of a round, at least 1."""
    return max(1, round(math.ceil(samples / batch_size) * local_epochs))


def warm_up_steps(measurements: Sequence[Measurement]) -> float:
    """Return the median warm-up time of the measured rounds in units of steps, or 0 if none was measured."""
    warm_ups = [m.warm_up_s / m.step_s for m in measurements if m.warm_up_s > 0]
    return statistics.median(warm_ups) if warm_ups else 0.0


def mode_switch_s(measurements: Sequence[Measurement]) -> float:
    """Return the median time of a mode change in seconds, or ``DEFAULT_MODE_SWITCH_S`` if none was measured."""
    switches_s = [m.switch_s for m in measurements if m.switch_s is not None]
    return statistics.median(switches_s) if switches_s else DEFAULT_MODE_SWITCH_S


def merge_consecutive(first: Measurement, more: Measurement) -> Measurement:
    """Combine two consecutive measurements of one mode, weighting by steps and energy."""
    steps, work_s = first.steps + more.steps, first.work_s + more.work_s
    return dataclasses.replace(
        more,
        steps=steps,
        step_s=(first.steps * first.step_s + more.steps * more.step_s) / steps,
        power_w=(first.work_j + more.work_j) / work_s,
        throttled=first.throttled or more.throttled,
        warm_up_s=first.warm_up_s + more.warm_up_s,
        switch_s=first.switch_s,
        time_se_log=math.hypot(first.steps * first.time_se_log, more.steps * more.time_se_log) / steps,
        power_se_log=math.hypot(first.steps * first.power_se_log, more.steps * more.power_se_log) / steps,
        lost_s=first.lost_s + more.lost_s,
        stall_s=(first.steps * first.stall_s + more.steps * more.stall_s) / steps,
        service=standing_service.merge_service_use(first.service, more.service),
    )
