"""A fleet that learns nothing and plans everything: what its choices cost, against an oracle, MAXN and presets.

Symbols: board i does n_i minibatches, t_i(m) and p_i(m) are its true seconds per minibatch and watts in mode m, u the
minibatches' worth of its warm-up, l_i its link, q_i its radio's joules, d_i(m) its watts idling in m. A round in which
it works in modes m_k for n_k minibatches each, and waits in w_i, takes b_i = l_i + sum_k (n_k + u [k first]) t_i(m_k);
the round takes R = max_i b_i and costs E = sum_i [sum_k (n_k + u [k first]) t_i p_i(m_k) + d_i(w_i) (R - b_i + l_i)
+ q_i].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedge import pareto, rounds
from fedge.choice.picking import ROUNDING
from fedge.devices.emulated import WARM_UP_STEPS, top_mode
from fedge.devices.truth import Surface
from fedge.experiment import Board, Experiment, PolicySpec, boards
from fedge.fleetsim.boards import kind_of
from fedge.planning import planner_for
from fedge.planning.deadline import least_energy_at, maxn_energy_j, round_energy_j
from fedge.planning.fleet import MAX_SLOWDOWN, TIME_WEIGHT
from fedge.seeds import generator
from fedge.telemetry.rows import RoundRow
from fedge.types import (
    Front,
    FrontPoint,
    Goal,
    Measurement,
    NamedArrays,
    PowerMode,
    Predictions,
    RoundReport,
    TrainOptions,
    TrainResult,
)

USUAL_S = 30.0
SHARES = (2.0 / 3.0, 4.0 / 3.0)
"""A board's work takes ``USUAL_S`` at MAXN times a draw from here: boards hold different amounts of data. Chosen by
us."""
LATE = 0.01
"""A deadline is missed by more than this share of it."""
SETTLED_FROM = 10
"""Rounds before this one are counted as learning."""
SAMPLES = 10_000
ENERGY_POLICIES = ("least-energy", "least-energy-within-deadline", "energy-budget")
TIME_POLICIES = ("fastest", "fastest-within-power")


class Nothing:
    """A learning task of one number, that nobody learns: every minibatch is only priced."""

    buffers: tuple[str, ...] = ()

    def __init__(self, data_dir: Path | None = None, *, download: bool = False) -> None:
        self.labels: NDArray[np.int64] = np.zeros(SAMPLES, dtype=np.int64)

    def initial_arrays(self, seed: int) -> NamedArrays:
        return {"nothing": np.zeros(1, dtype=np.float32)}

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> Idle:
        return Idle(arrays)

    def evaluate(self, arrays: NamedArrays) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """Training that does nothing."""

    arrays: NamedArrays

    def advance(self, steps: int) -> None:
        """Nothing, ``steps`` times."""

    def result(self) -> TrainResult:
        return TrainResult(self.arrays, 0.0, 0.0)


TASK = f"{__name__}:{Nothing.__name__}"


# Who works how much ---------------------------------------------------------------------------------------------------


def steps_of_boards(experiment: Experiment, steps: int | None) -> dict[str, int]:
    """Minibatches in every board's round: ``steps``, or as many as take it about ``USUAL_S`` seconds at MAXN."""
    if steps is not None:
        return {board.name: steps for board in boards(experiment)}
    return {board.name: _usual_steps(experiment, board) for board in boards(experiment)}


def _usual_steps(experiment: Experiment, board: Board) -> int:
    average = kind_of(board, experiment.workload).average
    share = generator(experiment.seed, board.name, "steps").uniform(*SHARES)
    return max(1, round(share * USUAL_S / float(average.step_s[average.row(top_mode(average))])))


