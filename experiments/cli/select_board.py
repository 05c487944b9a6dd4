"""``fedge select-board``: ranks boards and modes for a workload, with every number's label."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from rich.console import Console
from rich.table import Table

from experiments.report.quantities import duration
from fedge.analysis.board_selection import (
    BoardLimits,
    BoardOffer,
    BoardSelectionRequest,
    RankingObjective,
    filter_suitable,
    rank_boards,
)
from fedge.client.memory_scaling import estimate_usable_mb
from fedge.costs.cost_profile import WorkloadKind
from fedge.costs.layered_work import find_known_layers
from fedge.costs.layers.known_networks import find_known_network
from fedge.costs.layers.layer_sums import sum_layers
from fedge.costs.layers.network_cost import NetworkCost, Shape
from fedge.costs.layers.network_source import load_network_cost
from fedge.costs.workload_sizes import load_workload_sizes
from fedge.devices import catalogue
from fedge.errors import BadInput
from fedge.types import DeviceSpec, LayerWork, Workload

DEFAULT_BATCH_SIZE = 16
"""Default batch size of a network that is not a known workload."""
OFFER_MARKS = {"measured": "", "calibrated": "^", "estimated": "~"}


@dataclass(frozen=True, slots=True)
class BoardSelectionOptions:
    """Command-line options."""

    workload: str
    batch_size: int | None
    input_shape: Shape | None
    samples: int
    limits: BoardLimits
    by: str
    boards: tuple[str, ...]
    infer: bool
    json_file: Path | None


def print_board_selection(asked: BoardSelectionOptions, console: Console) -> None:
    """Print the ranking and optionally write it as JSON.

    Raises:
        BadInput: If an option or network is invalid.
    """
    aim = _parse_aim(asked.by)
    work, network = build_workload(asked)
    job = BoardSelectionRequest(work, network=network, samples=asked.samples, limits=asked.limits, aim=aim)
    found = rank_boards(_find_boards(asked.boards), catalogue.load_catalogue(), job, estimate_usable_mb)
    console.print(_offers_table(found, work, asked), highlight=False)
    for line in _describe_best(found, asked):
        console.print(line, highlight=False, style="dim" if line.startswith("~") else None)
    if asked.json_file is not None:
        asked.json_file.write_text(json.dumps(_to_json(found, work, asked), indent=1) + "\n", encoding="utf-8")


def build_workload(asked: BoardSelectionOptions) -> tuple[Workload, NetworkCost | None]:
    """Build the workload: a known one by name, or any network by its layers.

    Returns:
        The workload and its network; the network is None if its layers are not known.

    Raises:
        BadInput: If the network cannot be loaded or counted.
    """
    kind: WorkloadKind = "infer" if asked.infer else "train"
    known = load_workload_sizes().get(asked.workload)
    layers = find_known_layers(asked.workload, kind)
    if layers is not None and asked.input_shape is None:
        size = asked.batch_size or (known.batch_size if known else DEFAULT_BATCH_SIZE)
        return Workload(asked.workload, size, kind, layers), find_known_network(asked.workload)
    try:
        network = load_network_cost(asked.workload, asked.input_shape)
    except BadInput as error:
        raise BadInput("--workload" if error.where == "MODEL" else error.where, error.got, error.right) from error
    if network.unknown:
        raise BadInput("--workload", f"operators that no rule counts ({', '.join(network.unknown[:5])})", "another one")
    if not network.flop:
        raise BadInput("--workload", f"{asked.workload}, which computes nothing", "a network with layers")
    name = Path(asked.workload).stem
    if name in load_workload_sizes():  # another network or other images than those that were measured by this name
        name = f"{name} {'x'.join(map(str, network.input_shape))}"
    layers = LayerWork(name, sum_layers(network), loading="cached" if asked.infer else "workers")
    return Workload(name, asked.batch_size or DEFAULT_BATCH_SIZE, kind, layers), network


def _parse_aim(by: str) -> RankingObjective:
    if by not in get_args(RankingObjective):
        raise BadInput("--by", repr(by), ", ".join(get_args(RankingObjective)))
    return cast("RankingObjective", by)


def _find_boards(names: Sequence[str]) -> Sequence[DeviceSpec]:
    """Return the boards to compare; the whole catalogue if none is named."""
    if not names:
        return tuple(catalogue.load_catalogue().values())
    return tuple({spec.name: spec for spec in (catalogue.find(name, where="--board") for name in names)}.values())


def _offers_table(found: Sequence[BoardOffer], work: Workload, asked: BoardSelectionOptions) -> Table:
    what = f"{work.name}, batch {work.batch_size}, {'inference' if work.kind == 'infer' else 'training'}"
    table = Table(title=f"{what}: an epoch of {asked.samples:,} samples, by {asked.by}", box=None, padding=(0, 1))
    for title in ("", "Board", "Mode (cores/CPU/GPU/memory MHz)"):
        table.add_column(title, no_wrap=True)
    for title in ("Epoch", "kJ", "W", "Memory MB", "of"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("Left out because")
    for place, offer in enumerate(found, start=1):
        mark, memory = OFFER_MARKS[offer.label], offer.memory
        needed = "" if memory.need_mb is None else f"{OFFER_MARKS[memory.label]}{memory.need_mb:,.0f}"
        table.add_row(
            str(place) if offer.is_suitable else "-",
            offer.board,
            str(offer.mode),
            f"{mark}{duration(offer.epoch_s)}",
            f"{mark}{offer.energy_j / 1e3:,.1f}",
            f"{mark}{offer.power_w:.1f}",
            needed,
            f"{memory.allowed_mb:,.0f}",
            "; ".join((*offer.broken, *_describe_memory_shortage(offer))),
            style=None if offer.is_suitable else "dim",
        )
    return table


def _describe_memory_shortage(offer: BoardOffer) -> tuple[str, ...]:
    if offer.memory.fits:
        return ()
    largest = offer.memory.batch_size
    return (f"batch {largest} is the largest that fits" if largest else "not even one sample fits",)


def _describe_best(found: Sequence[BoardOffer], asked: BoardSelectionOptions) -> list[str]:
    best = filter_suitable(found)
    marks = (
        "~ estimated, ^ calibrated to a measured table. Memory: what a training step needs, of what the board leaves."
    )
    if not best:
        return ["No board holds every limit; the rows say what each one misses, in its closest mode.", marks]
    lines = [f"Best: {best[0].board} in {best[0].mode}. Time and power: {best[0].label}, {best[0].source}."]
    if asked.limits != BoardLimits() and best[0].label == "estimated":
        lines.append("An estimate may be off by more than its distance to a limit: profile the board before you buy.")
    return [*lines, marks]


def _to_json(found: Sequence[BoardOffer], work: Workload, asked: BoardSelectionOptions) -> dict[str, Any]:
    return {
        "workload": work.name,
        "kind": work.kind,
        "batch_size": work.batch_size,
        "samples": asked.samples,
        "by": asked.by,
        "limits": dataclasses.asdict(asked.limits),
        "offers": [dataclasses.asdict(offer) | {"suits": offer.is_suitable} for offer in found],
    }
