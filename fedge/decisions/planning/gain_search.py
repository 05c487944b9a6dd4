"""The set of boards and the deadline of most expected gain per price of a round's time and energy; exact.

The problem is FedJoule's (choosing clients under an energy budget of the whole run), in our form.
Symbols: board i has gain u_i, idle power p_i and a_i(D), its least energy above idling within reach at deadline D (none
before its first point). The set S has gain U = sum u_i, energy E = sum (p_i D + a_i(D)), and cost C = c_T D + c_E E.
The ratio U / C is maximised by Dinkelbach's iteration: with F(v) = max over S, D of U - v C, the price v is set to the
ratio of the S and D found until F(v) = 0. At a deadline a board is worth u_i - v c_E (p_i D + a_i(D)), which steps up
at its points and falls in between, so that S is the boards of most positive worth and D is one of the points' ends.

References:
    FedJoule, arXiv 2506.10413.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.planning.cost_sweep import EQUAL_TOLERANCE
from fedge.decisions.planning.front_columns import FrontColumns, Ints, running_minimum
from fedge.types import Floats

MAX_EXACT_DEADLINES = 4_096
"""Number of deadlines up to which each is evaluated; more are bounded first. Affects speed only, as the two below."""
MAX_EXACT_PAIRS = 300_000
"""Number of pairs of an undecided board and a deadline up to which each is evaluated."""
START_DEADLINES = 12
"""Number of deadlines that the search starts from."""
MAX_HALVINGS = 24


@dataclass(frozen=True, slots=True)
class GainPlan:
    """The chosen boards by name, their deadline in seconds, and the expected energy of their round in joules."""

    boards: tuple[str, ...]
    deadline_s: float
    energy_j: float


def find_best_gain(
    columns: FrontColumns,
    gains: Floats,
    *,
    count: int | None = None,
    time_price: float = 0.0,
    energy_price: float = 1.0,
    allowance_j: float | None = None,
) -> GainPlan:
    """Return the set of at most ``count`` boards and the deadline of most U / C, with the margin that ``columns`` hold.

    With an allowance the round's energy keeps it if any single board's can, and the allowance is used: the price v
    falls from the best ratio as long as the set of most U - v C keeps it. That finds every set on the concave hull of
    gain over cost; between two of them, boards that still fit are added in the order of gain per joule. If the set of
    the best ratio costs too much, smaller counts are tried, as is the single board of most gain that fits, with those
    that still fit beside it. So with an allowance the gain is the most on the hull, not always the most. Equal worths
    go by name. About O(m log m) per price for m points.

    Args:
        columns: The boards' fronts.
        gains: Gain of each of ``columns.boards``, finite and positive, shape (boards,).
        count: Number of boards at most; None for all. 0 gives an empty plan.
        time_price: Cost of a second of the round, c_T.
        energy_price: Cost of a joule of the round, c_E.
        allowance_j: Upper limit on the energy of the round in joules; None for no limit.

    Raises:
        ValueError: For a negative price, two prices of zero, or gains of another shape, not finite or not positive.
    """
    if min(time_price, energy_price) < 0 or time_price + energy_price <= 0:
        raise ValueError(f"prices must not be negative, nor both zero: {time_price}, {energy_price}")
    if len(gains) != len(columns) or not ((gains > 0) & np.isfinite(gains)).all():
        raise ValueError(f"gains must be finite and positive, one for each of {len(columns)} boards: {gains}")
    if not columns.boards or count == 0:
        return GainPlan((), 0.0, 0.0)
    lowest = running_minimum(columns.above_idle_j, columns.offsets)
    most = len(columns) if count is None else min(count, len(columns))
    problem = _GainProblem(
        columns,
        gains=gains,
        lowest=lowest,
        ends_s=np.unique(columns.safe_ends_s),
        count=most,
        time_price=time_price,
        energy_price=energy_price,
    )
    found = _maximize_ratio(problem)
    if allowance_j is not None and np.isfinite(allowance_j):
        found = _apply_allowance(problem, found, allowance_j)
    return _build_gain_plan(problem, found)


@dataclass(frozen=True, slots=True, eq=False)
class _GainProblem:
    """The search's input; ``lowest`` (m,) is a board's running least energy above idling, ``ends_s`` all deadlines."""

    columns: FrontColumns
    gains: Floats
    lowest: Floats
    ends_s: Floats
    count: int
    time_price: float
    energy_price: float


@dataclass(frozen=True, slots=True, eq=False)
class _GainSolution:
    """A deadline and the indices of the boards chosen; ``value`` is U - v C at the given price."""

    value: float
    deadline_s: float
    chosen: Ints


def _maximize_ratio(problem: _GainProblem) -> _GainSolution:
    """Maximise U / C: start from a few deadlines, then search with a price that rises with the best ratio."""
    glances_s = problem.ends_s[np.unique(np.linspace(0, len(problem.ends_s) - 1, START_DEADLINES).astype(np.int64))]
    best, price = _GainSolution(0.0, float(glances_s[-1]), np.zeros(0, dtype=np.int64)), 0.0
    for deadline_s in (*glances_s.tolist(), *glances_s.tolist()):
        tried = _solve_at_deadline(problem, price, deadline_s)
        if (ratio := _compute_ratio(problem, tried)) > price:
            best, price = tried, ratio
    return _search_deadlines(problem, best, None)


def _compute_ratio(problem: _GainProblem, found: _GainSolution) -> float:
    gain, energy_j = _sum_gain_and_energy(problem, found)
    cost = problem.time_price * found.deadline_s + problem.energy_price * energy_j
    return gain / cost if cost > 0 else (np.inf if gain > 0 else 0.0)


def _sum_gain_and_energy(problem: _GainProblem, found: _GainSolution) -> tuple[float, float]:
    """Return U and E of a solution."""
    if len(found.chosen) == 0:
        return 0.0, 0.0
    above_j = _compute_above_idle_j(
        problem, found.chosen, _find_reach(problem, found.chosen, np.array([found.deadline_s]))
    )[:, 0]
    energy_j = above_j.sum() + problem.columns.idle_w[found.chosen].sum() * found.deadline_s
    return float(problem.gains[found.chosen].sum()), float(energy_j)


def _find_reach(
    problem: _GainProblem, boards: Ints, deadlines_s: Floats, low: Ints | None = None, high: Ints | None = None
) -> Ints:
    """Return the end (exclusive) of each board's points within reach, shape (boards, deadlines), by binary search.

    ``low`` and ``high`` of shape (boards,) bound the answers, where they are known.
    """
    offsets, held_s = problem.columns.offsets, problem.columns.safe_ends_s
    shape = (len(boards), len(deadlines_s))
    left = np.broadcast_to((offsets[boards] if low is None else low)[:, None], shape)
    right = np.broadcast_to((offsets[boards + 1] if high is None else high)[:, None], shape)
    for _ in range(int((right[:, :1] - left[:, :1]).max(initial=0)).bit_length()):
        middle = (left + right) // 2
        further = (held_s[np.minimum(middle, len(held_s) - 1)] <= deadlines_s) & (middle < right)
        left, right = np.where(further, middle + 1, left), np.where(further, right, middle)
    return left


def _compute_above_idle_j(problem: _GainProblem, boards: Ints, reach: Ints) -> Floats:
    """Return a_i for points up to ``reach``, in its shape, infinite before a board's first point."""
    first = problem.columns.offsets[boards][:, None]
    above: Floats = np.where(reach > first, problem.lowest[np.maximum(reach - 1, 0)], np.inf)
    return above


