"""A real board's memory: what its worker is tried with, and what its answers teach."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedge.client import memory_scaling
from fedge.client.board_session import BoardSession
from fedge.client.memory_scaling import RescalingPredictor, ScaleAttempt, ScalingContext
from fedge.errors import WorkerFailed
from fedge.protocols import Predictor
from fedge.types import MemoryObservation, MemoryUse
from fedge.wire import ClientState, ReplyMessage, RequestMessage
from fedge.worker.exit_causes import OOM_KILLED

OOM, DIED, NARROW = "oom", "died", "narrow"
"""Kinds of a worker's refusals: it ran out of memory and goes on; it is dead; its network cannot be narrowed."""


@dataclass(slots=True, eq=False)
class MemoryAttempts:
    """The tries of one round, one after the other; ``tried`` is None where nobody knows what a step needs."""

    session: BoardSession
    ask: RequestMessage
    scaling: ScalingContext | None = None
    attempt: ScaleAttempt | None = None
    can_narrow: bool = True
    """Whether the worker's network can be narrowed, as far as is known."""

    def begin(self) -> None:
        """Choose the first."""
        entry, device = self.session.board.entry, self.session.here.catalogued
        self.scaling = memory_scaling.build_scaling_context(
            self.session.experiment, entry, device, lambda: self.can_narrow
        )
        self.attempt = (
            None if self.scaling is None else memory_scaling.choose_first_attempt(self.scaling, self.ask.state)
        )

    @property
    def scaled_session(self) -> BoardSession:
        """The post as it is at the present try's scale."""
        return (
            self.session
            if self.attempt is None
            else self.session.with_scale(memory_scaling.measurement_scale(self.scaling, self.attempt.scale))
        )

    def rescale_predictor(self, predictor: Predictor) -> Predictor:
        """A predictor of what is asked for as one of the present try's scale."""
        if self.scaling is None or self.attempt is None:
            return predictor
        return RescalingPredictor(
            predictor, self.scaling, memory_scaling.measurement_scale(self.scaling, self.attempt.scale)
        )

    def summarize_use(self, peak_mb: float | None) -> MemoryUse | None:
        """What the round's report tells of its memory."""
        if self.scaling is None or self.attempt is None:
            return None
        return memory_scaling.summarize_memory_use(self.scaling, self.attempt, self.ask.state, peak_mb)

    @property
    def memory_history(self) -> tuple[MemoryObservation, ...]:
        """What the board knows by the present try: also the tries of this round that ran out of memory."""
        return self.ask.state.memory if self.attempt is None else self.attempt.seen

    @property
    def lost_s(self) -> float:
        """Seconds of this round that its earlier tries took."""
        return 0.0 if self.attempt is None else self.attempt.lost_s

    def will_change_scale(self, state: ClientState | None) -> bool:
        """Whether the next round, which begins with ``state``, will be tried at another scale than the present one."""
        return memory_scaling.will_change_scale(self.scaling, self.attempt, state)

    def update_history(self, peak_mb: float | None) -> tuple[MemoryObservation, ...] | None:
        """What the board remembers after a try that fitted; nothing new where its peak is not known."""
        if self.scaling is None or self.attempt is None:
            return None
        return (
            self.attempt.seen
            if peak_mb is None
            else memory_scaling.update_memory_history(self.scaling, self.attempt, peak_mb)
        )

    def handle_failure(
        self, error: WorkerFailed, begun_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> ReplyMessage | None:
        """What a failure means: None where there is another try; the answer where memory ran out for good.

        Raises ``error`` where it is no matter of memory.
        """
        means, tried = self.scaling, self.attempt
        if means is None or tried is None or not (_is_out_of_memory(error) or error.kind == NARROW):
            raise error
        if error.kind == NARROW:
            if tried.scale.width == 1.0:
                raise error
            self.can_narrow = False
            self.attempt = memory_scaling.rechoose_attempt(means, tried)
            return None
        lost_s = now_s() - begun_s
        following = memory_scaling.choose_next_attempt(means, tried, lost_s)
        if following is None or error.kind == DIED:  # a new trainer has nothing loaded: the next round goes on
            state = memory_scaling.build_failed_state(means, tried, self.ask, lost_s)
            told = f"{memory_scaling.explain_out_of_memory(means, tried)}; {error}"
            return ReplyMessage(self.session.board.name, state=state, error=told)
        self.attempt = following
        return None


def _is_out_of_memory(error: WorkerFailed) -> bool:
    return error.kind == OOM or (error.kind == DIED and OOM_KILLED in str(error))
