"""Choose the mode whose probe is expected to save most, as long as it leaves time for the rest of the round.

Symbols: t, p step time and power with log standard deviations s_t, s_p; i idle power; e = t (p - i) energy above idling
per step; n steps left, k steps of the probe, L seconds left. Rounds allow a_r seconds per step; with the modes known
now the best mix of two costs b_r per step, with mode m among them c_rm. A probe of m is worth
sum_r w_r E max(0, 1 - c_rm / b_r), the expected improvement of Bayesian optimisation, over the rounds seen and some
that may come. It is safe when k t exp(z s_t) + (n - k) min(t exp(z s_t)) <= L. It pays back when the rounds that are
left can save what it costs: the expected improvement for a probe made for its saving, the improvement at one standard
deviation less time and power for one made for what it teaches. With no round left nothing pays back.

References:
    Mockus, "On Bayesian methods for seeking the extremum", 1975 (expected improvement).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.measured_correction import find_rows
from fedge.decisions.mode_mix import least_energy_per_step
from fedge.pareto import front_mask
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

MIN_EXPECTED_SAVING = 0.001
"""Least expected saving of a probe net of its cost, as a share of a round's energy above idling: a default.

A larger value probes less and finds smaller savings later or never.
"""
MAX_ROUNDS_AHEAD = 20
"""Default horizon in rounds over which a probe must pay off: later savings would mostly be found otherwise."""
SPREAD_FACTOR = 1.5
"""Default factor on the predicted standard deviation: the best of thousands of modes lies farther off than most."""
MAX_TEACHING_PROBES = 2
"""Default number of modes, besides the first, that are probed to teach the predictor, not for their saving."""
TEACHING_SLOWDOWN = 1.5
"""Default limit on their step time, relative to the fastest mode: slower probes cost more of the round."""
TEACHING_BAND = 0.1
"""Default distance to the predicted front in log units: modes that could be on the front if this much cheaper."""
ANCHOR_SHARE = 0.01
"""Share of the time that is left to a run which the one probe for later runs may take. No plan uses low clocks of GPU
and memory, so a run measures none by itself, and power there, which the prior has wrong by a fifth, would stay unknown:
without the probe the next run's mean error of power is 5 % instead of 3 to 4 % (benchmarks/warm_start.py)."""
MAX_FUTURE_SLOWDOWN = 1.6
"""Future rounds are taken to allow 1 to this many times the fastest mode's time: slower modes save nothing more."""
FUTURE_DEADLINES = 9
"""Number of such budgets that are evaluated."""
MAX_CANDIDATES = 150
"""Number of modes whose probe is evaluated in full, those that could save most; a larger number only costs time."""
FEW_ROUNDS = 5
"""With fewer rounds left, probes extend the planned round by less than the whole slack, in proportion, since a longer
round costs the whole fleet's idle energy. And no mode is probed that is slower than ``MAX_FUTURE_SLOWDOWN``: one step
in it may cost more than few rounds save, and its energy above idling is predicted worst. Tried with
benchmarks/run_lengths.py.
"""
LINE_ROUNDING = 1e-6
"""Relative distance above the known modes within which a mode counts as one that may save: more than limits and sums of
floats are off.
"""
QUANTILES = tuple(NormalDist().inv_cdf((2 * i + 1) / 8) for i in range(4))


@dataclass(frozen=True, slots=True)
class ProbeBudget:
    """The remaining steps and time of a round, the costs of probing, and budgets of other rounds."""

    steps: float
    """Work left in steps, warm-up included."""
    left_s: float
    """Seconds until the deadline."""
    probe_s: float
    """Minimum duration of a probe in seconds."""
    margin_z: float
    """Standard deviations of margin on every time."""
    allowed_s: tuple[float, ...] = ()
    """Seconds per step that earlier rounds allowed, and at the end those of this one."""
    foresight: float = 0.0
    """Weight, in rounds, of budgets unlike those seen so far."""
    rounds_left: int = MAX_ROUNDS_AHEAD
    """Rounds after this one."""
    switch_s: float = 0.0
    """Duration of a change of mode in seconds."""
    switch_j: float = 0.0
    """Energy of a change of mode in joules."""
    warm_up: float = 0.0
    """Warm-up, in steps and included in ``steps``, with which the next part begins."""
    whole_round: bool = False
    """Whether a mode is tried for all of ``steps``."""


