"""One client's round without Flower: fit, predict, choose, set the mode, train, measure, offer the next front."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge import pareto
from fedge.choice.measured import rows_of, with_measured
from fedge.choice.picking import margin_z
from fedge.experiment import ExplorationSpec
from fedge.explorers import improving
from fedge.interfaces import Device, Explorer, Policy, Predictor, Training
from fedge.planning.fleet import CONFIDENCE
from fedge.types import (
    Decision,
    Front,
    Goal,
    LinkUse,
    Measurement,
    Mix,
    Modes,
    PowerMode,
    Prediction,
    Predictions,
    TrainResult,
    Workload,
)

FLOOR_CORES = 2
FLOOR_CPU_MHZ = 400.0
"""The floor that keeps a board's own heartbeats alive while it trains."""


SWITCH_S = 0.1
"""What a change of mode is taken to last before it was seen; chosen by us."""
CHOOSABLE = 5_000
"""Modes among which a board chooses."""
SURE_SD_LOG = 0.05
"""A mode that another board tried counts as tried here too once its time and power are predicted this surely, log
units. Chosen by us: boards of one kind differ by about as much."""
DOUBT_LOG = 0.05
"""What other boards measured is left out when, with it, half of a board's own measurements lie this far off their
predictions, log units. Chosen by us: it is 0.01 where boards differ by a few percent, 0.5 where one is off by half."""


@dataclass(frozen=True, slots=True)
class Player:
    """What one board brings to a round.

    ``candidates`` are the modes it may choose, ``maxn`` is the fastest of them, ``waiting`` the one it waits in.
    ``explorer`` makes an explorer over some modes; without one nothing is tried for what it teaches alone.
    ``allowed_s`` are the seconds per minibatch that its rounds so far allowed.
    """

    board: str
    device: Device
    predictor: Predictor
    policy: Policy
    workload: Workload
    candidates: Modes
    maxn: PowerMode
    waiting: PowerMode
    exploration: ExplorationSpec
    explorer: Callable[[Modes], Explorer] | None = None
    allowed_s: tuple[float, ...] = ()
    power: bool = False
    """Whether its fronts also hold the modes that draw least for their speed: some plans limit the watts."""


@dataclass(frozen=True, slots=True)
class Played:
    """What one round gave."""

    trained: TrainResult
    decision: Decision
    measured: Measurement
    probes: tuple[Measurement, ...]
    mixed: Measurement | None
    predicted: Prediction
    predictions: Predictions
    """Of every candidate, as the decision was made."""
    own_samples: int
    """How many of the board's own measurements they were fitted to, and how many of other boards'."""
    shared_samples: int
    front: Front
    """The board's offer for the next round, with this round's measurement learnt."""
    allowed_s: float | None
    """Seconds per minibatch that the round's deadline allowed; None without one."""


def steps_of(samples: int, batch_size: int, local_epochs: float) -> int:
    """Minibatches in a board's share of a round, at least one."""
    return max(1, round(math.ceil(samples / batch_size) * local_epochs))


def above_floor(modes: Modes) -> NDArray[np.bool_]:
    """Marks the modes that keep the board reachable; all of them when none does."""
    keep: NDArray[np.bool_] = (modes.knobs[:, 0] >= FLOOR_CORES) & (modes.knobs[:, 1] >= FLOOR_CPU_MHZ)
    return keep if keep.any() else np.ones(len(modes), dtype=np.bool_)


def choosable(modes: Modes, limit: int = CHOOSABLE) -> NDArray[np.bool_]:
    """Marks the modes above the floor, with every second value of the longest knob left out until ``limit`` are left.

    Neighbouring clocks differ by a few percent: predicting them all costs time on the board and finds nothing better.
    Both ends of a knob always stay, also where that is more than ``limit``.
    """
    keep = above_floor(modes)
    while keep.sum() > limit:
        values = [np.unique(modes.knobs[keep, knob]) for knob in range(4)]
        longest = int(np.argmax([len(v) for v in values]))
        if len(values[longest]) <= 2:
            break  # nothing but ends is left
        stay = values[longest][::-1][::2]
        keep &= np.isin(modes.knobs[:, longest], [*stay, values[longest][0]])
    return keep


