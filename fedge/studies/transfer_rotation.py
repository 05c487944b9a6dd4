"""The rotation of a transfer study: which tables there are, and what is left out in turn.

A case leaves out a workload, a board, a family of networks or a batch size: every calibrated profile, timed step and
table that bears it. What is judged is a table of what was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedge.costs.cost_profile import WorkloadKind, load_calibrated_inference, load_calibrated_training
from fedge.costs.layer_estimate import load_timed_steps
from fedge.costs.layered_work import find_family, find_known_layers
from fedge.devices.catalogue import aliases
from fedge.devices.tables.mode_table import list_batch_sizes, parse_workload_kind, read_mode_table
from fedge.errors import BadInput
from fedge.types import ProfileTable

LeftOut = Literal["workload", "board", "family", "batch"]
LEFT_OUT: tuple[LeftOut, ...] = ("workload", "board", "family", "batch")


@dataclass(frozen=True, slots=True, eq=False)
class JudgedTable:
    """A measured table of one batch size, with what it is a table of.

    Attributes:
        board: Catalogue name of the board.
        network: Name of the workload's network; the workload's own name if its layers are not known.
    """

    table: ProfileTable
    kind: WorkloadKind
    board: str
    network: str

    @property
    def name(self) -> str:
        """Return ``board/kind/workload bN``."""
        return f"{self.board}/{self.kind}/{self.table.workload} b{self.table.batch_size}"


def read_judged_tables(folder: Path) -> tuple[JudgedTable, ...]:
    """Read every ``<board>/train/*.csv`` and ``<board>/infer/*.csv`` of a folder, once per batch size.

    Raises:
        BadInput: There is none, or one is invalid.
    """
    paths = sorted([*folder.glob("*/train/*.csv"), *folder.glob("*/infer/*.csv")])
    if not paths:
        raise BadInput("TABLES", str(folder), "a folder that holds <board>/train/<workload>.csv or <board>/infer/...")
    return tuple(
        _describe_table(read_mode_table(path, batch_size=size), parse_workload_kind(path))
        for path in paths
        for size in list_batch_sizes(path)
    )


def _describe_table(table: ProfileTable, kind: WorkloadKind) -> JudgedTable:
    return JudgedTable(table, kind, aliases().get(table.device, table.device), find_network_name(table.workload, kind))


def find_network_name(workload: str, kind: WorkloadKind = "train") -> str:
    """Return the name of a workload's network, or the workload's if its layers are not known."""
    layers = find_known_layers(workload, kind)
    return workload if layers is None else layers.network


def list_remaining(judged: JudgedTable, case: LeftOut, among: Sequence[JudgedTable]) -> tuple[JudgedTable, ...]:
    """Return the tables that remain when the judged one is left out with all of its kind."""
    return tuple(other for other in among if not _is_alike(other, judged, case))


def _is_alike(other: JudgedTable, judged: JudgedTable, case: LeftOut) -> bool:
    same = other.table.workload == judged.table.workload
    if case == "family":
        return same or find_family(other.network) == find_family(judged.network)
    if case == "batch":
        return same and (other.kind, other.table.batch_size) == (judged.kind, judged.table.batch_size)
    return same or (case == "board" and other.board == judged.board)


def list_hidden_names(judged: JudgedTable, case: LeftOut) -> frozenset[str]:
    """Return the workloads, networks and boards whose profiles and timed steps are left out.

    That is always the table's workload, also under another name by which the same file was calibrated.
    """
    profiles = (*load_calibrated_training(), *load_calibrated_inference())
    table = judged.table
    names = {table.workload, *(p.workload for p in profiles if p.evidence and p.evidence.sha256 == table.sha256)}
    if case == "board":
        names.add(judged.board)
    if case == "family":
        of = {p.workload: find_network_name(p.workload, p.kind) for p in profiles}
        of |= {step.network: step.network for step in load_timed_steps()}
        names |= {name for name, network in of.items() if find_family(network) == find_family(judged.network)}
    return frozenset(names)