def _compute_worth(problem: _GainProblem, price: float, boards: Ints, above_j: Floats, deadlines_s: Floats) -> Floats:
    """Return u_i - v c_E (p_i D + a_i), shape (boards, deadlines); -infinite where nothing is in reach."""
    reached = np.isfinite(above_j)
    energy_j = problem.columns.idle_w[boards][:, None] * deadlines_s + np.where(reached, above_j, 0.0)
    worth: Floats = np.where(reached, problem.gains[boards][:, None] - price * problem.energy_price * energy_j, -np.inf)
    return worth


def _sum_top(worth: Floats, count: int) -> Floats:
    """Return the sum of the ``count`` largest positive worths of every column, shape (deadlines,)."""
    positive = np.maximum(worth, 0.0)
    if count < len(positive):
        positive = np.partition(positive, len(positive) - count, axis=0)[len(positive) - count :]
    total: Floats = positive.sum(axis=0)
    return total


def _solve_at_deadline(problem: _GainProblem, price: float, deadline_s: float) -> _GainSolution:
    """Return the best set at one deadline; equal worths go by name."""
    everyone, at_s = np.arange(len(problem.columns)), np.array([deadline_s])
    above_j = _compute_above_idle_j(problem, everyone, _find_reach(problem, everyone, at_s))
    worth = _compute_worth(problem, price=price, boards=everyone, above_j=above_j, deadlines_s=at_s)[:, 0]
    order = np.argsort(-worth, kind="stable")[: problem.count]
    chosen = np.sort(order[worth[order] > 0.0])
    value = float(worth[chosen].sum()) - price * problem.time_price * deadline_s
    return _GainSolution(value, deadline_s, chosen)


