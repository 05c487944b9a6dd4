"""A client's answers, the same on emulated and real boards: a round's attempts, its reply, and an evaluation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from fedge.client.client_setup import ClientSetup, DeviceOpener, RoundConditions, build_first_front
from fedge.client.evidence import set_link
from fedge.client.inference_service import InferenceWork
from fedge.client.memory_scaling import (
    ScaleAttempt,
    build_failed_state,
    choose_first_attempt,
    choose_next_attempt,
    explain_out_of_memory,
    rechoose_attempt,
    summarize_memory_use,
    update_memory_history,
    will_change_scale,
)
from fedge.client.prediction_requests import Asking
from fedge.client.round_state import RoundContext, RoundResult
from fedge.errors import NarrowingRefused, OutOfMemory
from fedge.experiment import FleetEntry, WorkloadSpec
from fedge.protocols import Device
from fedge.types import (
    EvaluationReport,
    MemoryObservation,
    MemoryUse,
    PowerMode,
    RoundReport,
    TrainResult,
    add_measurements,
)
from fedge.wire import ClientState, ReplyMessage, RequestMessage

REMEMBERED_ROUNDS = 30
# Default: deadlines older than this no longer influence which modes are probed, and the state stays small.


def build_reply(
    setup: ClientSetup,
    conditions: RoundConditions,
    *,
    context: RoundContext,
    result: RoundResult,
    temperature_c: float | None,
    peak_mb: float | None,
) -> tuple[ReplyMessage, RoundReport]:
    """Build the reply to a training request, without a trace, and the report in it.

    Args:
        temperature_c: Temperature at the end in degrees Celsius; None if unknown.
        peak_mb: Peak memory in MB; None if it was not measured.
    """
    request, attempt, memory = conditions.request, conditions.attempt, None
    if setup.scaling is not None and attempt is not None:
        memory = summarize_memory_use(setup.scaling, attempt, request.state, peak_mb)
    report = RoundReport(
        board=context.board,
        device=context.device.spec.name,
        round=request.round,
        decision=result.decision,
        measured=result.measured,
        probes=result.probes,
        predicted=result.predicted,
        link=setup.transfer(request, conditions.scale),
        idle_w=result.front.idle_w,
        front=result.front,
        true_front=None,
        samples=setup.samples,
        loss=None if math.isnan(result.trained.loss) else result.trained.loss,
        accuracy=None if math.isnan(result.trained.accuracy) else result.trained.accuracy,
        temperature_c=temperature_c,
        prior_time_ape=None,
        prior_power_ape=None,
        own_samples=result.own_samples,
        shared_samples=result.shared_samples,
        recalled_samples=result.recalled_samples,
        mixed=result.mixed,
        asked_steps=setup.round_steps(request, context.scale),
        memory=memory,
        step_share=1.0 if request.goal is None else request.goal.share,
        encoding="none" if request.goal is None else request.goal.compression.kind,
    )
    history = _update_memory_history(setup, request, attempt, peak_mb)
    state = _next_state(request, result, report, memory=memory, history=history)
    return ReplyMessage(context.board, result.front, report, state), report


def _update_memory_history(
    setup: ClientSetup, request: RequestMessage, attempt: ScaleAttempt | None, peak_mb: float | None
) -> tuple[MemoryObservation, ...]:
    if setup.scaling is None or attempt is None:
        return request.state.memory
    return attempt.observations if peak_mb is None else update_memory_history(setup.scaling, attempt, peak_mb)


def _next_state(
    request: RequestMessage,
    result: RoundResult,
    report: RoundReport,
    memory: MemoryUse | None,
    history: tuple[MemoryObservation, ...],
) -> ClientState:
    """Return the client's state after a round; earlier step budgets are dropped if the training scale changed."""
    before_s = () if memory is not None and memory.changed else request.state.allowed_s
    allowed_s = (*before_s, *(() if result.step_budget_s is None else (result.step_budget_s,)))[-REMEMBERED_ROUNDS:]
    return ClientState(
        add_measurements(request.state.measurements, report.parts),
        temperature_c=report.temperature_c,
        rested_at_s=request.start_s + report.busy_s,
        allowed_s=allowed_s,
        memory=history,
        doubts_recalled=request.state.doubts_recalled or (bool(request.recalled) and result.contradicts_recalled),
    )


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
        run_attempt: Runs the round at one scale. It raises ``OutOfMemory`` or ``NarrowingRefused`` only if the memory
            need of a step is known.
        open_device: Prepares the board for the front at the scale of the next round, if that is another one.

    Returns:
        The reply, with ``error`` if every attempt ran out of memory, or if the worker cannot narrow the network and the
        server has sent a narrow one. Its state tells the next rounds that only the whole one can be trained.
    """
    if request.state.whole_only and setup.scaling is not None:
        setup = setup.rule_out_narrowing()
    asked = setup.limit_width(request)
    attempt = first_attempt(asked, request.state)
    while True:
        try:
            answer, trained = yield from run_attempt(asked, attempt)
        except NarrowingRefused as error:
            assert asked.scaling is not None
            assert attempt is not None
            setup, width = setup.rule_out_narrowing(), asked.scaling.width
            assert setup.scaling is not None
            request = dataclasses.replace(request, state=dataclasses.replace(request.state, whole_only=True))
            if width < 1.0:
                return (yield from _answer_refusal(setup, request, error, width=width, open_device=open_device)), None
            asked, attempt = setup, rechoose_attempt(setup.scaling, attempt)
        except OutOfMemory as error:
            assert asked.scaling is not None
            assert attempt is not None
            following = choose_next_attempt(asked.scaling, attempt, error.lost_s)
            if following is None or not error.can_retry:
                answer = _answer_out_of_memory(asked, request, attempt, error)
                return dataclasses.replace(answer, unfit=following is None), None
            attempt = following
        else:
            if request.state.whole_only and answer.state is not None:
                answer = dataclasses.replace(answer, state=dataclasses.replace(answer.state, whole_only=True))
            updated = yield from _update_front(setup, request, attempt, answer=answer, open_device=open_device)
            return updated, trained


def _answer_refusal(
    setup: ClientSetup, request: RequestMessage, refusal: NarrowingRefused, *, width: float, open_device: DeviceOpener
) -> Asking[ReplyMessage]:
    """Return the failed reply to a request with a network of ``width``, with an offer for the whole one."""
    got = f"width {width:g}: got a worker that cannot narrow this network ({refusal})"
    error = f"{got}; right: fleet.width 1, and workload.memory.widths [1]; from now on it trains the whole network"
    state = dataclasses.replace(request.state, rested_at_s=request.start_s)
    front = yield from build_first_front(setup, request, first_attempt(setup, state), open_device)
    return ReplyMessage(setup.board.name, front=front, state=state, error=error)


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
    """Return the reply with a front at the scale of the next round's first attempt, as wide as the client may train."""
    if setup.scaling is None or attempt is None or answer.front is None or answer.state is None:
        return answer
    if not will_change_scale(setup.scaling, attempt, answer.state):
        front = set_link(answer.front, setup.plan_transfer(request, attempt.scale))
        return dataclasses.replace(answer, front=setup.offer_narrow(front, attempt, answer.state))
    following = choose_first_attempt(setup.scaling, answer.state)
    request = dataclasses.replace(request, state=answer.state)
    front = yield from build_first_front(setup, request, following, open_device)
    return dataclasses.replace(answer, front=front)


