"""One client's round: probes and the main part share its steps, its training and its deadline."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge import modes as mode_tables
from fedge import rounds
from fedge.devices import catalogue
from fedge.experiment import ExplorationSpec
from fedge.rounds import FLOOR_CORES, FLOOR_CPU_MHZ, Played, Player, choosable, play, steps_of, warm_up_steps
from fedge.types import (
    Decision,
    Front,
    Goal,
    LinkUse,
    Measurement,
    Modes,
    PowerMode,
    Predictions,
    TrainResult,
    Workload,
)

T = TypeVar("T")

MODES = Modes(np.array([[4, 1400.0, 900.0, 1600.0], [4, 1400.0, 600.0, 1600.0], [2, 1000.0, 900.0, 1600.0],
                        [2, 1000.0, 300.0, 1600.0]]))  # fmt: skip
MAXN, MID, SOME, LOW = MODES
STEP_S = np.array([1.0, 1.1, 1.3, 2.0])
POWER_W = np.array([20.0, 14.0, 10.0, 6.0])
IDLE_W = {MAXN: 4.0, MID: 3.0, SOME: 2.5, LOW: 2.0}
LINK = LinkUse(0.5, 0.5, 1.0)
WORK = Workload("resnet18-imagenet", 16)


class ExactDevice:
    """Meters every mode as the tables above say; its first work warms up for ``warm_up`` steps."""

    def __init__(self, warm_up: float = 0.0) -> None:
        self.spec = catalogue.find("nano")
        self.mode = MAXN
        self.measured: list[Measurement] = []
        self._warm_up = warm_up

    def idle_w(self, mode: PowerMode) -> float:
        return IDLE_W[mode]

    @contextmanager
    def in_mode(self, mode: PowerMode) -> Iterator[None]:
        found, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = found

    def measure(self, workload: Workload, steps: int, work: Callable[[], T]) -> tuple[T, Measurement]:
        result = work()
        row = list(MODES).index(self.mode)
        warm_up_s = 0.0 if self.measured else self._warm_up * float(STEP_S[row])
        seen = Measurement(self.mode, steps, float(STEP_S[row]), float(POWER_W[row]), warm_up_s=warm_up_s)
        self.measured.append(seen)
        return result, seen


class Doubtful:
    """Right about everything, sure of what was measured only; remembers what it was given to learn from."""

    def __init__(self, time_sd: float = 0.0) -> None:
        self.time_sd = time_sd
        self.learnt: list[tuple[Measurement, ...]] = []

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self.learnt.append(tuple(measurements))
        return self

    def predict(self, modes: Modes) -> Predictions:
        seen = {m.mode for m in self.learnt[-1]}
        unknown = np.array([0.0 if mode in seen else 1.0 for mode in modes])
        return Predictions(modes, STEP_S, POWER_W, self.time_sd * unknown, 0.3 * unknown)


class Counted:
    """A training that counts its minibatches and fails at number ``fails_at``."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.parts: list[int] = []
        self._fails_at = fails_at

    def advance(self, steps: int) -> None:
        if self._fails_at is not None and sum(self.parts) + steps >= self._fails_at:
            raise RuntimeError("no more samples")
        self.parts.append(steps)

    def result(self) -> TrainResult:
        return TrainResult({"w": np.array([float(sum(self.parts))])}, 0.5, 0.9)


class Known:
    """A policy: the cheapest of the modes known for sure that end in time, else MAXN; remembers its goals."""

    def __init__(self) -> None:
        self.goals: list[Goal] = []

    def __call__(self, predictions: Predictions, offer: Front, goal: Goal, spec: object) -> Decision:
        self.goals.append(goal)
        ends_s = offer.link_s + goal.steps * predictions.step_s
        latest_s = math.inf if goal.deadline_s is None else goal.deadline_s * (1 + 1e-9)
        sure = (predictions.power_w_sd_log == 0) & (ends_s <= latest_s)
        cost = np.where(sure, predictions.step_s * (predictions.power_w - offer.idle_w), np.inf)
        row = int(np.argmin(cost)) if sure.any() else 0
        return Decision(predictions.modes[row], "Cheapest known.")


