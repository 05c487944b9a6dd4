"""Runs a fleet for a study: the coordinator with its planning and sharing, in this process, without training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedge.client import emulated
from fedge.devices.board_kinds import TABLE_PREFIX
from fedge.devices.mode_surface import ModeSurface
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetBoard, list_boards
from fedge.studies import fleet
from fedge.studies.fleet import BoardTruth, FleetRun
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import RoundRow
from fedge.types import PowerMode, ProfileTable, RoundReport
from server.aggregation.aggregator import build_strategy
from server.aggregation.async_strategies import AsyncStrategy
from server.rounds.coordinator import Coordinator
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

Reports = dict[int, dict[str, RoundReport]]
"""Client reports by round and board name."""


def check_synchronous(experiment: Experiment) -> None:
    """Raise ``BadInput`` for an asynchronous strategy: the study evaluates rounds, which such a run does not have."""
    if isinstance(build_strategy(experiment.strategy), AsyncStrategy):
        right = "a strategy of rounds, e.g. --set strategy=FedAvg: the study judges rounds, asynchronous runs have none"
        raise BadInput("strategy.name", repr(experiment.strategy.name), right)


def run_study_fleet(
    experiment: Experiment, steps: Mapping[str, int], told: Callable[[int], None] = lambda _: None
) -> FleetRun:
    """Run an experiment once without training and compare each round with the oracle.

    Args:
        experiment: The experiment, as prepared for the study.
        steps: SGD steps per round, by board name.
        told: Called with the round number after every round.

    Raises:
        RunFailed: If a round has no result.
    """
    # Flower's strategies log every aggregation to the terminal, which belongs to the launcher.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    seats = {b.name: fleet.build_board_experiment(experiment, b, steps[b.name]) for b in list_boards(experiment)}
    reports: Reports = {}
    respond = {b.name: partial(_respond, seats[b.name], b, reports) for b in list_boards(experiment)}
    tables = MemoryTables()
    Coordinator(experiment, LocalPort(respond), fleet.NullTask(), tables, on_round=told).run()
    rows = [row for row in tables.rows if isinstance(row, RoundRow)]
    truths = {b.name: _build_truth(seats[b.name], b) for b in list_boards(experiment)}
    judged = tuple(fleet.compare_round(row, reports[row.round], truths, experiment.policy) for row in rows)
    return FleetRun(
        experiment.policy.name, experiment.seed, judged, count_explored_modes(reports, [row.round for row in rows])
    )


def count_explored_modes(reports: Reports, rounds: Sequence[int]) -> tuple[float, ...]:
    """Return, for each round, the number of distinct modes measured so far, averaged over the boards."""
    seen: dict[str, set[PowerMode]] = {}
    means = []
    for number in rounds:
        for board, report in reports[number].items():
            seen.setdefault(board, set()).update(part.mode for part in report.parts)
        means.append(sum(len(modes) for modes in seen.values()) / len(seen))
    return tuple(means)


def _respond(experiment: Experiment, board: FleetBoard, reports: Reports, question: OutgoingRequest) -> IncomingReply:
    answer, trained = emulated.answer_request(experiment, board.index, question.ask, question.arrays)
    if answer.report is not None:
        reports.setdefault(question.ask.round, {})[board.name] = answer.report
    return IncomingReply(answer, trained)


def _build_truth(experiment: Experiment, board: FleetBoard) -> BoardTruth:
    seat = emulated.load_client(experiment, board.index)
    presets = fleet.map_presets_to_modes(seat.surface, seat.kind.spec.presets)
    plausible = _plausible_modes(board.entry.truth, seat.surface, seat.kind.spec.maxn)
    return BoardTruth(seat.surface, presets, seat.setup.steps, plausible)


def _plausible_modes(truth: str, surface: ModeSurface, maxn: PowerMode) -> NDArray[np.bool_]:
    """Return a mask of the modes of a measured table that fit their neighbours; all True if emulated."""
    if not truth.startswith(TABLE_PREFIX):
        return np.ones(len(surface.modes), dtype=np.bool_)
    table = ProfileTable(
        "",
        workload="",
        batch_size=1,
        modes=surface.modes,
        step_s=surface.step_s,
        power_w=surface.power_w,
        sha256="",
        path=truth,
    )
    return find_plausible_rows(table, maxn)
