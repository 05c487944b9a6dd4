"""A placement for a terminal: the choice, what each instance does beside the others, other combinations, sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments.report.concurrent.figures import figures, whole
from experiments.report.quantities import number

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from experiments.commands.place import Advice
    from fedge.placement.fitting import Fitted

AIMS = {"throughput": "most images per second", "latency": "least latency", "energy": "least joules per image"}


def as_text(advice: Advice) -> Group:
    """Everything that the plan says."""
    from rich.console import Group
    from rich.text import Text

    lines = Text("\n".join(_choice(advice)) + "\n")
    notes = Text("\n".join(_sources(advice)), style="dim")
    return Group(lines, _instances(advice), _combinations(advice), notes)


def _choice(advice: Advice) -> Iterator[str]:
    goal, chosen = advice.plan.goal, advice.chosen
    yield f"{advice.network.name} on {advice.board.name}: {AIMS[goal.objective]}{goal_words(advice)} ({advice.label})"
    yield f"Place    {chosen.placement}"
    at, latency_of = load_words(advice)
    yield f"Can do   {number(chosen.images_per_s, 4)} images/s"
    yield f"Latency  {number(1e3 * chosen.latency_s, 4)} ms ({latency_of})"
    if advice.knows_watts:
        yield f"Power    {number(chosen.power_w, 3)} W {at}, {number(chosen.joules_per_image, 3)} J per image"


def load_words(advice: Advice) -> tuple[str, str]:
    """What watts and joules are for, and what the latency is of."""
    rate_hz = advice.plan.goal.rate_hz
    if rate_hz is None:
        return "at full load", "a batch that is ready"
    return f"at {rate_hz:g} images/s", "the batch collected and inferred"


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
    table = figures("Beside each other")
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
    return whole(table)


def _combinations(advice: Advice) -> Table:
    sizes = [one.placement.instances[0].batch_size for one in advice.curves[0].outcomes]
    table = figures("Images/s at full load, one instance on each, by batch size")
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
        table.add_row(short(curve.combination), *cells)
    return whole(table)


def short(combination: str) -> str:
    """Without the word that all cores share."""
    return combination.replace("-cores", "")


def _sources(advice: Advice) -> Iterator[str]:
    yield f"{advice.plan.considered:,} placements, {advice.plan.computed:,} computed, {advice.planned_s:.2f} s."
    yield f"Accelerators: {advice.board.source} ({advice.board.label})."
    yield from told(advice)


def told(advice: Advice) -> Iterator[str]:
    """How good the fit is, where there is one, and what a reader should know besides."""
    if advice.fitted is not None:
        yield _fit_words(advice.fitted)
    yield from advice.notes


def _fit_words(fitted: Fitted) -> str:
    left = "" if fitted.left_out_error is None else f", {fitted.left_out_error:.1f} % on rows left out of the fit"
    power = "" if fitted.power_error is None else f"; watts {fitted.power_error:.1f} %"
    doubtful = f" Rows that hardly count: {', '.join(map(str, fitted.doubtful))}." if fitted.doubtful else ""
    return f"Fitted to {fitted.rows} measured rows: mean error {fitted.error:.1f} %{left}{power}.{doubtful}"