def count_probe_steps(step_s: Floats, room: ProbeBudget) -> Floats:
    """Return the steps of a probe in each mode, shape (modes,)."""
    steps: Floats = np.maximum(1.0, np.ceil(room.probe_s / step_s))
    return steps


def list_informative_modes(
    predictions: Predictions, idle_w: float, known: Collection[PowerMode], room: ProbeBudget
) -> Modes:
    """Return the modes near the predicted front among which the first probes are chosen for what they teach.

    Args:
        predictions: One row per mode.
        idle_w: Idle power in watts.
        known: Modes measured so far; no mode is returned once there are more than ``MAX_TEACHING_PROBES``.
        room: What is left of the round; only modes whose probe is safe are returned.
    """
    rows = sorted(find_rows(predictions.modes, known).values())
    if len(rows) > MAX_TEACHING_PROBES:
        return Modes(predictions.modes.knobs[:0])
    safe = _mask_safe(predictions, room, rows)
    step_j = predictions.step_s * (predictions.power_w - idle_w)
    front = np.flatnonzero(front_mask(predictions.step_s, step_j))
    front = front[np.argsort(predictions.step_s[front], kind="stable")]
    least_j = np.interp(predictions.step_s, predictions.step_s[front], step_j[front])
    unsure = np.hypot(predictions.step_s_sd_log, predictions.power_w_sd_log)
    near = step_j * np.exp(-np.minimum(unsure, TEACHING_BAND)) <= least_j
    quick = predictions.step_s <= TEACHING_SLOWDOWN * np.nanmin(predictions.step_s)
    found = np.flatnonzero(safe & near & quick)
    return Modes(predictions.modes.knobs[found[_mask_paid_back(predictions, idle_w, rows, found, room=room)]])


def find_most_saving_mode(
    predictions: Predictions,
    idle_w: float,
    known: Collection[PowerMode],
    room: ProbeBudget,
    *,
    sure_sd_log: float = 0.0,
) -> PowerMode | None:
    """Return the mode whose probe is expected to save most, or None if none is both worthwhile and safe.

    Args:
        predictions: One row per mode.
        idle_w: Idle power in watts.
        known: Modes whose predictions can be relied on, at least one.
        room: What is left of the round.
        sure_sd_log: Modes whose time and power are predicted within this standard deviation are not probed.
    """
    rows = sorted(find_rows(predictions.modes, known).values())
    safe = _mask_safe(predictions, room, rows)
    if sure_sd_log > 0.0:
        safe &= np.maximum(predictions.step_s_sd_log, predictions.power_w_sd_log) > sure_sd_log
    row = _find_most_saving_row(predictions, idle_w=idle_w, known=rows, safe=safe, room=room) if safe.any() else None
    return None if row is None else predictions.modes[row]


def find_mode_to_repeat(
    predictions: Predictions,
    idle_w: float,
    known: Collection[PowerMode],
    doubted: Sequence[Measurement],
    room: ProbeBudget,
) -> PowerMode | None:
    """Return the mode whose doubted measurement would save most if it is true, or None if none is worth a repeat.

    A doubted measurement is ignored in favour of the prediction. If it was better than that, the mode would not be
    chosen, hence not measured again, and the doubt would last.

    Args:
        predictions: One row per mode.
        idle_w: Idle power in watts.
        known: Modes whose predictions can be relied on, those of ``doubted`` included.
        doubted: Single measurements that are far from their predictions.
        room: What is left of the round.
    """
    claims = {measurement.mode: measurement for measurement in doubted}
    trusted = [mode for mode in known if mode not in claims]
    if not claims or not trusted:
        return None
    rows = find_rows(predictions.modes, [*trusted, *claims])
    some = predictions.select_rows(list(rows.values()))
    claimed = replace(
        some,
        step_s=np.array([claims[m].step_s if m in claims else s for m, s in zip(rows, some.step_s, strict=True)]),
        power_w=np.array([claims[m].power_w if m in claims else w for m, w in zip(rows, some.power_w, strict=True)]),
    )
    # A doubted time is a reason to measure again, not one to leave less time for the rest of the round.
    slowest = replace(claimed, step_s=np.maximum(claimed.step_s, some.step_s))
    known_rows = sorted(find_rows(claimed.modes, trusted).values())
    safe = _mask_safe(slowest, room, known_rows)
    row = _find_most_saving_row(claimed, idle_w=idle_w, known=known_rows, safe=safe, room=room) if safe.any() else None
    return None if row is None else claimed.modes[row]


