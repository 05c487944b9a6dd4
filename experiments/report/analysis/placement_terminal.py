"""Terminal view of a placement: the choice, each instance's share, other combinations, sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments.report.quantities import number
from experiments.report.tables import Cell, Table, number_cell, print_lines, text_cell, value_cell

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.analysis.placement.accelerator_fit import FittedBoard
    from fedge.analysis.placement.placement_advice import PlacementAdvice

AIM_WORDS = {"throughput": "most images per second", "latency": "least latency", "energy": "least joules per image"}


def print_placement_advice(console: Console, advice: PlacementAdvice) -> None:
    """Print the whole plan."""
    print_lines(console, _describe_choice(advice))
    instances_table(advice).print(console)
    combinations_table(advice).print(console)
    print_lines(console, _describe_sources(advice))


def _describe_choice(advice: PlacementAdvice) -> Iterator[str]:
    goal, chosen = advice.plan.goal, advice.chosen
    yield (
        f"{advice.network.name} on {advice.board.name}: {AIM_WORDS[goal.objective]}{describe_limits(advice)} "
        f"({advice.label})"
    )
    yield f"Place    {chosen.placement}"
    at, latency_of = describe_load(advice)
    yield f"Rate     {number(chosen.images_per_s, 4)} images/s"
    yield f"Latency  {number(1e3 * chosen.latency_s, 4)} ms ({latency_of})"
    if advice.knows_watts:
        yield f"Power    {number(chosen.power_w, 3)} W {at}, {number(chosen.joules_per_image, 3)} J per image"


def describe_load(advice: PlacementAdvice) -> tuple[str, str]:
    """Return what power and energy refer to (the load), and what the latency covers."""
    rate_hz = advice.plan.goal.rate_hz
    if rate_hz is None:
        return "at full load", "inference of a full batch"
    return f"at {rate_hz:g} images/s", "collecting and inferring a batch"


def describe_limits(advice: PlacementAdvice) -> str:
    """Describe the limits in words; empty without any."""
    goal = advice.plan.goal
    words = [
        f"{text} {value:g} {unit}"
        for text, value, unit in (
            ("at", goal.rate_hz, "images/s"),
            ("at most", goal.max_power_w, "W"),
            ("within", goal.max_latency_s, "s"),
        )
        if value is not None
    ]
    return f", {', '.join(words)}" if words else ""


def instances_table(advice: PlacementAdvice) -> Table:
    """Build a table of the chosen instances and how much they slow each other down."""
    heads = ("accelerator", "batch", "precision", "images/s", "alone, ms", "batch, ms", "slowdown")
    rows = tuple(
        (
            text_cell(one.instance.accelerator),
            value_cell(one.instance.batch_size),
            text_cell(one.instance.precision),
            number_cell(number(one.images_per_s, 4), one.images_per_s),
            number_cell(number(1e3 * one.alone_s, 4), 1e3 * one.alone_s, "ms"),
            number_cell(number(1e3 * one.batch_s, 4), 1e3 * one.batch_s, "ms"),
            number_cell(f"{one.batch_s / one.alone_s:.2f} ×", one.batch_s / one.alone_s),
        )
        for one in advice.chosen.instances
    )
    return Table("instances", heads, rows, "Concurrent instances")


def combinations_table(advice: PlacementAdvice) -> Table:
    """Build a table of every combination's images per second by batch size, the best of each size highlighted."""
    sizes = [one.placement.instances[0].batch_size for one in advice.curves[0].outcomes]
    best = [max(curve.outcomes[i].images_per_s for curve in advice.curves) for i in range(len(sizes))]
    rows = tuple(
        (
            text_cell(shorten_combination(curve.combination)),
            *(
                Cell(number(one.images_per_s, 4), numeric=True, best=one.images_per_s >= most, value=one.images_per_s)
                for one, most in zip(curve.outcomes, best, strict=True)
            ),
        )
        for curve in advice.curves
    )
    title = "Images/s at full load, one instance on each, by batch size"
    return Table("combinations", ("combination", *map(str, sizes)), rows, title)


def shorten_combination(combination: str) -> str:
    """Shorten a combination by the suffix that all kinds of cores share."""
    return combination.replace("-cores", "")


def _describe_sources(advice: PlacementAdvice) -> Iterator[str]:
    yield f"{advice.plan.considered:,} placements, {advice.plan.computed:,} computed, {advice.planning_s:.2f} s."
    yield f"Accelerators: {advice.board.source} ({advice.board.label})."
    yield from describe_fit_and_notes(advice)


def describe_fit_and_notes(advice: PlacementAdvice) -> Iterator[str]:
    """Yield a sentence on the quality of the fit, if there is one, and the plan's notes."""
    if advice.fitted is not None:
        yield _describe_fit(advice.fitted)
    yield from advice.notes


def _describe_fit(fitted: FittedBoard) -> str:
    left = "" if fitted.left_out_error is None else f", {fitted.left_out_error:.1f} % on held-out rows"
    power = "" if fitted.power_error is None else f"; watts {fitted.power_error:.1f} %"
    doubtful = f" Rows with a low weight: {', '.join(map(str, fitted.doubtful))}." if fitted.doubtful else ""
    return f"Fitted to {fitted.rows} measured rows: mean error {fitted.error:.1f} %{left}{power}.{doubtful}"
