"""One client's round: its inputs, the parts that are done, its result, and the accounting of its steps."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedge.client.corrections import Correction, normalize
from fedge.decisions.limits import compute_margin_z
from fedge.decisions.planning.fleet_planners import CONFIDENCE
from fedge.decisions.probe_choice import ProbeBudget, scale_slack
from fedge.experiment import ExplorationSpec
from fedge.protocols import Device, Explorer, Policy, Predictor, Training
from fedge.serving import standing_service
from fedge.telemetry.live_records import ActivityState
from fedge.telemetry.progress_files import SILENT_REPORTER, ProgressReporter
from fedge.types import (
    Decision,
    Front,
    LinkUse,
    Measurement,
    ModeMix,
    Modes,
    PowerMode,
    Prediction,
    Predictions,
    RoundGoal,
    TrainingScale,
    TrainResult,
    Workload,
    add_measurements,
)

DEFAULT_MODE_SWITCH_S = 0.1
# Default until a mode change has been measured: a larger value makes two-mode rounds rarer, a smaller one risks the
# deadline.


def count_steps(samples: int, batch_size: int, local_epochs: float) -> int:
    """Return the number of steps in a client's share of a round, at least 1."""
    return max(1, round(math.ceil(samples / batch_size) * local_epochs))


def warm_up_steps(measurements: Sequence[Measurement]) -> float:
    """Return the median warm-up time of the measured rounds in units of steps, or 0 if none was measured."""
    warm_ups = [m.warm_up_s / m.step_s for m in measurements if m.warm_up_s > 0]
    return statistics.median(warm_ups) if warm_ups else 0.0


def mode_switch_s(measurements: Sequence[Measurement]) -> float:
    """Return the median time of a mode change in seconds, or ``DEFAULT_MODE_SWITCH_S`` if none was measured."""
    switches_s = [m.switch_s for m in measurements if m.switch_s is not None]
    return statistics.median(switches_s) if switches_s else DEFAULT_MODE_SWITCH_S


def merge_consecutive(first: Measurement, more: Measurement) -> Measurement:
    """Combine two consecutive measurements of one mode, weighting by steps and energy."""
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
        lost_s=first.lost_s + more.lost_s,
        stall_s=(first.steps * first.stall_s + more.steps * more.stall_s) / steps,
        service=standing_service.merge_service_use(first.service, more.service),
    )


def no_time_limit() -> None:
    """Return None: the default of ``RoundContext.time_left_s``."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundContext:
    """A client's device, models and settings for one round.

    Attributes:
        predictor: Predictor of step time and power in the reference condition of ``corrections``.
        policy_reads_points: Whether the policy may read the points of the front; finding them takes longer than
            deciding.
        candidates: Modes that are predicted; corrections may rule some of them out.
        make_explorer: Creates an explorer over the given modes; None turns off probes that only gain information.
        step_budgets_s: Seconds per step that the deadlines of earlier rounds allowed.
        includes_low_power: Whether fronts also include the modes of least power for their speed, for plans that limit
            the watts.
        corrections: Differences between this round and the predictor's reference condition, the outermost first.
        scale: Training scale of the round's measurements; None for the requested one.
        lost_s: Seconds of this round that attempts which ran out of memory took before it.
        learns: Whether predictions are fitted to all measurements; otherwise only to the board's first one.
        keeps_peers: Whether the next round is expected to come with the same measurements of peers.
        gives_back: Whether what the board measures is kept for later runs.
        time_left_s: Returns the seconds of wall time for which the reply still counts, or None without a limit.
    """

    board: str
    device: Device
    predictor: Predictor
    policy: Policy
    workload: Workload
    candidates: Modes
    fastest_mode: PowerMode
    waiting_mode: PowerMode
    exploration: ExplorationSpec
    policy_reads_points: bool = True
    make_explorer: Callable[[Modes], Explorer] | None = None
    step_budgets_s: tuple[float, ...] = ()
    includes_low_power: bool = False
    corrections: tuple[Correction, ...] = ()
    scale: TrainingScale | None = None
    lost_s: float = 0.0
    learns: bool = True
    keeps_peers: bool = False
    gives_back: bool = False
    time_left_s: Callable[[], float | None] = no_time_limit
    reporter: ProgressReporter = SILENT_REPORTER


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The training result, measurements and decision of one round.

    Attributes:
        mixed: Measurement of the part in the decision's second mode; None if there was none.
        predictions: Predictions of every candidate from which the decision was made.
        own_samples: Number of the board's own measurements to which the predictions were fitted.
        shared_samples: Number of other boards' measurements to which they were fitted.
        recalled_samples: Number of the board's measurements of earlier runs to which they were fitted.
        contradicts_recalled: Whether there were such measurements and the board's own contradict them.
        step_budget_s: Seconds per step that the deadline allowed; None without a deadline.
    """

    trained: TrainResult
    decision: Decision
    measured: Measurement
    probes: tuple[Measurement, ...]
    mixed: Measurement | None
    predicted: Prediction
    predictions: Predictions
    own_samples: int
    shared_samples: int
    front: Front
    step_budget_s: float | None
    recalled_samples: int = 0
    contradicts_recalled: bool = False


