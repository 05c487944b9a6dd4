"""Every board's newest row and its energy since a round: read after every round for a page, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge.telemetry.store_reader import read_snapshot, retry_while_changing
from fedge.telemetry.store_schema import CLIENTS


@dataclass(frozen=True, slots=True)
class NewestRows:
    """Newest rows and energies by board.

    Attributes:
        before_j: Energy in joules before a round.
        from_j: Energy in joules from that round on.
    """

    rows: dict[str, tuple[Any, ...]]
    before_j: dict[str, float]
    from_j: dict[str, float]


def read_newest_rows(folder: Path, columns: Sequence[str], since_round: int, split_round: int) -> NewestRows:
    """Read the newest rows of the clients table.

    Args:
        folder: The run's folder.
        columns: Columns of the clients table to return.
        since_round: First round to read.
        split_round: Energies are summed before this round and from it on.

    Raises:
        BadInput: A newer fedge wrote the store.
    """

    def read() -> Any:
        import pyarrow.dataset as ds

        needed = list(dict.fromkeys(["board", "round", "energy_j", *columns]))
        clients = read_snapshot(folder, CLIENTS).dataset()
        return clients.to_table(columns=needed, filter=ds.field("round") >= since_round)

    import pyarrow.compute as pc

    table = retry_while_changing(read)
    before = pc.less(table.column("round"), split_round)
    return NewestRows(
        _last_rows(table, columns),
        before_j=_sum_by_board(table.filter(before)),
        from_j=_sum_by_board(table.filter(pc.invert(before))),
    )


def _last_rows(table: Any, columns: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the row with the greatest round of each board; parts of a resumed run need not be in order."""
    boards, rounds = table.column("board").to_pylist(), table.column("round").to_pylist()
    places = {boards[place]: place for place in sorted(range(len(boards)), key=rounds.__getitem__)}
    chosen = table.take(list(places.values())) if places else table
    values = [chosen.column(name).to_pylist() for name in columns]
    return dict(zip(places, zip(*values, strict=True), strict=True))


def _sum_by_board(table: Any) -> dict[str, float]:
    summed = table.group_by("board").aggregate([("energy_j", "sum")])
    boards, joules = summed.column("board").to_pylist(), summed.column("energy_j_sum").to_pylist()
    return {board: value or 0.0 for board, value in zip(boards, joules, strict=True)}
