"""``fedge memory predict``: peak memory and time of a training step on a board, and the largest batch that fits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from experiments.report.quantities import number
from fedge.devices import catalogue
from fedge.layers.known import known_network
from fedge.layers.network import NetworkCost
from fedge.layers.source import network_of, read_shape
from fedge.memory.need import StepNeed, need
from fedge.rounds.fitting import SYSTEM_SHARE, usable_mb
from fedge.types import DeviceSpec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGEST_BATCH = 2**16
"""The search for the largest batch that fits stops here."""
WIDE_SD_LOG = 0.3
SURE_SDS = 1.645
"""A batch fits surely when its memory's upper bound does: one-sided 95 % of a normal distribution of the logarithm."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step's need, the board's limit, and the largest batches that fit; 0 where not even one sample does."""

    network: NetworkCost
    device: DeviceSpec
    batch_size: int
    step: StepNeed
    limit_mb: float
    largest_batch: int
    surely_fits: int
    """The largest batch that fits even where the prediction is too low."""

    def need(self, batch_size: int) -> StepNeed:
        """What another batch size needs."""
        return need(self.network, self.device, batch_size)


def predict(model: str, device: str, batch_size: int, input_shape: str | None, as_json: bool) -> None:
    """Predict and show. Raises ``BadInput`` for a network or board that cannot be meant so."""
    known = known_network(model) if input_shape is None else None
    network = known or network_of(model, read_shape(input_shape))
    found = prediction(network, catalogue.find(device), batch_size)
    if as_json:
        typer.echo(json.dumps(as_data(found), indent=2))
        return
    from rich.console import Console

    show(Console(), found)


def prediction(network: NetworkCost, device: DeviceSpec, batch_size: int) -> Prediction:
    """The need of a step of ``batch_size`` samples, and what fits into the board's memory less the system's share."""
    limit_mb = usable_mb(device)

    def largest(sds: float) -> int:
        def fits(batch: int) -> bool:
            step = need(network, device, batch)
            return step.memory_mb * math.exp(sds * step.memory_sd_log) <= limit_mb

        return _largest(fits)

    step = need(network, device, batch_size)
    return Prediction(network, device, batch_size, step, limit_mb, largest(0.0), largest(SURE_SDS))


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest batch that fits, by halving; memory grows with the batch."""
    low, high = 0, 1
    while high <= LARGEST_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def as_data(found: Prediction) -> dict[str, Any]:
    """For a program: the asked batch, the limit, the largest batches and the table."""
    batches = {str(batch): asdict(found.need(batch)) for batch in _batches(found)}
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
        "surely_fits": found.surely_fits,
        "batches": batches,
    }


def show(console: Console, found: Prediction) -> None:
    """Print the asked batch, the limit with what it consists of, and a table over batch sizes."""
    step, sample = found.step, "x".join(map(str, found.network.input_shape))
    head = (
        f"[bold]{found.network.name}[/bold] on {found.device.title}: a training step of {found.batch_size} x {sample}"
    )
    console.print(head, highlight=False)
    fits = "fits" if step.memory_mb <= found.limit_mb else "DOES NOT FIT"
    lines = (
        f"Memory   {_mb(step.memory_mb)} ({_spread(step.memory_sd_log)}), {fits}",
        f"Time     {_seconds(step.step_s)} ({_spread(step.step_sd_log)})",
        f"Limit    {_mb(found.limit_mb)}: {found.device.ram_gb.value:g} GB less {_percent(SYSTEM_SHARE)}, the system's",
        f"Largest  batch {_batch(found.largest_batch)}; surely (95 %) {_batch(found.surely_fits)}",
        f"From     {step.label}: {step.source}",
    )
    for line in lines:
        console.print(line, highlight=False)
    console.print(_table(found))
    if found.network.unknown:
        console.print(f"NOT COUNTED: {', '.join(found.network.unknown)}", style="bold red")


def _table(found: Prediction) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title="")
    for column in ("Batch", "Memory MB", "s per step", "samples/s", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for batch in _batches(found):
        step = found.need(batch)
        upper_mb = step.memory_mb * math.exp(SURE_SDS * step.memory_sd_log)
        full = "does not fit" if step.memory_mb > found.limit_mb else "may not fit" if upper_mb > found.limit_mb else ""
        figures = (f"{step.memory_mb:,.0f}", number(step.step_s, 3), number(batch / step.step_s, 3))
        table.add_row(str(batch), *figures, full, style="bold" if batch == found.batch_size else None)
    return table


def _batches(found: Prediction) -> list[int]:
    return sorted({*BATCHES, found.batch_size})


def _mb(value: float) -> str:
    return f"{value:,.0f} MB"


def _seconds(value: float) -> str:
    return number(value, 3, "s") if value >= 1.0 else number(value * 1e3, 3, "ms")


def _spread(sd_log: float) -> str:
    """One standard deviation: percent while it is small, else the factor up or down."""
    return f"± {_percent(sd_log)}" if sd_log <= WIDE_SD_LOG else f"to a factor of {math.exp(sd_log):.1f}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _batch(size: int) -> str:
    if size == 0:
        return "none"
    return f"above {LARGEST_BATCH:,}" if size >= LARGEST_BATCH else f"{size:,}"
