"""Selection of boards and rounds of a large run for drawing, with a note on what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TypeVar

from experiments.report.run.loaded_runs import LoadedRun
from fedge.telemetry.store_records import ClientRow, RoundRow

MAX_BOARDS = 40
MAX_CELLS = 1_600
"""Largest number of board-rounds in a timeline: with four bars each, about as many as a browser draws without delay."""
MAX_POINTS = 3_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunSample:
    """The part of a run that is drawn.

    Attributes:
        boards: Board names, in the order of the fleet.
        rounds: The latest rounds.
        note: How the part was selected; empty if it is the whole run.
    """

    boards: tuple[str, ...]
    rounds: tuple[RoundRow, ...]
    note: str

    def select_rows(self, run: LoadedRun) -> tuple[ClientRow, ...]:
        boards, numbers = set(self.boards), {row.round for row in self.rounds}
        return tuple(row for row in run.clients if row.board in boards and row.round in numbers)


def sample_run(run: LoadedRun) -> RunSample:
    """Select as much of the run as stays readable."""
    boards = _sample_boards(run)
    rounds = run.rounds[-max(1, MAX_CELLS // len(boards)) :]
    parts = []
    if len(boards) < len(run.device_by_board):
        parts.append(
            f"{len(boards)} of {len(run.device_by_board)} boards (the most frequent stragglers, then some of every "
            f"kind)"
        )
    if len(rounds) < len(run.rounds):
        parts.append(f"the last {len(rounds)} of {len(run.rounds)} rounds")
    return RunSample(
        boards, rounds, f"Shown here: {' and '.join(parts)}; the Parquet tables contain everything." if parts else ""
    )


def _sample_boards(run: LoadedRun) -> tuple[str, ...]:
    if len(run.device_by_board) <= MAX_BOARDS:
        return tuple(run.device_by_board)
    late = Counter(row.straggler for row in run.rounds if row.straggler in run.device_by_board)
    stragglers = [board for board, _ in late.most_common(MAX_BOARDS // 4)]
    by_kind = [[board for board, kind in run.device_by_board.items() if kind == device] for device in run.devices]
    turns = (board for board in chain.from_iterable(zip_longest(*by_kind)) if board is not None)
    chosen = set(list(dict.fromkeys(chain(stragglers, turns)))[:MAX_BOARDS])
    return tuple(board for board in run.device_by_board if board in chosen)


def thin_rows(rows: Sequence[T]) -> tuple[Sequence[T], str]:
    """Return every n-th row, so that at most ``MAX_POINTS`` remain, and a note if rows were left out."""
    step = -(-len(rows) // MAX_POINTS) if rows else 1
    return rows[::step], "" if step <= 1 else f"One in {step} of {len(rows):,} points is shown."
