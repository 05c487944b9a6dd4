"""What every selector does, whatever it is told about its clients; a test class inherits it and names the selector."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedge.decisions.planning.front_columns import build_columns
from fedge.decisions.selection import load_selector
from fedge.decisions.selection.selector_options import SELECTOR_OPTIONS
from fedge.protocols import Selector
from fedge.types import ClientStatus, Front, FrontPoint, PowerMode, SelectionContext, SelectionResult

HEALTH = (
    HealthCheck.function_scoped_fixture,  # the selector is a pure function
    HealthCheck.differing_executors,  # every subclass runs the same tests
    HealthCheck.too_slow,
)
MODE = PowerMode(4, 1000.0, 500.0, 1600.0)
POLICIES = ("balanced", "maxn", "preset:MAXN", "energy-budget", "fastest-within-power")


def a_front(work_s: float = 10.0, power_w: float = 20.0, idle_w: float = 3.0, link_s: float = 1.0) -> Front:
    """Three modes: at MAXN, 1.2 times as long at 0.7 of the power, 1.6 times as long at half of it."""
    stretched = ((1.0, 1.0), (1.2, 0.7), (1.6, 0.5))
    points = tuple(FrontPoint(MODE, work_s * s, work_s * s * power_w * w) for s, w in stretched)
    return Front(points, points[0], idle_w, link_s, 1.2 * idle_w)


def fleet(count: int, **known: object) -> list[ClientStatus]:
    """``count`` clients alike, called a, b, c ..."""
    return [dataclasses.replace(ClientStatus(chr(ord("a") + i)), **known) for i in range(count)]


def chosen(name: str, clients: list[ClientStatus], call: SelectionContext, seed: int = 1) -> SelectionResult:
    return load_selector(name)(clients, call, np.random.default_rng(seed))


def often(name: str, clients: list[ClientStatus], call: SelectionContext, draws: int) -> Counter[tuple[str, ...]]:
    """How often which clients are chosen, in ``draws`` of one generator."""
    rng = np.random.default_rng(1)
    return Counter(load_selector(name)(clients, call, rng).boards for _ in range(draws))


figures = st.floats(0.1, 1000.0)
broken = st.sampled_from([math.nan, math.inf, -math.inf, -1.0])
fronts = st.builds(a_front, figures, figures, st.floats(0.0, 5.0), st.floats(0.0, 20.0))
broken_fronts = st.builds(a_front, broken | figures, broken, st.just(1.0), broken | figures)
empty_fronts = fronts.map(lambda front: dataclasses.replace(front, points=()))


some_clients = st.lists(
    st.tuples(st.integers(1, 20), st.integers(5, 40), st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=5
).map(
    lambda rows: [
        ClientStatus(f"{i}", a_front(float(work_s), float(power_w)), samples, loss / 4, last_round=4)
        for i, (work_s, power_w, samples, loss) in enumerate(rows)
    ]
)
"""Clients whose fronts, samples and losses are known."""


@st.composite
def clients(draw: st.DrawFn, board: str, round_: int) -> ClientStatus:
    """Anything that the server may know, or may have been told, of a client before ``round_``."""
    asked = draw(st.booleans()) and round_ > 1
    return ClientStatus(
        board,
        front=draw(st.none() | fronts | empty_fronts | broken_fronts),
        samples=draw(st.none() | st.integers(0, 10_000)),
        loss=draw(st.none() | st.floats(0.0, 10.0) | broken),
        accuracy=draw(st.none() | st.floats(0.0, 1.0) | broken),
        busy_s=draw(st.none() | figures | broken),
        last_round=draw(st.integers(1, round_ - 1)) if asked else None,
        rounds=draw(st.integers(1, round_ - 1)) if asked else 0,
        charge=draw(st.none() | st.floats(0.0, 1.0)),
        charge_j=draw(st.none() | st.floats(0.0, 1e5)),
        temperature_c=draw(st.none() | st.floats(-20.0, 110.0)),
    )


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[ClientStatus], SelectionContext]:
    round_ = draw(st.integers(1, 60))
    names = draw(st.lists(st.sampled_from("abcdefghijkl"), unique=True, max_size=9))
    limits = {"time_weight": draw(st.sampled_from([0.0, 0.5, 1.0]))}
    if draw(st.booleans()):
        limits |= {"budget_j": draw(st.floats(1.0, 1e6)), "spent_j": draw(st.floats(0.0, 1e6)), "rounds_left": 3.0}
    call = SelectionContext(round_, draw(st.integers(1, 12)), policy=draw(st.sampled_from(POLICIES)), limits=limits)
    return [draw(clients(name, round_)) for name in names], call


class SelectorContract:
    """Class attribute: the selector's ``name``. ``everybody`` are those that it takes when there are seats for all."""

    name: str

    def everybody(self, offered: list[ClientStatus], call: SelectionContext) -> set[str]:
        return {client.board for client in offered}

    @pytest.fixture
    def selector(self) -> Selector:
        return load_selector(self.name)

    @given(question=questions(), seed=st.integers(0, 5), order=st.randoms(use_true_random=False))
    @settings(max_examples=40, suppress_health_check=HEALTH)
    def test_the_same_seed_and_any_order_of_clients_give_the_same_answer(self, selector, question, seed, order):
        offered, call = question
        turned = list(offered)
        order.shuffle(turned)
        first = selector(offered, call, np.random.default_rng(seed))

        assert selector(offered, call, np.random.default_rng(seed)) == first
        assert selector(turned, call, np.random.default_rng(seed)) == first

    @given(question=questions(), seed=st.integers(0, 5))
    @settings(max_examples=40, suppress_health_check=HEALTH)
    def test_it_takes_offered_boards_only_once_each_no_more_than_asked_and_one_at_least(self, selector, question, seed):
        offered, call = question
        answer = selector(offered, call, np.random.default_rng(seed))

        assert set(answer.boards) <= {client.board for client in offered}
        assert len(set(answer.boards)) == len(answer.boards) <= call.count
        assert len(answer.boards) >= (1 if offered else 0)

    @given(question=questions(), seed=st.integers(0, 5))
    @settings(max_examples=40, suppress_health_check=HEALTH)
    def test_a_count_larger_than_the_clients_takes_them_all(self, selector, question, seed):
        offered, call = question[0], dataclasses.replace(question[1], count=20)
        answer = selector(offered, call, np.random.default_rng(seed))

        assert set(answer.boards) == self.everybody(offered, call)

    @pytest.mark.parametrize("round_", [1, 2, 40])
    def test_clients_of_which_nothing_is_known_are_chosen_from_all_the_same(self, selector, round_):
        answer = selector(fleet(6), SelectionContext(round_, 3), np.random.default_rng(1))

        assert len(answer.boards) == 3

    @given(question=questions(), rounds=st.integers(1, 5))
    @settings(max_examples=30, suppress_health_check=HEALTH)
    def test_what_it_remembers_are_finite_floats_that_it_can_go_on_from(self, selector, question, rounds):
        offered, call = question
        for later in range(rounds):
            answer = selector(offered, call, np.random.default_rng(later))
            assert all(type(value) is float and math.isfinite(value) for value in answer.memory.values())
            assert answer.deadline_s is None or math.isfinite(answer.deadline_s)
            call = dataclasses.replace(call, round=call.round + 1, memory=answer.memory)

    def test_the_question_is_left_as_it_was(self, selector):
        offered, memory = fleet(5, front=a_front(), loss=1.0, last_round=1, rounds=1), {"other": 3.0}
        before, call = list(offered), SelectionContext(2, 3, memory=memory)
        selector(offered, call, np.random.default_rng(1))

        assert offered == before
        assert memory == {"other": 3.0}

    def test_every_option_may_stand_at_its_bounds(self, selector):
        offered = fleet(6, front=a_front(), loss=1.0, samples=10, accuracy=0.5, last_round=1, rounds=1, charge=0.5)
        for option, number in SELECTOR_OPTIONS[self.name].items():
            for value in (number.low, number.high if math.isfinite(number.high) else 1000.0):
                answer = selector(offered, SelectionContext(3, 2, {option: value}), np.random.default_rng(1))
                assert 1 <= len(answer.boards) <= 2


class FrontSelectorContract(SelectorContract):
    """Of a selector that weighs fronts: however many seats there are, it tries whoever has none."""

    def everybody(self, offered: list[ClientStatus], call: SelectionContext) -> set[str]:
        taken = set(chosen(self.name, offered, call).boards)
        sound = build_columns({c.board: c.front for c in offered if c.front is not None and c.front.points})
        empty = {c.board for c in offered if c.front is not None and not c.front.points}
        assert {c.board for c in offered} - set(sound.boards) - empty <= taken
        return taken