@dataclasses.dataclass
class Bench:
    """A player of fakes, and the fakes."""

    device: ExactDevice = dataclasses.field(default_factory=ExactDevice)
    predictor: Doubtful = dataclasses.field(default_factory=Doubtful)
    policy: Known = dataclasses.field(default_factory=Known)
    training: Counted = dataclasses.field(default_factory=Counted)
    exploration: ExplorationSpec = dataclasses.field(default_factory=ExplorationSpec)

    def play(self, goal: Goal, measurements: Sequence[Measurement] = ()) -> Played:
        player = Player(
            "nano-1", self.device, self.predictor, self.policy, WORK, MODES, MAXN, LOW, self.exploration
        )  # fmt: skip
        return play(player, goal, measurements, LINK, self.training)


def seen(mode: PowerMode, warm_up_s: float = 0.0) -> Measurement:
    row = list(MODES).index(mode)
    return Measurement(mode, 9, float(STEP_S[row]), float(POWER_W[row]), warm_up_s=warm_up_s)


steps = st.integers(1, 60)
slowdowns = st.sampled_from([None, 0.5, 1.0, 1.05, 1.3, 3.0])
explorations = st.builds(
    ExplorationSpec,
    share=st.sampled_from([0.0, 0.1, 0.4, 0.9]),
    probe_s=st.sampled_from([0.0, 0.5, 2.5]),
    slack=st.sampled_from([0.0, 0.02]),
)
histories = st.lists(st.sampled_from([seen(m, w) for m in MODES for w in (0.0, 1.5)]), max_size=3)


def goal_of(n: int, slowdown: float | None) -> Goal:
    """``slowdown``: the deadline relative to the fastest mode's round."""
    fastest_s = LINK.down_s + LINK.up_s + n * float(STEP_S[0])
    return Goal("known", n, None if slowdown is None else slowdown * fastest_s)


@given(steps, slowdowns, explorations, histories, st.sampled_from([0.0, 0.05, 0.3]))
def test_probes_and_main_part_add_up_to_the_round_and_are_what_was_trained(
    n: int, slowdown: float | None, exploration: ExplorationSpec, history: list[Measurement], time_sd: float
) -> None:
    bench = Bench(predictor=Doubtful(time_sd), exploration=exploration)

    played = bench.play(goal_of(n, slowdown), history)

    parts = [*(p.steps for p in played.probes), played.measured.steps]
    assert sum(parts) == n
    assert min(parts) >= 1
    assert bench.training.parts == parts
    assert played.trained.arrays["w"] == n
    assert bench.device.measured == [*played.probes, played.measured]


@given(steps, slowdowns, explorations, histories)
def test_probes_keep_to_their_share_of_the_round_and_to_new_modes(
    n: int, slowdown: float | None, exploration: ExplorationSpec, history: list[Measurement]
) -> None:
    played = Bench(exploration=exploration).play(goal_of(n, slowdown), history)

    tried = [p.mode for p in played.probes]
    assert sum(p.steps for p in played.probes) <= exploration.share * n
    assert len(set(tried)) == len(tried)
    assert not set(tried) & {m.mode for m in history}


@given(steps, st.sampled_from([1.0, 1.05, 1.3, 3.0]), explorations, histories)
def test_with_times_known_exactly_probing_never_makes_a_round_late(
    n: int, slowdown: float, exploration: ExplorationSpec, history: list[Measurement]
) -> None:
    goal = goal_of(n, slowdown)
    warm = [dataclasses.replace(m, warm_up_s=0.0) for m in history]

    played = Bench(exploration=exploration).play(goal, warm)

    work_s = played.measured.work_s + sum(p.work_s for p in played.probes)
    assert goal.deadline_s is not None
    assert LINK.down_s + work_s + LINK.up_s <= goal.deadline_s * (1 + exploration.slack) * (1 + 1e-9)


