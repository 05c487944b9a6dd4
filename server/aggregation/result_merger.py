"""The new model of a round: which results are merged, current and late ones, and with which weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from fedge.errors import RunFailed, describe_error
from fedge.experiment import Experiment
from fedge.groups import group_by
from fedge.telemetry.run_folder import RUN_YAML
from fedge.telemetry.settlement import RoundSettlement
from fedge.telemetry.store_records import REFUSED, EventRow
from fedge.types import NamedArrays, RoundGoal
from server.aggregation.aggregator import Aggregator, Contribution
from server.aggregation.contribution_weights import (
    LocalSgd,
    apply_change,
    compute_change,
    expand_contributions,
    normalise_contributions,
    staleness_discount,
)
from server.rounds.client_requests import RoundTask, describe_outlier, find_outliers, to_contribution
from server.state.checkpoint import PendingResult
from server.state.client_traces import strip_trace
from server.transport.client_port import IncomingReply

NO_GOALS: Mapping[str, RoundGoal] = MappingProxyType({})
MAX_NAMED_BOARDS = 8
"""Clients whose reasons are listed when a run fails; a default that keeps the message readable in a terminal."""


@dataclass(frozen=True, slots=True, eq=False)
class MergedModel:
    """The outcome of aggregating a round."""

    arrays: NamedArrays
    pending: tuple[PendingResult, ...]
    stale: int
    events: tuple[EventRow, ...]


def merge_replies(
    experiment: Experiment,
    aggregator: Aggregator,
    task: RoundTask,
    *,
    settled: RoundSettlement,
    replies: Mapping[str, IncomingReply],
    pending: Sequence[PendingResult],
    goals: Mapping[str, RoundGoal] = NO_GOALS,
    others_at_work: bool = False,
) -> MergedModel:
    """Merge the accepted results of a round, and the pending late results that have arrived by its end.

    A late result that changes the model out of all proportion to the others is refused: of a real board, which was late
    for its own round, nobody has compared it with others. The model is unchanged if there is no result.

    Raises:
        RunFailed: No client reported and none is working on an earlier round, or the strategy fails.
    """
    learnt = frozenset(aggregator.order_trainable(task.arrays))
    joining = [one for one in pending if one.end_s <= settled.end_s]
    stale = [_rebase_late_result(experiment, task, learnt, one) for one in joining]
    fresh = [c for board in settled.accepted if (c := to_contribution(board, replies[board])) is not None]
    kept = (
        *(one for one in pending if one.end_s > settled.end_s),
        *_collect_late_results(task, learnt, settled, replies),
    )
    if not fresh and not stale:
        return MergedModel(task.arrays, kept, 0, (_build_empty_event(task, settled, replies, others_at_work),))
    results = [contribution.arrays for contribution in (*stale, *fresh)]
    refused = find_outliers(task.arrays, dict(enumerate(results))) if stale else {}
    joined = [contribution for place, contribution in enumerate(stale) if place not in refused]
    contributions: Sequence[Contribution] = [*joined, *fresh]
    if experiment.late.action == "partial":
        work = experiment.workload
        rate = work.learning_rate if task.learning_rate is None else task.learning_rate
        sgd = LocalSgd(work.momentum, rate * task.proximal_mu)
        shares = {board: goal.share for board, goal in goals.items()}
        possible = [_limit_steps(one, shares.get(one.board, 1.0) * work.local_epochs) for one in contributions]
        contributions = normalise_contributions(task.arrays, learnt, possible, sgd)
    with report_strategy_errors(experiment, task.round):
        arrays = aggregator.aggregate(task.round, task.arrays, expand_contributions(task.arrays, contributions))
    check_merged_model(experiment, task.round, arrays)
    events = tuple(
        _build_joined_event(task, settled, one, weight=c.discount, outlier=refused.get(place))
        for place, (one, c) in enumerate(zip(joining, stale, strict=True))
    )
    return MergedModel(arrays, kept, len(joined), events)


def _limit_steps(one: Contribution, epochs: float) -> Contribution:
    """Limit the steps that a client claims to those of ``epochs`` over its samples, one sample a step."""
    return dataclasses.replace(one, steps=min(one.steps, math.ceil(one.samples * epochs)))


def _rebase_late_result(
    experiment: Experiment, task: RoundTask, learnt: frozenset[str], one: PendingResult
) -> Contribution:
    """Apply the change of a late result to the current model and discount its weight."""
    trained = dataclasses.replace(one.trained, arrays=apply_change(task.arrays, learnt, one.trained.arrays))
    contribution = to_contribution(one.answer.board, IncomingReply(one.answer, trained))
    assert contribution is not None, "a late reply without a report is never kept"
    weight = staleness_discount(task.round - one.round, experiment.late.staleness_exponent)
    return dataclasses.replace(contribution, discount=weight)


@contextmanager
def report_strategy_errors(experiment: Experiment, number: int) -> Iterator[None]:
    """Convert any exception of the strategy, which is user code, to ``RunFailed`` with the strategy's name."""
    try:
        yield
    except Exception as error:
        raise RunFailed(
            f"round {number}: strategy {experiment.strategy.name} failed: {describe_error(error)}"
        ) from error


