"""A made-up board of four modes that plays rounds, its fakes, and random rounds for it to play."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np
from hypothesis import strategies as st

from fedge.client.round import run_round
from fedge.client.round_state import RoundContext, RoundResult
from fedge.decisions.policies import load_policy
from fedge.devices import catalogue
from fedge.experiment import ExplorationSpec
from fedge.protocols import Policy
from fedge.types import (
    Decision,
    DeviceSpec,
    Floats,
    Front,
    LinkUse,
    Measurement,
    Modes,
    PowerMode,
    Predictions,
    RoundGoal,
    TrainResult,
    Workload,
)

MODES = Modes(np.array([[4, 1400.0, 900.0, 1600.0], [4, 1400.0, 600.0, 1600.0], [2, 1000.0, 900.0, 1600.0],
                        [2, 1000.0, 300.0, 1600.0]]))  # fmt: skip
MAXN, MID, SOME, LOW = MODES
IDLE_W = {MAXN: 4.0, MID: 3.0, SOME: 2.5, LOW: 2.0}
LINK = LinkUse(0.5, 0.5, 1.0)
LINK_S = LINK.down_s + LINK.up_s
WORK = Workload("resnet18-imagenet", 16)
BALANCED = load_policy("balanced")
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
    def use_mode(self, mode: PowerMode) -> Iterator[None]:
        found, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = found

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        changed = bool(self.measured) and self.measured[-1].mode != self.mode
        warm_up, switch_s = (0.0 if self.measured else self._warm_up), (self._switch_s if changed else None)
        seen = self._truth.seen(self.mode, warm_up, switch_s)
        room_s = math.inf if limit_s is None else limit_s - seen.warm_up_s - (seen.switch_s or 0.0)
        count = max(1, int(min(steps, room_s // seen.step_s)))
        work(count)
        self.measured.append(dataclasses.replace(seen, steps=count))
        return self.measured[-1]


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


def cheapest_known(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
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
        self.goals: list[RoundGoal] = []
        self.modes: list[Modes] = []
        self._policy = policy

    def __call__(self, predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
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

    @property
    def player(self) -> RoundContext:
        fakes = (self.device, self.predictor, self.policy)
        return RoundContext("nano-1", *fakes, WORK, MODES, MAXN, LOW, self.exploration)

    def play(
        self,
        goal: RoundGoal,
        measurements: Sequence[Measurement] = (),
        shared: Sequence[Measurement] = (),
        recalled: Sequence[Measurement] = (),
    ) -> RoundResult:
        return run_round(self.player, goal, measurements, LINK, self.training, shared, recalled=recalled)


def seen(mode: PowerMode, warm_up: float = 0.0, switch_s: float | None = None) -> Measurement:
    return TRUTH.seen(mode, warm_up, switch_s)


def parts_of(played: RoundResult) -> tuple[Measurement, ...]:
    """All parts of a round in their order."""
    return (*played.probes, *(() if played.mixed is None else (played.mixed,)), played.measured)


def ended_s(played: RoundResult) -> float:
    """When the upload ended."""
    return LINK_S + sum(part.work_s for part in parts_of(played))


ALL = [seen(mode) for mode in MODES]
WITHOUT_SLACK = ExplorationSpec(slack=0.0)
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


def goal_of(n: int, slowdown: float | None, truth: Truth = TRUTH) -> RoundGoal:
    """``slowdown``: the deadline relative to the fastest mode's round."""
    fastest_s = LINK_S + n * float(truth.step_s[0])
    return RoundGoal("noted", n, None if slowdown is None else slowdown * fastest_s)