def find_anchor_mode(
    predictions: Predictions, fastest: PowerMode, measured: Collection[PowerMode], room: ProbeBudget
) -> PowerMode | None:
    """Return the mode to probe for later runs, or None in short runs and if every such mode would take too long.

    It has all cores at their top clock, at most half of the GPU's, and the lowest memory clock that costs little.

    Args:
        predictions: One row per mode.
        fastest: The mode with everything at its top.
        measured: Modes that were measured on boards of the kind; one with at most half of the GPU's clock is enough.
        room: What is left of the round.
    """
    if room.rounds_left < FEW_ROUNDS or any(2 * mode.gpu_mhz <= fastest.gpu_mhz for mode in measured):
        return None
    cores, cpu_mhz, gpu_mhz, mem_mhz = predictions.modes.knobs.T
    steps = count_probe_steps(predictions.step_s, room)
    found = (cores == fastest.cores) & (cpu_mhz == fastest.cpu_mhz) & (2 * gpu_mhz <= fastest.gpu_mhz)
    found &= (2 * steps <= room.steps) & (steps * predictions.step_s <= ANCHOR_SHARE * room.rounds_left * room.left_s)
    rows = np.flatnonzero(found)
    return predictions.modes[int(rows[np.lexsort((-gpu_mhz[rows], mem_mhz[rows]))[0]])] if len(rows) else None


def find_trial_mode(
    predictions: Predictions, idle_w: float, known: Collection[PowerMode], room: ProbeBudget
) -> PowerMode | None:
    """Return the mode worth trying for all steps of a round that is too short for a probe, or None.

    With no round left it is one that saves also if its time and power are higher by the margin. The arguments are those
    of ``find_most_saving_mode``.
    """
    rows = sorted(find_rows(predictions.modes, known).values())
    careful_s = predictions.step_s * np.exp(room.margin_z * predictions.step_s_sd_log)
    safe = np.isfinite(careful_s) & (room.steps * careful_s + room.switch_s <= room.left_s)
    safe &= predictions.step_s <= MAX_FUTURE_SLOWDOWN * predictions.step_s[rows].min()
    safe[rows] = False
    if not safe.any():
        return None
    if room.rounds_left <= 0:
        row = _find_surely_saving_row(predictions, idle_w, rows, safe, room=room)
    else:
        whole = replace(room, whole_round=True)
        row = _find_most_saving_row(predictions, idle_w=idle_w, known=rows, safe=safe, room=whole)
    return None if row is None else predictions.modes[row]


def is_probe_worthwhile(
    predictions: Predictions, idle_w: float, *, mode: PowerMode, known: Collection[PowerMode], room: ProbeBudget
) -> bool:
    """Return whether a probe of ``mode`` leaves time for the rest at full speed and can pay back."""
    row = find_rows(predictions.modes, [mode]).get(mode)
    if row is None or not _mask_safe(predictions, room, ())[row]:
        return False
    rows = sorted(find_rows(predictions.modes, known).values())
    return bool(_mask_paid_back(predictions, idle_w, rows, np.array([row]), room=room)[0])


def scale_slack(slack: float, rounds_left: int) -> float:
    """Return the share by which probes may extend a planned round that ``rounds_left`` rounds follow."""
    return slack * min(1.0, rounds_left / FEW_ROUNDS)


def _mask_safe(predictions: Predictions, room: ProbeBudget, known: Sequence[int]) -> NDArray[np.bool_]:
    """Mask the unknown modes whose probe leaves time for the rest at full speed and takes at most half of the steps."""
    careful_s = predictions.step_s * np.exp(room.margin_z * predictions.step_s_sd_log)
    steps = count_probe_steps(predictions.step_s, room)
    careful_s = np.where(np.isfinite(careful_s), careful_s, np.inf)
    rest_s = (room.steps - room.warm_up - steps) * careful_s.min() + 2.0 * room.switch_s
    trial_s = (steps + room.warm_up) * careful_s
    safe: NDArray[np.bool_] = (2 * steps <= room.steps) & (trial_s + rest_s <= room.left_s)
    safe &= np.isfinite(careful_s)
    if room.rounds_left < FEW_ROUNDS:
        safe &= predictions.step_s <= MAX_FUTURE_SLOWDOWN * np.nanmin(predictions.step_s)
    safe[list(known)] = False
    return safe