def offer(
    player: Player, own: Sequence[Measurement], shared: Sequence[Measurement], steps: float, link: LinkUse
) -> tuple[Predictions, Front]:
    """The board's predictions and its front for ``steps`` minibatches' worth, from what is measured so far.

    Its own modes count as it measured them.
    """
    predictions = with_measured(player.predictor.fit([*own, *shared]).predict(player.candidates), own)
    return predictions, _front(player, predictions, own, steps, link)


def _front(player: Player, predictions: Predictions, own: Sequence[Measurement], steps: float, link: LinkUse) -> Front:
    idle_w, maxn_idle_w = (player.device.idle_w(mode) for mode in (player.waiting, player.maxn))
    link_s = link.down_s + link.up_s
    front = pareto.offer(predictions, steps, idle_w, link_s, player.maxn, maxn_idle_w=maxn_idle_w, power=player.power)
    return dataclasses.replace(front, switch_s=switch_s(own))


def together(first: Measurement, more: Measurement) -> Measurement:
    """Two parts of a round in one mode, one right after the other, as one measurement."""
    steps, work_s = first.steps + more.steps, first.work_s + more.work_s
    return dataclasses.replace(
        more,
        steps=steps,
        step_s=(first.steps * first.step_s + more.steps * more.step_s) / steps,
        power_w=(first.work_j + more.work_j) / work_s,
        throttled=first.throttled or more.throttled,
        warm_up_s=first.warm_up_s + more.warm_up_s,
        switch_s=first.switch_s,
        time_se_log=math.hypot(first.steps * first.time_se_log, more.steps * more.time_se_log) / steps,
        power_se_log=math.hypot(first.steps * first.power_se_log, more.steps * more.power_se_log) / steps,
    )


def warm_up_steps(measurements: Sequence[Measurement]) -> float:
    """How many minibatches' worth of time a round's warm-up took so far, 0 before it was seen."""
    seen = [m.warm_up_s / m.step_s for m in measurements if m.warm_up_s > 0]
    return float(np.median(seen)) if seen else 0.0


def switch_s(measurements: Sequence[Measurement]) -> float:
    """What a change of mode in the middle of the work took so far; ``SWITCH_S`` before it was seen."""
    seen = [m.switch_s for m in measurements if m.switch_s is not None]
    return float(np.median(seen)) if seen else SWITCH_S


def play(
    player: Player,
    goal: Goal,
    measurements: Sequence[Measurement],
    link: LinkUse,
    training: Training,
    shared: Sequence[Measurement] = (),
) -> Played:
    """One round of ``goal.steps`` minibatches: trials first, then the rest in the one or two modes decided on.

    ``shared`` is what other boards of this kind measured. With ``goal.stop_s`` the board stops in time to send what it
    has, whatever is left.
    """
    course = _Course(player, goal, link, training, tuple(measurements), believed(player, measurements, shared))
    view = course.view()
    while not course.stopped and (probe := _next_probe(course, view)) is not None:
        course.try_out(*probe)
        view = course.view()
    while not course.stopped and view.decision.mix is not None and course.may_mix(view.decision.mix):
        course.work_slowly(view.decision.mix)
        view = course.view(refit=False)
    if not course.stopped:
        course.finish(view.decision.mode)
    return _played(course, view)


def _played(course: _Course, view: _View) -> Played:
    player, (*before, last) = course.player, course.parts
    probes = tuple(part for part in before if part is not course.mixed)
    mixed = course.mixed if course.mixed is not last else None
    decision = view.decision
    if last.mode != decision.mode:
        late = f"Stopped in {last.mode} before the decision could be carried out: no time was left."
        decision = Decision(last.mode, late, feasible=False)
    mix = None if mixed is None else Mix(mixed.mode, mixed.steps)
    own = course.own
    steps = course.goal.steps + warm_up_steps(own)
    _, next_front = offer(player, own, course.shared, steps, course.link)
    return Played(
        trained=course.training.result(),
        decision=dataclasses.replace(decision, mix=mix),
        measured=last,
        probes=probes,
        mixed=mixed,
        predicted=_row(view.predictions, last.mode),
        predictions=view.predictions,
        own_samples=view.fitted,
        shared_samples=len(course.shared),
        front=next_front,
        allowed_s=course.allowed_s,
    )


