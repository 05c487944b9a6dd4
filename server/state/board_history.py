"""Updates of client states, fronts, histories and batteries from replies, also late ones. Pure functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from fedge.knowledge.recall import renews_peers
from fedge.telemetry.round_columns import compute_completed_work
from fedge.telemetry.settlement import RoundSettlement
from fedge.telemetry.store_records import NOTHING_MEASURED, RECORDED, EventRow
from fedge.types import Front, Measurement, add_measurements
from fedge.wire import ClientState, ReplyMessage
from server.state.checkpoint import UNKNOWN_CLIENT, ClientHistory, FleetState, PendingResult

MAX_LINK_RATES = 9
"""Rounds whose median is the rate of a client's link. Default: a median of nine ignores four rounds in which something
else held up the messages, and follows a link that has changed after five."""


def update_histories(
    fleet: FleetState, number: int, settled: RoundSettlement, answers: Mapping[str, ReplyMessage]
) -> FleetState:
    """Update what the server knows of the clients of a round; the clock does not move.

    A client that is done has reported everything. One that was stopped keeps what it had measured by then. Of one that
    failed, during the round or after it, only the time since which it is idle is known; a client whose reply is still
    to come is not updated.
    """
    states, fronts, histories = dict(fleet.states), dict(fleet.fronts), dict(fleet.histories)
    if renews_peers(number):
        histories = {name: dataclasses.replace(history, unshared=0) for name, history in histories.items()}
    for row in settled.clients:
        name = row.board
        until_s = settled.until_s[name]
        history = _record_request(histories.get(name, UNKNOWN_CLIENT), number, settled, name)
        # A reply counts in full, or not at all if the client failed before sending it.
        answer = answers[name] if row.status == "done" or answers[name].report is None else ReplyMessage(name)
        if row.status == "done":
            history = _record_report(history, answer)
        elif row.status == "failed" or name in settled.lost:
            if name in states:  # it was working until then, so it has not cooled since its last reply
                states[name] = dataclasses.replace(states[name], rested_at_s=until_s)
        elif name not in settled.joining:
            busy_s = until_s - settled.start_s
            history = dataclasses.replace(history, busy_s=busy_s)
            answer = _truncate_answer(answers[name], states.get(name), busy_s)
        histories[name] = history
        _store_answer(answer, states, fronts, histories)
    return FleetState(fleet.clock_s, states=states, fronts=fronts, histories=histories)


def note_recorded(fleet: FleetState, number: int, answers: Iterable[ReplyMessage]) -> list[EventRow]:
    """Return an event for each board without a front, so new to the run, that says that it is a recorded folder."""
    return [
        EventRow(fleet.clock_s, round=number, board=answer.board, kind=RECORDED, message=NOTHING_MEASURED)
        for answer in answers
        if answer.recorded and answer.board not in fleet.fronts
    ]


def apply_late_reports(
    fleet: FleetState, pending: Iterable[PendingResult], after_s: float = -math.inf, until_s: float = math.inf
) -> FleetState:
    """Apply the states, fronts and reports of late replies.

    Only those that arrived after ``after_s`` and no later than ``until_s`` (simulated times) are applied.
    """
    states, fronts, histories = dict(fleet.states), dict(fleet.fronts), dict(fleet.histories)
    for late in pending:
        if after_s < late.end_s <= until_s:
            name = late.answer.board
            histories[name] = _record_report(histories.get(name, UNKNOWN_CLIENT), late.answer)
            _store_answer(late.answer, states, fronts, histories)
    return FleetState(fleet.clock_s, states=states, fronts=fronts, histories=histories)


def _store_answer(
    answer: ReplyMessage, states: dict[str, ClientState], fronts: dict[str, Front], histories: dict[str, ClientHistory]
) -> None:
    if answer.state is not None:
        history, before = histories[answer.board], states.get(answer.board)
        new = _count_new(() if before is None else before.measurements, answer.state.measurements)
        histories[answer.board] = dataclasses.replace(history, unshared=history.unshared + new)
        states[answer.board] = answer.state
    if answer.front is not None:
        fronts[answer.board] = answer.front


def _count_new(before: Sequence[Measurement], now: Sequence[Measurement]) -> int:
    """Return how many of the measurements ``now`` come after the last one of ``before``."""
    return now[::-1].index(before[-1]) if before and before[-1] in now else len(now)


def _record_request(history: ClientHistory, number: int, settled: RoundSettlement, name: str) -> ClientHistory:
    """Update a client's history after it was asked, before its reply is applied."""
    charge = settled.charges.get(name)
    return dataclasses.replace(
        history,
        last_round=number,
        rounds=history.rounds + 1,
        free_at_s=max(settled.end_s, settled.until_s[name]),
        charge_j=history.charge_j if charge is None else charge.left_j,
    )


def _record_report(history: ClientHistory, answer: ReplyMessage) -> ClientHistory:
    report = answer.report
    if report is None or answer.is_refused:
        return history
    measured = () if report.link_mbps is None else (report.link_mbps,)
    return dataclasses.replace(
        history,
        samples=report.samples,
        loss=report.loss,
        accuracy=report.accuracy,
        busy_s=report.busy_s,
        links_mbps=(*history.links_mbps, *measured)[-MAX_LINK_RATES:],
    )


def _truncate_answer(answer: ReplyMessage, before: ClientState | None, until_s: float) -> ReplyMessage:
    """Return the reply of a client that was stopped ``until_s`` seconds into the round: its completed measurements.

    Only whole steps count. Its new front is kept only if the last part of the work had started, on whose measurement
    the front is based. A real board that stopped by itself has reported only what it measured.
    """
    report, state = answer.report, answer.state
    if report is None:
        return answer
    if state is None:
        return ReplyMessage(answer.board)
    pairs = zip(report.parts, compute_completed_work(report, until_s).parts, strict=True)
    completed = tuple(dataclasses.replace(part, steps=done.steps) for part, done in pairs if done.steps > 0)
    kept = dataclasses.replace(
        state,
        measurements=add_measurements(() if before is None else before.measurements, completed),
        rested_at_s=state.rested_at_s - max(0.0, report.busy_s - until_s),
    )
    return ReplyMessage(answer.board, answer.front if len(completed) == len(report.parts) else None, state=kept)