@given(steps, slowdowns, explorations, histories)
@settings(max_examples=50)
def test_what_is_measured_is_learnt_at_once(
    n: int, slowdown: float | None, exploration: ExplorationSpec, history: list[Measurement]
) -> None:
    bench = Bench(exploration=exploration)

    played = bench.play(goal_of(n, slowdown), history)

    probes = played.probes
    expected = [(*history, *probes[:i]) for i in range(len(probes) + 1)]
    assert bench.predictor.learnt == [*expected, (*history, *probes, played.measured)]


@given(steps, st.sampled_from([1.05, 1.3, 3.0]), histories, st.sampled_from([None, 0.5, 1.1, 9.0]))
@settings(max_examples=50)
def test_after_each_probe_fewer_steps_and_less_time_are_left(
    n: int, slowdown: float, history: list[Measurement], own: float | None
) -> None:
    """A planned deadline may be passed by the slack once something was tried, one's own may not."""
    bench, planned = Bench(), goal_of(n, slowdown)
    assert planned.deadline_s is not None
    own_s = math.inf if own is None else own * planned.deadline_s
    limits = {"power_w": 9.0} if own is None else {"power_w": 9.0, "deadline_s": own_s}

    played = bench.play(dataclasses.replace(planned, limits=limits), history)

    for i, left in enumerate(bench.policy.goals):
        spent = sum(p.steps for p in played.probes[:i])
        spent_s = sum(p.work_s for p in played.probes[:i])
        slack = bench.exploration.slack if i else 0.0
        assert left.steps == n - spent + (0.0 if i else warm_up_steps(history))
        assert left.deadline_s == pytest.approx(min(own_s, planned.deadline_s * (1 + slack)) - spent_s)
        assert left.limits["power_w"] == 9.0
        assert left.limits.get("deadline_s", math.inf) == pytest.approx(own_s - spent_s)


@given(steps, st.sampled_from([1.05, 1.3]), explorations)
def test_probing_never_makes_a_round_pass_one_s_own_deadline(
    n: int, slowdown: float, exploration: ExplorationSpec
) -> None:
    own_s = goal_of(n, slowdown).deadline_s
    assert own_s is not None
    goal = dataclasses.replace(goal_of(n, 3.0), limits={"deadline_s": own_s})

    played = Bench(exploration=exploration).play(goal, [seen(MAXN)])

    work_s = played.measured.work_s + sum(p.work_s for p in played.probes)
    assert LINK.down_s + work_s + LINK.up_s <= own_s * (1 + 1e-9)


def test_a_board_finds_the_cheap_mode_while_it_trains_and_works_the_rest_in_it() -> None:
    bench = Bench()
    played = bench.play(goal_of(40, 3.0), [seen(MAXN)])

    assert played.probes
    assert played.decision.mode == played.measured.mode == LOW
    assert played.predicted.mode == LOW
    assert played.predicted.power_w_sd_log == 0.0, "predicted with the probes learnt"
    assert bench.device.mode == MAXN


def test_without_a_deadline_nothing_is_tried() -> None:
    played = Bench().play(goal_of(40, None))
    assert played.probes == ()
    assert played.measured.steps == 40


def test_a_share_of_nothing_turns_trying_off() -> None:
    assert Bench(exploration=ExplorationSpec(share=0.0)).play(goal_of(40, 3.0)).probes == ()


def test_a_deadline_of_one_s_own_that_is_shorter_than_the_planned_one_bounds_the_probes() -> None:
    tight = goal_of(40, 1.05)
    own = Goal("known", 40, goal_of(40, 3.0).deadline_s, {"deadline_s": tight.deadline_s or 0.0})

    assert Bench().play(own, [seen(MAXN)]).probes == Bench().play(tight, [seen(MAXN)]).probes
    assert Bench().play(own, [seen(MAXN)]).probes != Bench().play(goal_of(40, 3.0), [seen(MAXN)]).probes