MAX_BATCH = 64
"""Largest batch that is priced: the largest one for which inference was measured."""


def describe_evaluation(work: WorkloadSpec, entry: FleetEntry) -> InferenceWork:
    """Return what a batch of an evaluation is priced as: inference with the network whose steps are priced."""
    network = work.network if entry.cost is None else None
    return InferenceWork(entry.cost or work.cost, network, (min(work.batch_size, MAX_BATCH),))


def choose_evaluation_mode(setup: ClientSetup, request: RequestMessage) -> PowerMode:
    """Return the mode in which a client evaluates: that of its last training, or the fastest before the first one."""
    measured = request.state.measurements
    return measured[-1].mode if measured else setup.fastest_mode


def answer_evaluation(
    setup: ClientSetup,
    request: RequestMessage,
    device: Device,
    *,
    batches: int,
    evaluate: Callable[[], tuple[float, float, int]],
) -> ReplyMessage:
    """Evaluate on a device and return the reply, with the client's state as it was.

    Args:
        batches: Batches that the evaluation counts as.
        evaluate: Evaluates the model and returns loss, accuracy and the number of test samples; called once.
    """
    found = list[tuple[float, float, int]]()

    def work(_batches: int) -> None:
        if not found:
            found.append(evaluate())

    with device.use_mode(choose_evaluation_mode(setup, request)):
        measured = device.measure(setup.workload, batches, work)
    loss, accuracy, samples = found[0]
    down_bytes = request.model_bytes if setup.model_bytes is None else setup.model_bytes
    link = setup.link.transfer(down_bytes, 0.0)
    report = EvaluationReport(
        setup.board.name,
        device=setup.spec.name,
        samples=samples,
        loss=loss,
        accuracy=accuracy,
        measured=measured,
        link=link,
    )
    state = dataclasses.replace(request.state, rested_at_s=request.start_s + report.busy_s)
    return ReplyMessage(setup.board.name, evaluation=report, state=state)