def check_merged_model(experiment: Experiment, number: int, arrays: NamedArrays) -> None:
    """Raise ``RunFailed`` if a strategy made values that are not finite: no later round could mend the model."""
    wrong = [name for name, value in arrays.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if wrong:
        made = f"made values of {wrong[0]} that are not finite numbers"
        cure = f"lower workload.learning_rate or strategy.options in {RUN_YAML}, then `fedge resume`"
        raise RunFailed(f"round {number}: strategy {experiment.strategy.name} {made}; {cure}")


def describe_failures(errors: Mapping[str, str]) -> str:
    """List why clients failed, each reason once; the first ``MAX_NAMED_BOARDS`` clients are named."""
    boards = group_by(list(errors)[:MAX_NAMED_BOARDS], errors.__getitem__)
    reasons = [
        error if error.startswith(f"{names[0]} ") else f"{', '.join(names)}: {error}" for error, names in boards.items()
    ]
    more = [f"and {len(errors) - MAX_NAMED_BOARDS} more"] if len(errors) > MAX_NAMED_BOARDS else []
    return "; ".join((*reasons, *more))


def _collect_late_results(
    task: RoundTask, learnt: frozenset[str], settled: RoundSettlement, replies: Mapping[str, IncomingReply]
) -> tuple[PendingResult, ...]:
    """Return the late replies that join a later round: changes of the trainable arrays, no traces (they are stored)."""
    kept = []
    for name in settled.joining:
        answer, trained = strip_trace(replies[name].answer), replies[name].trained
        if trained is not None:
            changed = dataclasses.replace(trained, arrays=compute_change(task.arrays, learnt, trained.arrays))
            end_s = settled.until_s[name]
            kept.append(PendingResult(task.round, start_s=task.start_s, end_s=end_s, answer=answer, trained=changed))
    return tuple(kept)


def _build_joined_event(
    task: RoundTask, settled: RoundSettlement, one: PendingResult, weight: float, outlier: float | None
) -> EventRow:
    """Return the event of a late result; ``outlier`` is what ``find_outliers`` says of it if it was refused."""
    late = task.round - one.round
    rounds = "1 round" if late == 1 else f"{late} rounds"
    became = f"joined, {rounds} late, weighed by {weight:.2f}"
    if outlier is not None:
        became = f"was {REFUSED}{describe_outlier(outlier)} in the round that it would join, {rounds} late"
    message = f"its result of round {one.round} {became}"
    kind = "joined" if outlier is None else "refused"
    return EventRow(settled.end_s, round=task.round, board=one.answer.board, kind=kind, message=message)


def _build_empty_event(
    task: RoundTask, settled: RoundSettlement, replies: Mapping[str, IncomingReply], others_at_work: bool
) -> EventRow:
    """Return the event of a round without a result; fail if every client failed and none works on an earlier round."""
    reasons = describe_failures({row.board: row.error for row in settled.clients if row.error}) or "no board replied"
    failed = all(
        (reply.answer.report is None or reply.answer.is_refused) and not reply.answer.cut for reply in replies.values()
    )
    if failed and not others_at_work:
        raise RunFailed(f"round {task.round}: no board gave a result to aggregate; {reasons}")
    message = f"no result by the round's end, the model stays as it is; {reasons}"
    return EventRow(settled.end_s, round=task.round, board=None, kind="empty", message=message)