def as_asked(experiment: Experiment, policy: PolicySpec, seed: int, rounds: int) -> Experiment:
    """The experiment of one run: its own fleet, policy and seed, and nothing to learn."""
    workload = experiment.workload.model_copy(update={"task": TASK})
    data = experiment.data.model_copy(update={"partition": "iid"})
    changes = {"policy": policy, "seed": seed, "rounds": rounds, "workload": workload, "data": data}
    return experiment.model_copy(update=changes)


def as_played_by(experiment: Experiment, board: Board, steps: int) -> Experiment:
    """The experiment as one board is told it, so that its share comes to ``steps`` minibatches."""
    count = len(boards(experiment))
    samples = SAMPLES // count + (board.index < SAMPLES % count)
    batches = math.ceil(samples / experiment.workload.batch_size)
    workload = experiment.workload.model_copy(update={"local_epochs": steps / batches})
    return experiment.model_copy(update={"workload": workload})


# What a round costs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spent:
    """A round's length, and per board its joules and when it is done, without the noise of single measurements."""

    round_s: float
    energies_j: Mapping[str, float]
    busy_s: Mapping[str, float]

    @property
    def energy_j(self) -> float:
        """Of all boards."""
        return sum(self.energies_j.values())


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What a board really is: every mode's seconds and watts, its presets (nearest modes), its share of a round."""

    surface: Surface
    presets: Mapping[str, PowerMode]
    steps: int
    plausible: NDArray[np.bool_]
    """The modes that the oracle may take: a measured table has rows that nobody could foresee, or reach again."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One round of a run: what was chosen, and what others would have chosen for the same boards and shares."""

    round: int
    deadline_s: float | None
    played_s: float
    played_j: float
    """The round's length and energy as it was measured, noise and outliers included."""
    chosen: Spent
    oracle: Spent
    every: Spent
    """The oracle that may take implausible modes too."""
    at_length: Spent
    """The oracle with at least as long a round as was taken: the least energy that it could have had."""
    maxn: Spent
    maxn_low: Spent
    """All boards at MAXN, waiting in their lowest mode."""
    preset: Spent
    """Every board in its best preset within the policy's limit on the round's length, MAXN among them."""
    capped: Spent
    """Every board in its best preset but MAXN, however long the round gets."""
    missed: int
    missed_played: int
    """Boards that end more than ``LATE`` after the deadline: by what was chosen, and as it was measured."""
    objective: float | None
    oracle_objective: float | None
    every_objective: float | None
    """What the policy minimises, of what was chosen and of the oracles; None for a policy that minimises nothing."""


def judge(row: RoundRow, reports: Mapping[str, RoundReport], truths: Mapping[str, Truth], policy: PolicySpec) -> Judged:
    """One round judged by the truth; ``reports`` are of emulated boards, ``row`` is what the server wrote of it.

    The oracle plans like the policy, from true fronts. Where the policy's rounds are not planned, the oracle spends the
    least energy in the round's own length.
    """
    told = {board: report.true_front for board, report in reports.items() if report.true_front is not None}
    fronts = {board: _plausible(front, truths[board]) for board, front in told.items()}
    radio_j = {board: reports[board].link.radio_j for board in fronts}
    chosen = worth(reports, truths)
    maxn = _at_maxn(fronts, radio_j)
    late_s = math.inf if row.deadline_s is None else row.deadline_s * (1.0 + LATE)
    oracle = _waiting_low(fronts, radio_j, _planned(fronts, policy, chosen.round_s))
    every = _waiting_low(told, radio_j, _planned(told, policy, chosen.round_s))
    longest_s = max(oracle.round_s, chosen.round_s)
    pinned = {board: _pinned(front, truths[board]) for board, front in fronts.items()}
    capped = {board: _capped(of_board) for board, of_board in pinned.items()}

    def aim(spent: Spent) -> float:
        return _aim(policy, spent, maxn)

    return Judged(
        round=row.round,
        deadline_s=row.deadline_s,
        played_s=row.round_s,
        played_j=row.energy_j,
        chosen=chosen,
        oracle=oracle,
        at_length=_waiting_low(
            fronts, radio_j, {board: least_energy_at(front, longest_s) for board, front in fronts.items()}
        ),
        every=every,
        maxn=maxn,
        maxn_low=_waiting_low(fronts, radio_j, {board: front.maxn for board, front in fronts.items()}),
        preset=best_presets(pinned, radio_j, _limit_s(policy, maxn.round_s), aim),
        capped=best_presets(capped, radio_j, math.inf, aim),
        missed=sum(busy_s > late_s for busy_s in chosen.busy_s.values()),
        missed_played=sum(report.busy_s > late_s for report in reports.values()),
        objective=objective(policy, chosen, maxn),
        oracle_objective=objective(policy, oracle, maxn),
        every_objective=objective(policy, every, maxn),
    )


