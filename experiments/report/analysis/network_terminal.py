"""Terminal views of what a network needs: its layers' cost, its memory on a board, and the boards that suit it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from experiments.report.quantities import LABEL_MARKS, UNKNOWN, duration, number, percent
from experiments.report.tables import Cell, Column, Table, build_table, number_cell, print_lines, text_cell, value_cell
from fedge.analysis.board_selection import BoardLimits, BoardOffer, BoardSelection, MemoryFit
from fedge.analysis.memory_prediction import CONFIDENT_SDS, MemoryPrediction
from fedge.costs.layers.network_cost import TRAINING_PASSES, NetworkCost
from fedge.costs.layers.network_source import LayerCostRow, LayerSummary
from fedge.costs.memory.memory_study import TARGETS, MemoryErrorRow
from fedge.costs.memory.step_need import LARGEST_BATCH, StepNeed

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.types import Label


def print_layer_summary(console: Console, summary: LayerSummary) -> None:
    """Print the totals of one step and their breakdown."""
    network = summary.network
    sample = "x".join(map(str, network.input_shape))
    step = "a training step" if summary.kind == "train" else "inference"
    print_lines(console, [f"{network.name}, {network.source}: {step} of {summary.batch_size} x {sample}"], "bold")
    print_lines(console, _describe_totals(summary))
    build_table("kinds", KIND_COLUMNS, summary.by_kind, "By kind").print(console)
    if summary.costliest:
        build_table("layers", LAYER_COLUMNS, summary.costliest, "The layers that move most").print(console)


def _describe_totals(summary: LayerSummary) -> Iterator[str]:
    network, batch_size, kind = summary.network, summary.batch_size, summary.kind
    work = network.batch_work(batch_size, kind)
    frozen = network.parameters - network.trained_parameters
    times = f"{TRAINING_PASSES:g} x " if kind == "train" and not frozen else ""
    batch = f"{batch_size} x " if batch_size > 1 else ""
    weights, moved = format_si(network.weight_bytes, "B"), format_si(network.activation_bytes, "B")
    totals = (
        ("Computes", format_si(work.flop, "FLOP"), f"{times}{batch}{format_si(network.flop, 'FLOP')}"),
        ("Moves", format_si(work.bytes, "B"), f"{times}({weights} of weights + {batch}{moved} of activations)"),
        ("Intensity", number(work.intensity, 3, "FLOP/B") if work.bytes else number(None), ""),
        ("Parameters", f"{network.parameters:,}", f"{network.trained_parameters:,} of them trained" if frozen else ""),
        ("Activations", f"{network.activations:,}", "elements written per sample in a forward pass"),
        ("Convolutions", f"{len(network.convolutions):,}", ""),
    )
    width = max(len(total) for _, total, _ in totals)
    for what, total, parts in totals:
        yield f"{what:<12}  {total:>{width}}  {parts}".rstrip()


def format_si(value: float, unit: str) -> str:
    """Format with a decimal SI prefix: 8.2063 GFLOP."""
    prefix, per = next(((p, per) for p, per in (("T", 1e12), ("G", 1e9), ("M", 1e6)) if value >= per), ("k", 1e3))
    return number(value / per, 5, prefix + unit)


COST_COLUMNS: tuple[Column[LayerCostRow], ...] = (
    ("MFLOP", lambda row: number_cell(number(row.flop / 1e6, 4), row.flop / 1e6, "MFLOP")),
    ("MB", lambda row: number_cell(number(row.bytes / 1e6, 4), row.bytes / 1e6, "MB")),
    ("FLOP/B", lambda row: value_cell(row.flop / row.bytes if row.bytes else None, number, "FLOP/B")),
)
KIND_COLUMNS: tuple[Column[LayerCostRow], ...] = (
    ("kind", lambda row: text_cell(row.name)),
    ("layers", lambda row: value_cell(row.layers)),
    *COST_COLUMNS,
)
LAYER_COLUMNS: tuple[Column[LayerCostRow], ...] = (
    ("layer", lambda row: text_cell(row.name)),
    ("kind", lambda row: text_cell(row.kind)),
    *COST_COLUMNS,
    ("output", lambda row: text_cell(row.output)),
)


def print_uncounted(console: Console, network: NetworkCost) -> None:
    """Name the operators that no rule counts."""
    whose, they = "this operator", "it computes and moves"
    if len(network.unknown) > 1:
        whose, they = "these operators", "they compute and move"
    line = f"NOT COUNTED: {', '.join(network.unknown)}. No rule counts {whose}: what {they} is missing above."
    print_lines(console, [line], "bold red")


WIDE_SD_LOG = 0.3
"""Spreads above this are shown as a factor instead of a percentage."""
TARGET_WORDS = {"memory": "memory", "latency": "time"}


def print_prediction(console: Console, prediction: MemoryPrediction) -> None:
    """Print the requested batch, the limit with its parts, and a table over batch sizes."""
    network, device, step = prediction.network, prediction.device, prediction.step
    sample = "x".join(map(str, network.input_shape))
    head = f"{network.name} on {device.title}: a training step of {prediction.batch_size} x {sample}"
    print_lines(console, [head], "bold")
    largest, sure = _format_batch(prediction.largest_batch), _format_batch(prediction.largest_sure_batch)
    share = percent(prediction.system_share, 0)
    step_time = number(step.step_s, 3, "s") if step.step_s >= 1.0 else number(step.step_s * 1e3, 3, "ms")
    lines = (
        f"Memory   {step.memory_mb:,.0f} MB ({_format_spread(step.memory_sd_log)}), {_judge_fit(prediction, step)}",
        f"Time     {step_time} ({_format_spread(step.step_sd_log)})",
        f"Limit    {prediction.limit_mb:,.0f} MB: {device.ram_gb.value:g} GB less {share}, the system's",
        f"Largest  batch {largest}; surely (95 %) {sure}",
        f"From     {step.label}: {step.source}",
    )
    print_lines(console, lines)
    _batch_table(prediction).print(console)
    if network.unknown:
        print_lines(console, [f"NOT COUNTED: {', '.join(network.unknown)}"], "bold red")


def _batch_table(prediction: MemoryPrediction) -> Table:
    rows = []
    for batch in prediction.listed_batches:
        step = prediction.predict_need(batch)
        rows.append((
            value_cell(batch),
            text_cell(_judge_fit(prediction, step)),
            value_cell(step.memory_mb, ",.0f", "MB"),
            value_cell(step.step_s, number, "s"),
            value_cell(batch / step.step_s, number),
        ))  # fmt: skip
    return Table("batches", ("batch", "verdict", "memory, MB", "s per step", "samples/s"), tuple(rows))


def _judge_fit(prediction: MemoryPrediction, step: StepNeed) -> str:
    if step.memory_mb > prediction.limit_mb:
        return "does not fit"
    upper_mb = step.memory_mb * math.exp(CONFIDENT_SDS * step.memory_sd_log)
    return "may not fit" if upper_mb > prediction.limit_mb else "fits"


def build_error_tables(rows: Sequence[MemoryErrorRow]) -> Iterator[Table]:
    """Yield a table per split: one line per network with the methods' errors in memory and time, and their mean."""
    columns = [(method, target) for target in TARGETS for method in dict.fromkeys(row.method for row in rows)]
    heads = ("network", "steps", *(f"{TARGET_WORDS[target]} {method}" for method, target in columns))
    for split in dict.fromkeys(row.split for row in rows):
        title = "Held-out levels" if split == "within" else "Held-out network"
        errors = {(row.network, row.method, row.target): row for row in rows if row.split == split}
        networks = list(dict.fromkeys(network for network, _, _ in errors))
        lines: list[tuple[Cell, ...]] = []
        for network in networks:
            own = [errors[network, *column] for column in columns]
            steps = "/".join(str(count) for count in dict.fromkeys(row.n for row in own))
            lines.append((text_cell(network), number_cell(steps), *(value_cell(row.mape, ".1f", "%") for row in own)))
        for name, summary in (("mean", lambda values: sum(values) / len(values)), ("worst", max)):
            values = [summary([errors[network, *column].mape for network in networks]) for column in columns]
            lines.append((text_cell(name), number_cell(""), *(value_cell(one, ".1f", "%") for one in values)))
        yield Table(f"errors-{split}", heads, tuple(lines), f"{title}: error in %")


