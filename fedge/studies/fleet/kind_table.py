"""The boards of a kind in a fleet of columns: one surface, one shared posterior over its modes, and the work in them.

A kind is like one board of a run: it has measured some modes, and its predictor is fitted to one row per mode, the mean
over its clients. So a fit costs the same for ten clients and for a million.

The mode, or the two modes, of least energy within a time are found for many clients at once. Symbols: t, e = seconds
and joules above idling of a step in a mode, n steps, r seconds available. In any mix of modes time and energy are sums
over the steps, so the least energy at r / n seconds per step lies on the lower convex hull of (t, e): a mix of two
neighbours on it. Steps are whole, so that the mix may miss the optimum by less than one step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.client.client_setup import PROBE_EXPLORER
from fedge.decisions import probe_choice
from fedge.decisions.candidate_modes import mask_above_floor, mask_candidates_and_presets
from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.measured_correction import correct_with_measurements
from fedge.decisions.planning import is_pinned
from fedge.decisions.policies import find_lowest_mode
from fedge.decisions.policies.mode_policies import ENERGY_MARGIN_SHARE, KNOWN_SD_LOG
from fedge.decisions.probe_choice import ProbeBudget
from fedge.devices.board_kinds import (
    TABLE_PREFIX,
    build_kind,
    build_knowledge,
    draw_kind_average,
    load_unseen_references,
)
from fedge.devices.emulated_board import JITTER_SD, find_top_mode
from fedge.devices.mode_surface import ModeSurface, draw_kind_surface
from fedge.experiment import Experiment, FleetBoard
from fedge.pareto import find_nearest_row, front_mask
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors import load_predictor
from fedge.predictors.explorers import load_explorer
from fedge.seeds import make_generator
from fedge.studies.fleet.fleet_costs import map_presets_to_modes
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.types import Floats, Measurement, Modes, Predictions, ProfileTable

MAX_KNOWN_MODES = 63
"""Modes of a kind that a client's record of tried modes tells apart, one bit of it each."""


@dataclass(frozen=True, slots=True, eq=False)
class KindTable:
    """The constants of a kind.

    Attributes:
        surface: True step time and power of all modes of a typical board.
        candidates: Rows of ``surface`` that may be chosen, shape (n,).
        modes: These modes.
        top: Row of ``surface`` of the fastest mode.
        low: Row of ``surface`` of the mode in which boards wait.
        presets: Rows of ``surface`` of the board's presets, by name.
        plausible: Curve of the modes that the oracle may choose.
        every: The same with implausible rows of a measured table.
        predict: Fits the predictor to measurements and predicts ``modes``.
    """

    surface: ModeSurface
    candidates: Rows
    modes: Modes
    top: int
    low: int
    presets: dict[str, int]
    plausible: WorkCurve
    every: WorkCurve
    knowledge: PriorKnowledge
    predict: Callable[[Sequence[Measurement]], Predictions]

    @property
    def idle_w(self) -> float:
        """Return the power of a typical board that waits, in watts."""
        return float(self.surface.idle_w[self.low])

    @property
    def waiting_w(self) -> tuple[float, float]:
        """Return the power of a typical board that waits in its lowest mode, and in MAXN, in watts."""
        return self.idle_w, float(self.surface.idle_w[self.top])

    def to_candidate(self, row: int) -> int:
        """Return the candidate nearest to a row of ``surface``."""
        return find_nearest_row(self.modes, self.surface.modes[row])

    def find_pinned_row(self, policy: str) -> int:
        """Return the row of ``surface`` in which boards wait: the policy's pinned mode, or the lowest."""
        if not is_pinned(policy):
            return self.low
        preset = policy.partition(":")[2]
        return self.presets[preset] if preset else self.top


def build_kind_table(experiment: Experiment, board: FleetBoard) -> KindTable:
    """Build the table of the kind of ``board``, the first of its boards; its smooth residual is drawn for the kind."""
    kind = build_kind(board, experiment.workload)
    average, replayed = kind.average, board.truth.startswith(TABLE_PREFIX)
    rng = make_generator(experiment.seed, board.name, "kind")
    sds = kind.residual_time_sd_log, kind.residual_power_sd_log
    surface = average if replayed else draw_kind_surface(draw_kind_average(kind, experiment.seed), *sds, rng)
    mask = mask_candidates_and_presets(surface.modes, tuple(kind.spec.presets.values()))
    candidates = Modes(surface.modes.knobs[mask])
    top, low = surface.find_row(find_top_mode(surface)), surface.find_row(find_lowest_mode(candidates))
    knowledge = build_knowledge(kind, load_unseen_references(board, experiment.workload), float(surface.idle_w[top]))
    predictor = load_predictor(experiment.predictor, knowledge)
    above = mask_above_floor(surface.modes)
    plausible = above & find_plausible_rows(_as_table(surface), kind.spec.maxn) if replayed else above
    plausible[top] = True
    presets = map_presets_to_modes(surface, kind.spec.presets)
    return KindTable(
        surface,
        candidates=np.flatnonzero(mask),
        modes=candidates,
        top=top,
        low=low,
        presets={name: surface.find_row(mode) for name, mode in presets.items()},
        plausible=_build_true_curve(surface, plausible, float(surface.idle_w[low])),
        every=_build_true_curve(surface, above, float(surface.idle_w[low])),
        knowledge=knowledge,
        predict=lambda measurements: predictor.fit(measurements).predict(candidates),
    )


