"""Plays a fleet for a study: the coordinator with its planning and sharing, in this process, on a task of nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedge.devices.truth import Surface
from fedge.errors import BadInput
from fedge.evaluation.implausible import plausible_rows
from fedge.experiment import Board, Experiment, boards
from fedge.fleetsim import client
from fedge.fleetsim.boards import TABLE
from fedge.studies import fleet
from fedge.studies.fleet import FleetRun, Truth
from fedge.telemetry.rows import RoundRow
from fedge.telemetry.store import MemoryTables
from fedge.types import PowerMode, ProfileTable, RoundReport
from server.aggregation import strategy_of
from server.coordinator import Coordinator
from server.port import LocalPort, Question, Reply
from server.staleness import Asynchronous

Reports = dict[int, dict[str, RoundReport]]
"""Round -> board -> what it reported."""


def check_strategy(experiment: Experiment) -> None:
    """Raise ``BadInput`` for an asynchronous strategy: the study judges rounds, which such a run does not have."""
    if isinstance(strategy_of(experiment.strategy), Asynchronous):
        right = "a strategy of rounds, e.g. --set strategy=FedAvg: the study judges rounds, asynchronous runs have none"
        raise BadInput("strategy.name", repr(experiment.strategy.name), right)


def play_fleet(
    experiment: Experiment, steps: Mapping[str, int], told: Callable[[int], None] = lambda _: None
) -> FleetRun:
    """One run of ``experiment`` (of ``fleet.as_asked``), every board doing its ``steps`` minibatches a round.

    ``told`` hears of every round's end. Raises ``RunFailed`` when a round gives nothing.
    """
    # Flower's strategies report every aggregation on the terminal, which is the launcher's.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    seats = {b.name: fleet.as_played_by(experiment, b, steps[b.name]) for b in boards(experiment)}
    reports: Reports = {}
    respond = {b.name: partial(_respond, seats[b.name], b, reports) for b in boards(experiment)}
    tables = MemoryTables()
    Coordinator(experiment, LocalPort(respond), fleet.Nothing(), tables, on_round=told).run()
    rows = [row for row in tables.rows if isinstance(row, RoundRow)]
    truths = {b.name: _truth(seats[b.name], b) for b in boards(experiment)}
    judged = tuple(fleet.judge(row, reports[row.round], truths, experiment.policy) for row in rows)
    return FleetRun(experiment.policy.name, experiment.seed, judged, explored(reports, [row.round for row in rows]))


def explored(reports: Reports, rounds: Sequence[int]) -> tuple[float, ...]:
    """Mean over the boards of the different modes measured by the end of each round."""
    seen: dict[str, set[PowerMode]] = {}
    means = []
    for number in rounds:
        for board, report in reports[number].items():
            seen.setdefault(board, set()).update(part.mode for part in report.parts)
        means.append(sum(len(modes) for modes in seen.values()) / len(seen))
    return tuple(means)


def _respond(experiment: Experiment, board: Board, reports: Reports, question: Question) -> Reply:
    answer, trained = client.answer(experiment, board.index, question.ask, question.arrays)
    if answer.report is not None:
        reports.setdefault(question.ask.round, {})[board.name] = answer.report
    return Reply(answer, trained)


def _truth(experiment: Experiment, board: Board) -> Truth:
    seat = client.seat_of(experiment, board.index)
    presets = fleet.presets_of(seat.surface, seat.kind.spec.presets)
    plausible = _plausible_modes(board.entry.truth, seat.surface, seat.kind.spec.maxn)
    return Truth(seat.surface, presets, seat.steps, plausible)


def _plausible_modes(truth: str, surface: Surface, maxn: PowerMode) -> NDArray[np.bool_]:
    """The modes of a measured table whose figures fit those of the modes around them; all of an emulated surface."""
    if not truth.startswith(TABLE):
        return np.ones(len(surface.modes), dtype=np.bool_)
    table = ProfileTable("", "", 1, surface.modes, surface.step_s, surface.power_w, "", truth)
    return plausible_rows(table, maxn)