def _format_spread(sd_log: float) -> str:
    """Format one standard deviation: in percent if small, otherwise as a factor."""
    return f"± {percent(sd_log, 0)}" if sd_log <= WIDE_SD_LOG else f"to a factor of {math.exp(sd_log):.1f}"


def _format_batch(size: int) -> str:
    if size == 0:
        return "none"
    return f"above {LARGEST_BATCH:,}" if size >= LARGEST_BATCH else f"{size:,}"


def print_board_selection(console: Console, selection: BoardSelection) -> None:
    """Print the ranking, why boards are excluded, the best board and the meaning of the marks."""
    offers_table(selection).print(console)
    print_lines(console, (*_describe_exclusions(selection), *_describe_best(selection)))


def offers_table(selection: BoardSelection) -> Table:
    """Build a table of every board's best mode; the verdict follows the board's name."""
    work, options = selection.work, selection.options
    what = f"{work.name}, batch {work.batch_size}, {'inference' if work.kind == 'infer' else 'training'}"
    title = f"{what}: an epoch of {options.samples:,} samples, by {options.objective}"
    columns: tuple[Column[tuple[int, BoardOffer]], ...] = (
        ("board", lambda one: text_cell(one[1].board)),
        ("suitable", lambda one: text_cell("yes" if one[1].is_suitable else "no")),
        ("rank", lambda one: value_cell(one[0] if one[1].is_suitable else None)),
        ("mode", lambda one: text_cell(str(one[1].mode).removesuffix(" MHz"))),
        ("epoch", lambda one: _marked_cell(one[1].label, duration(one[1].epoch_s), one[1].epoch_s, "s")),
        ("kJ", lambda one: _marked_cell(one[1].label, f"{one[1].energy_j / 1e3:,.1f}", one[1].energy_j / 1e3, "kJ")),
        ("W", lambda one: _marked_cell(one[1].label, f"{one[1].power_w:.1f}", one[1].power_w, "W")),
        ("memory, MB", lambda one: _memory_cell(one[1].memory)),
        ("of, MB", lambda one: value_cell(one[1].memory.allowed_mb, ",.0f", "MB")),
    )
    return build_table("boards", columns, enumerate(selection.offers, start=1), title)


