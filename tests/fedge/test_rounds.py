"""One client's round: trials, a part in a slower mode and the rest share its steps, its training and its deadline."""

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
from fedge.interfaces import Policy
from fedge.policies import policy_for
from fedge.rounds import (
    FLOOR_CORES,
    FLOOR_CPU_MHZ,
    Played,
    Player,
    choosable,
    play,
    steps_of,
    switch_s,
    together,
    warm_up_steps,
)
from fedge.types import (
    Decision,
    DeviceSpec,
    Floats,
    Front,
    Goal,
    LinkUse,
    Measurement,
    Mix,
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
IDLE_W = {MAXN: 4.0, MID: 3.0, SOME: 2.5, LOW: 2.0}
LINK = LinkUse(0.5, 0.5, 1.0)
LINK_S = LINK.down_s + LINK.up_s
WORK = Workload("resnet18-imagenet", 16)
BALANCED = policy_for("balanced")
SURE = 0.1
"""What was measured is predicted with less spread than this, log units; what was not with more."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What the made-up board takes and draws, shape (4,), MAXN first and fastest."""

    step_s: Floats = dataclasses.field(default_factory=lambda: np.array([1.0, 1.1, 1.3, 2.0]))
    power_w: Floats = dataclasses.field(default_factory=lambda: np.array([20.0, 14.0, 10.0, 6.0]))

    def seen(self, mode: PowerMode, warm_up: float = 0.0, switch_s: float | None = None) -> Measurement:
        """A measurement of the truth, with a warm-up of so many steps."""
        row = list(MODES).index(mode)
        step_s, power_w = float(self.step_s[row]), float(self.power_w[row])
        return Measurement(mode, 9, step_s, power_w, warm_up_s=warm_up * step_s, switch_s=switch_s)


TRUTH = Truth()


class ExactDevice:
    """Meters the truth; its first work warms up for ``warm_up`` steps, each later change of mode takes ``switch_s``."""

    def __init__(self, warm_up: float = 0.0, switch_s: float = 0.0, truth: Truth = TRUTH) -> None:
        self.spec = catalogue.find("nano")
        self.mode = MAXN
        self.measured: list[Measurement] = []
        self._warm_up, self._switch_s, self._truth = warm_up, switch_s, truth

    def idle_w(self, mode: PowerMode) -> float:
        return IDLE_W[mode]

    @contextmanager
    def in_mode(self, mode: PowerMode) -> Iterator[None]:
        found, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = found

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], T], limit_s: float | None = None
    ) -> tuple[T, Measurement]:
        changed = bool(self.measured) and self.measured[-1].mode != self.mode
        warm_up, switch_s = (0.0 if self.measured else self._warm_up), (self._switch_s if changed else None)
        seen = self._truth.seen(self.mode, warm_up, switch_s)
        room_s = math.inf if limit_s is None else limit_s - seen.warm_up_s - (seen.switch_s or 0.0)
        count = max(1, int(min(steps, room_s // seen.step_s)))
        result = work(count)
        self.measured.append(dataclasses.replace(seen, steps=count))
        return result, self.measured[-1]


class Doubtful:
    """Right about everything, sure of what was measured only; remembers what it was given to learn from."""

    def __init__(self, time_sd: float = 0.0, truth: Truth = TRUTH) -> None:
        self.time_sd, self.truth = time_sd, truth
        self.learnt: list[tuple[Measurement, ...]] = []

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self.learnt.append(tuple(measurements))
        return self

    def predict(self, modes: Modes) -> Predictions:
        seen = {m.mode for m in self.learnt[-1]}
        unknown = np.array([0.0 if mode in seen else 1.0 for mode in modes])
        return Predictions(modes, self.truth.step_s, self.truth.power_w, self.time_sd * unknown, 0.3 * unknown)


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


def cheapest_known(predictions: Predictions, offer: Front, goal: Goal, spec: DeviceSpec) -> Decision:
    """The cheapest of the modes known for sure that end in time, else the first."""
    ends_s = offer.link_s + goal.steps * predictions.step_s
    latest_s = math.inf if goal.deadline_s is None else goal.deadline_s * (1 + 1e-9)
    sure = (predictions.power_w_sd_log < SURE) & (ends_s <= latest_s)
    cost = np.where(sure, predictions.step_s * (predictions.power_w - offer.idle_w), np.inf)
    row = int(np.argmin(cost)) if sure.any() else 0
    return Decision(predictions.modes[row], "Cheapest known.")


class Noted:
    """A policy that remembers its goals, and the modes it could choose among; not what is asked without margin."""

    def __init__(self, policy: Policy) -> None:
        self.goals: list[Goal] = []
        self.modes: list[Modes] = []
        self._policy = policy

    def __call__(self, predictions: Predictions, offer: Front, goal: Goal, spec: DeviceSpec) -> Decision:
        if goal.limits.get("confidence") != 0.5:
            self.goals.append(goal)
            self.modes.append(predictions.modes)
        return self._policy(predictions, offer, goal, spec)


@dataclasses.dataclass
class Bench:
    """A player of fakes, and the fakes."""

    device: ExactDevice = dataclasses.field(default_factory=ExactDevice)
    predictor: Doubtful = dataclasses.field(default_factory=Doubtful)
    policy: Noted = dataclasses.field(default_factory=lambda: Noted(BALANCED))
    training: Counted = dataclasses.field(default_factory=Counted)
    exploration: ExplorationSpec = dataclasses.field(default_factory=ExplorationSpec)

    def play(self, goal: Goal, measurements: Sequence[Measurement] = (), shared: Sequence[Measurement] = ()) -> Played:
        player = Player(
            "nano-1", self.device, self.predictor, self.policy, WORK, MODES, MAXN, LOW, self.exploration
        )  # fmt: skip
        return play(player, goal, measurements, LINK, self.training, shared)


def seen(mode: PowerMode, warm_up: float = 0.0, switch_s: float | None = None) -> Measurement:
    return TRUTH.seen(mode, warm_up, switch_s)


def parts_of(played: Played) -> tuple[Measurement, ...]:
    """All parts of a round in their order."""
    return (*played.probes, *(() if played.mixed is None else (played.mixed,)), played.measured)


def ended_s(played: Played) -> float:
    """When the upload ended."""
    return LINK_S + sum(part.work_s for part in parts_of(played))


ALL = [seen(mode) for mode in MODES]
policies = st.sampled_from([BALANCED, cheapest_known])
steps = st.integers(1, 60)
slowdowns = st.sampled_from([None, 0.5, 1.0, 1.05, 1.2, 1.5, 3.0])
kept_slowdowns = st.one_of(st.sampled_from([1.0, 1.05, 3.0]), st.floats(1.0, 2.2))
explorations = st.builds(
    ExplorationSpec,
    share=st.sampled_from([0.0, 0.1, 0.4, 0.9]),
    probe_s=st.sampled_from([0.0, 0.5, 2.5]),
    slack=st.sampled_from([0.0, 0.02]),
    probes=st.integers(0, 4),
    foresight=st.sampled_from([0.0, 0.5, 6.0]),
    modes=st.sampled_from([None, 1, 2, 4]),
)
histories = st.lists(st.sampled_from([seen(m, w) for m in MODES for w in (0.0, 1.5)]), max_size=4)


def goal_of(n: int, slowdown: float | None, truth: Truth = TRUTH) -> Goal:
    """``slowdown``: the deadline relative to the fastest mode's round."""
    fastest_s = LINK_S + n * float(truth.step_s[0])
    return Goal("noted", n, None if slowdown is None else slowdown * fastest_s)


@given(steps, slowdowns, explorations, histories, st.sampled_from([0.0, 0.05, 0.3]), policies)
def test_trials_the_slower_part_and_the_rest_add_up_to_the_round_and_are_what_was_trained(
    n: int,
    slowdown: float | None,
    exploration: ExplorationSpec,
    history: list[Measurement],
    time_sd: float,
    policy: Policy,
) -> None:
    bench = Bench(predictor=Doubtful(time_sd), exploration=exploration, policy=Noted(policy))

    played = bench.play(goal_of(n, slowdown), history)

    parts = parts_of(played)
    done = bench.device.measured
    assert sum(part.steps for part in parts) == n == sum(bench.training.parts)
    assert min(part.steps for part in parts) >= 1
    assert bench.training.parts == [part.steps for part in done]
    assert played.trained.arrays["w"] == n
    assert _modes_in_turn(parts) == _modes_in_turn(done)
    assert sum(part.work_s for part in parts) == pytest.approx(sum(part.work_s for part in done))
    assert sum(part.work_j for part in parts) == pytest.approx(sum(part.work_j for part in done))


def _modes_in_turn(parts: Sequence[Measurement]) -> list[PowerMode]:
    return [part.mode for i, part in enumerate(parts) if i == 0 or part.mode != parts[i - 1].mode]


@given(steps, slowdowns, explorations, histories, policies)
def test_trials_keep_to_their_number_their_share_of_the_round_and_new_modes(
    n: int, slowdown: float | None, exploration: ExplorationSpec, history: list[Measurement], policy: Policy
) -> None:
    """The very first trial, of the fastest mode, may be longer: without it nothing is known."""
    probes = Bench(exploration=exploration, policy=Noted(policy)).play(goal_of(n, slowdown), history).probes

    tried = [p.mode for p in probes]
    first = probes[0].steps if probes and not history else 0
    assert len(probes) <= exploration.probes
    assert sum(p.steps for p in probes) <= max(exploration.share * n, first)
    assert len(set(tried)) == len(tried)
    assert not set(tried) & {m.mode for m in history}
    assert history or tried[:1] in ([], [MAXN])


@given(steps, kept_slowdowns, explorations, histories, policies)
@settings(max_examples=150)
def test_with_times_known_exactly_no_round_that_the_fastest_mode_keeps_is_late(
    n: int, slowdown: float, exploration: ExplorationSpec, history: list[Measurement], policy: Policy
) -> None:
    goal, unlimited = goal_of(n, slowdown), exploration.model_copy(update={"modes": None})
    cold = [dataclasses.replace(m, warm_up_s=0.0) for m in history]

    played = Bench(exploration=unlimited, policy=Noted(policy)).play(goal, cold)

    assert goal.deadline_s is not None
    assert ended_s(played) <= goal.deadline_s * (1 + exploration.slack) * (1 + 1e-6)


WITHOUT_SLACK = ExplorationSpec(slack=0.0)


def test_where_nothing_was_tried_the_slack_is_not_used() -> None:
    goal = goal_of(60, 1.5)
    played = Bench(exploration=ExplorationSpec(slack=0.1)).play(goal, ALL)

    assert played.probes == ()
    assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


def test_a_known_warm_up_in_the_slower_part_does_not_make_the_round_late() -> None:
    warm, still = [seen(mode, 3.0) for mode in (MAXN, LOW)], ExplorationSpec(share=0.0, slack=0.0)
    late_s = []
    for slowdown in np.linspace(1.1, 1.9, 41):
        deadline_s = LINK_S + float(slowdown) * (10 + 3.0)
        played = Bench(ExactDevice(warm_up=3.0), exploration=still).play(Goal("noted", 10, deadline_s), warm)
        late_s.append(ended_s(played) - deadline_s)

    assert max(late_s) <= 1e-6


@pytest.mark.parametrize(("warm_up", "switch_s"), [(3.0, 0.0), (0.0, 0.5)], ids=["warm-up", "changes of mode"])
def test_a_known_warm_up_and_known_changes_of_mode_are_counted_where_a_trial_is_made(
    warm_up: float, switch_s: float
) -> None:
    """The rest is done at full speed: only the trial is to blame."""
    maxn_only = Noted(lambda *_: Decision(MAXN, "The fastest."))
    late_s = []
    for slowdown in np.linspace(1.0, 1.6, 61):
        goal = Goal("noted", 10, LINK_S + float(slowdown) * (10 + warm_up))
        bench = Bench(ExactDevice(warm_up, switch_s), policy=maxn_only, exploration=WITHOUT_SLACK)
        late_s.append(ended_s(bench.play(goal, [seen(MAXN, warm_up, switch_s)])) - (goal.deadline_s or 0.0))

    assert max(late_s) <= 1e-6


@given(steps, st.sampled_from([1.05, 1.3, 1.7]), explorations, policies)
def test_neither_trials_nor_a_slower_part_make_a_round_pass_one_s_own_deadline(
    n: int, slowdown: float, exploration: ExplorationSpec, policy: Policy
) -> None:
    own_s = goal_of(n, slowdown).deadline_s
    assert own_s is not None
    goal = dataclasses.replace(goal_of(n, 3.0), limits={"deadline_s": own_s})

    played = Bench(exploration=exploration, policy=Noted(policy)).play(goal, [seen(MAXN)])

    assert ended_s(played) <= own_s * (1 + 1e-6)


@given(steps, slowdowns, explorations, histories)
@settings(max_examples=50)
def test_what_a_trial_measured_is_learnt_at_once_and_the_whole_round_for_the_next_offer(
    n: int, slowdown: float | None, exploration: ExplorationSpec, history: list[Measurement]
) -> None:
    bench = Bench(exploration=exploration)

    played = bench.play(goal_of(n, slowdown), history)

    probes = played.probes
    expected = [(*history, *probes[:i]) for i in range(len(probes) + 1)]
    assert bench.predictor.learnt == [*expected, (*history, *parts_of(played))]
    assert played.own_samples == len(history) + len(probes)


@given(steps, st.sampled_from([1.05, 1.3, 3.0]), histories, st.sampled_from([None, 0.5, 1.1, 9.0]))
@settings(max_examples=50)
def test_after_each_trial_fewer_steps_and_less_time_are_left(
    n: int, slowdown: float, history: list[Measurement], own: float | None
) -> None:
    """A planned deadline may be passed by the slack once something was tried, one's own may not.

    After a trial a change of mode is still to come.
    """
    bench, planned = Bench(policy=Noted(cheapest_known)), goal_of(n, slowdown)
    assert planned.deadline_s is not None
    own_s = math.inf if own is None else own * planned.deadline_s
    limits = {"power_w": 9.0} if own is None else {"power_w": 9.0, "deadline_s": own_s}

    played = bench.play(dataclasses.replace(planned, limits=limits), history)

    assert len(bench.policy.goals) == len(played.probes) + 1
    for i, left in enumerate(bench.policy.goals):
        spent = sum(p.steps for p in played.probes[:i])
        spent_s = sum(p.work_s for p in played.probes[:i])
        slack = bench.exploration.slack if i else 0.0
        assert left.steps == n - spent + (0.0 if i else warm_up_steps(history))
        change_s = switch_s([*history, *played.probes[:i]]) if i else 0.0
        assert left.deadline_s == pytest.approx(min(own_s, planned.deadline_s * (1 + slack)) - spent_s - change_s)
        assert left.limits["power_w"] == 9.0
        assert left.limits.get("deadline_s", math.inf) == pytest.approx(own_s - spent_s)


def test_a_board_finds_the_cheap_mode_while_it_trains_and_works_the_rest_in_it() -> None:
    bench = Bench(policy=Noted(cheapest_known))
    played = bench.play(goal_of(40, 3.0), [seen(MAXN)])

    assert played.probes
    assert played.decision.mode == played.measured.mode == LOW
    assert played.predicted.mode == LOW
    assert played.predicted.power_w_sd_log < SURE, "predicted with the trials learnt"
    assert bench.device.mode == MAXN


def test_a_board_that_knows_nothing_tries_the_fastest_mode_first() -> None:
    assert Bench().play(goal_of(40, 3.0)).probes[0].mode == MAXN


def test_without_a_deadline_nothing_is_tried() -> None:
    played = Bench().play(goal_of(40, None))
    assert played.probes == ()
    assert played.measured.steps == 40


@pytest.mark.parametrize("off", [ExplorationSpec(share=0.0), ExplorationSpec(probes=0)])
@pytest.mark.parametrize("history", [[], [seen(MAXN)]])
def test_no_share_or_no_probes_turn_trying_off(off: ExplorationSpec, history: list[Measurement]) -> None:
    assert Bench(exploration=off).play(goal_of(40, 3.0), history).probes == ()


def test_a_deadline_of_one_s_own_that_is_shorter_than_the_planned_one_bounds_the_trials() -> None:
    tight, wide = goal_of(40, 1.001), goal_of(40, 3.0)
    own = dataclasses.replace(wide, limits={"deadline_s": tight.deadline_s or 0.0})
    still = ExplorationSpec(slack=0.0)

    def tried(goal: Goal) -> tuple[Measurement, ...]:
        return Bench(exploration=still).play(goal, [seen(MAXN)]).probes

    assert tried(own) == tried(tight)
    assert tried(own) != tried(wide)


@given(steps, st.floats(1.0, 2.5), st.data())
def test_with_everything_known_a_round_takes_no_more_energy_than_in_the_fastest_mode(
    n: int, slowdown: float, data: st.DataObject
) -> None:
    """Joules above idling; the margins of measured modes make up to 2 %."""
    slower = st.lists(st.floats(1.0, 3.0), min_size=3, max_size=3)
    draw = st.lists(st.floats(6.0, 30.0), min_size=4, max_size=4)
    truth = Truth(np.array([1.0, *data.draw(slower)]), np.array(data.draw(draw)))
    bench = Bench(ExactDevice(truth=truth), Doubtful(truth=truth))

    played = bench.play(goal_of(n, slowdown, truth), [truth.seen(mode) for mode in MODES])

    above_j = sum(part.work_j - IDLE_W[LOW] * part.work_s for part in parts_of(played))
    assert above_j <= 1.02 * n * (float(truth.power_w[0]) - IDLE_W[LOW])
    assert played.probes == ()


def test_a_deadline_between_two_known_modes_is_met_by_a_part_in_each_the_slower_first() -> None:
    bench = Bench(exploration=WITHOUT_SLACK)
    played = bench.play(goal_of(60, 1.5), ALL)

    assert played.mixed is not None
    assert (played.mixed.mode, played.measured.mode) == (LOW, SOME)
    assert played.mixed.steps + played.measured.steps == 60
    assert played.decision.mix == Mix(LOW, played.mixed.steps)
    assert played.decision.mode == SOME
    assert bench.device.measured[0].mode == LOW
    ended = ended_s(played)
    assert 1.45 * (60 + LINK_S) <= ended <= 1.5 * (60 + LINK_S) * (1 + 1e-9), "little of the time is left over"


def test_more_of_the_slower_mode_follows_at_once_where_it_took_less_than_expected() -> None:
    """Both parts are one part of the round."""
    quicker = Truth(np.array([1.0, 1.1, 1.3, 1.8]), TRUTH.power_w)
    bench, goal = Bench(ExactDevice(truth=quicker), exploration=WITHOUT_SLACK), goal_of(60, 1.5)
    played = bench.play(goal, ALL)

    modes = [part.mode for part in bench.device.measured]
    slow = [part.steps for part in bench.device.measured if part.mode == LOW]
    assert modes[:2] == [LOW, LOW]
    assert modes == sorted(modes, key=modes.index), "the mode is changed once"
    assert played.mixed is not None
    assert played.mixed.steps == sum(slow) > slow[0]
    assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


@given(steps, kept_slowdowns, st.sampled_from([None, *MODES]))
def test_with_two_modes_a_round_takes_no_more_energy_than_in_the_best_single_one(
    n: int, slowdown: float, only: PowerMode | None
) -> None:
    """One of them at full margin; ``only`` bounds what the board knows to two modes, and with None to all."""
    history = ALL if only is None else [seen(MAXN), seen(only)]
    known = {m.mode for m in history}
    goal = goal_of(n, slowdown)
    assert goal.deadline_s is not None

    played = Bench(exploration=ExplorationSpec(modes=len(known))).play(goal, history)

    safe_s = (goal.deadline_s - LINK_S) / n / 1.02
    singles = [m for m in history if m.step_s <= safe_s] or [seen(MAXN)]
    best_j = min(n * m.step_s * (m.power_w - IDLE_W[LOW]) for m in singles)
    assert {part.mode for part in parts_of(played)} <= known
    assert sum(part.work_j - IDLE_W[LOW] * part.work_s for part in parts_of(played)) <= best_j * (1 + 1e-6) + 2.0


@given(st.integers(0, 99), st.integers(1, 3), st.lists(st.tuples(steps, kept_slowdowns), min_size=3, max_size=6))
@settings(max_examples=50)
def test_over_many_rounds_no_more_modes_than_the_limit_are_worked_in_and_none_is_late(
    probe_tenths: int, limit: int, asked: list[tuple[int, float]]
) -> None:
    """Once the fastest mode is known: rounds too short for its trial come without it."""
    exploration = ExplorationSpec(share=0.9, probe_s=probe_tenths / 10, slack=0.0, modes=limit, foresight=6.0)
    history = [seen(MAXN)]
    for n, slowdown in asked:
        goal = goal_of(n, slowdown)
        played = Bench(exploration=exploration).play(goal, history)
        history += parts_of(played)

        assert len({m.mode for m in history}) <= limit
        assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


def test_the_modes_of_other_boards_count_towards_the_limit_once_they_are_worked_in() -> None:
    told = [dataclasses.replace(seen(mode), board="nano-2") for mode in MODES]
    exploration = ExplorationSpec(modes=2)
    history = [seen(MAXN)]
    for slowdown in (3.0, 1.4, 1.15):
        history += parts_of(Bench(exploration=exploration).play(goal_of(60, slowdown), history, told))

    assert len({m.mode for m in history}) <= 2


def test_with_a_limit_on_modes_a_board_that_never_saw_the_fastest_mode_keeps_a_deadline_that_needs_it() -> None:
    """Its first round was too short for a trial, and went to the cheapest mode."""
    exploration = ExplorationSpec(modes=4, probe_s=2.5, slack=0.0)
    history = parts_of(Bench(exploration=exploration).play(goal_of(3, 3.0)))
    goal = goal_of(60, 1.0)
    played = Bench(exploration=exploration).play(goal, history)

    assert MAXN not in {part.mode for part in history}
    assert ended_s(played) <= (goal.deadline_s or 0.0) * (1 + 1e-6)


@pytest.mark.parametrize("off", [{"share": 0.0}, {"probes": 0}])
def test_with_trials_off_a_board_is_not_bound_to_the_modes_of_its_first_round(off: dict[str, float]) -> None:
    exploration = ExplorationSpec.model_validate(off)
    history = parts_of(Bench(exploration=exploration).play(goal_of(60, 3.0)))
    goal = goal_of(60, 1.2)
    played = Bench(exploration=exploration).play(goal, history)

    assert ended_s(played) <= 1.02 * (goal.deadline_s or 0.0)


def test_without_a_deadline_a_board_leaves_a_mode_that_turned_out_to_break_the_limit() -> None:
    """Nothing is tried without a deadline, and only known modes are chosen from."""
    bench = Bench(policy=Noted(policy_for("fastest-within-power")))
    played = bench.play(Goal("fastest-within-power", 40, limits={"power_w": 15.0}), [seen(MAXN)])

    assert played.measured.power_w <= 15.0


def test_with_a_limit_on_modes_a_policy_chooses_among_the_known_ones_alone() -> None:
    bench = Bench(exploration=ExplorationSpec(modes=2))
    bench.play(goal_of(40, 3.0), [seen(MAXN), seen(MID)])

    assert [set(modes) for modes in bench.policy.modes] == [{MAXN, MID}]


def test_at_the_limit_of_modes_nothing_is_tried_any_more() -> None:
    limited = ExplorationSpec(modes=2)
    assert Bench(exploration=limited).play(goal_of(60, 3.0), [seen(MAXN)]).probes
    assert Bench(exploration=limited).play(goal_of(60, 3.0), [seen(MAXN), seen(MID)]).probes == ()


@given(steps, slowdowns, explorations, histories, st.floats(0.0, 90.0), st.sampled_from([0.0, 1.5]), st.booleans())
def test_a_board_that_must_stop_begins_no_second_minibatch_past_it_in_any_part_and_does_at_least_one(
    n: int,
    slowdown: float | None,
    exploration: ExplorationSpec,
    history: list[Measurement],
    stop_s: float,
    warm_up: float,
    slow_switch: bool,
) -> None:
    bench = Bench(ExactDevice(warm_up, 0.4 * slow_switch), exploration=exploration)

    played = bench.play(dataclasses.replace(goal_of(n, slowdown), stop_s=stop_s), history)

    last, done = bench.device.measured[-1], sum(part.steps for part in parts_of(played))
    assert 1 <= done <= n
    assert sum(bench.training.parts) == done
    assert played.trained.arrays["w"] == done
    end_s = LINK_S
    for part in bench.device.measured:
        end_s += part.work_s
        assert end_s <= stop_s * (1 + 1e-9) or part.steps == 1
    assert done == n or ended_s(played) + last.step_s > stop_s * (1 - 1e-9), "time for another minibatch was left"


def test_no_part_begins_after_the_stop() -> None:
    bench = Bench(exploration=ExplorationSpec(share=0.9, probe_s=0.0))

    bench.play(dataclasses.replace(goal_of(60, 3.0), stop_s=LINK_S + 0.5))

    assert [part.steps for part in bench.device.measured] == [1]


@given(st.floats(1.0, 60.0))
def test_a_board_that_must_stop_reports_the_mode_it_stopped_in(stop_s: float) -> None:
    played = Bench().play(dataclasses.replace(goal_of(60, 1.5), stop_s=stop_s), ALL)

    assert played.decision.mode == played.measured.mode
    if played.measured.mode == LOW:
        assert not played.decision.feasible
        assert played.decision.mix is None


def test_a_board_with_time_enough_works_as_if_it_never_had_to_stop() -> None:
    goal = goal_of(60, 1.5)
    stopping, free = (Bench().play(dataclasses.replace(goal, stop_s=stop_s), [seen(MAXN)]) for stop_s in (1e6, None))
    assert parts_of(stopping) == parts_of(free)
    assert stopping.decision == free.decision


class BrokenDevice(ExactDevice):
    """Fails when it is to meter for the ``fails_at``-th time."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self._fails_at = fails_at

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], T], limit_s: float | None = None
    ) -> tuple[T, Measurement]:
        if len(self.measured) + 1 == self._fails_at:
            raise OSError("the sensor is gone")
        return super().measure(workload, steps, work, limit_s)


@pytest.mark.parametrize("fails_at", [1, 2, 30])
def test_the_mode_found_is_restored_when_training_fails(fails_at: int) -> None:
    bench = Bench(training=Counted(fails_at))

    with pytest.raises(RuntimeError, match="no more samples"):
        bench.play(goal_of(40, 3.0), [seen(MAXN)])

    assert bench.device.mode == MAXN
    assert sum(bench.training.parts) < fails_at


@pytest.mark.parametrize("fails_at", [1, 2])
@pytest.mark.parametrize("history", [ALL, [seen(MAXN)]], ids=["mixing", "trying"])
def test_the_mode_found_is_restored_when_metering_fails(fails_at: int, history: list[Measurement]) -> None:
    device = BrokenDevice(fails_at)
    device.mode = SOME

    with pytest.raises(OSError, match="the sensor is gone"):
        Bench(device=device).play(goal_of(60, 1.5), history)

    assert device.mode == SOME
    assert len(device.measured) == fails_at - 1


def test_the_next_offer_counts_the_warm_up_and_waits_in_the_waiting_mode() -> None:
    front = Bench(ExactDevice(warm_up=1.5)).play(goal_of(40, None)).front
    row = list(MODES).index(front.maxn.mode)

    assert front.maxn.mode == MAXN
    assert front.maxn.work_s == pytest.approx((40 + 1.5) * TRUTH.step_s[row])
    assert (front.idle_w, front.maxn_idle_w, front.link_s) == (IDLE_W[LOW], IDLE_W[MAXN], 1.0)


def test_the_next_offer_knows_what_a_change_of_mode_took() -> None:
    played = Bench(ExactDevice(switch_s=0.3)).play(goal_of(60, 1.5), ALL)

    assert played.mixed is not None
    assert (played.mixed.switch_s, played.measured.switch_s) == (None, 0.3)
    assert played.front.switch_s == pytest.approx(0.3)


def test_a_change_of_mode_that_takes_longer_than_it_saves_is_not_made() -> None:
    slow = [dataclasses.replace(m, switch_s=25.0) for m in ALL]
    assert Bench().play(goal_of(60, 1.5), ALL).mixed is not None
    assert Bench().play(goal_of(60, 1.5), slow).mixed is None


@given(steps, kept_slowdowns, histories)
def test_what_a_deadline_allowed_per_minibatch_fills_it(n: int, slowdown: float, history: list[Measurement]) -> None:
    goal = goal_of(n, slowdown)
    allowed_s = Bench().play(goal, history).allowed_s

    assert allowed_s is not None
    assert LINK_S + (n + warm_up_steps(history)) * allowed_s == pytest.approx(goal.deadline_s)
    assert Bench().play(goal_of(n, None), history).allowed_s is None


def test_what_other_boards_measured_never_counts_as_one_s_own() -> None:
    told = [dataclasses.replace(seen(mode, 9.0, 7.0), board="nano-2") for mode in MODES]
    bench, tight = Bench(), goal_of(40, 1.2)

    played = bench.play(tight, [seen(MAXN, 1.5)], told)

    assert played.shared_samples == len(told)
    assert played.own_samples == 1 + len(played.probes)
    assert bench.policy.goals[0].steps == 40 + 1.5, "the warm-up is the board's own"
    assert played.front.switch_s == Bench().play(tight, [seen(MAXN, 1.5)]).front.switch_s
    tried = {MAXN, *(part.mode for part in parts_of(played))}
    rows = [i for i, mode in enumerate(MODES) if mode not in tried]
    assert rows
    np.testing.assert_array_equal(played.predictions.power_w_sd_log[rows], 0.0)
    assert (played.predictions.power_w_sd_log[[i for i in range(4) if i not in rows]] > 0).any()


def test_modes_that_other_boards_tried_need_no_trial_where_they_are_predicted_surely() -> None:
    told = [dataclasses.replace(seen(mode), board="nano-2") for mode in MODES]

    assert Bench().play(goal_of(60, 3.0), [seen(MAXN)]).probes
    assert Bench().play(goal_of(60, 3.0), [seen(MAXN)], told).probes == ()


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 3.0), st.floats(2.0, 30.0), st.floats(0.0, 4.0)),
             min_size=2, max_size=2)
)  # fmt: skip
def test_two_parts_together_take_what_they_took_one_by_one(figures: list[tuple[int, float, float, float]]) -> None:
    """The mode changes before the first of them only."""
    (n, t, w, extra_s), (m, u, v, _) = figures
    first, more = Measurement(MID, n, t, w, warm_up_s=extra_s, switch_s=extra_s / 2), Measurement(MID, m, u, v)
    hot = dataclasses.replace(first, throttled=True)

    whole = together(first, more)

    assert whole.steps == first.steps + more.steps
    assert whole.work_s == pytest.approx(first.work_s + more.work_s)
    assert whole.work_j == pytest.approx(first.work_j + more.work_j)
    assert (together(hot, more).throttled, together(more, hot).throttled, whole.throttled) == (True, True, False)


def test_warm_up_is_the_median_of_the_rounds_that_had_one() -> None:
    assert warm_up_steps([]) == 0.0
    assert warm_up_steps([seen(LOW)]) == 0.0
    assert warm_up_steps([seen(LOW, 1.5), seen(MAXN), seen(MAXN, 2.0), seen(MAXN, 40.0)]) == pytest.approx(2.0)


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
