"""What a board tells of a round it played, and what it remembers of it: the same for emulated and real boards."""

from __future__ import annotations

from fedge.client.round_context import RoundContext, RoundResult
from fedge.types import LinkUse, MemoryObservation, MemoryUse, RoundReport
from fedge.wire import ClientState, RequestMessage

REMEMBERED_ROUNDS = 30
"""So many rounds' deadlines are remembered."""


def build_report(
    played: RoundResult,
    player: RoundContext,
    number: int,
    link: LinkUse,
    *,
    asked_steps: int,
    samples: int,
    temperature_c: float | None,
    memory: MemoryUse | None = None,
) -> RoundReport:
    """The report of round ``number`` on a share of ``samples``; what only an emulated board can know is None."""
    return RoundReport(
        board=player.board,
        device=player.device.spec.name,
        round=number,
        decision=played.decision,
        measured=played.measured,
        probes=played.probes,
        predicted=played.predicted,
        link=link,
        idle_w=played.front.idle_w,
        front=played.front,
        true_front=None,
        samples=samples,
        loss=played.trained.loss,
        accuracy=played.trained.accuracy,
        temperature_c=temperature_c,
        prior_time_ape=None,
        prior_power_ape=None,
        own_samples=played.own_samples,
        shared_samples=played.shared_samples,
        mixed=played.mixed,
        asked_steps=asked_steps,
        memory=memory,
    )


def next_board_state(
    ask: RequestMessage, played: RoundResult, report: RoundReport, memory: tuple[MemoryObservation, ...] | None = None
) -> ClientState:
    """What the board remembers when the round that ``ask`` asked for is over, and what it learnt of its ``memory``.

    What rounds at another scale allowed per minibatch is forgotten.
    """
    before_s = () if report.memory is not None and report.memory.changed else ask.state.allowed_s
    allowed_s = (*before_s, *(() if played.step_budget_s is None else (played.step_budget_s,)))[-REMEMBERED_ROUNDS:]
    measurements = (*ask.state.measurements, *report.parts)
    seen = ask.state.memory if memory is None else memory
    return ClientState(
        measurements,
        temperature_c=report.temperature_c,
        rested_at_s=ask.start_s + report.busy_s,
        allowed_s=allowed_s,
        memory=seen,
    )
