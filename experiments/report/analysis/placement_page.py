"""Writes an inference placement as one HTML file: the choice, all combinations, power over latency, sources."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.analysis import placement_charts
from experiments.report.analysis.placement_terminal import (
    AIM_WORDS,
    describe_fit_and_notes,
    describe_limits,
    describe_load,
    shorten_combination,
)
from experiments.report.chart import Section
from experiments.report.html_elements import (
    TableCell,
    label_badge,
    number_cell,
    render_cards,
    render_table,
    swatch_cell,
    text_cell,
)
from experiments.report.palette import assign_colours
from experiments.report.quantities import UNKNOWN, number
from experiments.report.run.run_page import render_page
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from fedge.analysis.placement.placement_advice import PlacementAdvice


def write_placement_page(advice: PlacementAdvice, out: Path) -> None:
    """Write the page atomically."""
    title = f"{advice.network.name} on {advice.board.name}"
    foot = f"Accelerators: {escape(advice.board.source)}."
    run_folder.write_text(
        out, render_page(escape(f"Placement: {title}"), _render_head(advice, title), _build_sections(advice), foot)
    )


def _render_head(advice: PlacementAdvice, title: str) -> str:
    aim = f"{AIM_WORDS[advice.plan.goal.objective]}{describe_limits(advice)}"
    searched = f"{advice.plan.considered:,} placements, {advice.plan.computed:,} of them computed"
    return (
        f"<h1>{escape(title)}</h1><p class='soft'>{escape(aim)} · {searched}, {advice.planning_s:.2f} s</p>"
        f"<p>{label_badge(advice.label)} {escape(str(advice.chosen.placement))}</p>{_render_cards(advice)}"
        f"{''.join(f'<p>{escape(note)}</p>' for note in describe_fit_and_notes(advice))}"
    )


def _render_cards(advice: PlacementAdvice) -> str:
    chosen, watts = advice.chosen, advice.knows_watts
    at, latency_of = describe_load(advice)
    shown = (
        ("Can do", number(chosen.images_per_s, 4, "images/s"), f"{len(chosen.placement.instances)} instances"),
        ("Latency", number(1e3 * chosen.latency_s, 4, "ms"), latency_of),
        ("Power", number(chosen.power_w, 3, "W") if watts else UNKNOWN, at if watts else "nothing was measured"),
        ("Per image", number(chosen.joules_per_image, 3, "J") if watts else UNKNOWN, at if watts else ""),
    )
    return render_cards(shown)


def _build_sections(advice: PlacementAdvice) -> list[Section]:
    lead = "Every instance has a batch to work on at any time. Slower: how much the others stretch its batch."
    sections = [Section("The choice", lead, (), _instances_table(advice))]
    curves = "One instance on each accelerator of a combination, all with the batch size on the axis."
    sections.append(
        Section(
            "Throughput against batch size",
            curves,
            (placement_charts.throughput_chart(advice),),
            _winners_table(advice),
        )
    )
    if advice.knows_watts:
        plane = "The same combinations at every batch size, at full load, and what was chosen."
        sections.append(Section("Power and latency", plane, (placement_charts.power_latency_chart(advice),)))
    if advice.fitted is not None:
        sections.append(
            Section("Measured and predicted", "Every measured row.", (placement_charts.placement_fit_chart(advice),))
        )
    if advice.board.figures:
        sections.append(Section("Where the numbers come from", _describe_labels(advice), (), _figures_table(advice)))
    return sections


def _describe_labels(advice: PlacementAdvice) -> str:
    if advice.fitted is None:
        return "None was measured by you: fedge place-run measures, and --measurements fits the board to it."
    return "Before the fit; what your rows touch was moved by it."


def _instances_table(advice: PlacementAdvice) -> str:
    rows = [
        (
            text_cell(one.instance.accelerator),
            number_cell(str(one.instance.batch_size)),
            text_cell(one.instance.precision),
            number_cell(number(one.images_per_s, 4)),
            number_cell(number(1e3 * one.alone_s, 4)),
            number_cell(number(1e3 * one.batch_s, 4)),
            number_cell(f"{one.batch_s / one.alone_s:.2f} ×"),
        )
        for one in advice.chosen.instances
    ]
    return render_table(
        ("accelerator", "batch", "precision", "images/s", "batch alone, ms", "batch, ms", "slower"), rows
    )


def _winners_table(advice: PlacementAdvice) -> str:
    """Build a table of the fastest combination per batch size and its gain over the best single accelerator."""
    colour = assign_colours([curve.combination for curve in advice.curves])
    rows: list[tuple[TableCell, ...]] = []
    for i, one in enumerate(advice.curves[0].outcomes):
        best = max(advice.curves, key=lambda curve: curve.outcomes[i].images_per_s)
        alone = max(
            curve.outcomes[i].images_per_s
            for curve in advice.curves
            if len(curve.best_outcome.placement.instances) == 1
        )
        outcome = best.outcomes[i]
        rows.append(
            (
                number_cell(str(one.placement.instances[0].batch_size)),
                swatch_cell(colour[best.combination], shorten_combination(best.combination)),
                number_cell(number(outcome.images_per_s, 4)),
                number_cell(f"{outcome.images_per_s / alone - 1:+.0%}"),
                number_cell(number(outcome.power_w, 3) if advice.knows_watts else UNKNOWN),
                TableCell(label_badge(advice.find_label(outcome))),
            )
        )
    return render_table(("batch", "does most", "images/s", "over the best alone", "W", "label"), rows)


def _figures_table(advice: PlacementAdvice) -> str:
    rows = [
        (text_cell(name), number_cell(f"{one.value:g}"), TableCell(label_badge(one.label)), text_cell(one.source))
        for name, one in advice.board.figures
    ]
    return render_table(("what", "value", "label", "source"), rows)
