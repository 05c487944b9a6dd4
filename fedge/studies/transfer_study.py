"""Study of transfer: every model on what it has not seen, leaving out each workload, board, family and batch size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from fedge import registry
from fedge.child_processes import limit_to_one_thread
from fedge.confidence_interval import mean_of_known
from fedge.costs.layered_work import find_family
from fedge.costs.memory.step_table import StepTable, read_step_tables
from fedge.costs.slowdown_margin import LeftOut
from fedge.errors import BadInput, FedgeError, check_known
from fedge.studies.task_pool import run_jobs
from fedge.studies.transfer_models import (
    LEFT_OUT,
    JudgedTable,
    TransferKind,
    TransferPart,
    TransferQuantity,
    TransferRow,
    judge_layers,
    judge_memory,
    judge_online,
    judge_predictor,
    judge_rooflines,
    judge_serving,
    list_variants,
    read_judged_tables,
)

PARTS: tuple[TransferPart, ...] = get_args(TransferPart)
KINDS: tuple[TransferKind, ...] = get_args(TransferKind)
QUANTITIES: tuple[TransferQuantity, ...] = get_args(TransferQuantity)
DECISIONS: dict[TransferPart, TransferQuantity] = {"memory": "memory", "online": "rounds", "serving": "problems"}
"""What a model decides, where that is not a mode."""
DEFAULT_COUNTS = "0,3,5,10,50"
STEP_FOLDER = "perf4sight-"
"""Start of the name of folders of measured training steps beside those of the boards; the rest is the board's name."""
NEEDED: dict[TransferPart, str] = {
    "predictor": "tables of modes",
    "layers": "tables of modes",
    "roofline": "tables of inference",
    "pagoda": "tables of inference",
    "memory": f"training steps in {STEP_FOLDER}<board>",
    "online": "tables of training",
    "serving": "tables of training and of inference of one board",
}
"""What a model is judged on."""


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """Options of a study of transfer; all models are judged if ``parts`` is empty."""

    tables: Path
    parts: tuple[str, ...] = ()
    modes: str = DEFAULT_COUNTS
    seeds: int = 3


@dataclass(frozen=True, slots=True)
class TransferCell:
    """One model on one table; ``judged`` is the table's name, ``beside`` that of a table of inference beside it.

    Tables of training steps are named ``board/network``.
    """

    part: TransferPart
    left_out: LeftOut
    judged: str
    beside: str = ""

    def __str__(self) -> str:
        return f"{self.part}, {self.judged}, its {self.left_out} left out"


@dataclass(frozen=True, slots=True, eq=False)
class TransferStudy:
    """The rotation over all tables of a folder.

    Attributes:
        counts: Numbers of measured modes of the predictor.
        cells: What is judged, in the order of the rows.
    """

    tables: dict[str, JudgedTable]
    steps: Mapping[str, tuple[StepTable, ...]]
    counts: tuple[int, ...]
    seeds: int
    cells: tuple[TransferCell, ...]

    @property
    def jobs(self) -> Sequence[object]:
        """The cells, whose number is the number of reported steps."""
        return self.cells

    def run(self, report: Callable[[str], None], workers: int | None = None) -> list[TransferRow]:
        """Judge every cell in parallel."""
        with limit_to_one_thread():
            return [row for rows in run_jobs(partial(_run_cell, self), self.cells, report, workers) for row in rows]


def build_transfer_study(options: TransferOptions) -> TransferStudy:
    """Build the study from the options.

    Raises:
        BadInput: If an option or table is invalid, or the folder has nothing for a part that is asked for.
    """
    for part in options.parts:
        check_known("--part", part, PARTS)
    counts = registry.split_counts("--modes", options.modes, "0,3,10", least=0)
    tables = {one.name: one for one in read_judged_tables(options.tables)}
    folders = sorted(options.tables.glob(f"{STEP_FOLDER}*"))
    steps = {folder.name.removeprefix(STEP_FOLDER): read_step_tables(folder) for folder in folders}
    cells = {part: [*_list_cells(part, list(tables.values()), steps)] for part in PARTS}
    for part in PARTS:
        if part in options.parts and not cells[part]:
            raise BadInput("--part", f"{part}, but {options.tables} has no {NEEDED[part]}", "another part or folder")
    chosen = tuple(cell for part in PARTS if part in (options.parts or PARTS) for cell in cells[part])
    return TransferStudy(tables, steps, counts=counts, seeds=options.seeds, cells=chosen)


def _list_cells(
    part: TransferPart, tables: Sequence[JudgedTable], steps: Mapping[str, Sequence[StepTable]]
) -> Iterator[TransferCell]:
    """Yield the cells of a part: a left-out batch size needs tables of several, a left-out board other boards."""
    for case in LEFT_OUT:
        if part == "serving":
            yield from _list_pairs(case, tables)
            continue
        if part == "memory":
            names = [f"{board}/{name}" for board, some in steps.items() for name in _list_step_networks(case, some)]
        else:
            names = [one.name for one in tables if _is_rotated(part, case, one)]
        yield from (TransferCell(part, case, name) for name in names)


def _list_pairs(case: LeftOut, tables: Sequence[JudgedTable]) -> Iterator[TransferCell]:
    """Yield the pairs of tables of a board; a pair has all batch sizes of inference, so none of them is left out."""
    for train, infer in itertools.product(tables, tables):
        first = next(one for one in tables if one.table.path == infer.table.path) is infer
        if case != "batch" and (train.kind, infer.kind) == ("train", "infer") and train.board == infer.board and first:
            yield TransferCell("serving", case, train.name, infer.name)