@dataclass(slots=True, eq=False)
class RoundState:
    """The initial conditions of a round and its progress.

    Attributes:
        shared: Measurements of other boards that are consistent with its own.
        recalled: The board's own measurements of earlier runs that are consistent with those of this one.
        prior_step_s: Predicted seconds per step in the fastest mode if nothing had been measured before; else None.
        contradicts_recalled: Whether there were others, which its own measurements contradict.
        first_steps: Measurement of the first steps, if they are part of what follows in the same mode.
        stopped: Whether the round has ended, with or without all steps done.
    """

    context: RoundContext
    goal: RoundGoal
    link: LinkUse
    training: Training
    earlier: tuple[Measurement, ...]
    shared: tuple[Measurement, ...]
    recalled: tuple[Measurement, ...] = ()
    contradicts_recalled: bool = False
    prior_step_s: float | None = None
    parts: list[Measurement] = field(default_factory=list)
    slow_part: Measurement | None = None
    first_steps: Measurement | None = None
    probe_count: int = 0
    stopped: bool = False

    @property
    def own_measurements(self) -> tuple[Measurement, ...]:
        """Return the board's own measurements that it will keep: the next round begins with the fit to them."""
        return (*self.recalled, *add_measurements(self.earlier, self.parts))

    @property
    def measured_before(self) -> tuple[Measurement, ...]:
        """Return the board's own measurements before the round."""
        return (*self.recalled, *self.earlier)

    @property
    def total_steps(self) -> int:
        """Return the number of steps in the whole round."""
        return round(self.goal.steps)

    @property
    def steps_left(self) -> int:
        """Return the number of steps still to run."""
        return self.total_steps - sum(part.steps for part in self.parts)

    @property
    def spent_s(self) -> float:
        """Return the seconds of work so far, including attempts that ran out of memory."""
        return sum(part.work_s for part in self.parts) if self.parts else self.context.lost_s

    @property
    def warm_up_steps_left(self) -> float:
        """Return the remaining warm-up time in units of steps."""
        return 0.0 if self.parts else warm_up_steps(self.measured_before)

    def run_probe(self, mode: PowerMode, steps: int) -> None:
        """Run ``steps`` steps in ``mode`` to measure it."""
        self._run_steps(mode, steps, "probing")
        self.probe_count += 1

    def run_first_steps(self, mode: PowerMode, steps: int) -> None:
        """Run ``steps`` steps in ``mode``, in which the round goes on unless the decision changes."""
        self._run_steps(mode, steps)
        self.first_steps = self.parts[-1]

    def drop_recalled(self) -> None:
        """Forget the measurements of earlier runs, because those of this run contradict them."""
        self.recalled, self.contradicts_recalled = (), True

    def can_run_slow_part(self, mix: ModeMix) -> bool:
        """Return whether a part in the slower mode may run now: the first such part, or an extension of the one just
        run.

        The time of the first part is known by then, so more steps may fit than was safe to assume before.
        """
        return mix.steps < self.steps_left and (self.slow_part is None or self.slow_part.mode == mix.mode)

    def run_slow_part(self, mix: ModeMix) -> None:
        """Run the steps of ``mix`` in the slower mode and merge them with such a part if it ran just before."""
        self._run_steps(mix.mode, mix.steps)
        part = self.parts.pop()
        before = self.parts[-1] if self.parts else None
        if before is not None and before is self.slow_part and before.mode == part.mode:
            part = merge_consecutive(self.parts.pop(), part)
        self.slow_part = part
        self.parts.append(part)

    def run_remaining_steps(self, mode: PowerMode) -> None:
        """Run all remaining steps in ``mode``."""
        self._run_steps(mode, self.steps_left)

    def _run_steps(self, mode: PowerMode, steps: int, phase: ActivityState = "training") -> None:
        """Run and measure ``steps`` steps in ``mode``; fewer if the round must end."""
        context, report = self.context, self.context.reporter.report
        with context.device.use_mode(mode):
            report(phase, mode=str(mode))
            measured = context.device.measure(context.workload, steps, self._advance, self._time_left_s())
        report(power_w=measured.power_w, temperature_c=measured.peak_c)
        lost_s = 0.0 if self.parts else context.lost_s
        if lost_s or context.scale is not None:
            measured = dataclasses.replace(measured, scale=context.scale, lost_s=lost_s)
        self._append_part(measured)
        limit_s = self._time_left_s()
        self.stopped = measured.steps < steps or self.steps_left == 0 or (limit_s is not None and limit_s <= 0.0)

    def _append_part(self, measured: Measurement) -> None:
        """Append a part; the round's first steps join it if they were in the same mode.

        Otherwise they are the part in a second mode, or a probe if they contradicted what was recalled.
        """
        first, self.first_steps = self.first_steps, None
        if first is not None and measured.mode == first.mode:
            measured = merge_consecutive(self.parts.pop(), measured)
        elif first is not None and self.contradicts_recalled:
            self.probe_count += 1
        elif first is not None:
            self.slow_part = first
        self.parts.append(measured)

    def _advance(self, steps: int) -> None:
        self.training.advance(steps)
        self.context.reporter.add_steps(steps)

    def _time_left_s(self) -> float | None:
        """Return the seconds left for work before the upload must begin, or None without a limit."""
        stop_s, wall_s = self.goal.stop_s, self.context.time_left_s()
        work_s = None if stop_s is None else stop_s - self.link.down_s - self.link.up_s - self.spent_s
        return min((seconds for seconds in (work_s, wall_s) if seconds is not None), default=None)


