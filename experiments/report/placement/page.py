"""Writes a plan of inference as one HTML file: the choice, every combination's curve, power and latency, sources."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.cards import cards
from experiments.report.cells import Cell, badge, figure, swatch, table, text
from experiments.report.chart import Section
from experiments.report.page import html_page
from experiments.report.palette import colours
from experiments.report.placement import charts
from experiments.report.placement.terminal import AIMS, goal_words, load_words, short, told
from experiments.report.quantities import UNKNOWN, number
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from experiments.commands.place import Advice


def write_page(advice: Advice, out: Path) -> None:
    """Write the page of a plan, replacing ``out`` as a whole."""
    title = f"{advice.network.name} on {advice.board.name}"
    foot = f"Accelerators: {escape(advice.board.source)}."
    run_folder.write_text(out, html_page(escape(f"Placement: {title}"), _head(advice, title), _sections(advice), foot))


def _head(advice: Advice, title: str) -> str:
    aim = f"{AIMS[advice.plan.goal.objective]}{goal_words(advice)}"
    searched = f"{advice.plan.considered:,} placements, {advice.plan.computed:,} of them computed"
    return (
        f"<h1>{escape(title)}</h1><p class='soft'>{escape(aim)} · {searched}, {advice.planned_s:.2f} s</p>"
        f"<p>{badge(advice.label)} {escape(str(advice.chosen.placement))}</p>{_cards(advice)}"
        f"{''.join(f'<p>{escape(note)}</p>' for note in told(advice))}"
    )


def _cards(advice: Advice) -> str:
    chosen, watts = advice.chosen, advice.knows_watts
    at, latency_of = load_words(advice)
    shown = (
        ("Can do", number(chosen.images_per_s, 4, "images/s"), f"{len(chosen.placement.instances)} instances"),
        ("Latency", number(1e3 * chosen.latency_s, 4, "ms"), latency_of),
        ("Power", number(chosen.power_w, 3, "W") if watts else UNKNOWN, at if watts else "nothing was measured"),
        ("Per image", number(chosen.joules_per_image, 3, "J") if watts else UNKNOWN, at if watts else ""),
    )
    return cards(shown)


def _sections(advice: Advice) -> list[Section]:
    lead = "Every instance has a batch to work on at any time. Slower: how much the others stretch its batch."
    sections = [Section("The choice", lead, (), _instances(advice))]
    curves = "One instance on each accelerator of a combination, all with the batch size on the axis."
    sections.append(Section("Throughput against batch size", curves, (charts.throughput(advice),), _winners(advice)))
    if advice.knows_watts:
        plane = "The same combinations at every batch size, at full load, and what was chosen."
        sections.append(Section("Power and latency", plane, (charts.plane(advice),)))
    if advice.fitted is not None:
        sections.append(Section("Measured and predicted", "Every measured row.", (charts.fit(advice),)))
    if advice.board.figures:
        sections.append(Section("Where the numbers come from", _label_words(advice), (), _figures(advice)))
    return sections


def _label_words(advice: Advice) -> str:
    if advice.fitted is None:
        return "None was measured by you: fedge place-run measures, and --measurements fits the board to it."
    return "Before the fit; what your rows touch was moved by it."


def _instances(advice: Advice) -> str:
    rows = [
        (
            text(one.instance.accelerator),
            figure(str(one.instance.batch_size)),
            text(one.instance.precision),
            figure(number(one.images_per_s, 4)),
            figure(number(1e3 * one.alone_s, 4)),
            figure(number(1e3 * one.batch_s, 4)),
            figure(f"{one.batch_s / one.alone_s:.2f} ×"),
        )
        for one in advice.chosen.instances
    ]
    return table(("accelerator", "batch", "precision", "images/s", "batch alone, ms", "batch, ms", "slower"), rows)


def _winners(advice: Advice) -> str:
    """Which combination does most at each batch size, and the gain over the best single accelerator."""
    colour = colours([curve.combination for curve in advice.curves])
    rows: list[tuple[Cell, ...]] = []
    for i, one in enumerate(advice.curves[0].outcomes):
        best = max(advice.curves, key=lambda curve: curve.outcomes[i].images_per_s)
        alone = max(
            curve.outcomes[i].images_per_s for curve in advice.curves if len(curve.best.placement.instances) == 1
        )
        outcome = best.outcomes[i]
        rows.append(
            (
                figure(str(one.placement.instances[0].batch_size)),
                swatch(colour[best.combination], short(best.combination)),
                figure(number(outcome.images_per_s, 4)),
                figure(f"{outcome.images_per_s / alone - 1:+.0%}"),
                figure(number(outcome.power_w, 3) if advice.knows_watts else UNKNOWN),
                Cell(badge(advice.label_of(outcome))),
            )
        )
    return table(("batch", "does most", "images/s", "over the best alone", "W", "label"), rows)


def _figures(advice: Advice) -> str:
    rows = [
        (text(name), figure(f"{one.value:g}"), Cell(badge(one.label)), text(one.source))
        for name, one in advice.board.figures
    ]
    return table(("what", "value", "label", "source"), rows)