def _search_deadlines(problem: _GainProblem, best: _GainSolution, price: float | None) -> _GainSolution:
    """Return the set and deadline of most U - v C: halve the deadlines and drop halves that cannot be better.

    Without a ``price`` it is the ratio of the best set found so far, whose worth at that price is 0. As the price rises
    no other set gains by it, so that dropped halves stay dropped, and one search is the whole of Dinkelbach's
    iteration.
    """
    ratio = price is None
    now = _compute_ratio(problem, best) if price is None else price
    worth, doubt = (0.0 if ratio else best.value), EQUAL_TOLERANCE * float(problem.gains.sum())
    everyone, ends_s = np.arange(len(problem.columns)), problem.ends_s
    reach = _find_reach(problem, everyone, ends_s[[0, -1]])
    halves = [(0, len(ends_s) - 1, reach[:, 0], reach[:, 1])]
    while halves:
        first, last, low, high = halves.pop()
        span = _DeadlineSpan(problem, price=now, ends_s=(float(ends_s[first]), float(ends_s[last])), low=low, high=high)
        if span.most <= worth + doubt:
            continue
        one_by_one = last == first or (
            last - first < MAX_EXACT_DEADLINES and len(span.undecided) * (last - first + 1) <= MAX_EXACT_PAIRS
        )
        if one_by_one:
            tried_s, values = ends_s[first : last + 1], span.evaluate_deadlines(ends_s[first : last + 1])
        else:
            half = (first + last) // 2
            middle = _find_reach(problem, boards=everyone, deadlines_s=ends_s[half : half + 1], low=low, high=high)
            after = _find_reach(
                problem, boards=everyone, deadlines_s=ends_s[half + 1 : half + 2], low=middle[:, 0], high=high
            )
            halves += [(first, half, low, middle[:, 0]), (half + 1, last, after[:, 0], high)]
            tried_s, values = ends_s[half : half + 1], span.evaluate_deadline(float(ends_s[half]), middle)
        if values.max() <= worth + doubt:
            continue
        found = _solve_at_deadline(problem, now, float(tried_s[np.argmax(values)]))
        if not ratio:
            best, worth = found, found.value
        elif (better := _compute_ratio(problem, found)) > now * (1.0 + EQUAL_TOLERANCE):
            best, now = found, better
            halves += [(first, last, low, high)] if one_by_one else []
    return best