def _as_table(surface: ModeSurface) -> ProfileTable:
    return ProfileTable(
        "", workload="", batch_size=1, modes=surface.modes, step_s=surface.step_s, power_w=surface.power_w, sha256="",
        path="",
    )  # fmt: skip


def _build_true_curve(surface: ModeSurface, mask: NDArray[np.bool_], idle_w: float) -> WorkCurve:
    return build_curve(np.where(mask, surface.step_s, np.inf), surface.step_s * (surface.power_w - idle_w))


@dataclass(frozen=True, slots=True, eq=False)
class KindKnowledge:
    """The measurements of a kind, pooled by mode, each less its client's expected offset, and the last fit.

    Attributes:
        rows: Candidates measured so far, in their order, shape (k,).
        count: Measurements of each, shape (k,).
        steps: Steps of these measurements, shape (k,).
        log_s: Sum of their log step times, shape (k,).
        log_w: Sum of their log powers, shape (k,).
        fitted: Predictions of all candidates after the last fit.
        predictions: The same, those of measured modes corrected by the pooled measurements.
        budgets_s: Seconds per step that the deadlines of earlier rounds allowed a typical client.
    """

    rows: Rows
    count: Floats
    steps: Floats
    log_s: Floats
    log_w: Floats
    fitted: Predictions
    predictions: Predictions
    budgets_s: tuple[float, ...] = ()


def start_knowledge(kind: KindTable) -> KindKnowledge:
    """Return what is known of a kind before any measurement: its prior."""
    none, rows, prior = np.zeros(0), np.zeros(0, dtype=np.intp), kind.predict(())
    return KindKnowledge(rows, count=none, steps=none, log_s=none, log_w=none, fitted=prior, predictions=prior)


def list_pooled_measurements(known: KindKnowledge) -> list[Measurement]:
    """List one measurement per mode: the geometric mean of all of that mode."""
    return [
        Measurement(
            known.fitted.modes[int(row)],
            steps=max(1, round(steps)),
            step_s=math.exp(log_s / count),
            power_w=math.exp(log_w / count),
            time_se_log=JITTER_SD / math.sqrt(steps),
            power_se_log=JITTER_SD / math.sqrt(steps),
        )
        for row, count, steps, log_s, log_w in zip(
            known.rows, known.count, known.steps, known.log_s, known.log_w, strict=True
        )
    ]


@dataclass(frozen=True, slots=True, eq=False)
class PooledRows:
    """Measurements of a kind's clients: candidates, steps, and log step time and log power less the offsets."""

    rows: Rows
    steps: Floats
    log_s: Floats
    log_w: Floats


def learn(kind: KindTable, known: KindKnowledge, seen: PooledRows) -> KindKnowledge:
    """Pool measurements; the posterior is fitted again only if they are of a mode that was not measured before."""
    if len(seen.rows) == 0:
        return known
    new = np.setdiff1d(seen.rows, known.rows)
    rows = np.concatenate([known.rows, new])
    places = np.zeros(len(kind.candidates), dtype=np.intp)
    places[rows] = np.arange(len(rows))

    def add(before: Floats, values: Floats | None) -> Floats:
        total: Floats = np.bincount(places[seen.rows], values, len(rows)).astype(np.float64)
        total[: len(before)] += before
        return total

    pooled = dataclasses.replace(
        known,
        rows=rows,
        count=add(known.count, None),
        steps=add(known.steps, seen.steps),
        log_s=add(known.log_s, seen.log_s),
        log_w=add(known.log_w, seen.log_w),
    )
    measurements = list_pooled_measurements(pooled)
    fitted = kind.predict(measurements) if len(new) else pooled.fitted
    return dataclasses.replace(pooled, fitted=fitted, predictions=correct_with_measurements(fitted, measurements))


