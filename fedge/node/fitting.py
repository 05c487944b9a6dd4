"""A real board's memory: what its worker is tried with, and what its answers teach."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedge.errors import WorkerFailed
from fedge.interfaces import Predictor
from fedge.node.post import Post
from fedge.rounds import fitting
from fedge.rounds.fitting import CarryingPredictor, Means, Try
from fedge.types import MemorySeen, MemoryUse
from fedge.wire import Answer, Ask, BoardState
from fedge.worker.causes import OOM_KILLED

OOM, DIED, NARROW = "oom", "died", "narrow"
"""Kinds of a worker's refusals: it ran out of memory and goes on; it is dead; its network cannot be narrowed."""


@dataclass(slots=True, eq=False)
class Tries:
    """The tries of one round, one after the other; ``tried`` is None where nobody knows what a step needs."""

    post: Post
    ask: Ask
    means: Means | None = None
    tried: Try | None = None
    narrow: bool = True
    """Whether the worker's network can be narrowed, as far as is known."""

    def begin(self) -> None:
        """Choose the first."""
        entry, device = self.post.board.entry, self.post.here.catalogued
        self.means = fitting.means_of(self.post.experiment, entry, device, lambda: self.narrow)
        self.tried = None if self.means is None else fitting.first_try(self.means, self.ask.state)

    @property
    def here(self) -> Post:
        """The post as it is at the present try's scale."""
        return self.post if self.tried is None else self.post.at(fitting.mark_of(self.means, self.tried.scale))

    def carried(self, predictor: Predictor) -> Predictor:
        """A predictor of what is asked for as one of the present try's scale."""
        if self.means is None or self.tried is None:
            return predictor
        return CarryingPredictor(predictor, self.means, fitting.mark_of(self.means, self.tried.scale))

    def use(self, peak_mb: float | None) -> MemoryUse | None:
        """What the round's report tells of its memory."""
        if self.means is None or self.tried is None:
            return None
        return fitting.use_of(self.means, self.tried, self.ask.state, peak_mb)

    @property
    def seen(self) -> tuple[MemorySeen, ...]:
        """What the board knows by the present try: also the tries of this round that ran out of memory."""
        return self.ask.state.memory if self.tried is None else self.tried.seen

    @property
    def lost_s(self) -> float:
        """Seconds of this round that its earlier tries took."""
        return 0.0 if self.tried is None else self.tried.lost_s

    def changes(self, state: BoardState | None) -> bool:
        """Whether the next round, which begins with ``state``, will be tried at another scale than the present one."""
        return fitting.changes(self.means, self.tried, state)

    def learnt(self, peak_mb: float | None) -> tuple[MemorySeen, ...] | None:
        """What the board remembers after a try that fitted; nothing new where its peak is not known."""
        if self.means is None or self.tried is None:
            return None
        return self.tried.seen if peak_mb is None else fitting.learnt(self.means, self.tried, peak_mb)

    def after(self, error: WorkerFailed, begun_s: float, now_s: Callable[[], float] = time.monotonic) -> Answer | None:
        """What a failure means: None where there is another try; the answer where memory ran out for good.

        Raises ``error`` where it is no matter of memory.
        """
        means, tried = self.means, self.tried
        if means is None or tried is None or not (_ran_out(error) or error.kind == NARROW):
            raise error
        if error.kind == NARROW:
            if tried.scale.width == 1.0:
                raise error
            self.narrow = False
            self.tried = fitting.again(means, tried)
            return None
        lost_s = now_s() - begun_s
        following = fitting.next_try(means, tried, lost_s)
        if following is None or error.kind == DIED:  # a new trainer has nothing loaded: the next round goes on
            state = fitting.state_after_failure(means, tried, self.ask, lost_s)
            told = f"{fitting.refusal(means, tried)}; {error}"
            return Answer(self.post.board.name, state=state, error=told)
        self.tried = following
        return None


def _ran_out(error: WorkerFailed) -> bool:
    return error.kind == OOM or (error.kind == DIED and OOM_KILLED in str(error))
