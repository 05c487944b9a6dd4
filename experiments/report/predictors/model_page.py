"""Writes a model's predicted front as one HTML file: the front, the knobs along it, the modes, their source."""

from __future__ import annotations

from html import escape
from pathlib import Path

from experiments.report.chart import Section
from experiments.report.html_elements import TableCell, label_badge, number_cell, render_cards, render_table, text_cell
from experiments.report.predictors import model_charts
from experiments.report.predictors.model_terminal import (
    KNOB_HEADINGS,
    compare_with_maxn,
    describe_facts,
    describe_point,
    format_interval,
    format_knobs,
    thin_front,
)
from experiments.report.quantities import number, percent
from experiments.report.run.run_page import render_page
from fedge.knowledge.mode_points import ModeFront, ModePoint
from fedge.knowledge.model_summary import ModelSummary
from fedge.telemetry import run_folder
from fedge.types import Predictions

MAX_PAGE_ROWS = 60
"""Default number of modes in the page's table; --csv writes all."""


def write_front_page(front: ModeFront, facts: ModelSummary, predictions: Predictions, out: Path) -> None:
    """Write the page atomically.

    Args:
        front: The predicted front.
        facts: The model's summary.
        predictions: Predictions of every candidate mode.
        out: The HTML file.
    """
    about = facts.about
    sections = [
        Section("The front", _describe_front(front, facts), (model_charts.front_chart(front, facts, predictions),)),
        Section(
            "The knobs along it",
            "Which knob gives way first when a minibatch may take longer.",
            (model_charts.knobs_chart(front),),
        ),
        Section("The modes", _describe_modes_table(front), (), _modes_table(front)),
        Section("Where it comes from", "Each number with its label.", (), _sources_table(facts)),
    ]
    title = escape(f"{about.device}: {about.workload}")
    run_folder.write_text(out, render_page(title, _render_head(front, facts), sections, "Everything is per minibatch."))


def _render_head(front: ModeFront, facts: ModelSummary) -> str:
    about = facts.about
    words = (
        f"batch size {about.batch_size}",
        f"predicted by <b>{escape(about.method)}</b>",
        f"{facts.modes:,} mode{'s' * (facts.modes > 1)} learnt from",
        f"{facts.candidates:,} to choose among",
    )
    return (
        f"<h1>{escape(about.workload)} on {escape(about.device)}</h1><p class='soft'>{' · '.join(words)}</p>"
        f"{_render_cards(front, facts)}<p>{_describe_labels(facts)}</p>"
    )


def _describe_labels(facts: ModelSummary) -> str:
    origin = facts.about.origin
    predicted = f"Predictions are {label_badge(facts.predictions_label)}"
    if origin.label == "measured":
        return f"The modes learnt from are {label_badge('measured')} ({escape(origin.source)}). {predicted} from them."
    return (
        f"<b>Emulated:</b> no board was measured. The modes learnt from are {label_badge(origin.label)}: "
        f"{escape(origin.source)}. {predicted} from them."
    )


def _render_cards(front: ModeFront, facts: ModelSummary) -> str:
    """Render the headline figures, each with a reference value."""
    knee, fastest, maxn = front.knee, front.points[0], front.maxn
    held_out = facts.about.held_out
    spread = f"spread ±{percent(facts.time_spread.median)} and ±{percent(facts.power_spread.median)} in the median"
    error = ("not known", "every measured mode was learnt from")
    if held_out is not None:
        error = (
            f"{percent(held_out.time_mape)} / {percent(held_out.power_mape)}",
            f"time / power, on {held_out.modes:,} modes not profiled; {spread}",
        )
    shown = (
        ("MAXN", _format_time_power(maxn), _format_mode_energy(maxn)),
        ("Knee", _format_time_power(knee), f"against MAXN: {compare_with_maxn(knee, maxn)}"),
        ("Fastest", _format_time_power(fastest), f"against MAXN: {compare_with_maxn(fastest, maxn)}"),
        ("Mean error", *error),
    )
    return render_cards(shown)


def _format_time_power(point: ModePoint) -> str:
    return f"{number(1e3 * point.step_s.value, 3, 'ms')}, {number(point.power_w.value, 3, 'W')}"


def _format_mode_energy(point: ModePoint) -> str:
    return f"{point.mode}, {number(point.energy_j.value, 3, 'J')}"


def _describe_front(front: ModeFront, facts: ModelSummary) -> str:
    dear = "draws more power" if front.against == "power" else "needs more energy"
    return (
        f"{len(front.points)} of {facts.candidates:,} modes: whatever is faster than one of them {dear}, as predicted."
    )


def _modes_table(front: ModeFront) -> str:
    heads = ("", *KNOB_HEADINGS, "ms", "W", "J", "against MAXN")
    return render_table(heads, [_mode_row(point, front) for point in thin_front(front, MAX_PAGE_ROWS)])


def _describe_modes_table(front: ModeFront) -> str:
    some = f" {MAX_PAGE_ROWS} modes of the front, evenly spread;" if len(front.points) > MAX_PAGE_ROWS else ""
    return f"Per minibatch;{some} brackets hold a value with 90 %."


def _mode_row(point: ModePoint, front: ModeFront) -> tuple[TableCell, ...]:
    return (
        TableCell(describe_point(point, front)),
        *(number_cell(knob) for knob in format_knobs(point.mode)),
        number_cell(format_interval(point.step_s, 1e3)),
        number_cell(format_interval(point.power_w)),
        number_cell(format_interval(point.energy_j)),
        number_cell(compare_with_maxn(point, front.maxn)),
    )


def _sources_table(facts: ModelSummary) -> str:
    return render_table(("", ""), [(text_cell(word), text_cell(sentence)) for word, sentence in describe_facts(facts)])
