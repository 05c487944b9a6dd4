"""Who does how much of what: the clients' work options and the deadline of least cost per progress, with a bound.

Symbols: client i chooses one work option k (share of its local steps, compression of the update) and a power mode j,
or rests. The option is worth v_ik progress; it ends at f_ik + s_ik t_ij and takes b_ik + s_ik a_ij joules above
idling, at p_ij watts, where f and b are of the transfers and s scales the work t, a of the whole share. A round until
the deadline D takes I D + A joules, with I the fleet's idle power and A the sum of joules above idling, and costs
C = c_T D + c_E (J D + B), where J and B are I and A with every client's watts and joules times their price r_i. With V
the sum of values, rounds to a given quality go as 1 / V; so C / V is minimised, subject to limits on D, I D + A, the
sum P of watts, and V. The battery of a client that works has q_i joules above its floor, of which idling takes d_i D.

At a deadline the value of an option does not depend on its mode, so that the best mode is the one of least energy
within reach, from a running minimum; if its joules are more than q_i - d_i D, so are those of all. What remains is a
multiple-choice knapsack. Its Lagrange multipliers, one for all prices on energy, trace each client's upper hull of
value over energy; sorted by slope, the hulls of all clients are the relaxed optimum for every price at once. A limit on
watts adds a multiplier l: modes are chosen by r a + l p.

Deadlines are searched best-first: over an interval the cost is at least that of its first deadline with the reach of
its last. The least bound of all open intervals is returned with the plan. Up to ``EXACT_CLIENTS`` clients, the knapsack
is solved exactly by merging the undominated sums of one client after another.

References:
    Sinha and Zoltners 1979: The Multiple-Choice Knapsack Problem (relaxation by hulls); Dyer 1984.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.planning.front_columns import Ints
from fedge.pareto import find_undominated_rows
from fedge.types import Floats

GAP, EXACT_GAP = 0.005, 0.0005
"""Relative gap at which the search over deadlines ends, and the same where the choice at a deadline is exact."""
MAX_DEADLINES = 60
"""Deadlines evaluated at most; in planner_speed.py 10,000 clients need fewer than half to close the gap."""
EXACT_CLIENTS = 10
"""Clients up to which the choice at a deadline is solved exactly."""
MAX_EXACT_DEADLINES = 400
"""Deadlines evaluated at most if there are so few clients."""
MAX_SUMS = 20_000
"""Undominated sums up to which clients are merged; with more, the relaxed optimum is rounded as on large fleets."""
MAX_CANDIDATES = 200_000
"""Ends of options up to which every one is a candidate deadline; of more, ``GRID`` evenly spaced ones are."""
GRID = 1_024
POWER_PRICES = 24
"""Multipliers on watts that are tried, by halving their interval."""


@dataclass(frozen=True, eq=False)
class JointProblem:
    """The options of n clients with up to m power modes and c work options.

    Attributes:
        work_s: Seconds of the whole share per mode, ascending, infinite where a client has fewer modes; shape (n, m).
        above_j: Its joules above idling, shape (n, m).
        power_w: Watts while it works, shape (n, m).
        fixed_s: Seconds of transfers and encoding per option, shape (n, c).
        fixed_j: Their joules above idling, shape (n, c).
        scale: Work of the option relative to the whole share, positive, shape (n, c).
        value: Progress of the option, shape (n, c); options that are not positive are never chosen.
        price: Price r of each client's joules relative to others, at least 0, shape (n,).
        spare_j: Joules q above the floor of each client's battery, infinite on mains, shape (n,).
        drain_w: Power d that idling takes from it, shape (n,).
        idle_w: Idle power of the whole fleet in watts, of resting boards too.
        priced_idle_w: The same with every board's watts times its price, J.
        time_price: Cost of a second, c_T.
        energy_price: Cost of a joule, c_E.
    """

    work_s: Floats
    above_j: Floats
    power_w: Floats
    fixed_s: Floats
    fixed_j: Floats
    scale: Floats
    value: Floats
    price: Floats
    spare_j: Floats
    drain_w: Floats
    idle_w: float
    priced_idle_w: float
    time_price: float
    energy_price: float

    @cached_property
    def lowest(self) -> tuple[Floats, Ints]:
        """The least of ``above_j`` among the modes up to each, and that mode, both of shape (n, m)."""
        least = np.minimum.accumulate(np.where(np.isfinite(self.work_s), self.above_j, np.inf), axis=1)
        is_new = np.concatenate([np.ones((len(least), 1), np.bool_), least[:, 1:] < least[:, :-1]], axis=1)
        mode = np.maximum.accumulate(np.where(is_new, np.arange(least.shape[1]), 0), axis=1)
        return least, mode

    def left_j(self, deadline_s: float) -> Floats:
        """Return the joules above idling that each client may spend in a round until a deadline, shape (n, 1)."""
        return (self.spare_j - self.drain_w * deadline_s)[:, None]

    @cached_property
    def work_keys(self) -> tuple[Floats, Floats]:
        """``work_s`` of all clients as one ascending sequence, shape (n m,), and their longest, shape (n, 1)."""
        finite = np.isfinite(self.work_s)
        longest_s = np.max(np.where(finite, self.work_s, 0.0), axis=1, keepdims=True)
        keys = np.where(finite, self.work_s / longest_s, 1.9) + 2.0 * np.arange(len(self.work_s))[:, None]
        return keys.ravel(), longest_s


@dataclass(frozen=True, slots=True)
class JointLimits:
    """Limits on a round: seconds, joules of the fleet, watts of the working clients, and the least progress."""

    deadline_s: float = np.inf
    energy_j: float = np.inf
    power_w: float = np.inf
    min_value: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class JointSolution:
    """A choice for every client.

    Attributes:
        option: Index of the work option, -1 for a client that rests, shape (n,).
        mode: Index of the power mode, shape (n,).
        deadline_s: End of the last client, in seconds.
        energy_j: Energy of the fleet until then, in joules.
        value: Progress V.
        cost: C / V.
        bound: Lower bound on the cost of any choice.
        feasible: Whether all limits are kept.
    """

    option: Ints
    mode: Ints
    deadline_s: float
    energy_j: float
    value: float
    cost: float
    bound: float
    feasible: bool = True

    @property
    def gap(self) -> float:
        """Relative distance of the cost from the bound."""
        return max(0.0, 1.0 - self.bound / self.cost) if self.cost > 0 else 0.0


def solve_joint(problem: JointProblem, limits: JointLimits) -> JointSolution | None:
    """Return the choice of least C / V within the limits, or None if no option is worth anything.

    If the limits cannot be kept together, the least progress is dropped first, then those on energy and on the
    deadline, and the one on power last, because a supply may depend on it; the solution is then not feasible.
    """
    relaxed = (limits, replace(limits, min_value=0.0), JointLimits(power_w=limits.power_w), JointLimits())
    for kept in dict.fromkeys(relaxed):
        if (found := _search(problem, kept)) is not None:
            return replace(found, feasible=kept is limits)
    return None


def _search(problem: JointProblem, limits: JointLimits) -> JointSolution | None:
    """Return the best choice within the limits, or None."""
    if not np.isfinite(limits.power_w):
        return _DeadlineSearch(problem, limits).run()
    free = _DeadlineSearch(problem, limits)
    best, low, high = free.run(), 0.0, _highest_power_price(problem)
    for _ in range(POWER_PRICES if best is None or best.gap > GAP else 0):
        price = (low + high) / 2.0
        found = _DeadlineSearch(problem, limits, price, exactly=free.exactly).run()
        low, high = (price, high) if found is None else (low, price)
        best = _keep_better(best, found)
    return best


def _highest_power_price(problem: JointProblem) -> float:
    """Return joules per watt above which every client works in its mode of least power."""
    real = np.isfinite(problem.work_s)
    span_w = np.ptp(problem.power_w[real]) or 1.0
    span_j = np.ptp((problem.price[:, None] * problem.above_j)[real])
    return float(2.0 * span_j * problem.scale.max() / span_w + 1.0)


def _keep_better(one: JointSolution | None, other: JointSolution | None) -> JointSolution | None:
    """Return the solution of less cost, with the higher of both bounds."""
    if one is None or other is None:
        return one or other
    return replace(one if one.cost <= other.cost else other, bound=max(one.bound, other.bound))


@dataclass(frozen=True, slots=True, eq=False)
class _Reach:
    """The options within reach at a deadline: joules (infinite out of reach), watts and mode of each, (n, c).

    ``priced`` are the joules and the watts at their prices.
    """

    deadline_s: float
    above_j: Floats
    power_w: Floats
    mode: Ints
    priced: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Hull:
    """The relaxed optimum for every price at one deadline: sums after each of the steps in the order of their slopes.

    Attributes:
        client: Client of each step, shape (k,).
        option: Option that it changes to, shape (k,).
        sums: Value, joules, watts and priced joules before and after the steps, shape (4, k + 1).
    """

    client: Ints
    option: Ints
    sums: Floats


@dataclass(slots=True, eq=False)
class _DeadlineSearch:
    """Best-first search over the deadlines at one price of watts.

    Attributes:
        exactly: The exact choices by the place of the deadline, which do not depend on the price of watts.
    """

    problem: JointProblem
    limits: JointLimits
    power_price: float = 0.0
    exactly: dict[int, tuple[Ints, Ints] | None] = field(default_factory=dict)
    best: JointSolution | None = None
    hulls: dict[int, _Hull] = field(default_factory=dict)
    inexact: set[int] = field(default_factory=set)

    def run(self) -> JointSolution | None:
        """Return the best choice found and a bound on all, or None if none keeps the limits."""
        ends_s, complete = _list_deadlines(self.problem, self.limits.deadline_s)
        if not len(ends_s):
            return None
        exact = len(self.problem.value) <= EXACT_CLIENTS
        from_s = ends_s if complete else np.concatenate([ends_s[:1], ends_s[:-1]])
        last = len(ends_s) - 1
        open_spans = [(self._bound(ends_s, last, from_s[0]), 0, last)]
        most, gap, closed = (MAX_EXACT_DEADLINES, EXACT_GAP, np.inf) if exact else (MAX_DEADLINES, GAP, np.inf)
        most = MAX_DEADLINES if self.power_price else most  # a price serves the bound; choices are exact without
        while open_spans and len(self.hulls) < most:
            bound, first, last = open_spans[0]
            if not np.isfinite(bound) or (self.best is not None and bound >= self.best.cost * (1.0 - gap)):
                break
            heapq.heappop(open_spans)
            if first == last:
                closed = min(closed, bound) if last in self.inexact else closed
                continue
            half = (first + last) // 2
            heapq.heappush(open_spans, (max(bound, self._bound(ends_s, half, from_s[first])), first, half))
            heapq.heappush(open_spans, (max(bound, self._bound(ends_s, last, from_s[half + 1])), half + 1, last))
        if self.best is None:
            return None
        least = min(open_spans[0][0] if open_spans else np.inf, closed, self.best.cost)
        return replace(self.best, bound=least)

    def _bound(self, ends_s: Floats, last: int, from_s: float) -> float:
        """Return the least C / V of deadlines from ``from_s`` to the last; evaluates the last one if it is new."""
        if last not in self.hulls:
            self._evaluate_deadline(last, float(ends_s[last]), from_s)
        problem, limits = self.problem, self.limits
        watts_j = self.power_price * limits.power_w if self.power_price else 0.0
        waiting = problem.time_price + problem.energy_price * problem.priced_idle_w
        fixed = waiting * from_s - problem.energy_price * watts_j
        most_j = np.inf
        if np.isfinite(limits.energy_j):  # joules at their prices are at most all of them at the highest one
            most_j = float(problem.price.max()) * (limits.energy_j - problem.idle_w * from_s) + watts_j
        values, _, _, joules = self.hulls[last].sums
        ratios = [np.inf]
        if values[-1] >= limits.min_value > 0.0:
            crossing_j = np.interp(limits.min_value, values, joules)
            least = (fixed + problem.energy_price * crossing_j) / limits.min_value
            ratios.append(least if crossing_j <= most_j else np.inf)
        if 0.0 < most_j < joules[-1] and (worth := np.interp(most_j, joules, values)) >= limits.min_value:
            ratios.append((fixed + problem.energy_price * most_j) / worth)
        kept = (values > 0.0) & (values >= limits.min_value) & (joules <= most_j)
        ratios += [np.min((fixed + problem.energy_price * joules[kept]) / values[kept])] if kept.any() else []
        return float(min(ratios))

    def _evaluate_deadline(self, place: int, deadline_s: float, from_s: float) -> None:
        """Keep the relaxed optimum of deadlines from ``from_s`` to one, and try the best choice at the latter.

        Batteries have more to spend at an earlier deadline; later calls for this deadline begin later.
        """
        reach = _find_reach(self.problem, deadline_s, self.power_price, self.problem.left_j(from_s))
        hull = self.hulls[place] = _merge_hulls(self.problem.value, reach)
        if np.isfinite(self.problem.spare_j).any():
            reach = _find_reach(self.problem, deadline_s, self.power_price, self.problem.left_j(deadline_s))
            hull = _merge_hulls(self.problem.value, reach)
        if place not in self.exactly and len(self.problem.value) <= EXACT_CLIENTS:
            self.exactly[place] = _choose_exactly(self.problem, self.limits, reach)
        if not self._try(reach, hull, self.exactly.get(place)):
            self.inexact.add(place)

    def _try(self, reach: _Reach, hull: _Hull, exactly: tuple[Ints, Ints] | None) -> bool:
        """Make the best choice at a deadline the best of all, if it is; return whether it is exactly the best there."""
        problem, limits = self.problem, self.limits
        if exactly is not None:
            option, mode = exactly
        else:
            option = _choose_on_hull(problem, limits, reach, hull=hull, power_price=self.power_price)
            mode = np.take_along_axis(reach.mode, np.maximum(option, 0)[:, None], axis=1)[:, 0]
        found = _evaluate(problem, option, mode)
        if found.value > 0.0 and _keeps(found, problem, limits) and (self.best is None or found.cost < self.best.cost):
            self.best = found
        return exactly is not None


def _list_deadlines(problem: JointProblem, latest_s: float) -> tuple[Floats, bool]:
    """Return candidate deadlines, ascending, and whether they are all ends of options."""
    offered = problem.value > 0.0
    if not offered.any():
        return np.zeros(0), True
    if problem.value.size * problem.work_s.shape[1] <= MAX_CANDIDATES:
        ends_s = problem.fixed_s[:, :, None] + problem.scale[:, :, None] * problem.work_s[:, None, :]
        ends_s = np.unique(ends_s[offered])
        return ends_s[np.isfinite(ends_s) & (ends_s <= latest_s * (1.0 + LIMIT_ROUNDING))], True
    longest_s = problem.work_keys[1]
    last_s = min(float((problem.fixed_s + problem.scale * longest_s)[offered].max()), latest_s)
    first_s = float((problem.fixed_s + problem.scale * problem.work_s[:, :1])[offered].min())
    return (np.geomspace(first_s, last_s, GRID) if first_s <= last_s else np.zeros(0)), False


def _find_reach(problem: JointProblem, deadline_s: float, power_price: float, left_j: Floats) -> _Reach:
    """Return the best mode of every option at a deadline, of at most ``left_j`` joules above idling, (n, 1)."""
    left_s = (deadline_s * (1.0 + LIMIT_ROUNDING) - problem.fixed_s) / problem.scale
    offered = problem.value > 0.0
    if power_price:
        return _find_priced_reach(problem, left_s, deadline_s, power_price=power_price, left_j=left_j)
    keys, longest_s = problem.work_keys
    rows = np.arange(len(left_s))[:, None]
    wanted = np.clip(left_s / longest_s, -0.05, 1.5) + 2.0 * rows
    place = np.searchsorted(keys, wanted, side="right") - 1 - problem.work_s.shape[1] * rows
    least, mode_of = problem.lowest
    inside = np.maximum(place, 0)
    mode = mode_of[rows, inside]
    joules = problem.fixed_j + problem.scale * least[rows, inside]
    within = (place >= 0) & offered & (joules <= left_j)
    above_j, priced = (np.where(within, each, np.inf) for each in (joules, problem.price[:, None] * joules))
    return _Reach(deadline_s, above_j=above_j, power_w=problem.power_w[rows, mode], mode=mode, priced=priced)


def _find_priced_reach(
    problem: JointProblem, left_s: Floats, deadline_s: float, power_price: float, left_j: Floats
) -> _Reach:
    """Return the modes of least r a + l p; they depend on the option, so that every mode is tried for each."""
    priced, above_j = np.full(left_s.shape, np.inf), np.full(left_s.shape, np.inf)
    mode = np.zeros(left_s.shape, dtype=np.int64)
    for j in range(problem.work_s.shape[1]):
        joules = problem.fixed_j + problem.scale * problem.above_j[:, j : j + 1]
        cost = problem.price[:, None] * joules + power_price * problem.power_w[:, j : j + 1]
        within = (problem.work_s[:, j : j + 1] <= left_s) & (joules <= left_j)
        better = within & (cost < priced) & (problem.value > 0.0)
        priced, above_j = np.where(better, cost, priced), np.where(better, joules, above_j)
        mode = np.where(better, j, mode)
    power_w = problem.power_w[np.arange(len(left_s))[:, None], mode]
    return _Reach(deadline_s, above_j=above_j, power_w=power_w, mode=mode, priced=priced)


def _merge_hulls(value: Floats, reach: _Reach) -> _Hull:
    """Return all clients' upper hulls of value over priced joules, from rest on, as one sequence of falling slopes."""
    n = len(value)
    at_v, at_g, at = np.zeros(n), np.zeros(n), np.full(n, -1)
    rows, steps = np.arange(n), []
    while len(rows):
        gain, spent = value[rows] - at_v[rows, None], reach.priced[rows] - at_g[rows, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where((gain > 1e-12) & np.isfinite(spent), gain / np.maximum(spent, 1e-12), -np.inf)
        to = np.argmax(slope, axis=1)
        best = slope[np.arange(len(rows)), to]
        moved = best > 0.0
        rows, to, best = rows[moved], to[moved], best[moved]
        steps.append((rows, to, at[rows], best))
        at_v[rows], at_g[rows], at[rows] = value[rows, to], reach.priced[rows, to], to
    client, option, before, slope = (np.concatenate(part) for part in zip(*steps, strict=True))
    order = np.argsort(-slope, kind="stable")
    client, option, before = client[order], option[order], before[order]
    sums = np.zeros((4, len(client) + 1))
    for row, figures in enumerate((value, reach.above_j, reach.power_w, reach.priced)):
        from_rest = np.where(before >= 0, figures[client, np.maximum(before, 0)], 0.0)
        sums[row, 1:] = np.cumsum(figures[client, option] - from_rest)
    return _Hull(client, option, sums)


def _choose_on_hull(problem: JointProblem, limits: JointLimits, reach: _Reach, hull: _Hull, power_price: float) -> Ints:
    """Return the options after the best number of steps along the hulls that keep the limits; all rest if none does."""
    value, joules, watts, priced = hull.sums
    spent_j = problem.idle_w * reach.deadline_s + joules
    kept = (value > 0.0) & (value >= limits.min_value) & (spent_j <= limits.energy_j) & (watts <= limits.power_w)
    option = np.full(len(problem.value), -1)
    if kept.any():
        priced_j = problem.priced_idle_w * reach.deadline_s + (priced - power_price * watts)
        cost = problem.time_price * reach.deadline_s + problem.energy_price * priced_j
        taken = int(np.argmin(np.where(kept, cost / np.where(value > 0.0, value, 1.0), np.inf)))
        option[hull.client[:taken]] = hull.option[:taken]  # a client's later steps come later
    return option


def _choose_exactly(problem: JointProblem, limits: JointLimits, reach: _Reach) -> tuple[Ints, Ints] | None:
    """Return options and modes of least C / V at a deadline, by merging the undominated sums of the clients.

    Returns:
        Option and mode per client, all resting if nothing keeps the limits; None if the sums become too many.
    """
    sums, chosen = np.zeros((1, 4)), np.zeros((1, 0), dtype=np.int64)
    choices = list(_list_choices(problem, limits, reach))
    for figures, _ in choices:
        if len(sums) * len(figures) > MAX_SUMS:
            return None
        merged = (sums[:, None, :] + figures[None, :, :]).reshape(-1, 4)
        kept = _keep_undominated(merged, limits, problem.idle_w * reach.deadline_s)
        before, own = np.divmod(kept, len(figures))
        sums, chosen = merged[kept], np.column_stack([chosen[before], own])
    if not len(sums):
        return np.full(len(choices), -1), np.zeros(len(choices), dtype=np.int64)
    waiting = (problem.time_price + problem.energy_price * problem.priced_idle_w) * reach.deadline_s
    cost = waiting + problem.energy_price * sums[:, 1]
    fits = (sums[:, 0] > 0.0) & (sums[:, 0] >= limits.min_value * (1.0 - LIMIT_ROUNDING))
    best = int(np.argmin(np.where(fits, cost / np.where(fits, sums[:, 0], 1.0), np.inf)))
    picks = [named[row] for (_, named), row in zip(choices, chosen[best], strict=True)]
    return np.array([option for option, _ in picks]), np.array([mode for _, mode in picks])


def _list_choices(
    problem: JointProblem, limits: JointLimits, reach: _Reach
) -> Iterator[tuple[Floats, list[tuple[int, int]]]]:
    """Yield each client's undominated choices, (choices, 4), with option and mode; resting first.

    Of each it is value, joules at their price, watts, and joules. Without a limit on watts they count as none, and an
    option's mode of least energy is the only one that matters; nor do joules without a limit on them.
    """
    limited, counted = np.isfinite(limits.power_w), float(np.isfinite(limits.energy_j))
    price, most_j = problem.price.tolist(), problem.left_j(reach.deadline_s)[:, 0].tolist()
    for i in range(len(problem.value)):
        left_s = (reach.deadline_s * (1.0 + LIMIT_ROUNDING) - problem.fixed_s[i]) / problem.scale[i]
        rows, named = [(0.0, 0.0, 0.0, 0.0)], [(-1, 0)]
        for k in np.flatnonzero(np.isfinite(reach.above_j[i])).tolist():
            modes = np.flatnonzero(problem.work_s[i] <= left_s[k]).tolist() if limited else [int(reach.mode[i, k])]
            for j in modes:
                joules = float(problem.fixed_j[i, k] + problem.scale[i, k] * problem.above_j[i, j])
                if joules > most_j[i]:
                    continue
                watts = float(problem.power_w[i, j]) if limited else 0.0
                rows.append((float(problem.value[i, k]), price[i] * joules, watts, counted * joules))
                named.append((k, j))
        figures = np.array(rows)
        kept = _keep_undominated(figures, JointLimits(), 0.0)
        yield figures[kept], [named[row] for row in kept.tolist()]


def _keep_undominated(sums: Floats, limits: JointLimits, idle_j: float) -> Ints:
    """Return the rows within the limits of which no other has at least the value for no more of all that it takes."""
    slack = 1.0 + LIMIT_ROUNDING
    rows = np.flatnonzero((idle_j + sums[:, 3] <= limits.energy_j * slack) & (sums[:, 2] <= limits.power_w * slack))
    return rows[find_undominated_rows(np.column_stack([-sums[rows, 0], sums[rows, 1:]]))]


def _evaluate(problem: JointProblem, option: Ints, mode: Ints) -> JointSolution:
    """Return a choice with its own deadline and cost; its bound is its cost."""
    working = np.flatnonzero(option >= 0)
    k, j = option[working], mode[working]
    scale = problem.scale[working, k]
    ends_s = problem.fixed_s[working, k] + scale * problem.work_s[working, j]
    above_j = problem.fixed_j[working, k] + scale * problem.above_j[working, j]
    deadline_s, value = float(ends_s.max(initial=0.0)), float(problem.value[working, k].sum())
    energy_j = problem.idle_w * deadline_s + float(above_j.sum())
    priced_j = problem.priced_idle_w * deadline_s + float((problem.price[working] * above_j).sum())
    cost = (problem.time_price * deadline_s + problem.energy_price * priced_j) / value if value > 0.0 else np.inf
    return JointSolution(option, mode, deadline_s, energy_j=energy_j, value=value, cost=cost, bound=cost)


def _keeps(found: JointSolution, problem: JointProblem, limits: JointLimits) -> bool:
    slack = 1.0 + LIMIT_ROUNDING
    working = np.flatnonzero(found.option >= 0)
    watts = float(problem.power_w[working, found.mode[working]].sum())
    return (
        found.deadline_s <= limits.deadline_s * slack
        and found.energy_j <= limits.energy_j * slack
        and watts <= limits.power_w * slack
        and found.value >= limits.min_value * (1.0 - LIMIT_ROUNDING)
    )
