"""A placement for a terminal: the choice, what each instance does beside the others, other combinations, sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments.report.quantities import number

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from experiments.commands.place import Advice

AIMS = {"throughput": "most images per second", "latency": "least latency", "energy": "least joules per image"}


def as_text(advice: Advice) -> Group:
    """Everything that the plan says."""
    from rich.console import Group
    from rich.text import Text

    lines = Text("\n".join(_choice(advice)))
    notes = Text("\n".join(_sources(advice)), style="dim")
    return Group(lines, _instances(advice), _combinations(advice), notes)


def _choice(advice: Advice) -> Iterator[str]:
    goal, chosen = advice.plan.goal, advice.chosen
    yield f"{advice.network.name} on {advice.board.name}: {AIMS[goal.objective]}{goal_words(advice)} ({advice.label})"
    yield f"Place    {chosen.placement}"
    at = "at full load" if goal.rate_hz is None else f"at {goal.rate_hz:g} images/s"
    yield f"Can do   {number(chosen.images_per_s, 4)} images/s"
    how = "a batch that is ready" if goal.rate_hz is None else "the batch collected and inferred"
    yield f"Latency  {number(1e3 * chosen.latency_s, 4)} ms ({how})"
    if advice.knows_watts:
        yield f"Power    {number(chosen.power_w, 3)} W {at}, {number(chosen.joules_per_image, 3)} J per image"


def goal_words(advice: Advice) -> str:
    """The limits in words, empty without any."""
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


def _instances(advice: Advice) -> Table:
    from rich.table import Table

    table = Table(title="beside each other")
    table.add_column("instance")
    for head in ("images/s", "batch alone, ms", "batch, ms", "slower"):
        table.add_column(head, justify="right")
    for one in advice.chosen.instances:
        table.add_row(
            str(one.instance),
            number(one.images_per_s, 3),
            number(1e3 * one.alone_s, 3),
            number(1e3 * one.batch_s, 3),
            f"{one.batch_s / one.alone_s:.2f} x",
        )
    return table


def _combinations(advice: Advice) -> Table:
    from rich.table import Table

    sizes = [one.placement.instances[0].batch_size for one in advice.curves[0].outcomes]
    table = Table(title="images/s at full load, one instance on each, by batch size")
    table.add_column("combination")
    for size in sizes:
        table.add_column(str(size), justify="right")
    best = [max(curve.outcomes[i].images_per_s for curve in advice.curves) for i in range(len(sizes))]
    for curve in advice.curves:
        cells = [
            f"[bold]{number(one.images_per_s, 4)}[/bold]" if one.images_per_s >= most else number(one.images_per_s, 4)
            for one, most in zip(curve.outcomes, best, strict=True)
        ]
        table.add_row(curve.combination.replace("-cores", ""), *cells)
    return table


def _sources(advice: Advice) -> Iterator[str]:
    yield f"{advice.plan.considered:,} placements, {advice.plan.computed:,} computed, {advice.planned_s:.2f} s."
    yield f"Accelerators: {advice.board.source} ({advice.board.label})."
    fitted = advice.fitted
    if fitted is not None:
        left = "" if fitted.left_out_error is None else f", {fitted.left_out_error:.1f} % on rows left out"
        power = "" if fitted.power_error is None else f"; watts {fitted.power_error:.1f} %"
        yield f"Fit to {fitted.rows} rows: error {fitted.error:.1f} %{left}{power}."
        if fitted.doubtful:
            yield f"Rows that hardly count: {', '.join(map(str, fitted.doubtful))}."
    yield from advice.notes
