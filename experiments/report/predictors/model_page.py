"""Writes a model's predicted front as one HTML file: the front, the knobs along it, the modes, their source."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from experiments.report.page import Card, Section, render_badge, write_page
from experiments.report.predictors import model_charts
from experiments.report.predictors.model_terminal import (
    KNOB_HEADINGS,
    compare_with_maxn,
    describe_origin,
    describe_point,
    facts_to_table,
    format_knobs,
    quantity_cells,
    thin_front,
)
from experiments.report.quantities import number, percent
from experiments.report.tables import Cell, Table, number_cell
from fedge.knowledge.model_summary import ModelSummary
from fedge.knowledge.saved_model import ModeFront, ModePoint
from fedge.types import Predictions

MAX_PAGE_ROWS = 60
"""Default number of modes in the page's table; --out writes all."""


def write_front_page(front: ModeFront, facts: ModelSummary, predictions: Predictions, out: Path) -> None:
    """Write the page atomically."""
    about = facts.about
    sections = [
        Section("Pareto front", _describe_front(front, facts), (model_charts.front_chart(front, facts, predictions),)),
        Section(
            "Knobs along the front",
            "Which knob is lowered first when a step may take longer.",
            (model_charts.knobs_chart(front),),
        ),
        Section("Modes", _describe_modes_table(front), html=_modes_table(front).html),
        Section("Sources", "Provenance of each number.", html=facts_to_table(facts).html),
    ]
    write_page(
        out,
        f"{about.device}: {about.workload}",
        sections,
        "All values are per step.",
        heading=f"{about.workload} on {about.device}",
        facts=(
            f"batch size {about.batch_size}",
            Markup("predicted by <b>{}</b>").format(about.method),
            f"fitted to {facts.modes:,} mode{'s' * (facts.modes > 1)}",
            f"{facts.candidates:,} candidate modes",
        ),
        cards=_list_cards(front, facts),
        notes=(_describe_labels(facts),),
    )


def _describe_labels(facts: ModelSummary) -> Markup:
    origin, predicted = facts.about.origin, render_badge(facts.predictions_label)
    if origin.label == "measured":
        text = Markup("The profiled modes are {} ({}). Predictions are {} from them.")
    else:
        why = "Nothing says where the table comes from" if origin.label == "unknown" else "no board was measured"
        text = Markup("<b>{}:</b> {}. The profiled modes are {{}}: {{}}. Predictions are {{}} from them.").format(
            describe_origin(origin.label).capitalize(), why
        )
    return text.format(render_badge(origin.label), origin.source, predicted)


def _list_cards(front: ModeFront, facts: ModelSummary) -> list[Card]:
    """Return the headline figures, each with a reference value."""
    knee, fastest, maxn = front.knee, front.points[0], front.maxn
    held_out = facts.about.held_out
    spread = f"spread ±{percent(facts.time_spread.median)} and ±{percent(facts.power_spread.median)} in the median"
    error = ("unknown", "every measured mode was used for the fit")
    if held_out is not None:
        error = (
            f"{percent(held_out.time_mape)} / {percent(held_out.power_mape)}",
            f"time / power, on {held_out.modes:,} modes not profiled; {spread}",
        )
    return [
        Card("MAXN", _format_time_power(maxn), _format_mode_energy(maxn)),
        Card("Knee", _format_time_power(knee), f"vs MAXN: {compare_with_maxn(knee, maxn)}"),
        Card("Fastest", _format_time_power(fastest), f"vs MAXN: {compare_with_maxn(fastest, maxn)}"),
        Card("Mean error", *error),
    ]


def _format_time_power(point: ModePoint) -> str:
    return f"{number(1e3 * point.step_s.value, 3, 'ms')}, {number(point.power_w.value, 3, 'W')}"


def _format_mode_energy(point: ModePoint) -> str:
    return f"{point.mode}, {number(point.energy_j.value, 3, 'J')}"


def _describe_front(front: ModeFront, facts: ModelSummary) -> str:
    dear = "draws more power" if front.against == "power" else "needs more energy"
    return (
        f"{len(front.points)} of {facts.candidates:,} modes: a mode that is faster than one of them {dear} (predicted)."
    )


def _modes_table(front: ModeFront) -> Table:
    heads = ("remark", *KNOB_HEADINGS, "ms", "W", "J", "vs MAXN")
    return Table("modes", heads, tuple(_mode_row(point, front) for point in thin_front(front, MAX_PAGE_ROWS)))


def _describe_modes_table(front: ModeFront) -> str:
    some = f" {MAX_PAGE_ROWS} modes of the front, evenly spread;" if len(front.points) > MAX_PAGE_ROWS else ""
    return f"Per step;{some} brackets: 90 % intervals."


def _mode_row(point: ModePoint, front: ModeFront) -> tuple[Cell, ...]:
    return (
        Cell(describe_point(point, front)),
        *(number_cell(knob) for knob in format_knobs(point.mode)),
        *quantity_cells(point),
        number_cell(compare_with_maxn(point, front.maxn)),
    )
