"""What of a large run is drawn: some boards, the latest rounds, and a sentence that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TypeVar

from experiments.report.runs import Run
from fedge.telemetry.rows import ClientRow, RoundRow

MAX_BOARDS = 40
MAX_CELLS = 1_600
"""Board-rounds drawn in a timeline: four bars each, which a browser still draws at once."""
MAX_POINTS = 3_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class View:
    """The boards (in the order of the fleet) and rounds that are drawn, and how that was chosen, if it had to be."""

    boards: tuple[str, ...]
    rounds: tuple[RoundRow, ...]
    note: str

    def rows(self, run: Run) -> tuple[ClientRow, ...]:
        boards, numbers = set(self.boards), {row.round for row in self.rounds}
        return tuple(row for row in run.clients if row.board in boards and row.round in numbers)


def view_of(run: Run) -> View:
    """As much of the run as stays readable."""
    boards = _boards(run)
    rounds = run.rounds[-max(1, MAX_CELLS // len(boards)) :]
    parts = []
    if len(boards) < len(run.kinds):
        parts.append(
            f"{len(boards)} of {len(run.kinds)} boards (the most frequent stragglers, then some of every kind)"
        )
    if len(rounds) < len(run.rounds):
        parts.append(f"the last {len(rounds)} of {len(run.rounds)} rounds")
    return View(boards, rounds, f"Drawn here: {' and '.join(parts)}; the tables in Parquet hold all." if parts else "")


def _boards(run: Run) -> tuple[str, ...]:
    if len(run.kinds) <= MAX_BOARDS:
        return tuple(run.kinds)
    late = Counter(row.straggler for row in run.rounds if row.straggler in run.kinds)
    stragglers = [board for board, _ in late.most_common(MAX_BOARDS // 4)]
    by_kind = [[board for board, kind in run.kinds.items() if kind == device] for device in run.devices]
    turns = (board for board in chain.from_iterable(zip_longest(*by_kind)) if board is not None)
    chosen = set(list(dict.fromkeys(chain(stragglers, turns)))[:MAX_BOARDS])
    return tuple(board for board in run.kinds if board in chosen)


def thinned(rows: Sequence[T], limit: int = MAX_POINTS) -> tuple[Sequence[T], str]:
    """Every n-th row, and a sentence about it when rows were left out."""
    step = -(-len(rows) // limit) if rows else 1
    return rows[::step], "" if step <= 1 else f"One in {step} of {len(rows):,} points is drawn."
