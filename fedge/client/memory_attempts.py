"""Training attempts of a real board that has too little memory: the scale of each attempt and what failures teach."""

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
# Kinds of worker errors: out of memory (the worker goes on), worker died, network cannot be narrowed.


@dataclass(slots=True, eq=False)
class MemoryAttempts:
    """The attempts of one round in sequence.

    Attributes:
        session: Session at the requested scale.
        ask: The request.
        scaling: Memory and scaling options; None if the memory need of a step is unknown.
        attempt: The current attempt; None if the need is unknown.
        can_narrow: Whether the worker's network can be narrowed, as far as is known.
    """

    session: BoardSession
    ask: RequestMessage
    scaling: ScalingContext | None = None
    attempt: ScaleAttempt | None = None
    can_narrow: bool = True
    """Whether the worker's network can be narrowed, as far as is known."""

    def begin(self) -> None:
        """Choose the first attempt."""
        entry, device = self.session.board.entry, self.session.here.catalogued
        self.scaling = memory_scaling.build_scaling_context(
            self.session.experiment, entry, device, lambda: self.can_narrow
        )
        self.attempt = (
            None if self.scaling is None else memory_scaling.choose_first_attempt(self.scaling, self.ask.state)
        )

    @property
    def scaled_session(self) -> BoardSession:
        """Return the session at the current attempt's scale."""
        return (
            self.session
            if self.attempt is None
            else self.session.with_scale(memory_scaling.measurement_scale(self.scaling, self.attempt.scale))
        )

    def rescale_predictor(self, predictor: Predictor) -> Predictor:
        """Wrap a predictor of the requested scale so that it predicts the current attempt's scale."""
        if self.scaling is None or self.attempt is None:
            return predictor
        return RescalingPredictor(
            predictor, self.scaling, memory_scaling.measurement_scale(self.scaling, self.attempt.scale)
        )

    def summarize_use(self, peak_mb: float | None) -> MemoryUse | None:
        """Return the memory section of the round's report, or None if the need is unknown."""
        if self.scaling is None or self.attempt is None:
            return None
        return memory_scaling.summarize_memory_use(self.scaling, self.attempt, self.ask.state, peak_mb)

    @property
    def memory_history(self) -> tuple[MemoryObservation, ...]:
        """Return the memory observations so far, including this round's failed attempts."""
        return self.ask.state.memory if self.attempt is None else self.attempt.seen

    @property
    def lost_s(self) -> float:
        """Return the seconds that this round's earlier attempts took."""
        return 0.0 if self.attempt is None else self.attempt.lost_s

    def will_change_scale(self, state: ClientState | None) -> bool:
        """Return whether the next round, which begins with ``state``, will use another scale than this attempt."""
        return memory_scaling.will_change_scale(self.scaling, self.attempt, state)

    def update_history(self, peak_mb: float | None) -> tuple[MemoryObservation, ...] | None:
        """Return the memory history after a successful attempt, or None if the memory need of a step is unknown."""
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
        """Choose the next attempt after a failure.

        Args:
            error: The failure.
            begun_s: Start of the attempt on the clock of ``now_s``.
            now_s: Returns the current time in seconds.

        Returns:
            None if there is another attempt; the reply if memory ran out at the last one.

        Raises:
            WorkerFailed: ``error`` itself if it is not related to memory.
        """
        means, attempt = self.scaling, self.attempt
        if means is None or attempt is None or not (_is_out_of_memory(error) or error.kind == NARROW):
            raise error
        if error.kind == NARROW:
            if attempt.scale.width == 1.0:
                raise error
            self.can_narrow = False
            self.attempt = memory_scaling.rechoose_attempt(means, attempt)
            return None
        lost_s = now_s() - begun_s
        following = memory_scaling.choose_next_attempt(means, attempt, lost_s)
        if following is None or error.kind == DIED:  # a restarted trainer has no task loaded
            state = memory_scaling.build_failed_state(means, attempt, self.ask, lost_s)
            message = f"{memory_scaling.explain_out_of_memory(means, attempt)}; {error}"
            return ReplyMessage(self.session.board.name, state=state, error=message)
        self.attempt = following
        return None


def _is_out_of_memory(error: WorkerFailed) -> bool:
    return error.kind == OOM or (error.kind == DIED and OOM_KILLED in str(error))