def _marked_cell(label: Label, shown: str, value: float, unit: str) -> Cell:
    return number_cell(f"{LABEL_MARKS[label]}{shown}", value, unit)


def _memory_cell(memory: MemoryFit) -> Cell:
    if memory.need_mb is None:
        return number_cell(UNKNOWN)
    return _marked_cell(memory.label, f"{memory.need_mb:,.0f}", memory.need_mb, "MB")


def _describe_exclusions(selection: BoardSelection) -> Iterator[str]:
    """Yield a line per unsuitable board: as lines, reasons are whole in any terminal."""
    for offer in selection.offers:
        if not offer.is_suitable:
            largest, reasons = offer.memory.batch_size, [*offer.broken]
            if not offer.memory.fits:
                reasons.append(f"batch {largest} is the largest that fits" if largest else "not even one sample fits")
            yield f"{offer.board} is not suitable: {'; '.join(reasons)}"


def _describe_best(selection: BoardSelection) -> list[str]:
    best = selection.best
    marks = (
        "Mode: cores/CPU/GPU/memory MHz. ~ estimated, ^ calibrated to a measured table. "
        "Memory: need of a training step, and the board's limit."
    )
    if best is None:
        return ["No board meets all limits; each is listed in its closest mode, with the limits it violates.", marks]
    lines = [f"Best: {best.board} in {best.mode}. Time and power: {best.label}, {best.source}."]
    if selection.options.limits != BoardLimits() and best.label == "estimated":
        lines.append("An estimate may be off by more than its distance to a limit: profile the board before you buy.")
    return [*lines, marks]
