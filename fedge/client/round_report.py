"""A client's reply after a round and its state for the next one; the same for emulated and real boards."""

from __future__ import annotations

import math

from fedge.client.client_setup import ClientSetup, RoundConditions
from fedge.client.memory_scaling import ScaleAttempt, summarize_memory_use, update_memory_history
from fedge.client.round_context import RoundContext, RoundResult
from fedge.types import MemoryObservation, MemoryUse, RoundReport, add_measurements
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
        setup: The client.
        conditions: The conditions of the round.
        context: The round.
        result: Its result.
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
