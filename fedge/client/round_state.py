"""A round as it goes on: the parts of its work that are done, and doing more of it, metered, until it has to end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from fedge.client.round_context import RoundContext
from fedge.client.step_accounting import merge_consecutive, mode_switch_s, warm_up_steps
from fedge.decisions.limits import compute_margin_z
from fedge.decisions.planning.fleet_planners import CONFIDENCE
from fedge.decisions.probe_choice import ProbeBudget
from fedge.protocols import Training
from fedge.types import Front, LinkUse, Measurement, ModeMix, PowerMode, RoundGoal


@dataclass(slots=True, eq=False)
class RoundState:
    """What a round began with, and what became of it so far.

    ``earlier`` are the board's own measurements before the round, ``shared`` those of other boards that it believes.
    ``guessed_s`` are the seconds per minibatch in the fastest mode as guessed before anything was measured; None when
    something was.
    """

    context: RoundContext
    goal: RoundGoal
    link: LinkUse
    training: Training
    earlier: tuple[Measurement, ...]
    shared: tuple[Measurement, ...]
    prior_step_s: float | None = None
    parts: list[Measurement] = field(default_factory=list)
    slow_part: Measurement | None = None
    """The part in the slower mode, once there is one."""
    probe_count: int = 0
    """How many of the parts were trials; they come first."""
    stopped: bool = False
    """Whether the round's end came before the work's, or with it."""

    @property
    def own_measurements(self) -> tuple[Measurement, ...]:
        """All the board's own measurements."""
        return (*self.earlier, *self.parts)

    @property
    def total_steps(self) -> int:
        """Minibatches of the whole round."""
        return round(self.goal.steps)

    @property
    def steps_left(self) -> int:
        """Minibatches still to do."""
        return self.total_steps - sum(part.steps for part in self.parts)

    @property
    def spent_s(self) -> float:
        """Seconds of work so far, and of what was lost before."""
        return sum(part.work_s for part in self.parts) if self.parts else self.context.lost_s

    @property
    def warm_up_steps_left(self) -> float:
        """Minibatches' worth of warm-up that is still to come."""
        return 0.0 if self.parts else warm_up_steps(self.earlier)

    def run_probe(self, mode: PowerMode, steps: int) -> None:
        """Do some minibatches in a mode of which little is known."""
        self._run_steps(mode, steps)
        self.probe_count += 1

    def can_run_slow_part(self, mix: ModeMix) -> bool:
        """Whether a part in a slower mode comes now: the first such part, or more of it right after it.

        What it really took is known by then, so that more of it may fit than was safe before.
        """
        return mix.steps < self.steps_left and (self.slow_part is None or self.slow_part.mode == mix.mode)

    def run_slow_part(self, mix: ModeMix) -> None:
        """Do a part in the slower mode."""
        self._run_steps(mix.mode, mix.steps)
        part = self.parts.pop()
        if self.slow_part is not None:
            part = merge_consecutive(self.parts.pop(), part)
        self.slow_part = part
        self.parts.append(part)

    def run_remaining_steps(self, mode: PowerMode) -> None:
        """Do all that is left."""
        self._run_steps(mode, self.steps_left)

    def _run_steps(self, mode: PowerMode, steps: int) -> None:
        """``steps`` minibatches in ``mode``, metered; fewer when the round has to end."""
        device = self.context.device
        with device.use_mode(mode):
            measured = device.measure(self.context.workload, steps, self.training.advance, self._time_left_s())
        if not self.parts and self.context.lost_s:
            measured = dataclasses.replace(measured, lost_s=self.context.lost_s)
        self.parts.append(measured)
        limit_s = self._time_left_s()
        self.stopped = measured.steps < steps or self.steps_left == 0 or (limit_s is not None and limit_s <= 0.0)

    def _time_left_s(self) -> float | None:
        """Seconds left for work before the upload must begin."""
        stop_s = self.goal.stop_s
        return None if stop_s is None else stop_s - self.link.down_s - self.link.up_s - self.spent_s


def step_budget_s(course: RoundState) -> float | None:
    """Seconds per minibatch that the deadline allows, without slack; None without a deadline."""
    end_s = _round_end_s(course, 0.0)
    steps = course.goal.steps + warm_up_steps(course.earlier)
    return None if end_s is None else (end_s - course.link.down_s - course.link.up_s) / steps


def remaining_goal(course: RoundState, steps: float) -> RoundGoal:
    """The goal for the rest of the round: ``steps`` minibatches' worth, and the deadline nearer by what is spent.

    Slack counts only once something was tried.
    """
    end_s = _round_end_s(course, _probe_slack(course) if course.probe_count else 0.0)
    spent_s = course.spent_s + (mode_switch_s(course.own_measurements) if course.parts else 0.0)
    goal = course.goal
    limits = {name: value - spent_s if name == "deadline_s" else value for name, value in goal.limits.items()}
    return RoundGoal(goal.policy, steps, None if end_s is None else end_s - spent_s, limits)


def compute_probe_budget(course: RoundState, steps: float, front: Front) -> ProbeBudget | None:
    """What is left of the round, ``steps`` minibatches' worth and slack included; None without a deadline."""
    exploration, now_s = course.context.exploration, step_budget_s(course)
    end_s = _round_end_s(course, _probe_slack(course))
    if end_s is None or now_s is None:
        return None
    maxn_w = front.maxn.work_j / front.maxn.work_s
    return ProbeBudget(
        steps=steps,
        left_s=end_s - course.spent_s - course.link.down_s - course.link.up_s,
        probe_s=exploration.probe_s,
        margin_z=compute_margin_z(course.goal.limits.get("confidence", CONFIDENCE), "policy.confidence"),
        allowed_s=(*course.context.step_budgets_s, now_s),
        foresight=exploration.foresight,
        rounds_left=course.goal.rounds_left,
        switch_s=front.switch_s,
        switch_j=front.switch_s * (maxn_w - front.idle_w),
        warm_up=course.warm_up_steps_left,
    )


def _probe_slack(course: RoundState) -> float:
    """How much longer than planned the round may become for trials: only in the board's first rounds."""
    exploration = course.context.exploration
    return exploration.slack if len(course.context.step_budgets_s) < exploration.slack_rounds else 0.0


def _round_end_s(course: RoundState, slack: float) -> float | None:
    """When the round must end: by the user's own deadline as it is, by a planned one with ``slack``.

    One that was planned from guesses counts as a multiple of the board's own fastest round: a board that is faster than
    guessed would else slow down to what only seemed to be needed.
    """
    goal, link_s = course.goal, course.link.down_s + course.link.up_s
    planned_s = goal.deadline_s
    if planned_s is not None and course.prior_step_s is not None:
        seen = [
            part.step_s for part in course.context.normalize(course.parts) if part.mode == course.context.fastest_mode
        ]
        planned_s = link_s + (planned_s - link_s) * min(1.0, seen[0] / course.prior_step_s if seen else 1.0)
    planned_s = None if planned_s is None else planned_s * (1.0 + slack)
    return min((d for d in (goal.limits.get("deadline_s"), planned_s) if d is not None), default=None)