@dataclass(frozen=True, slots=True, eq=False)
class _RoundCosts:
    """Energy above idling of the rounds seen and to come, with the modes known now.

    Attributes:
        known_s: Seconds per step of the known modes that none beats in both, shape (known,).
        known_j: Joules above idling per step of them, shape (known,).
        allowed_s: Seconds per step that the rounds allow, shape (rounds,); this round is the last.
        weights: Weight of each round, shape (rounds,).
        now_j: Joules per step of the best mix of known modes, shape (rounds,).
    """

    predictions: Predictions
    idle_w: float
    known_s: Floats
    known_j: Floats
    allowed_s: Floats
    weights: Floats
    now_j: Floats

    def compute_savings(
        self, rows: NDArray[np.intp], time_z: Floats | float, power_z: Floats | float, some: slice = slice(None)
    ) -> Floats:
        """Return the share that each of ``rows`` would save if its time and power were so many deviations off.

        Args:
            rows: The modes.
            time_z: Standard deviations of the log time, one number or of shape (..., 1).
            power_z: The same of the log power.
            some: The rounds to weigh.

        Returns:
            Shares of shape (..., rows).
        """
        predictions = self.predictions
        step_s = predictions.step_s[rows] * np.exp(time_z * predictions.step_s_sd_log[rows])
        power_w = predictions.power_w[rows] * np.exp(power_z * predictions.power_w_sd_log[rows])
        step_j = step_s * (power_w - self.idle_w)
        kept = self._mask_saving(step_s, step_j)
        new_j = least_energy_per_step(
            step_s[kept],
            step_j=step_j[kept],
            known_s=self.known_s,
            known_j=self.known_j,
            allowed_s=self.allowed_s[some],
        )
        share = np.zeros(step_s.shape)
        share[kept] = np.maximum(0.0, 1.0 - new_j / self.now_j[some]) @ self.weights[some]
        return share

    def _mask_saving(self, step_s: Floats, step_j: Floats) -> NDArray[np.bool_]:
        """Mask the modes that may save energy; the others lie above the line through the known modes.

        No mix with a known mode is below that line's convex hull, which is what the known modes take themselves. Most
        of thousands of modes are ruled out in a fraction of the time that their mixes take.
        """
        if self.now_j.min() <= 0.0:
            return np.ones(step_s.shape, dtype=np.bool_)
        order = np.argsort(self.known_s)
        line_j = np.interp(step_s, self.known_s[order], self.known_j[order], left=np.inf)
        with np.errstate(invalid="ignore"):
            above: NDArray[np.bool_] = step_j >= line_j + LINE_ROUNDING * np.abs(line_j)
        return ~above


def _compute_round_costs(
    predictions: Predictions, idle_w: float, known: Sequence[int], room: ProbeBudget
) -> _RoundCosts:
    known_s = predictions.step_s[known]
    known_j = known_s * (predictions.power_w[known] - idle_w)
    front = front_mask(known_s, known_j)  # no mix with another known mode takes less
    known_s, known_j = known_s[front], known_j[front]
    allowed_s, weights = _list_future_budgets(float(known_s.min()), room)
    now_j = least_energy_per_step(known_s, step_j=known_j, known_s=known_s, known_j=known_j, allowed_s=allowed_s)
    return _RoundCosts(
        predictions,
        idle_w,
        known_s=known_s,
        known_j=known_j,
        allowed_s=allowed_s,
        weights=weights,
        now_j=now_j.min(axis=0),
    )


def _mask_paid_back(
    predictions: Predictions, idle_w: float, known: Sequence[int], rows: NDArray[np.intp], *, room: ProbeBudget
) -> NDArray[np.bool_]:
    """Mask those of ``rows`` whose probe costs no more than the rounds left would save with the best of ``rows``."""
    if not len(rows) or not len(known) or room.rounds_left <= 0:
        return np.zeros(len(rows), dtype=np.bool_)
    costs = _compute_round_costs(predictions, idle_w, known, room)
    hoped = float(costs.compute_savings(rows, -1.0, -1.0).max())
    spent = _probe_cost(predictions, idle_w=idle_w, rows=rows, now_j=float(costs.now_j[-1]), room=room)
    paid: NDArray[np.bool_] = spent <= min(room.rounds_left, MAX_ROUNDS_AHEAD) * hoped
    return paid


