"""How much time a round allows: per minibatch, for what is left of it, and for trials."""

from __future__ import annotations

from fedge.choice.picking import margin_z
from fedge.explorers.improving import Room
from fedge.planning.fleet import CONFIDENCE
from fedge.rounds.course import Course
from fedge.rounds.work import switch_s, warm_up_steps
from fedge.types import Front, Goal


def allowed_s(course: Course) -> float | None:
    """Seconds per minibatch that the deadline allows, without slack; None without a deadline."""
    end_s = _end_s(course, 0.0)
    steps = course.goal.steps + warm_up_steps(course.earlier)
    return None if end_s is None else (end_s - course.link.down_s - course.link.up_s) / steps


def goal_of_the_rest(course: Course, steps: float) -> Goal:
    """The goal for the rest of the round: ``steps`` minibatches' worth, and the deadline nearer by what is spent.

    Slack counts only once something was tried.
    """
    end_s = _end_s(course, _slack_for_trials(course) if course.trials else 0.0)
    spent_s = course.spent_s + (switch_s(course.own) if course.parts else 0.0)
    goal = course.goal
    limits = {name: value - spent_s if name == "deadline_s" else value for name, value in goal.limits.items()}
    return Goal(goal.policy, steps, None if end_s is None else end_s - spent_s, limits)


def room_for_trials(course: Course, steps: float, front: Front) -> Room | None:
    """What is left of the round, ``steps`` minibatches' worth and slack included; None without a deadline."""
    exploration, now_s = course.player.exploration, allowed_s(course)
    end_s = _end_s(course, _slack_for_trials(course))
    if end_s is None or now_s is None:
        return None
    maxn_w = front.maxn.work_j / front.maxn.work_s
    return Room(
        steps=steps,
        left_s=end_s - course.spent_s - course.link.down_s - course.link.up_s,
        probe_s=exploration.probe_s,
        margin_z=margin_z(course.goal.limits.get("confidence", CONFIDENCE), "policy.confidence"),
        allowed_s=(*course.player.allowed_s, now_s),
        foresight=exploration.foresight,
        rounds_left=course.goal.rounds_left,
        switch_s=front.switch_s,
        switch_j=front.switch_s * (maxn_w - front.idle_w),
        warm_up=course.warm_up,
    )


def _slack_for_trials(course: Course) -> float:
    """How much longer than planned the round may become for trials: only in the board's first rounds."""
    exploration = course.player.exploration
    return exploration.slack if len(course.player.allowed_s) < exploration.slack_rounds else 0.0


def _end_s(course: Course, slack: float) -> float | None:
    """When the round must end: by the user's own deadline as it is, by a planned one with ``slack``.

    One that was planned from guesses counts as a multiple of the board's own fastest round: a board that is faster than
    guessed would else slow down to what only seemed to be needed.
    """
    goal, link_s = course.goal, course.link.down_s + course.link.up_s
    planned_s = goal.deadline_s
    if planned_s is not None and course.guessed_s is not None:
        seen = [part.step_s for part in course.player.usual(course.parts) if part.mode == course.player.maxn]
        planned_s = link_s + (planned_s - link_s) * min(1.0, seen[0] / course.guessed_s if seen else 1.0)
    planned_s = None if planned_s is None else planned_s * (1.0 + slack)
    return min((d for d in (goal.limits.get("deadline_s"), planned_s) if d is not None), default=None)
