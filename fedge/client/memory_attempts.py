"""The attempts of one round: if a training step runs out of memory, the next attempt uses a smaller scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fedge.client.client_setup import ClientSetup, DeviceOpener, build_first_front
from fedge.client.memory_scaling import (
    ScaleAttempt,
    build_failed_state,
    choose_first_attempt,
    choose_next_attempt,
    explain_out_of_memory,
    rechoose_attempt,
    will_change_scale,
)
from fedge.client.prediction_requests import Asking
from fedge.errors import BoardError, NarrowingRefused, OutOfMemory
from fedge.types import TrainResult
from fedge.wire import ClientState, ReplyMessage, RequestMessage

Answer = tuple[ReplyMessage, TrainResult | None]
"""A reply and, after training, its result."""


def first_attempt(setup: ClientSetup, state: ClientState) -> ScaleAttempt | None:
    """Return a round's first attempt, or None if the memory need of a step is unknown."""
    return None if setup.scaling is None else choose_first_attempt(setup.scaling, state)


def run_attempts(
    setup: ClientSetup,
    request: RequestMessage,
    run_attempt: Callable[[ClientSetup, ScaleAttempt | None], Asking[Answer]],
    open_device: DeviceOpener,
) -> Asking[Answer]:
    """Run a round at the first scale that does not run out of memory.

    Args:
        setup: The client.
        request: The server's request.
        run_attempt: Runs the round at one scale. It raises ``OutOfMemory`` or ``NarrowingRefused`` only if the memory
            need of a step is known.
        open_device: Prepares the board for the front at the scale of the next round, if that is another one.

    Returns:
        The reply, with ``error`` if every attempt ran out of memory.

    Raises:
        BoardError: The worker cannot narrow the network, and the client's fleet entry asks for that.
    """
    attempt = first_attempt(setup, request.state)
    while True:
        try:
            answer, trained = yield from run_attempt(setup, attempt)
        except NarrowingRefused as error:
            setup, attempt = _rule_out_narrowing(setup, attempt, error)
        except OutOfMemory as error:
            assert setup.scaling is not None
            assert attempt is not None
            following = choose_next_attempt(setup.scaling, attempt, error.lost_s)
            if following is None or not error.can_retry:
                answer = _answer_out_of_memory(setup, request, attempt, error)
                return dataclasses.replace(answer, unfit=following is None), None
            attempt = following
        else:
            updated = yield from _update_front(setup, request, attempt, answer=answer, open_device=open_device)
            return updated, trained


def _rule_out_narrowing(
    setup: ClientSetup, attempt: ScaleAttempt | None, refusal: NarrowingRefused
) -> tuple[ClientSetup, ScaleAttempt]:
    """Repeat the choice of the attempt for a client whose network cannot be narrowed.

    Raises:
        BoardError: The client's fleet entry asks for a narrow network.
    """
    assert setup.scaling is not None
    assert attempt is not None
    if setup.scaling.width < 1.0:
        got = f"fleet.width {setup.scaling.width:g}: got a worker that cannot narrow this network ({refusal})"
        raise BoardError(f"{got}; right: width 1 for this board") from refusal
    scaling = dataclasses.replace(setup.scaling, can_narrow=lambda: False)
    return dataclasses.replace(setup, scaling=scaling), rechoose_attempt(scaling, attempt)


def _answer_out_of_memory(
    setup: ClientSetup, request: RequestMessage, attempt: ScaleAttempt, error: OutOfMemory
) -> ReplyMessage:
    assert setup.scaling is not None
    state = build_failed_state(setup.scaling, attempt, request, error.lost_s)
    message = explain_out_of_memory(setup.scaling, attempt)
    return ReplyMessage(setup.board.name, state=state, error=f"{message}; {error.detail}" if error.detail else message)


def _update_front(
    setup: ClientSetup,
    request: RequestMessage,
    attempt: ScaleAttempt | None,
    answer: ReplyMessage,
    open_device: DeviceOpener,
) -> Asking[ReplyMessage]:
    """Return the reply with a front at the scale of the next round's first attempt."""
    if setup.scaling is None or attempt is None or answer.front is None or answer.state is None:
        return answer
    if not will_change_scale(setup.scaling, attempt, answer.state):
        return answer
    following = choose_first_attempt(setup.scaling, answer.state)
    request = dataclasses.replace(request, state=answer.state)
    front = yield from build_first_front(setup, request, following, open_device)
    return dataclasses.replace(answer, front=front)