def _find_most_saving_row(
    predictions: Predictions, idle_w: float, known: Sequence[int], safe: NDArray[np.bool_], room: ProbeBudget
) -> int | None:
    """Return the row of largest expected improvement, or None if that is not worthwhile.

    No quantile foretells more than the lowest of time and power, unless the work may draw less than idling. In most
    rounds that already rules out every row.
    """
    if room.rounds_left <= 0:
        return None
    costs = _compute_round_costs(predictions, idle_w, known, room)
    rows = np.flatnonzero(safe)
    at_best = costs.compute_savings(rows, -1.0, -1.0, slice(None, None, 2))
    rows = rows[np.argsort(-at_best, kind="stable")[:MAX_CANDIDATES]]
    spent = _probe_cost(predictions, idle_w=idle_w, rows=rows, now_j=float(costs.now_j[-1]), room=room)
    spent /= min(room.rounds_left, MAX_ROUNDS_AHEAD)
    lowest_z = SPREAD_FACTOR * QUANTILES[0]
    lowest_w = predictions.power_w[rows] * np.exp(lowest_z * predictions.power_w_sd_log[rows])
    hoped = costs.compute_savings(rows, lowest_z, lowest_z)
    left = (hoped - spent > MIN_EXPECTED_SAVING) | (lowest_w < idle_w) | (costs.now_j.min() <= 0.0)
    if not left.any():
        return None
    rows, spent = rows[left], spent[left]
    time_z, power_z = SPREAD_FACTOR * np.array([(a, b) for a in QUANTILES for b in QUANTILES]).T[..., None]
    net = costs.compute_savings(rows, time_z, power_z).mean(axis=0) - spent
    best = int(np.argmax(net))
    return int(rows[best]) if net[best] > MIN_EXPECTED_SAVING else None


def _find_surely_saving_row(
    predictions: Predictions, idle_w: float, known: Sequence[int], safe: NDArray[np.bool_], *, room: ProbeBudget
) -> int | None:
    """Return the row of least energy with the margin on time and power, or None if the best known mix takes less."""
    costs = _compute_round_costs(predictions, idle_w, known, room)
    careful_j = _compute_careful_j(predictions, idle_w, room)
    row = int(np.argmin(np.where(safe, careful_j, np.inf)))
    return row if careful_j[row] < (1.0 - MIN_EXPECTED_SAVING) * float(costs.now_j[-1]) else None


def _compute_careful_j(predictions: Predictions, idle_w: float, room: ProbeBudget) -> Floats:
    """Return the energy above idling per step of every mode, with the margin on time and power, in joules."""
    careful_s = predictions.step_s * np.exp(room.margin_z * predictions.step_s_sd_log)
    careful_j: Floats = careful_s * (predictions.power_w * np.exp(room.margin_z * predictions.power_w_sd_log) - idle_w)
    return careful_j


def _probe_cost(
    predictions: Predictions, idle_w: float, rows: NDArray[np.intp], now_j: float, room: ProbeBudget
) -> Floats:
    """Return the extra cost of probing each of ``rows`` over going on as now, as a share of the round's energy.

    With the margin: in modes near idle power the energy above idling is a small difference with a large error, and the
    least of thousands of predictions is mostly such an error.
    """
    steps = room.steps if room.whole_round else count_probe_steps(predictions.step_s[rows], room)
    step_j = _compute_careful_j(predictions.select_rows(rows), idle_w, room)
    more: Floats = (steps * np.maximum(0.0, step_j - now_j) + room.switch_j) / (room.steps * now_j)
    return more


def _list_future_budgets(fastest_s: float, room: ProbeBudget) -> tuple[Floats, Floats]:
    """Return the seconds per step that rounds allow, never below the fastest known, and the weight of each."""
    coming_s = fastest_s * np.linspace(1.0, MAX_FUTURE_SLOWDOWN, FUTURE_DEADLINES)
    coming_s[0] = 1.005 * fastest_s
    seen_s = np.maximum(np.array(room.allowed_s, dtype=np.float64), fastest_s)
    weights = np.concatenate([np.full(FUTURE_DEADLINES, room.foresight / FUTURE_DEADLINES), np.ones(len(seen_s))])
    kept = weights > 0
    allowed_s = np.concatenate([coming_s, seen_s])[kept]
    return allowed_s, weights[kept] / weights.sum()
