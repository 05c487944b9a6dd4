"""Terminal view of a placement: the choice, each instance's share, other combinations, sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments.report.quantities import number
from experiments.report.text_tables import fit_to_content, make_text_table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from fedge.analysis.placement.accelerator_fit import FittedBoard
    from fedge.analysis.placement.placement_advice import PlacementAdvice

AIM_WORDS = {"throughput": "most images per second", "latency": "least latency", "energy": "least joules per image"}


def render_placement(advice: PlacementAdvice) -> Group:
    """Render the whole plan."""
    from rich.console import Group
    from rich.text import Text

    lines = Text("\n".join(_describe_choice(advice)) + "\n")
    notes = Text("\n".join(_describe_sources(advice)), style="dim")
    return Group(lines, _instances_table(advice), _combinations_table(advice), notes)


def _describe_choice(advice: PlacementAdvice) -> Iterator[str]:
    goal, chosen = advice.plan.goal, advice.chosen
    yield (
        f"{advice.network.name} on {advice.board.name}: {AIM_WORDS[goal.objective]}{describe_limits(advice)} "
        f"({advice.label})"
    )
    yield f"Place    {chosen.placement}"
    at, latency_of = describe_load(advice)
    yield f"Can do   {number(chosen.images_per_s, 4)} images/s"
    yield f"Latency  {number(1e3 * chosen.latency_s, 4)} ms ({latency_of})"
    if advice.knows_watts:
        yield f"Power    {number(chosen.power_w, 3)} W {at}, {number(chosen.joules_per_image, 3)} J per image"


def describe_load(advice: PlacementAdvice) -> tuple[str, str]:
    """Return what power and energy refer to (the load), and what the latency covers."""
    rate_hz = advice.plan.goal.rate_hz
    if rate_hz is None:
        return "at full load", "a batch that is ready"
    return f"at {rate_hz:g} images/s", "the batch collected and inferred"


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


def _instances_table(advice: PlacementAdvice) -> Table:
    table = make_text_table("Beside each other")
    table.add_column("instance")
    for head in ("images/s", "batch alone, ms", "batch, ms", "slower"):
        table.add_column(f"  {head}", justify="right")
    for one in advice.chosen.instances:
        table.add_row(
            str(one.instance),
            number(one.images_per_s, 3),
            number(1e3 * one.alone_s, 3),
            number(1e3 * one.batch_s, 3),
            f"{one.batch_s / one.alone_s:.2f} x",
        )
    return fit_to_content(table)


def _combinations_table(advice: PlacementAdvice) -> Table:
    sizes = [one.placement.instances[0].batch_size for one in advice.curves[0].outcomes]
    table = make_text_table("Images/s at full load, one instance on each, by batch size")
    table.add_column("combination")
    for size in sizes:
        table.add_column(f"  {size}", justify="right")
    best = [max(curve.outcomes[i].images_per_s for curve in advice.curves) for i in range(len(sizes))]
    for curve in advice.curves:
        cells = [
            f"[bold]  {number(one.images_per_s, 4)}[/bold]"
            if one.images_per_s >= most
            else f"  {number(one.images_per_s, 4)}"
            for one, most in zip(curve.outcomes, best, strict=True)
        ]
        table.add_row(shorten_combination(curve.combination), *cells)
    return fit_to_content(table)


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
    left = "" if fitted.left_out_error is None else f", {fitted.left_out_error:.1f} % on rows left out of the fit"
    power = "" if fitted.power_error is None else f"; watts {fitted.power_error:.1f} %"
    doubtful = f" Rows that hardly count: {', '.join(map(str, fitted.doubtful))}." if fitted.doubtful else ""
    return f"Fitted to {fitted.rows} measured rows: mean error {fitted.error:.1f} %{left}{power}.{doubtful}"
