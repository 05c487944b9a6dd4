"""``fedge memory predict``: peak memory and time of a training step on a board, and the largest batch that fits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from experiments.report.quantities import number
from fedge.client.memory_scaling import SYSTEM_SHARE, estimate_usable_mb
from fedge.costs.layers.known_networks import find_known_network
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_source import load_network_cost, parse_input_shape
from fedge.costs.memory.step_need import StepNeed, predict_step_need
from fedge.devices import catalogue
from fedge.types import DeviceSpec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SHOWN_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGEST_BATCH = 2**16
"""Upper end of the search for the largest batch that fits."""
WIDE_SD_LOG = 0.3
CONFIDENT_SDS = 1.645
"""Standard deviations of safety: a batch surely fits if the one-sided 95 % bound of its log-normal memory need does."""


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """Predicted need of a training step.

    Attributes:
        network: The network.
        device: The board.
        batch_size: Samples per step.
        step: Need of a step of ``batch_size`` samples.
        limit_mb: Memory available to training, in MB.
        largest_batch: Largest batch that fits; 0 if not even one sample does.
    """

    network: NetworkCost
    device: DeviceSpec
    batch_size: int
    step: StepNeed
    limit_mb: float
    largest_batch: int
    largest_sure_batch: int
    """Largest batch that fits even at the upper bound of its predicted need."""

    def predict_need(self, batch_size: int) -> StepNeed:
        """Predict the need of another batch size."""
        return predict_step_need(self.network, self.device, batch_size)


def print_memory(model: str, device: str, batch_size: int, input_shape: str | None, as_json: bool) -> None:
    """Predict and print.

    Raises:
        BadInput: If the network or board is invalid.
    """
    known = find_known_network(model) if input_shape is None else None
    network = known or load_network_cost(model, parse_input_shape(input_shape))
    found = predict_memory(network, catalogue.find(device), batch_size)
    if as_json:
        typer.echo(json.dumps(as_data(found), indent=2))
        return
    from rich.console import Console

    print_prediction(Console(), found)


def predict_memory(network: NetworkCost, device: DeviceSpec, batch_size: int) -> MemoryPrediction:
    """Predict a step's need and the batches that fit into the board's memory without the system's share.

    Args:
        network: The network.
        device: The board.
        batch_size: Samples per step.
    """
    limit_mb = estimate_usable_mb(device)

    def largest(sds: float) -> int:
        def fits(batch: int) -> bool:
            step = predict_step_need(network, device, batch)
            return step.memory_mb * math.exp(sds * step.memory_sd_log) <= limit_mb

        return _find_largest_batch(fits)

    step = predict_step_need(network, device, batch_size)
    return MemoryPrediction(
        network,
        device=device,
        batch_size=batch_size,
        step=step,
        limit_mb=limit_mb,
        largest_batch=largest(0.0),
        largest_sure_batch=largest(CONFIDENT_SDS),
    )


def _find_largest_batch(fits: Callable[[int], bool]) -> int:
    """Find the largest batch that fits by bisection, as memory grows with the batch size."""
    low, high = 0, 1
    while high <= LARGEST_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def as_data(found: MemoryPrediction) -> dict[str, Any]:
    """Return the prediction for JSON: requested batch, limit, largest batches and table."""
    batches = {str(batch): asdict(found.predict_need(batch)) for batch in _list_batches(found)}
    for step in batches.values():
        step.pop("source")
    return {
        "model": found.network.name,
        "device": found.device.name,
        "batch_size": found.batch_size,
        **asdict(found.step),
        "limit_mb": found.limit_mb,
        "fits": found.step.memory_mb <= found.limit_mb,
        "largest_batch": found.largest_batch,
        "surely_fits": found.largest_sure_batch,
        "batches": batches,
    }


def print_prediction(console: Console, found: MemoryPrediction) -> None:
    """Print the requested batch, the limit with its parts, and a table over batch sizes."""
    step, sample = found.step, "x".join(map(str, found.network.input_shape))
    head = (
        f"[bold]{found.network.name}[/bold] on {found.device.title}: a training step of {found.batch_size} x {sample}"
    )
    console.print(head, highlight=False)
    fits = "fits" if step.memory_mb <= found.limit_mb else "DOES NOT FIT"
    lines = (
        f"Memory   {_format_mb(step.memory_mb)} ({_format_spread(step.memory_sd_log)}), {fits}",
        f"Time     {_format_seconds(step.step_s)} ({_format_spread(step.step_sd_log)})",
        (
            f"Limit    {_format_mb(found.limit_mb)}: {found.device.ram_gb.value:g} GB less "
            f"{_format_percent(SYSTEM_SHARE)}, the system's"
        ),
        f"Largest  batch {_format_batch(found.largest_batch)}; surely (95 %) {_format_batch(found.largest_sure_batch)}",
        f"From     {step.label}: {step.source}",
    )
    for line in lines:
        console.print(line, highlight=False)
    console.print(_batch_table(found))
    if found.network.unknown:
        console.print(f"NOT COUNTED: {', '.join(found.network.unknown)}", style="bold red")


def _batch_table(found: MemoryPrediction) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title="")
    for column in ("Batch", "Memory MB", "s per step", "samples/s", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for batch in _list_batches(found):
        step = found.predict_need(batch)
        upper_mb = step.memory_mb * math.exp(CONFIDENT_SDS * step.memory_sd_log)
        full = "does not fit" if step.memory_mb > found.limit_mb else "may not fit" if upper_mb > found.limit_mb else ""
        figures = (f"{step.memory_mb:,.0f}", number(step.step_s, 3), number(batch / step.step_s, 3))
        table.add_row(str(batch), *figures, full, style="bold" if batch == found.batch_size else None)
    return table


def _list_batches(found: MemoryPrediction) -> list[int]:
    return sorted({*SHOWN_BATCHES, found.batch_size})


def _format_mb(value: float) -> str:
    return f"{value:,.0f} MB"


def _format_seconds(value: float) -> str:
    return number(value, 3, "s") if value >= 1.0 else number(value * 1e3, 3, "ms")


def _format_spread(sd_log: float) -> str:
    """Format one standard deviation: in percent if small, otherwise as a factor."""
    return f"± {_format_percent(sd_log)}" if sd_log <= WIDE_SD_LOG else f"to a factor of {math.exp(sd_log):.1f}"


def _format_percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _format_batch(size: int) -> str:
    if size == 0:
        return "none"
    return f"above {LARGEST_BATCH:,}" if size >= LARGEST_BATCH else f"{size:,}"
