"""The set and deadline of most gain per price, against every set at every deadline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np
import pytest
from contracts.fronts import a_front, above_j, certain_front, deadlines, end_s, fleets, some_front
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.decisions.planning import gain_search
from fedge.decisions.planning.front_columns import build_columns
from fedge.decisions.planning.gain_search import GainPlan, find_best_gain
from fedge.types import Front

Fleet = dict[str, Front]
COUNTS = st.sampled_from([None, 1, 2, 3])
PRICES = st.sampled_from([(0.0, 1.0), (1.0, 0.0), (1.0, 0.1), (0.2, 1.0), (4.0, 1.0)])


def a_saving_front(savings: list[tuple[int, int]], idle_w: float) -> Front:
    """20 J in 4 s, and with every (quarters of a second, quarters of a joule) longer and cheaper."""
    ends = [(4.0 + sum(t for t, _ in savings[:k]) / 4, 20.0 - sum(j for _, j in savings[:k]) / 4) for k in range(5)]
    return a_front([(t, j / t) for t, j in ends[: len(savings) + 1]], idle_w)


saving_fronts = st.builds(
    a_saving_front,
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 12)), min_size=1, max_size=4),
    st.sampled_from([0.25, 0.5, 1.0]),
)


@st.composite
def fleets_with_gains(draw: st.DrawFn) -> tuple[Fleet, dict[str, float]]:
    fronts = draw(fleets(some_front) | fleets(saving_fronts))
    return fronts, {board: draw(st.integers(0, 8)) / 2 for board in fronts}


def planned(
    fronts: Fleet,
    gains: Mapping[str, float],
    *,
    count: int | None = None,
    time_price: float = 0.0,
    energy_price: float = 1.0,
    allowance_j: float | None = None,
    z: float = 0.0,
) -> GainPlan:
    """The plan of the boards that have a gain."""
    columns = build_columns({board: front for board, front in fronts.items() if gains.get(board)}, z)
    worth = np.array([gains[board] for board in columns.boards], dtype=np.float64)
    return find_best_gain(
        columns, worth, count=count, time_price=time_price, energy_price=energy_price, allowance_j=allowance_j
    )


def gained(found: GainPlan, gains: Mapping[str, float]) -> float:
    return sum(gains[board] for board in found.boards)


def joules(front: Front, deadline_s: float, z: float) -> float:
    """The least of a round until the deadline; infinite when nothing is within reach."""
    held = [p for p in (*front.points, front.maxn) if end_s(front, p, z) <= deadline_s * (1 + 1e-12)]
    return min((above_j(front, p) for p in held), default=math.inf) + front.idle_w * deadline_s


def every(fronts: Fleet, gains: Mapping[str, float], count: int | None, z: float) -> Iterator[tuple[float, ...]]:
    """Gain, length and joules of every set at every deadline."""
    names = [board for board in fronts if gains[board] > 0]
    for deadline_s in deadlines(fronts, z):
        cost = {board: joules(fronts[board], deadline_s, z) for board in names}
        for size in range(1, min(len(names), count or len(names)) + 1):
            for chosen in combinations(names, size):
                total_j = sum(cost[board] for board in chosen)
                if math.isfinite(total_j):
                    yield sum(gains[board] for board in chosen), deadline_s, total_j


def consistent(found: GainPlan, fronts: Fleet, z: float) -> bool:
    """The plan's energy is that of its boards at its deadline."""
    total_j = sum(joules(fronts[board], found.deadline_s, z) for board in found.boards)
    return found.energy_j == pytest.approx(total_j)


@pytest.mark.parametrize(("start", "exact"), [(12, 4096), (1, 4096), (1, 3), (1, 1)])
def test_no_set_at_any_deadline_gains_more_per_price(monkeypatch, start, exact):
    monkeypatch.setattr(gain_search, "START_DEADLINES", start)
    monkeypatch.setattr(gain_search, "MAX_EXACT_DEADLINES", exact)

    @given(fleets_with_gains(), COUNTS, PRICES, st.sampled_from([0.0, 1.0]))
    @settings(max_examples=150, deadline=None)
    def check(asked: tuple[Fleet, dict[str, float]], count: int | None, prices: tuple[float, float], z: float) -> None:
        assert_no_set_gains_more(*asked, count=count, prices=prices, z=z)

    check()