def _plausible(told: Front, truth: Truth) -> Front:
    """A board's true front without the modes that are implausible, MAXN always among it."""
    if truth.plausible.all():
        return told
    keep = truth.plausible & rounds.above_floor(truth.surface.modes)
    keep[truth.surface.row(told.maxn.mode)] = True
    kept = truth.surface.where(keep)
    warm, none = (truth.steps + WARM_UP_STEPS) / truth.steps, np.zeros(len(kept.modes))
    known = Predictions(kept.modes, kept.step_s * warm, kept.power_w, none, none)
    return pareto.offer(
        known,
        truth.steps,
        told.idle_w,
        told.link_s,
        told.maxn.mode,
        maxn_idle_w=told.maxn_idle_w,
        limit=None,
    )


def worth(reports: Mapping[str, RoundReport], truths: Mapping[str, Truth]) -> Spent:
    """What the modes that boards worked in really cost, probes among them: E and R of the module's head."""
    work = {board: _true_work(report.parts, truths[board].surface) for board, report in reports.items()}
    busy_s = {
        board: reports[board].link.down_s + time_s + reports[board].link.up_s for board, (time_s, _) in work.items()
    }
    round_s = max(busy_s.values())
    energies_j = {
        board: work_j + reports[board].link.radio_j + reports[board].idle_w * (round_s - time_s)
        for board, (time_s, work_j) in work.items()
    }
    return Spent(round_s, energies_j, busy_s)


def _true_work(parts: Sequence[Measurement], surface: Surface) -> tuple[float, float]:
    """Seconds and joules of a board's parts of a round."""
    rows = [surface.row(part.mode) for part in parts]
    warm = [WARM_UP_STEPS if part.warm_up_s > 0 else 0.0 for part in parts]
    times_s = [(p.steps + w) * float(surface.step_s[row]) for p, w, row in zip(parts, warm, rows, strict=True)]
    joules = sum(time_s * float(surface.power_w[row]) for time_s, row in zip(times_s, rows, strict=True))
    return sum(times_s), joules


def _planned(fronts: Mapping[str, Front], policy: PolicySpec, else_s: float) -> dict[str, FrontPoint]:
    """Every board's point of least energy within its goal, as the policy's planner sets it from these fronts."""
    planner, goal = planner_for(policy.name), Goal(policy.name, 0, policy.deadline_s, policy.limits)
    goals = {} if planner is None else planner(fronts, tuple(fronts), goal).goals
    found = {}
    for board, front in fronts.items():
        own = goals.get(board, goal)
        power_w = own.limits.get("power_w", math.inf) * (1.0 + ROUNDING)
        kept = tuple(point for point in front.points if point.work_j <= power_w * point.work_s)
        within = dataclasses.replace(front, points=kept or front.points)
        found[board] = least_energy_at(within, else_s if own.deadline_s is None else own.deadline_s)
    return found


def _waiting_low(fronts: Mapping[str, Front], radio_j: Mapping[str, float], points: Mapping[str, FrontPoint]) -> Spent:
    busy_s = {board: fronts[board].link_s + point.work_s for board, point in points.items()}
    round_s = max(busy_s.values())
    energies_j = {b: radio_j[b] + round_energy_j(fronts[b], point, round_s) for b, point in points.items()}
    return Spent(round_s, energies_j, busy_s)


