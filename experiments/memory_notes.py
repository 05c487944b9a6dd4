"""What boards lowered to fit into their memory, as a run's summary and its YAML tell it; pure but for one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedge.telemetry import run_folder
from fedge.telemetry.rows import ClientRow

HEAD = "# What boards lowered to fit into their memory, as far as this run was played:"


def lowered_of(clients: Sequence[ClientRow]) -> dict[str, Any]:
    """Per board that lowered anything or ran out of memory, as of its last such row; nothing where none did."""
    told = {row.board: _told(row) for row in clients if row.lowered}
    failures = sum(row.out_of_memory or 0 for row in clients)
    failed = [row for row in clients if _ran_out(row)]
    if not told and not failures and not failed:
        return {}
    return {
        "lowered": told,
        "out_of_memory": failures + len(failed),
        "out_of_memory_lost_s": sum(row.lost_s or 0.0 for row in clients),
    }


def _ran_out(row: ClientRow) -> bool:
    return row.status == "failed" and "out of memory" in (row.error or "")


def _told(row: ClientRow) -> dict[str, Any]:
    return {
        "round": row.round,
        "batch_size": row.batch_size,
        "width": row.width,
        "predicted_mb": row.predicted_memory_mb,
        "limit_mb": row.memory_limit_mb,
        "peak_mb": row.memory_mb,
        "why": row.lowered,
    }


def note(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write what was lowered as comments at the end of the run's YAML, in place of what stood there before."""
    path = folder / run_folder.RUN_YAML
    text = path.read_text(encoding="utf-8")
    plain = text.partition(HEAD)[0]
    lowered: Mapping[str, Any] = summary.get("lowered") or {}
    lines = [f"#   {board}, round {told['round']}: {told['why']}" for board, told in sorted(lowered.items())]
    new = plain + "".join(f"{line}\n" for line in ([HEAD, *lines] if lines else []))
    if new != text:
        run_folder.write_text(path, new)