def choose_probe(kind: KindTable, known: KindKnowledge, budget: ProbeBudget, modes: int) -> int | None:
    """Return the candidate that the kind should probe next, as a board of a run would, or None if none is worth it."""
    if len(known.rows) == 0:
        return kind.to_candidate(kind.top)
    if len(known.rows) >= modes:
        return None
    predictions, seen = known.predictions, frozenset(kind.modes[int(row)] for row in known.rows)
    informative = probe_choice.list_informative_modes(predictions, kind.idle_w, seen, budget)
    if len(informative):
        explorer = load_explorer(PROBE_EXPLORER, informative, kind.knowledge)
        explorer.tell(list_pooled_measurements(known))
        if len(suggested := explorer.ask(1)):
            return find_nearest_row(kind.modes, suggested[0])
    steps, left_s, switch_s = (np.array([value]) for value in (budget.steps, budget.left_s, budget.switch_s))
    room = WorkRoom(steps, left_s, switch_s, switch_w=0.0)
    wish = choose_predicted_work(predictions, kind.idle_w, room=room, z=0.0, offset_sd=np.zeros(1))
    for row in (int(wish.slow[0]), int(wish.fast[0])):
        if row not in known.rows and probe_choice.is_probe_worthwhile(
            predictions, kind.idle_w, mode=kind.modes[row], known=seen, room=budget
        ):
            return row
    mode = probe_choice.find_most_saving_mode(predictions, kind.idle_w, seen, budget)
    return None if mode is None else find_nearest_row(kind.modes, mode)


Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class WorkCurve:
    """The modes worth choosing among, by ascending time: the Pareto front, and those of it on its lower convex hull.

    Attributes:
        rows: Rows of the front's modes, shape (f,); empty if no mode has finite figures.
        step_s: Seconds per step, shape (f,).
        step_j: Joules per step above idling, shape (f,).
        hull: Places of the hull in the front, shape (h,).
    """

    rows: Rows
    step_s: Floats
    step_j: Floats
    hull: Rows


@dataclass(frozen=True, slots=True, eq=False)
class WorkChoice:
    """The choices of c clients.

    Attributes:
        slow: Row of the slower mode, which runs first, shape (c,).
        fast: Row of the mode of all other steps, shape (c,); equal to ``slow`` without a mix.
        slow_steps: Steps in the slower mode, shape (c,); 0 without a mix.
        in_time: Whether the work ends in time, shape (c,). If not, ``fast`` is the fastest mode.
    """

    slow: Rows
    fast: Rows
    slow_steps: Floats
    in_time: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class WorkRoom:
    """The work left to c clients and the time for it, in seconds of the kind's own speed.

    Attributes:
        steps: Steps left, the warm-up included, shape (c,).
        left_s: Seconds left for them, shape (c,).
        switch_s: Seconds of a change of mode, shape (c,).
        switch_w: Power above idling during the change, in watts.
    """

    steps: Floats
    left_s: Floats
    switch_s: Floats
    switch_w: float

    def select(self, mask: NDArray[np.bool_]) -> WorkRoom:
        return WorkRoom(self.steps[mask], self.left_s[mask], self.switch_s[mask], self.switch_w)


def build_curve(step_s: Floats, step_j: Floats) -> WorkCurve:
    """Build the curve of modes with these times and energies above idling, shape (modes,); rows not finite are left
    out.
    """
    rows = np.flatnonzero(front_mask(step_s, step_j))
    rows = rows[np.argsort(step_s[rows], kind="stable")]
    t, e = step_s[rows], step_j[rows]
    hull = list[int]()
    for place in range(len(rows)):
        while len(hull) > 1 and _turns_up(t, e, (hull[-2], hull[-1], place)):
            hull.pop()
        hull.append(place)
    return WorkCurve(rows, t, e, np.array(hull, dtype=np.intp))


def _turns_up(t: Floats, e: Floats, places: tuple[int, int, int]) -> bool:
    """Return whether the middle of three points is on or above the line between the others."""
    a, b, c = places
    return bool((e[b] - e[a]) * (t[c] - t[a]) >= (e[c] - e[a]) * (t[b] - t[a]))