def _at_maxn(fronts: Mapping[str, Front], radio_j: Mapping[str, float]) -> Spent:
    busy_s = {board: front.link_s + front.maxn.work_s for board, front in fronts.items()}
    round_s = max(busy_s.values())
    return Spent(round_s, {b: radio_j[b] + maxn_energy_j(front, round_s) for b, front in fronts.items()}, busy_s)


# Presets --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pinned:
    """A board that works and waits in one preset; ``top`` marks one that is MAXN."""

    busy_s: float
    work_s: float
    work_j: float
    idle_w: float
    top: bool = False

    def energy_j(self, round_s: float) -> float:
        return self.work_j + self.idle_w * (round_s - self.work_s)


def presets_of(surface: Surface, presets: Mapping[str, PowerMode]) -> dict[str, PowerMode]:
    """A board's presets as modes of its table: the nearest where a preset is not among them, as `preset:` has it."""
    return {name: surface.modes[pareto.nearest_row(surface.modes, mode)] for name, mode in presets.items()}


def best_presets(
    options: Mapping[str, Sequence[Pinned]],
    radio_j: Mapping[str, float],
    limit_s: float,
    aim: Callable[[Spent], float],
) -> Spent:
    """Every board in the one of its presets that suits the fleet best, by the truth; boards wait in it too.

    Tried are all round lengths up to ``limit_s`` that presets can have; for each, every board takes the preset of
    least energy that ends by then, or its fastest one. The least ``aim`` wins.
    """
    floor_s = max(min(option.busy_s for option in options[board]) for board in options)
    ends_s = {option.busy_s for of_board in options.values() for option in of_board}
    lengths_s = sorted({floor_s, *(end_s for end_s in ends_s if floor_s <= end_s <= limit_s * (1.0 + ROUNDING))})
    tried = [_preset_round(options, radio_j, length_s) for length_s in lengths_s]
    return min(tried, key=lambda spent: (aim(spent), spent.round_s))


def _pinned(front: Front, truth: Truth) -> list[Pinned]:
    surface, found, top = truth.surface, [], top_mode(truth.surface)
    for mode in truth.presets.values():
        row = surface.row(mode)
        work_s = (truth.steps + WARM_UP_STEPS) * float(surface.step_s[row])
        work_j = work_s * float(surface.power_w[row])
        found.append(Pinned(front.link_s + work_s, work_s, work_j, float(surface.idle_w[row]), mode == top))
    return found


def _capped(pinned: Sequence[Pinned]) -> Sequence[Pinned]:
    """All presets but MAXN; all of them where there is no other."""
    return [option for option in pinned if not option.top] or pinned


def _preset_round(options: Mapping[str, Sequence[Pinned]], radio_j: Mapping[str, float], length_s: float) -> Spent:
    picked = {}
    for board, of_board in options.items():
        in_time = [option for option in of_board if option.busy_s <= length_s * (1.0 + ROUNDING)]
        fastest = min(of_board, key=lambda option: option.busy_s)
        picked[board] = min(in_time, key=lambda option: option.energy_j(length_s)) if in_time else fastest
    round_s = max(option.busy_s for option in picked.values())
    energies_j = {board: radio_j[board] + option.energy_j(round_s) for board, option in picked.items()}
    return Spent(round_s, energies_j, {board: option.busy_s for board, option in picked.items()})


# What is aimed at -----------------------------------------------------------------------------------------------------


def objective(policy: PolicySpec, spent: Spent, maxn: Spent) -> float | None:
    """What the policy minimises: w R/R_maxn + (1-w) E/E_maxn, E or R; None where it minimises nothing."""
    if policy.name == "balanced":
        return _aim(policy, spent, maxn)
    if policy.name in ENERGY_POLICIES:
        return spent.energy_j
    return spent.round_s if policy.name in TIME_POLICIES else None