class _DeadlineSpan:
    """Deadlines from the first to the last of ``ends_s``: a bound on the best value, and the boards surely in or out.

    Over a span a board is worth at most its worth with the span's last points at its first deadline, and at least the
    reverse. Boards whose least is above the most of all but ``count`` are in; those below ``count`` others are out.
    ``low`` and ``high`` are where each board's points within reach end at the two deadlines.
    """

    def __init__(self, problem: _GainProblem, price: float, ends_s: tuple[float, float], low: Ints, high: Ints) -> None:
        self.problem, self.price, self.low, self.high = problem, price, low, high
        self.from_s, self.to_s = ends_s
        everyone = np.arange(len(problem.columns))
        self.above_j = _compute_above_idle_j(problem, everyone, np.stack([high, low], axis=1))
        both = _compute_worth(problem, price=price, boards=everyone, above_j=self.above_j, deadlines_s=np.array(ends_s))
        most, least = both[:, 0], both[:, 1]
        self.most = float(_sum_top(most[:, None], problem.count)[0]) - price * problem.time_price * self.from_s
        inside, outside = least > 0.0, most <= 0.0
        if problem.count < len(most):
            inside &= least > np.partition(most, -problem.count - 1)[-problem.count - 1]
            outside |= most < np.partition(least, -problem.count)[-problem.count]
        self.inside: NDArray[np.bool_] = inside
        self.undecided: Ints = np.flatnonzero(~inside & ~outside)

    def evaluate_deadlines(self, deadlines_s: Floats) -> Floats:
        """Return U - v C of the best set at each of the span's deadlines, which ascend."""
        problem, columns = self.problem, self.problem.columns
        boards, some = np.flatnonzero(self.inside), self.undecided
        energy_j = self.above_j[boards, 1].sum() + self._compute_saved_j(deadlines_s)
        energy_j += columns.idle_w[boards].sum() * deadlines_s
        reach = _find_reach(problem, boards=some, deadlines_s=deadlines_s, low=self.low[some], high=self.high[some])
        worth = _compute_worth(
            problem,
            price=self.price,
            boards=some,
            above_j=_compute_above_idle_j(problem, some, reach),
            deadlines_s=deadlines_s,
        )
        values: Floats = problem.gains[boards].sum() + _sum_top(worth, problem.count - len(boards))
        values -= self.price * (problem.energy_price * energy_j + problem.time_price * deadlines_s)
        return values

    def evaluate_deadline(self, deadline_s: float, reach: Ints) -> Floats:
        """Return the same at one deadline, where every board's reach is known; shape (1,)."""
        everyone, at_s = np.arange(len(self.problem.columns)), np.array([deadline_s])
        worth = _compute_worth(
            self.problem,
            price=self.price,
            boards=everyone,
            above_j=_compute_above_idle_j(self.problem, everyone, reach),
            deadlines_s=at_s,
        )
        return _sum_top(worth, self.problem.count) - self.price * self.problem.time_price * at_s

    def _compute_saved_j(self, deadlines_s: Floats) -> Floats:
        """Return the joules that boards surely in have saved since the span's first deadline, shape (deadlines,)."""
        columns, lowest = self.problem.columns, self.problem.lowest
        moved = np.flatnonzero(self.inside & (self.high > self.low))
        counts = self.high[moved] - self.low[moved]
        rows = np.repeat(self.low[moved] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        place = np.searchsorted(deadlines_s, columns.safe_ends_s[rows])
        saved: Floats = np.cumsum(np.bincount(place, lowest[rows] - lowest[rows - 1], len(deadlines_s)))
        return saved


def _apply_allowance(problem: _GainProblem, found: _GainSolution, allowance_j: float) -> _GainSolution:
    """Return the solution of most gain found whose energy keeps the allowance; see ``find_best_gain``."""
    alone = _find_single_board(problem, allowance_j)
    if alone is None:
        return _find_cheapest(problem)
    kept = (
        found
        if _sum_gain_and_energy(problem, found)[1] <= allowance_j
        else _reduce_count(problem, allowance_j) or alone
    )
    low, high, most = 0.0, _compute_ratio(problem, found), float(np.sort(problem.gains)[-problem.count :].sum())
    for _ in range(MAX_HALVINGS if kept is found else 0):
        price = (low + high) / 2.0
        tried = _search_deadlines(problem, _solve_at_deadline(problem, price, kept.deadline_s), price)
        gain, energy_j = _sum_gain_and_energy(problem, tried)
        if energy_j > allowance_j:
            low = price
            continue
        high = price
        kept = tried if gain >= _sum_gain_and_energy(problem, kept)[0] else kept
        if energy_j >= 0.999 * allowance_j or gain >= most * (1.0 - EQUAL_TOLERANCE):
            break
    filled = [_add_fitting_boards(problem, one, allowance_j) for one in (kept, alone)]
    return max(filled, key=lambda one: _sum_gain_and_energy(problem, one)[0])


def _reduce_count(problem: _GainProblem, allowance_j: float) -> _GainSolution | None:
    """Return the set of best ratio of the largest count found that keeps the allowance."""
    low, high, kept = 1, problem.count, None
    while low <= high:
        middle = (low + high) // 2
        tried = _maximize_ratio(_set_count(problem, middle))
        if _sum_gain_and_energy(problem, tried)[1] <= allowance_j:
            low, kept = middle + 1, tried
        else:
            high = middle - 1
    return kept


def _find_single_board(problem: _GainProblem, allowance_j: float) -> _GainSolution | None:
    """Return the single board of most gain that keeps the allowance, at its least energy of those deadlines that do."""
    board_of, alone_j = _compute_single_board_j(problem)
    rows = np.flatnonzero(alone_j <= allowance_j)
    if len(rows) == 0:
        return None
    row = rows[np.lexsort((alone_j[rows], -problem.gains[board_of[rows]]))[0]]
    return _GainSolution(0.0, float(problem.columns.safe_ends_s[row]), board_of[row : row + 1])


def _set_count(problem: _GainProblem, count: int) -> _GainProblem:
    p = problem
    return _GainProblem(
        p.columns,
        gains=p.gains,
        lowest=p.lowest,
        ends_s=p.ends_s,
        count=count,
        time_price=p.time_price,
        energy_price=p.energy_price,
    )


def _compute_single_board_j(problem: _GainProblem) -> tuple[Ints, Floats]:
    """Return every point's board, and the energy of a round of that board alone until the point's end, shape (m,)."""
    columns = problem.columns
    board_of = np.repeat(np.arange(len(columns)), columns.counts)
    alone_j: Floats = problem.lowest + columns.idle_w[board_of] * columns.safe_ends_s
    return board_of, alone_j


def _find_cheapest(problem: _GainProblem) -> _GainSolution:
    """Return the board whose round alone takes the least energy, for when no board keeps the allowance."""
    board_of, alone_j = _compute_single_board_j(problem)
    row = int(np.argmin(alone_j))
    return _GainSolution(0.0, float(problem.columns.safe_ends_s[row]), board_of[row : row + 1])


def _add_fitting_boards(problem: _GainProblem, found: _GainSolution, allowance_j: float) -> _GainSolution:
    """Add further boards, in the order of gain per joule, as long as they fit at this deadline."""
    columns, everyone = problem.columns, np.arange(len(problem.columns))
    reach = _find_reach(problem, everyone, np.array([found.deadline_s]))
    energy_j = _compute_above_idle_j(problem, everyone, reach)[:, 0] + columns.idle_w * found.deadline_s
    left_j, chosen = allowance_j - _sum_gain_and_energy(problem, found)[1], list(found.chosen)
    per_joule = problem.gains / np.maximum(energy_j, 1e-12)
    per_joule[found.chosen] = 0.0
    for i in np.argsort(-per_joule, kind="stable").tolist():
        if len(chosen) == problem.count:
            break
        if per_joule[i] > 0 and energy_j[i] <= left_j:
            chosen.append(i)
            left_j -= energy_j[i]
    return _GainSolution(found.value, found.deadline_s, np.sort(np.array(chosen, dtype=np.int64)))


def _build_gain_plan(problem: _GainProblem, found: _GainSolution) -> GainPlan:
    boards = tuple(problem.columns.boards[i] for i in found.chosen)
    return GainPlan(boards, found.deadline_s, _sum_gain_and_energy(problem, found)[1])
