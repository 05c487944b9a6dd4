"""A round's new model: which results go into it, fresh ones and late ones, and how they are weighed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fedge.errors import FedgeError, RunFailed
from fedge.experiment import Experiment
from fedge.telemetry.rows import EventRow
from fedge.types import NamedArrays
from server.accounting import Settled
from server.aggregation import Aggregator, Contribution
from server.asking import Task, contribution_of
from server.checkpoint import Pending
from server.coverage import spread
from server.port import Reply
from server.weighting import LocalSgd, change, discount, normalised, rebased

TOLD = 8
"""So many boards' reasons are told when a run fails. Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """A round's model, the results still to come, how many late ones went into it, and what is worth telling."""

    arrays: NamedArrays
    pending: tuple[Pending, ...]
    stale: int
    events: tuple[EventRow, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Merging:
    """Merges results by the experiment's strategy and its rule for lateness."""

    experiment: Experiment
    aggregator: Aggregator

    def merged(
        self,
        task: Task,
        settled: Settled,
        replies: Mapping[str, Reply],
        pending: Sequence[Pending],
        others_at_work: bool = False,
    ) -> Merged:
        """What comes of the results that are in by the round's end: the accepted ones and the late ones in ``pending``.

        Where there is none the model stays as it is. Raises ``RunFailed`` when no board so much as reported and there
        are no ``others_at_work`` on an earlier round, or when the strategy fails.
        """
        learnt = self.aggregator.learnt(task.arrays)
        joining = [one for one in pending if one.end_s <= settled.end_s]
        stale = [self._stale(task, learnt, one) for one in joining]
        fresh = [c for board in settled.accepted if (c := contribution_of(board, replies[board])) is not None]
        kept = (*(one for one in pending if one.end_s > settled.end_s), *_kept(task, learnt, settled, replies))
        if not fresh and not stale:
            return Merged(task.arrays, kept, 0, (_empty(task, settled, replies, others_at_work),))
        arrays = self._aggregated(task, learnt, [*stale, *fresh])
        events = (_joined(task, settled, one, c.discount) for one, c in zip(joining, stale, strict=True))
        return Merged(arrays, kept, len(stale), tuple(events))

    def _aggregated(self, task: Task, learnt: frozenset[str], contributions: Sequence[Contribution]) -> NamedArrays:
        if self.experiment.late.action == "partial":
            work = self.experiment.workload
            sgd = LocalSgd(work.momentum, work.learning_rate * task.proximal_mu)
            contributions = normalised(task.arrays, learnt, contributions, sgd)
        with strategy_errors(self.experiment, task.round):
            return self.aggregator.aggregate(task.round, task.arrays, spread(task.arrays, contributions))

    def _stale(self, task: Task, learnt: frozenset[str], one: Pending) -> Contribution:
        """A late reply on today's model."""
        trained = dataclasses.replace(one.trained, arrays=rebased(task.arrays, learnt, one.trained.arrays))
        contribution = contribution_of(one.answer.board, Reply(one.answer, trained))
        assert contribution is not None, "a late reply without a report is never kept"
        weight = discount(task.round - one.round, self.experiment.late.staleness_exponent)
        return dataclasses.replace(contribution, discount=weight)


@contextmanager
def strategy_errors(experiment: Experiment, number: int) -> Iterator[None]:
    """The strategy is the user's choice, and its errors are many: each ends the run with its name."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, FedgeError) else f"{type(error).__name__}: {error}"
        raise RunFailed(f"round {number}: strategy {experiment.strategy.name} failed: {reason}") from error


def told_of(errors: Mapping[str, str]) -> str:
    """Why boards failed, each by its name; of many only the first."""
    reasons = [error if error.startswith(f"{board} ") else f"{board}: {error}" for board, error in errors.items()]
    more = [f"and {len(reasons) - TOLD} more"] if len(reasons) > TOLD else []
    return "; ".join((*reasons[:TOLD], *more))


def _kept(task: Task, learnt: frozenset[str], settled: Settled, replies: Mapping[str, Reply]) -> tuple[Pending, ...]:
    """The late replies that join a later round, as what training changed."""
    kept = []
    for name in settled.joining:
        answer, trained = replies[name].answer, replies[name].trained
        if trained is not None:
            changed = dataclasses.replace(trained, arrays=change(task.arrays, learnt, trained.arrays))
            kept.append(Pending(task.round, task.start_s, settled.until_s[name], answer, changed))
    return tuple(kept)


def _joined(task: Task, settled: Settled, one: Pending, weight: float) -> EventRow:
    late = task.round - one.round
    rounds = "1 round" if late == 1 else f"{late} rounds"
    message = f"its result of round {one.round} joined, {rounds} late, weighed by {weight:.2f}"
    return EventRow(settled.end_s, task.round, one.answer.board, "joined", message)


def _empty(task: Task, settled: Settled, replies: Mapping[str, Reply], others_at_work: bool) -> EventRow:
    """A round without a result; a failure of the run when every board failed and there is no other to hope for."""
    reasons = told_of({row.board: row.error for row in settled.clients if row.error}) or "no board replied"
    failed = all(reply.answer.report is None and not reply.answer.cut for reply in replies.values())
    if failed and not others_at_work:
        raise RunFailed(f"round {task.round}: no board gave a result to aggregate; {reasons}")
    message = f"no result by the round's end, the model stays as it is; {reasons}"
    return EventRow(settled.end_s, task.round, None, "empty", message)
