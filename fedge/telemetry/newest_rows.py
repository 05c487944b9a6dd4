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
        rows: The requested columns of the newest row.
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
        return (
            read_snapshot(folder, CLIENTS).dataset().to_table(columns=needed, filter=ds.field("round") >= since_round)
        )

    found = retry_while_changing(read)
    return NewestRows(_last_rows(found, columns), *_sum_joules(found, split_round))


def _last_rows(found: Any, columns: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the row with the greatest round of each board; parts of a resumed run need not be in order."""
    import pyarrow as pa

    boards = found.column("board").to_pylist()
    last: dict[str, tuple[int, int]] = {}
    for place, (board, number) in enumerate(zip(boards, found.column("round").to_pylist(), strict=True)):
        if board not in last or number >= last[board][0]:
            last[board] = number, place
    chosen = found.take(pa.array([place for _, place in last.values()], pa.int64()))
    values = [chosen.column(name).to_pylist() for name in columns]
    return dict(zip(last, zip(*values, strict=True), strict=True))


def _sum_joules(found: Any, split_round: int) -> tuple[dict[str, float], dict[str, float]]:
    import pyarrow.compute as pc

    before = pc.less(found.column("round"), split_round)
    return _sum_by_board(found.filter(before)), _sum_by_board(found.filter(pc.invert(before)))


def _sum_by_board(found: Any) -> dict[str, float]:
    summed = found.select(["board", "energy_j"]).group_by("board").aggregate([("energy_j", "sum")])
    boards, joules = summed.column("board").to_pylist(), summed.column("energy_j_sum").to_pylist()
    return {board: value or 0.0 for board, value in zip(boards, joules, strict=True)}