def _aim(policy: PolicySpec, spent: Spent, maxn: Spent) -> float:
    """The policy's objective, and the balance of time and energy where it has none of its own."""
    if policy.name in ENERGY_POLICIES:
        return spent.energy_j
    if policy.name in TIME_POLICIES:
        return spent.round_s
    weight = TIME_WEIGHT if policy.time_weight is None else policy.time_weight
    return weight * spent.round_s / maxn.round_s + (1.0 - weight) * spent.energy_j / maxn.energy_j


def _limit_s(policy: PolicySpec, maxn_s: float) -> float:
    """The longest round that the policy allows."""
    slowdown_s = maxn_s * (MAX_SLOWDOWN if policy.max_slowdown is None else policy.max_slowdown)
    return min(slowdown_s, math.inf if policy.deadline_s is None else policy.deadline_s)


# Figures --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FleetRun:
    """One policy with one seed: its rounds, judged, and how many modes every board had measured after each."""

    policy: str
    seed: int
    rounds: tuple[Judged, ...]
    explored: tuple[float, ...]
    """Mean over the boards of the different modes measured so far, after every round."""

    @property
    def row(self) -> dict[str, str | int | float | None]:
        """The figures of all rounds, then again of the rounds of learning, and of those after."""
        learning = [one for one in self.rounds if one.round < SETTLED_FROM]
        settled = [one for one in self.rounds if one.round >= SETTLED_FROM]
        return {
            "policy": self.policy,
            "seed": self.seed,
            "rounds": len(self.rounds),
            **figures(self.rounds),
            "modes_explored_mean": self.explored[-1],
            **{f"{name}_learning": value for name, value in figures(learning).items()},
            **{f"{name}_settled": value for name, value in figures(settled).items()},
        }


def figures(rounds: Sequence[Judged]) -> dict[str, float | None]:
    """Means per round, sums of missed deadlines, shares in percent; None where there is no round or no objective."""
    ways = ("chosen", "oracle", "every", "maxn", "maxn_low", "preset", "capped")
    found: dict[str, float | None] = {}
    for way in ways:
        spent = [getattr(one, way) for one in rounds]
        prefix = {"chosen": "", "capped": "preset_but_maxn_", "every": "oracle_all_rows_"}.get(way, f"{way}_")
        found[f"{prefix}round_s"] = _mean([one.round_s for one in spent])
        found[f"{prefix}energy_j"] = _mean([one.energy_j for one in spent])
    found["played_round_s"] = _mean([one.played_s for one in rounds])
    found["played_energy_j"] = _mean([one.played_j for one in rounds])
    own = [one.objective for one in rounds]
    found["objective_gap_pct"] = _gap_pct(own, [one.oracle_objective for one in rounds])
    found["objective_gap_all_rows_pct"] = _gap_pct(own, [one.every_objective for one in rounds])
    saved = _difference(found["maxn_energy_j"], found["energy_j"])
    oracle = _difference(found["maxn_energy_j"], found["oracle_energy_j"])
    most = _difference(found["maxn_energy_j"], _mean([one.at_length.energy_j for one in rounds]))
    found["saving_pct"] = _percent(saved, found["maxn_energy_j"])
    found["oracle_saving_pct"] = _percent(oracle, found["maxn_energy_j"])
    found["saving_share_pct"] = _percent(saved, most)
    found["deadlines_missed"] = sum(one.missed for one in rounds)
    found["deadlines_missed_played"] = sum(one.missed_played for one in rounds)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _gap_pct(values: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """By how many percent one mean is above another."""
    own = [value for value in values if value is not None]
    their = [value for value in others if value is not None]
    return 100.0 * (sum(own) / sum(their) - 1.0) if own and sum(their) > 0 else None


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None or whole <= 0 else 100.0 * part / whole