def step_budget_s(state: RoundState) -> float | None:
    """Return the time per step that the deadline allows without slack, in seconds, or None if there is no deadline."""
    end_s = _round_end_s(state, 0.0)
    steps = state.goal.steps + warm_up_steps(state.measured_before)
    return None if end_s is None else (end_s - state.link.down_s - state.link.up_s) / steps


def remaining_goal(state: RoundState, steps: float) -> RoundGoal:
    """Return the goal for the rest of the round.

    Args:
        steps: Steps left, including the remaining warm-up in units of steps.

    Returns:
        The goal with its deadlines moved forward by the time spent; slack is added only if something was probed.
    """
    end_s = _round_end_s(state, _probe_slack(state) if state.probe_count else 0.0)
    spent_s = state.spent_s + (mode_switch_s(state.own_measurements) if state.parts else 0.0)
    goal = state.goal
    limits = {name: value - spent_s if name == "deadline_s" else value for name, value in goal.limits.items()}
    left_s = None if end_s is None else end_s - spent_s
    return dataclasses.replace(goal, steps=steps, deadline_s=left_s, limits=limits)


def compute_probe_budget(state: RoundState, steps: float, front: Front) -> ProbeBudget | None:
    """Return the time left for probing, including slack, or None without a deadline.

    Args:
        steps: Steps left, including the remaining warm-up in units of steps.
    """
    exploration, now_s = state.context.exploration, step_budget_s(state)
    end_s = _round_end_s(state, _probe_slack(state))
    if end_s is None or now_s is None:
        return None
    maxn_w = front.maxn.work_j / front.maxn.work_s
    return ProbeBudget(
        steps=steps,
        left_s=end_s - state.spent_s - state.link.down_s - state.link.up_s,
        probe_s=exploration.probe_s,
        margin_z=compute_margin_z(state.goal.limits.get("confidence", CONFIDENCE), "policy.confidence"),
        allowed_s=(*state.context.step_budgets_s, now_s),
        foresight=exploration.foresight,
        rounds_left=state.goal.rounds_left,
        switch_s=front.switch_s,
        switch_j=front.switch_s * (maxn_w - front.idle_w),
        warm_up=state.warm_up_steps_left,
    )


def _probe_slack(state: RoundState) -> float:
    """Return the share by which probes may extend the planned round: nonzero only in the client's first rounds."""
    exploration = state.context.exploration
    slack = exploration.slack if len(state.context.step_budgets_s) < exploration.slack_rounds else 0.0
    return scale_slack(slack, state.goal.rounds_left)


def _round_end_s(state: RoundState, slack: float) -> float | None:
    """Return when the round must end: the user's own deadline, or a planned one extended by ``slack``, whichever is
    first.

    A deadline planned from prior predictions is rescaled to the board's own fastest mode as measured; otherwise a board
    that is faster than predicted would slow down to the predicted need.
    """
    goal, link_s = state.goal, state.link.down_s + state.link.up_s
    planned_s = goal.deadline_s
    if planned_s is not None and state.prior_step_s is not None:
        seen = [
            part.step_s
            for part in normalize(state.context.corrections, state.parts)
            if part.mode == state.context.fastest_mode
        ]
        planned_s = link_s + (planned_s - link_s) * min(1.0, seen[0] / state.prior_step_s if seen else 1.0)
    planned_s = None if planned_s is None else planned_s * (1.0 + slack)
    return min((d for d in (goal.limits.get("deadline_s"), planned_s) if d is not None), default=None)