def choose_work(curve: WorkCurve, room: WorkRoom) -> WorkChoice:
    """Choose the work of least energy of every client within its time, in one mode or in two."""
    steps, left_s = room.steps, room.left_s * (1.0 + LIMIT_ROUNDING)
    last = np.searchsorted(curve.step_s, left_s / steps, side="right") - 1
    in_time = last >= 0
    alone = curve.rows[np.maximum(last, 0)]
    if len(curve.hull) < 2:
        return WorkChoice(alone, alone, np.zeros(len(steps)), in_time)
    t, e = curve.step_s[curve.hull], curve.step_j[curve.hull]
    mixed_s = left_s - room.switch_s
    place = np.searchsorted(t, mixed_s / steps, side="right") - 1
    fast = np.clip(place, 0, len(t) - 2)
    slow = fast + 1
    count = np.minimum(np.floor((mixed_s - steps * t[fast]) / (t[slow] - t[fast])), np.ceil(steps) - 1.0)
    mixed_j = count * e[slow] + (steps - count) * e[fast] + room.switch_s * room.switch_w
    mixes = (place == fast) & (count >= 1.0) & (mixed_j < steps * curve.step_j[np.maximum(last, 0)])
    return WorkChoice(
        np.where(mixes, curve.rows[curve.hull[slow]], alone),
        np.where(mixes, curve.rows[curve.hull[fast]], alone),
        np.where(mixes, count, 0.0),
        in_time,
    )


def choose_predicted_work(
    predictions: Predictions, idle_w: float, room: WorkRoom, *, z: float, offset_sd: Floats
) -> WorkChoice:
    """Choose as ``choose_by_deadline`` does for one board: in time with the margin, else as expected, else the fastest.

    Args:
        predictions: Predictions of the modes to choose from, of a typical board of the kind.
        idle_w: The typical board's idle power in watts.
        room: The clients' work; times are divided by the expected offset.
        z: Margin in standard deviations.
        offset_sd: Standard deviation (log) of each client's own offset of time, shape (c,); clients of equal values are
            computed together, so there should be few different ones.
    """
    slow, fast = np.empty(len(offset_sd), dtype=np.intp), np.empty(len(offset_sd), dtype=np.intp)
    count, in_time = np.zeros(len(offset_sd)), np.zeros(len(offset_sd), dtype=np.bool_)
    for sd in np.unique(offset_sd):
        mine = offset_sd == sd
        chosen = _choose_with_sd(predictions, idle_w, room.select(mine), z=z, sd=float(sd))
        slow[mine], fast[mine] = chosen.slow, chosen.fast
        count[mine], in_time[mine] = chosen.slow_steps, chosen.in_time
    return WorkChoice(slow, fast, count, in_time)


def _choose_with_sd(predictions: Predictions, idle_w: float, room: WorkRoom, *, z: float, sd: float) -> WorkChoice:
    step_s, time_sd = predictions.step_s, np.hypot(predictions.step_s_sd_log, sd)
    part = ENERGY_MARGIN_SHARE * z
    careful_w = predictions.power_w * np.exp(part * predictions.power_w_sd_log) - idle_w
    careful_j = step_s * np.exp(part * time_sd) * careful_w
    chosen = choose_work(build_curve(step_s * np.exp(z * time_sd), careful_j), room)
    if chosen.in_time.all():
        return chosen
    known = build_curve(np.where(time_sd <= KNOWN_SD_LOG, step_s, np.inf), careful_j)
    otherwise = _choose_fastest(step_s, careful_j, room) if len(known.rows) == 0 else choose_work(known, room)
    late = np.where(otherwise.in_time, otherwise.fast, _find_fastest(step_s, careful_j))
    return WorkChoice(
        np.where(chosen.in_time, chosen.slow, np.where(otherwise.in_time, otherwise.slow, late)),
        np.where(chosen.in_time, chosen.fast, late),
        np.where(chosen.in_time, chosen.slow_steps, np.where(otherwise.in_time, otherwise.slow_steps, 0.0)),
        chosen.in_time | otherwise.in_time,
    )


def _choose_fastest(step_s: Floats, step_j: Floats, room: WorkRoom) -> WorkChoice:
    rows = np.full(len(room.steps), _find_fastest(step_s, step_j))
    return WorkChoice(rows, rows, np.zeros(len(rows)), np.zeros(len(rows), dtype=np.bool_))


def _find_fastest(step_s: Floats, step_j: Floats) -> int:
    return int(np.lexsort((step_j, step_s))[0])


def compute_offset_sd(count: NDArray[np.int64], prior_sd: float, noise_sd: float) -> Floats:
    """Return the standard deviation (log) of a client's offset after ``count`` measurements, shape (c,)."""
    values: Floats = 1.0 / np.sqrt(1.0 / prior_sd**2 + count / noise_sd**2)
    return values


def compute_offset(log_sum: Floats, count: NDArray[np.int64], prior_sd: float, noise_sd: float) -> Floats:
    """Return the posterior mean of a client's offset: log ratios of measured to predicted, shrunk towards 0.

    ``log_sum`` and ``count`` have the shape (c,); ``prior_sd`` is the spread of the offsets within a kind.
    """
    values: Floats = log_sum / (count + math.pow(noise_sd / prior_sd, 2))
    return values