def believed(player: Player, own: Sequence[Measurement], shared: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """``shared``; nothing of it when a fit that includes it misses what the board has measured itself.

    Then one of the others measures wrongly, or this board is not like them, and its own measurements look like outliers
    among theirs.
    """
    usual = [measurement for measurement in own if not measurement.throttled]
    if not shared or not usual:
        return tuple(shared)
    predictions = player.predictor.fit([*own, *shared]).predict(player.candidates)
    rows = {mode: _row(predictions, mode) for mode in {measurement.mode for measurement in usual}}
    time = np.median([abs(np.log(rows[m.mode].step_s / m.step_s)) for m in usual])
    power = np.median([abs(np.log(rows[m.mode].power_w / m.power_w)) for m in usual])
    return () if max(time, power) > DOUBT_LOG else tuple(shared)


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What a board sees in the middle of a round: its predictions, the goal for what is left, and what it would do."""

    predictions: Predictions
    fitted: int
    """How many of its own measurements the predictions were fitted to."""
    front: Front
    decision: Decision
    wished: tuple[PowerMode, ...]
    """The modes it would work in if it took every prediction as it is."""
    known: frozenset[PowerMode]
    room: improving.Room | None
    """What is left of the round, exploration's slack included; None when there is no deadline."""


@dataclass(slots=True, eq=False)
class _Course:
    """A round as it goes on: the parts of the work done so far."""

    player: Player
    goal: Goal
    link: LinkUse
    training: Training
    earlier: tuple[Measurement, ...]
    shared: tuple[Measurement, ...]
    parts: list[Measurement] = dataclasses.field(default_factory=list)
    mixed: Measurement | None = None
    trials: int = 0
    """How many of the parts were trials; they come first."""
    stopped: bool = False
    """Whether the round's end came before the work's, or with it."""
    fitted: tuple[Predictions, int] | None = None
    guessed_s: float | None = None
    """Seconds per minibatch in the fastest mode as guessed before anything was measured."""

    @property
    def own(self) -> tuple[Measurement, ...]:
        """All the board's own measurements."""
        return (*self.earlier, *self.parts)

    @property
    def total(self) -> int:
        """Minibatches of the whole round."""
        return round(self.goal.steps)

    @property
    def left(self) -> int:
        """Minibatches still to do."""
        return self.total - sum(part.steps for part in self.parts)

    @property
    def spent_s(self) -> float:
        return sum(part.work_s for part in self.parts)

    @property
    def slack(self) -> float:
        """How much longer than planned the round may become: only when something is tried in it."""
        return self.slack_for_trials if self.trials else 0.0

    @property
    def slack_for_trials(self) -> float:
        """What it may become longer for trials, in the board's first rounds."""
        exploration = self.player.exploration
        return exploration.slack if len(self.player.allowed_s) < exploration.slack_rounds else 0.0

    @property
    def allowed_s(self) -> float | None:
        """Seconds per minibatch that the deadline allows."""
        end_s = self._end_s(0.0)
        steps = self.goal.steps + warm_up_steps(self.earlier)
        return None if end_s is None else (end_s - self.link.down_s - self.link.up_s) / steps

    def view(self, *, refit: bool = True) -> _View:
        """What is predicted and decided now; without ``refit`` only this round's own modes are corrected."""
        player, own = self.player, self.own
        if refit or self.fitted is None:
            self.fitted = player.predictor.fit([*own, *self.shared]).predict(player.candidates), len(own)
        predictions = with_measured(self.fitted[0], own)
        if not own:
            self.guessed_s = _row(predictions, player.maxn).step_s
        known = _known(predictions, own, self.shared)
        steps = self.left + self._warm_up
        front, goal = _front(player, predictions, own, steps, self.link), self._left_goal(steps)
        decision = self._decided(predictions, known, front, goal)
        plain = dataclasses.replace(goal, limits={**goal.limits, "confidence": 0.5})
        wish = player.policy(predictions, front, plain, player.device.spec) if known else decision
        wished = (wish.mode,) if wish.mix is None else (wish.mix.mode, wish.mode)
        return _View(predictions, self.fitted[1], front, decision, wished, known, self._room(steps, front))

    @property
    def _warm_up(self) -> float:
        """Minibatches' worth of warm-up that is still to come."""
        return 0.0 if self.parts else warm_up_steps(self.earlier)

    def _decided(self, predictions: Predictions, known: frozenset[PowerMode], front: Front, goal: Goal) -> Decision:
        """The policy's decision: among known modes where modes are tried first, if these can meet the goal."""
        player = self.player
        if self._tries and known and goal.deadline_s is not None:
            own = frozenset(measurement.mode for measurement in self.own)
            full = player.exploration.modes is not None and len(own) + 2 > player.exploration.modes
            decision = player.policy(
                _only(predictions, own if full and own else known), front, goal, player.device.spec
            )
            if decision.feasible:
                return self._with_warm_up(decision)
        return self._with_warm_up(player.policy(predictions, front, goal, player.device.spec))

    @property
    def _tries(self) -> bool:
        """Whether unknown modes are tried before they are worked in."""
        exploration = self.player.exploration
        return exploration.modes is not None and exploration.share > 0 and exploration.probes > 0

    def _with_warm_up(self, decision: Decision) -> Decision:
        """The slower part shortened by the warm-up, which was counted at the faster mode's speed but comes in it."""
        mix = decision.mix
        if mix is None or self._warm_up == 0:
            return decision
        steps = mix.steps - math.ceil(self._warm_up)
        return dataclasses.replace(decision, mix=Mix(mix.mode, steps) if steps > 0 else None)

    def _end_s(self, slack: float) -> float | None:
        """When the round must end: by the user's own deadline as it is, by a planned one with ``slack``.

        One that was planned from guesses counts as a multiple of the board's own fastest round: a board that is faster
        than guessed would else slow down to what only seemed to be needed.
        """
        goal, link_s = self.goal, self.link.down_s + self.link.up_s
        planned_s = goal.deadline_s
        if planned_s is not None and self.guessed_s is not None:
            seen = [part.step_s for part in self.parts if part.mode == self.player.maxn]
            planned_s = link_s + (planned_s - link_s) * min(1.0, seen[0] / self.guessed_s if seen else 1.0)
        planned_s = None if planned_s is None else planned_s * (1.0 + slack)
        return min((d for d in (goal.limits.get("deadline_s"), planned_s) if d is not None), default=None)

    def _left_goal(self, steps: float) -> Goal:
        """The goal for the rest of the round: fewer minibatches, and the deadline nearer by what is spent."""
        end_s = self._end_s(self.slack)
        spent_s = self.spent_s + (switch_s(self.own) if self.parts else 0.0)
        limits = {name: value - spent_s if name == "deadline_s" else value for name, value in self.goal.limits.items()}
        return Goal(self.goal.policy, steps, None if end_s is None else end_s - spent_s, limits)

    def _room(self, steps: float, front: Front) -> improving.Room | None:
        player, now_s = self.player, self.allowed_s
        end_s = self._end_s(self.slack_for_trials)
        if end_s is None or now_s is None:
            return None
        left_s = end_s - self.spent_s - self.link.down_s - self.link.up_s
        z = margin_z(self.goal.limits.get("confidence", CONFIDENCE), "policy.confidence")
        allowed_s = (*player.allowed_s, now_s)
        maxn_w = front.maxn.work_j / front.maxn.work_s
        return improving.Room(
            steps,
            left_s,
            player.exploration.probe_s,
            z,
            allowed_s,
            player.exploration.foresight,
            self.goal.rounds_left,
            front.switch_s,
            front.switch_s * (maxn_w - front.idle_w),
            self._warm_up,
        )

    def try_out(self, mode: PowerMode, steps: int) -> None:
        """Do some minibatches in a mode of which little is known."""
        self._work(mode, steps)
        self.trials += 1

    def may_mix(self, mix: Mix) -> bool:
        """Whether a part in a slower mode comes now: the first such part, or more of it right after it.

        What it really took is known by then, so that more of it may fit than was safe before.
        """
        return mix.steps < self.left and (self.mixed is None or self.mixed.mode == mix.mode)

    def work_slowly(self, mix: Mix) -> None:
        """Do a part in the slower mode."""
        self._work(mix.mode, mix.steps)
        part = self.parts.pop()
        if self.mixed is not None:
            part = together(self.parts.pop(), part)
        self.mixed = part
        self.parts.append(part)

    def finish(self, mode: PowerMode) -> None:
        """Do all that is left."""
        self._work(mode, self.left)

    def _work(self, mode: PowerMode, steps: int) -> None:
        """``steps`` minibatches in ``mode``, metered; fewer when the round has to end."""
        device = self.player.device
        with device.in_mode(mode):
            _, measured = device.measure(self.player.workload, steps, self.training.advance, self._limit_s())
        self.parts.append(measured)
        limit_s = self._limit_s()
        self.stopped = measured.steps < steps or self.left == 0 or (limit_s is not None and limit_s <= 0.0)

    def _limit_s(self) -> float | None:
        """Seconds left for work before the upload must begin."""
        stop_s = self.goal.stop_s
        return None if stop_s is None else stop_s - self.link.down_s - self.link.up_s - self.spent_s


def _known(predictions: Predictions, own: Sequence[Measurement], shared: Sequence[Measurement]) -> frozenset[PowerMode]:
    """The modes that need no trial: the board's own, and those of other boards whose prediction is sure."""
    rows = ((mode, _row(predictions, mode)) for mode in {measurement.mode for measurement in shared})
    sure = {mode for mode, row in rows if max(row.step_s_sd_log, row.power_w_sd_log) <= SURE_SD_LOG}
    return frozenset(measurement.mode for measurement in own) | sure


def _only(predictions: Predictions, modes: Collection[PowerMode]) -> Predictions:
    """The rows of ``modes`` alone."""
    rows = sorted(rows_of(predictions.modes, modes).values())
    return Predictions(
        Modes(predictions.modes.knobs[rows]),
        predictions.step_s[rows],
        predictions.power_w[rows],
        predictions.step_s_sd_log[rows],
        predictions.power_w_sd_log[rows],
    )


def _next_probe(course: _Course, view: _View) -> tuple[PowerMode, int] | None:
    """The mode to try next and for how many minibatches; None when the round has no deadline or no room for it."""
    exploration, room = course.player.exploration, view.room
    if room is None or exploration.share == 0 or course.trials >= exploration.probes:
        return None
    mode = _worth_trying(course.player, view, course.own, room)
    if mode is None:
        return None
    steps = int(improving.probe_steps(np.array([_row(view.predictions, mode).step_s]), room)[0])
    tried = course.total - course.left + steps
    if steps >= course.left or (view.known and tried > exploration.share * course.total):
        return None
    return mode, steps


def _worth_trying(player: Player, view: _View, own: Sequence[Measurement], room: improving.Room) -> PowerMode | None:
    """The fastest mode first, then a few that teach much, then what it would work in, then what may save most."""
    if not view.known:
        return player.maxn
    if player.exploration.modes is not None and len({m.mode for m in own}) >= player.exploration.modes:
        return None
    telling = improving.telling(view.predictions, view.front.idle_w, view.known, room)
    if len(telling) and player.explorer is not None:
        explorer = player.explorer(telling)
        explorer.tell(own)
        if len(asked := explorer.ask(1)):
            return asked[0]
    for mode in view.wished:
        if mode not in view.known and improving.is_safe(view.predictions, mode, room):
            return mode
    return improving.saving(view.predictions, view.front.idle_w, view.known, room)


def _row(predictions: Predictions, mode: PowerMode) -> Prediction:
    i = pareto.nearest_row(predictions.modes, mode)
    return Prediction(
        mode,
        float(predictions.step_s[i]),
        float(predictions.power_w[i]),
        float(predictions.step_s_sd_log[i]),
        float(predictions.power_w_sd_log[i]),
    )
