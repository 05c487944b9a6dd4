"""A board of three modes whose truth is known, and reports of rounds on it, for tests of the fleet's study."""

import dataclasses

import numpy as np
from contracts.reports import LOW, MAXN
from contracts.reports import report as made_up

from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS
from fedge.devices.mode_surface import ModeSurface
from fedge.modes import stack_modes
from fedge.studies.fleet.round_comparison import BoardTruth
from fedge.telemetry.store_records import RoundRow
from fedge.types import Front, FrontPoint, Measurement, PowerMode, RoundReport

IDLE_W, STEPS = 2.0, 20
MIDDLE = PowerMode(4, 1132.8, 921.6, 1600.0)
SURFACE = ModeSurface(
    stack_modes([MAXN, MIDDLE, LOW]),
    np.array([1.0, 1.25, 2.0]),
    np.array([10.0, 7.0, 4.0]),
    np.array([3.0, 2.5, IDLE_W]),
)
TRUTH = BoardTruth(SURFACE, {"MAXN": MAXN, "low": LOW}, STEPS, np.ones(3, dtype=np.bool_))


def true_front(scale: float = 1.0) -> Front:
    """What ``SURFACE`` gives for ``STEPS`` and the warm-up, times ``scale``."""
    times_s = (STEPS + WARM_UP_STEPS) * SURFACE.step_s * scale
    points = tuple(
        FrontPoint(SURFACE.modes[i], float(time_s), float(time_s * SURFACE.power_w[i]))
        for i, time_s in enumerate(times_s)
    )
    return Front(points, points[0], IDLE_W, 2.0, 3.0)


def report_of(board: str, *parts: Measurement) -> RoundReport:
    *probes, measured = parts
    report = made_up(board, 1.0, truth=true_front())
    return dataclasses.replace(report, probes=tuple(probes), measured=measured, idle_w=IDLE_W)


def in_mode(
    mode: PowerMode, steps: int, luck: float = 1.0, *, first: bool = True, changed: bool = False
) -> Measurement:
    """A measurement that is ``luck`` times as long as it should be."""
    step_s = luck * float(SURFACE.step_s[SURFACE.find_row(mode)])
    switch_s = luck * MODE_SWITCH_S if changed else None
    return Measurement(mode, steps, step_s, 99.0, warm_up_s=WARM_UP_STEPS * step_s if first else 0.0, switch_s=switch_s)


def row_of(number: int = 1, deadline_s: float | None = None) -> RoundRow:
    nothing = dict.fromkeys(("oracle_energy_j", "maxn_round_s", "maxn_energy_j", "maxn_parked_energy_j"))
    counts = dict.fromkeys(("selected", "done", "late", "failed"), 1)
    return RoundRow(
        round=number, start_s=0.0, end_s=9.0, round_s=9.0, deadline_s=deadline_s, straggler="", energy_j=77.0,
        train_energy_j=0.0, loss=0.0, accuracy=0.0, **counts, **nothing,
    )  # fmt: skip
