"""Writes an inference placement as one HTML file: the choice, all combinations, power over latency, sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.report.analysis import placement_charts
from experiments.report.analysis.placement_terminal import (
    AIM_WORDS,
    describe_fit_and_notes,
    describe_limits,
    describe_load,
    instances_table,
    shorten_combination,
)
from experiments.report.page import Card, Section, render_badge, render_paragraph, write_page
from experiments.report.palette import assign_colours
from experiments.report.quantities import UNKNOWN, number
from experiments.report.tables import Cell, Table, number_cell, swatch_cell, text_cell, value_cell

if TYPE_CHECKING:
    from fedge.analysis.placement.placement_advice import PlacementAdvice


def write_placement_page(advice: PlacementAdvice, out: Path) -> None:
    """Write the page atomically."""
    title, plan = f"{advice.network.name} on {advice.board.name}", advice.plan
    write_page(
        out,
        f"Placement: {title}",
        _build_sections(advice),
        f"Accelerators: {advice.board.source}.",
        heading=title,
        facts=(
            f"{AIM_WORDS[plan.goal.objective]}{describe_limits(advice)}",
            f"{plan.considered:,} placements, {plan.computed:,} of them computed, {advice.planning_s:.2f} s",
        ),
        lead=render_paragraph(Markup("{} {}").format(render_badge(advice.label), advice.chosen.placement)),
        cards=_list_cards(advice),
        notes=describe_fit_and_notes(advice),
    )


def _list_cards(advice: PlacementAdvice) -> list[Card]:
    chosen, watts = advice.chosen, advice.knows_watts
    at, latency_of = describe_load(advice)
    return [
        Card("Throughput", number(chosen.images_per_s, 4, "images/s"), f"{len(chosen.placement.instances)} instances"),
        Card("Latency", number(1e3 * chosen.latency_s, 4, "ms"), latency_of),
        Card("Power", number(chosen.power_w, 3, "W") if watts else UNKNOWN, at if watts else "not measured"),
        Card("Per image", number(chosen.joules_per_image, 3, "J") if watts else UNKNOWN, at if watts else ""),
    ]


def _build_sections(advice: PlacementAdvice) -> list[Section]:
    lead = "Full load: every instance always has a batch ready. Slowdown: effect of the other instances."
    sections = [Section("Chosen placement", lead, html=instances_table(advice).html)]
    curves = "One instance on each accelerator of a combination, all with the same batch size."
    sections.append(
        Section(
            "Throughput against batch size",
            curves,
            (placement_charts.throughput_chart(advice),),
            _winners_table(advice).html,
        )
    )
    if advice.knows_watts:
        plane = "Each combination at its batch size of highest throughput, at full load, and the chosen placement."
        sections.append(
            Section(
                "Power and latency", plane, (placement_charts.power_latency_chart(advice),), plane_table(advice).html
            )
        )
    if advice.fitted is not None:
        sections.append(
            Section("Measured and predicted", "All measured rows.", (placement_charts.placement_fit_chart(advice),))
        )
    if advice.board.figures:
        sections.append(Section("Sources", _describe_labels(advice), html=_figures_table(advice).html))
    return sections


def _describe_labels(advice: PlacementAdvice) -> str:
    if advice.fitted is None:
        return "No measurements: fedge place-run measures the board, and --measurements fits the model to the results."
    return "Values before the fit; the fit changed those that the measured rows cover."


def _winners_table(advice: PlacementAdvice) -> Table:
    """Build a table of the fastest combination per batch size and its gain over the best single accelerator."""
    colour = assign_colours([curve.combination for curve in advice.curves])
    rows: list[tuple[Cell, ...]] = []
    for i, one in enumerate(advice.curves[0].outcomes):
        best = max(advice.curves, key=lambda curve: curve.outcomes[i].images_per_s)
        alone = max(
            curve.outcomes[i].images_per_s
            for curve in advice.curves
            if len(curve.best_outcome.placement.instances) == 1
        )
        outcome = best.outcomes[i]
        gain = outcome.images_per_s / alone - 1
        size = one.placement.instances[0].batch_size
        rows.append((
            value_cell(size),
            swatch_cell(colour[best.combination], shorten_combination(best.combination)),
            number_cell(number(outcome.images_per_s, 4), outcome.images_per_s),
            number_cell(f"{100 * gain:+.0f} %".replace("-", "−"), 100 * gain, "%"),
            _power_cell(outcome.power_w, advice),
            Cell(render_badge(advice.find_label(outcome))),
        ))  # fmt: skip
    heads = ("batch", "highest throughput", "images/s", "over the best alone", "W", "label")
    return Table("winners", heads, tuple(rows))


def plane_table(advice: PlacementAdvice) -> Table:
    """Build a table of the numbered points of the chart of power and latency."""
    colour = assign_colours([curve.combination for curve in advice.curves])
    rows = tuple(
        (
            value_cell(place),
            swatch_cell(colour[curve.combination], shorten_combination(curve.combination)),
            number_cell(str(curve.best_outcome.placement.instances[0].batch_size)),
            number_cell(number(1e3 * curve.best_outcome.latency_s, 4), 1e3 * curve.best_outcome.latency_s, "ms"),
            _power_cell(curve.best_outcome.power_w, advice),
            number_cell(number(curve.best_outcome.images_per_s, 4), curve.best_outcome.images_per_s),
            Cell(render_badge(advice.find_label(curve.best_outcome))),
        )
        for place, curve in enumerate(advice.curves, start=1)
    )
    return Table("plane", ("number", "combination", "batch", "latency, ms", "W", "images/s", "label"), rows)


def _power_cell(power_w: float, advice: PlacementAdvice) -> Cell:
    return number_cell(number(power_w, 3), power_w, "W") if advice.knows_watts else number_cell(UNKNOWN)


def _figures_table(advice: PlacementAdvice) -> Table:
    rows = tuple(
        (
            text_cell(name),
            value_cell(one.value, "g"),
            Cell(render_badge(one.label)),
            text_cell(one.source),
        )
        for name, one in advice.board.figures
    )
    return Table("figures", ("what", "value", "label", "source"), rows)