def assert_no_set_gains_more(
    fronts: Fleet, gains: dict[str, float], count: int | None, prices: tuple[float, float], z: float
) -> None:
    found = planned(fronts, gains, count=count, time_price=prices[0], energy_price=prices[1], z=z)
    tried = list(every(fronts, gains, count, z))
    if not tried:
        assert found == GainPlan((), 0.0, 0.0)
        return

    def ratio(total: float, length_s: float, total_j: float) -> float:
        cost = prices[0] * length_s + prices[1] * total_j
        return total / cost if cost > 0 else math.inf

    assert ratio(gained(found, gains), found.deadline_s, found.energy_j) == pytest.approx(
        max(ratio(*one) for one in tried)
    )
    assert consistent(found, fronts, z)
    assert len(found.boards) <= (count or len(fronts))
    turned = planned(
        dict(reversed(fronts.items())), gains, count=count, time_price=prices[0], energy_price=prices[1], z=z
    )
    assert turned == found


@given(fleets_with_gains(), COUNTS, PRICES, st.floats(0.05, 2.0))
@settings(max_examples=150, deadline=None)
def test_an_allowance_is_kept_where_it_can_be_and_what_is_gained_is_near_the_most(asked, count, prices, share):
    fronts, gains = asked
    tried = list(every(fronts, gains, count, 0.0))
    if not tried:
        return
    allowance_j = share * max(total_j for *_, total_j in tried)
    found = planned(fronts, gains, count=count, time_price=prices[0], energy_price=prices[1], allowance_j=allowance_j)
    assert consistent(found, fronts, 0.0)
    kept = [total for total, _, total_j in tried if total_j <= allowance_j]
    if not kept:
        assert found.energy_j == pytest.approx(min(total_j for *_, total_j in tried))
        return
    assert found.energy_j <= allowance_j * (1 + 1e-9)
    single = max((total for total, _, total_j in every(fronts, gains, 1, 0.0) if total_j <= allowance_j), default=0)
    assert single <= gained(found, gains) <= max(kept) + 1e-9


def test_an_allowance_buys_the_set_of_most_gain_that_it_pays_also_later_and_what_fits_beside_it():
    """The single board of most gain would leave nothing for others."""
    rows = {"fast": (2.0, 1.0), "slow": (10.0, 1.0), "dear": (10.0, 1.5), "small": (10.0, 0.2)}
    fronts = {name: a_front([row], 0.0) for name, row in rows.items()}
    worth = {"fast": 2.0, "slow": 7.0, "dear": 8.0, "small": 0.5}
    assert planned(fronts, worth).boards == ("fast",)
    assert planned(fronts, worth, allowance_j=15.0) == GainPlan(("fast", "slow", "small"), 10.0, pytest.approx(14.0))


def test_with_all_seats_taken_an_allowance_still_buys_a_slower_board_of_more_gain():
    fronts = {name: a_front([(t, 1.0)], 0.0) for name, t in (("a", 2.0), ("b", 2.0), ("slow", 9.0))}
    worth = {"a": 1.0, "b": 2.0, "slow": 2.5}
    assert planned(fronts, worth, count=2, time_price=1.0, energy_price=0.1).boards == ("a", "b")
    found = planned(fronts, worth, count=2, time_price=1.0, energy_price=0.1, allowance_j=1e9)
    assert found.boards == ("b", "slow")


@given(fleets(certain_front), COUNTS)
@settings(max_examples=60, deadline=None)
def test_an_allowance_for_everybody_takes_the_best_that_are_allowed(fronts, count):
    gains = {board: 1.0 + i for i, board in enumerate(fronts)}
    found = planned(fronts, gains, count=count, allowance_j=1e9)
    assert gained(found, gains) == sum(sorted(gains.values())[-(count or len(gains)) :])


def test_nobody_to_choose_from_or_no_seat_is_an_empty_plan():
    fronts = {"a": a_front([(2.0, 5.0)]), "c": a_front([(math.nan, 5.0)])}
    assert planned(fronts, {"a": 1.0, "c": 9.0}).boards == ("a",)
    assert planned(fronts, {"c": 9.0}).boards == ()
    assert planned({}, {}).boards == ()
    assert planned(fronts, {"a": 1.0}, count=0).boards == ()


@pytest.mark.parametrize("prices", [(0.0, 0.0), (-1.0, 2.0), (1.0, -1.0)])
def test_prices_that_buy_nothing_are_refused(prices):
    with pytest.raises(ValueError, match="prices"):
        planned({}, {}, time_price=prices[0], energy_price=prices[1])


@pytest.mark.parametrize("gains", [[math.nan], [0.0], [-1.0], [math.inf], [1.0, 1.0]])
def test_gains_that_are_none_are_refused(gains):
    with pytest.raises(ValueError, match="gains must be finite and positive, one for each of 1 boards"):
        find_best_gain(build_columns({"a": a_front([(2.0, 5.0)])}), np.array(gains))
