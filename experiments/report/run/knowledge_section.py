"""The report's section on recalled knowledge: its origins, agreement with measurements, and the probes it saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from experiments.report.page import Section, render_badge, render_paragraph
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.tables import Cell, Table, text_cell, value_cell
from fedge.decisions.planning import is_pinned
from fedge.experiment import Experiment
from fedge.knowledge.recall import RecalledOrigin, read_run_knowledge
from fedge.telemetry.store_records import ClientRow

LEAD = "Measurements of earlier runs and profiles that the boards started from."
MAX_NAMES = 5


def summarize_knowledge(experiment: Experiment, folder: Path, clients: Sequence[ClientRow]) -> dict[str, Any]:
    """Return what a run recalled, for its summary; empty if it took part in no knowledge.

    The probes saved are an upper bound: each recalled mode spares a probe, up to the most that a client may probe in
    these rounds, less the probes that were made all the same.
    """
    known = read_run_knowledge(folder)
    if not known.folder and not known.origins:
        return {}
    warm = {board: {one.mode for one in rows} for board, rows in known.own.items() if rows}
    rows = {board: [row for row in clients if row.board == board] for board in warm}
    contradicted = {} if is_pinned(experiment.policy.name) else _find_contradictions(rows)
    exploration = experiment.exploration
    saved = {
        board: max(
            0,
            min(len(modes), exploration.modes or len(modes), exploration.probes * len(rows[board]))
            - sum(row.probes for row in rows[board]),
        )
        for board, modes in warm.items()
        if board not in contradicted
    }
    return {
        "folder": known.folder,
        "boards": len(warm),
        "measurements": sum(map(len, known.own.values())),
        "peers": len(known.peers),
        "contradicted": contradicted,
        "probes_saved": sum(saved.values()),
        "origins": {board: [dataclasses.asdict(one) for one in origins] for board, origins in known.origins.items()},
        "notes": list(known.notes),
    }


def _find_contradictions(rows: Mapping[str, Sequence[ClientRow]]) -> dict[str, int]:
    """Return the round in which each board's own measurements first contradicted what it recalled."""
    dropped = {
        board: [row.round for row in own if row.own_samples is not None and not row.recalled_samples]
        for board, own in rows.items()
    }
    return {board: min(rounds) for board, rounds in dropped.items() if rounds}


def describe_knowledge(knowledge: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines for the terminal."""
    if not knowledge:
        return
    wrong = knowledge["contradicted"]
    tables = _count_reference_tables(knowledge)
    if not knowledge["boards"] and not knowledge["peers"]:
        fits = (
            f"only reference tables of other workloads ({tables})"
            if tables
            else f"nothing fits in {knowledge['folder']}"
        )
        yield f"knowledge: {fits}; what this run measured is there for the next"
    else:
        kept = knowledge["boards"] - len(wrong)
        peers = f", {knowledge['peers']} other boards of their kinds" if knowledge["peers"] else ""
        peers += f", reference tables of other workloads ({tables})" if tables else ""
        saved = f"; at most {knowledge['probes_saved']} probes saved" if knowledge["probes_saved"] else ""
        yield f"knowledge: {kept} boards started from their own earlier measurements{peers}{saved}"
    if wrong:
        names = ", ".join([*sorted(wrong)[:MAX_NAMES], *(["..."] if len(wrong) > MAX_NAMES else [])])
        yield f"note: what was known of {names} contradicts the first measurements and was dropped; see the report"
    yield from (f"note: {line}" for line in knowledge["notes"])


def _count_reference_tables(knowledge: Mapping[str, Any]) -> int:
    origins = (one for of_board in knowledge["origins"].values() for one in of_board)
    return len({one["entry"] for one in origins if one["relation"] == "other workload"})


def origin_table(run: LoadedRun) -> Table:
    """Build a table of the entries that the boards started from."""
    known = run.summary.get("knowledge") or {}
    boards: dict[RecalledOrigin, list[str]] = {}
    for board, origins in (known.get("origins") or {}).items():
        for origin in origins:
            boards.setdefault(RecalledOrigin(**origin), []).append(board)
    wrong = known.get("contradicted") or {}
    rows = tuple(
        (
            text_cell(_join_names(names)),
            text_cell(f"{origin.relation}: {origin.board}"),
            value_cell(origin.rows),
            Cell(
                Markup("{} {}").format(render_badge(origin.label), origin.form), words=f"{origin.label} {origin.form}"
            ),
            text_cell(origin.date[:10]),
            text_cell(origin.entry),
            text_cell(_describe_use(origin, names, wrong)),
        )
        for origin, names in boards.items()
    )
    return Table("knowledge", ("board", "measured on", "rows", "what", "date", "entry", "use"), rows)


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _describe_use(origin: RecalledOrigin, names: Sequence[str], wrong: Mapping[str, int]) -> str:
    if origin.relation == "other workload":
        return "as a reference table"
    if origin.relation == "same kind":
        return "as of another board, while it agrees"
    rounds = [f"{name} in round {wrong[name]}" for name in names if name in wrong]
    return f"contradicted and dropped: {', '.join(rounds)}" if rounds else "as its own"


def build_knowledge_sections(run: LoadedRun) -> list[Section]:
    """Build the section; none for a run that took part in no knowledge."""
    known = run.summary.get("knowledge")
    if not known:
        return []
    lines = Markup().join(render_paragraph(line) for line in describe_knowledge(known))
    table = origin_table(run)
    return [Section("Knowledge", LEAD, (), lines + (table.html if table.rows else Markup()))]