@pytest.mark.parametrize("fails_at", [1, 30])
def test_the_mode_found_is_restored_when_training_fails(fails_at: int) -> None:
    bench = Bench(training=Counted(fails_at))

    with pytest.raises(RuntimeError, match="no more samples"):
        bench.play(goal_of(40, 3.0), [seen(MAXN)])

    assert bench.device.mode == MAXN
    assert sum(bench.training.parts) < fails_at


def test_the_next_offer_counts_the_warm_up_and_waits_in_the_waiting_mode() -> None:
    front = Bench(ExactDevice(warm_up=1.5)).play(goal_of(40, None)).front

    assert front.maxn.work_s == pytest.approx((40 + 1.5) * STEP_S[0])
    assert (front.idle_w, front.maxn_idle_w, front.link_s) == (IDLE_W[LOW], IDLE_W[MAXN], 1.0)


def test_warm_up_is_the_median_of_the_rounds_that_had_one() -> None:
    assert warm_up_steps([]) == 0.0
    assert warm_up_steps([seen(LOW)]) == 0.0
    assert warm_up_steps([seen(LOW, 3.0), seen(MAXN), seen(MAXN, 2.0), seen(MAXN, 40.0)]) == pytest.approx(2.0)


@given(st.integers(1, 500), st.integers(1, 64), st.sampled_from([0.01, 0.5, 1.0, 2.0, 3.7]))
def test_a_share_s_minibatches_cover_it_once_per_epoch(samples: int, batch_size: int, epochs: float) -> None:
    count = steps_of(samples, batch_size, epochs)
    assert count >= 1
    assert abs(count - math.ceil(samples / batch_size) * epochs) <= 0.5 or count == 1


@pytest.mark.parametrize("device", sorted(catalogue.load_catalogue()))
@pytest.mark.parametrize("limit", [rounds.CHOOSABLE, 100])
def test_modes_to_choose_from_keep_the_floor_both_ends_of_every_knob_and_the_limit(device: str, limit: int) -> None:
    modes = mode_tables.grid(catalogue.find(device))
    floor = (modes.knobs[:, 0] >= FLOOR_CORES) & (modes.knobs[:, 1] >= FLOOR_CPU_MHZ)

    kept = choosable(modes, limit)

    assert (FLOOR_CORES, FLOOR_CPU_MHZ) == (2, 400.0)
    assert not (kept & ~floor).any()
    assert 1 <= kept.sum() <= limit
    np.testing.assert_array_equal(modes.knobs[kept].min(axis=0), modes.knobs[floor].min(axis=0))
    np.testing.assert_array_equal(modes.knobs[kept].max(axis=0), modes.knobs[floor].max(axis=0))
    if floor.sum() <= limit:
        np.testing.assert_array_equal(kept, floor)


@given(st.tuples(*(st.integers(1, 9) for _ in range(4))), st.integers(1, 400))
def test_thinning_ends_at_the_limit_or_at_nothing_but_ends(sizes: tuple[int, ...], limit: int) -> None:
    axes = np.meshgrid(*(np.arange(2, 2 + n) * s for n, s in zip(sizes, (1, 400, 10, 10), strict=True)), indexing="ij")
    modes = Modes(np.stack([axis.ravel() for axis in axes], axis=1).astype(float))

    kept = modes.knobs[choosable(modes, limit)]

    assert len(kept) <= max(limit, math.prod(min(n, 2) for n in sizes))
    np.testing.assert_array_equal(kept.min(axis=0), modes.knobs.min(axis=0))
    np.testing.assert_array_equal(kept.max(axis=0), modes.knobs.max(axis=0))


def test_a_board_below_the_floor_in_every_mode_keeps_them_all() -> None:
    assert choosable(Modes(np.array([[1, 300.0, 300.0, 800.0], [2, 300.0, 300.0, 800.0]]))).all()
