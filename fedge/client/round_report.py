"""A client's report of a round and its state for the next one; the same for emulated and real boards."""

from __future__ import annotations

from fedge.client.round_context import RoundContext, RoundResult
from fedge.types import LinkUse, MemoryObservation, MemoryUse, RoundReport
from fedge.wire import ClientState, RequestMessage

REMEMBERED_ROUNDS = 30
# Default: deadlines older than this no longer influence which modes are probed, and the state stays small.


def build_report(
    result: RoundResult,
    context: RoundContext,
    number: int,
    link: LinkUse,
    *,
    asked_steps: int,
    samples: int,
    temperature_c: float | None,
    memory: MemoryUse | None = None,
) -> RoundReport:
    """Build the report of a round; fields that only an emulated board can know are None.

    Args:
        result: Result of the round.
        context: The client's context.
        number: Number of the round.
        link: Transfer times of the model.
        asked_steps: Steps of the whole share.
        samples: Training samples of the client.
        temperature_c: Temperature at the end in degrees Celsius.
        memory: Training scale and memory; None if the need is unknown.
    """
    return RoundReport(
        board=context.board,
        device=context.device.spec.name,
        round=number,
        decision=result.decision,
        measured=result.measured,
        probes=result.probes,
        predicted=result.predicted,
        link=link,
        idle_w=result.front.idle_w,
        front=result.front,
        true_front=None,
        samples=samples,
        loss=result.trained.loss,
        accuracy=result.trained.accuracy,
        temperature_c=temperature_c,
        prior_time_ape=None,
        prior_power_ape=None,
        own_samples=result.own_samples,
        shared_samples=result.shared_samples,
        mixed=result.mixed,
        asked_steps=asked_steps,
        memory=memory,
    )


def next_board_state(
    request: RequestMessage,
    result: RoundResult,
    report: RoundReport,
    memory: tuple[MemoryObservation, ...] | None = None,
) -> ClientState:
    """Return the client's state after a round.

    Args:
        request: The request that started the round.
        result: Result of the round.
        report: Report of the round.
        memory: Updated memory history; None leaves it unchanged.

    Returns:
        The new state. Step budgets of earlier rounds are dropped if the training scale changed.
    """
    before_s = () if report.memory is not None and report.memory.changed else request.state.allowed_s
    allowed_s = (*before_s, *(() if result.step_budget_s is None else (result.step_budget_s,)))[-REMEMBERED_ROUNDS:]
    measurements = (*request.state.measurements, *report.parts)
    seen = request.state.memory if memory is None else memory
    return ClientState(
        measurements,
        temperature_c=report.temperature_c,
        rested_at_s=request.start_s + report.busy_s,
        allowed_s=allowed_s,
        memory=seen,
    )