def _list_step_networks(case: LeftOut, steps: Sequence[StepTable]) -> list[str]:
    """Return the networks of a board's steps that a case leaves out: a left-out family has several of them."""
    families = [find_family(table.network) for table in steps]
    return [
        table.network
        for table, family in zip(steps, families, strict=True)
        if case == "workload" or (case == "family" and families.count(family) > 1)
    ]


def _is_rotated(part: TransferPart, case: LeftOut, one: JudgedTable) -> bool:
    """Return whether a part is judged on a table; one of training has a single batch size."""
    kinds = {"online": "train", "roofline": "infer", "pagoda": "infer"}
    return one.kind == kinds.get(part, one.kind) and (case != "batch" or one.kind == "infer")


def _run_cell(study: TransferStudy, cell: TransferCell) -> list[TransferRow]:
    """Judge one cell, in a worker process if there are several; a model that refuses gives a row that says why for
    every number of modes and variant that it would have been judged on.
    """
    try:
        return list(_judge(study, cell))
    except FedgeError as error:
        own = study.tables.get(cell.judged)
        kind: TransferKind = "both" if cell.beside else "train" if own is None else own.kind
        decision = DECISIONS.get(cell.part, "choice")
        counts: Sequence[int | None] = (None,)
        if cell.part == "predictor" and own is not None:
            counts = [count for count in study.counts if count < len(own.table.modes)]
        blank = TransferRow(cell.part, cell.left_out, cell.judged, decision, kind=kind, refused=str(error))
        return [
            replace(blank, modes=count, variant=variant)
            for count in counts
            for variant in list_variants(cell.part, count)
        ]


def _judge(study: TransferStudy, cell: TransferCell) -> Iterator[TransferRow]:
    if cell.part == "memory":
        board, _, network = cell.judged.partition("/")
        return judge_memory(network, cell.left_out, study.steps[board], board)
    judged = study.tables[cell.judged]
    if cell.part == "serving":
        return judge_serving(judged, study.tables[cell.beside], cell.left_out, study.seeds)
    if cell.part == "predictor":
        return judge_predictor(judged, cell.left_out, study.counts, study.seeds)
    if cell.part == "layers":
        return judge_layers(judged, cell.left_out)
    if cell.part == "online":
        return judge_online(judged, cell.left_out, study.seeds)
    return judge_rooflines(judged, cell.left_out, list(study.tables.values()), cell.part)


# Summary --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransferSummary:
    """Means of one model over all tables with the same thing left out, in percent; None does not apply.

    ``worst`` and ``worst_regret`` are those of the worst table; the other fields are the means of those of
    ``TransferRow``, with ``saved`` the share of the oracle's saving.
    """

    part: TransferPart
    left_out: LeftOut
    kind: TransferKind
    quantity: TransferQuantity
    variant: str
    modes: int | None
    tables: int
    error: float | None
    worst: float | None
    bias: float | None
    covered: float | None
    bounded: float | None
    regret: float | None
    worst_regret: float | None
    saved: float | None
    missed: float | None
    refused: float


def summarize_transfer(rows: Sequence[TransferRow]) -> list[TransferSummary]:
    """Summarise rows by model, what is left out, kind, number of modes, quantity and variant, in this order."""
    groups: dict[tuple[object, ...], list[TransferRow]] = {}
    for row in rows:
        modes = None if row.part == "online" else row.modes
        groups.setdefault((row.part, row.left_out, row.kind, row.quantity, row.variant, modes), []).append(row)
    summaries = [_summarize_group(group) for group in groups.values()]
    return sorted(summaries, key=_summary_key)


def _summary_key(one: TransferSummary) -> tuple[int, ...]:
    model = PARTS.index(one.part), LEFT_OUT.index(one.left_out), KINDS.index(one.kind)
    return *model, -1 if one.modes is None else one.modes, QUANTITIES.index(one.quantity)


def _summarize_group(rows: Sequence[TransferRow]) -> TransferSummary:
    first = rows[0]
    by_table = {row.judged: [one for one in rows if one.judged == row.judged] for row in rows}

    def list_means(field: str) -> list[float]:
        means = (mean_of_known([getattr(row, field) for row in table]) for table in by_table.values())
        return [mean for mean in means if mean is not None]

    errors, regrets = list_means("error"), list_means("regret")
    oracle = sum(list_means("oracle_saving"))
    return TransferSummary(
        first.part,
        first.left_out,
        first.kind,
        quantity=first.quantity,
        variant=first.variant,
        modes=None if first.part == "online" else first.modes,
        tables=len(by_table),
        error=mean_of_known(errors),
        worst=max(errors, default=None),
        bias=mean_of_known(list_means("bias")),
        covered=mean_of_known(list_means("covered")),
        bounded=mean_of_known(list_means("bounded")),
        regret=mean_of_known(regrets),
        worst_regret=max(regrets, default=None),
        saved=100.0 * sum(list_means("saving")) / oracle if oracle > 0 else None,
        missed=mean_of_known(list_means("missed")),
        refused=100.0 * sum(any(row.refused for row in table) for table in by_table.values()) / len(by_table),
    )
