"""Writes the front of a model's modes as one HTML file: the picture, the knobs along it, the modes, their source."""

from __future__ import annotations

from html import escape
from pathlib import Path

from experiments.report.cards import cards
from experiments.report.cells import Cell, badge, figure, table, text
from experiments.report.chart import Section
from experiments.report.model import charts
from experiments.report.model.terminal import KNOBS, against, facts_lines, interval, knobs, thinned, word_of
from experiments.report.page import html_page
from experiments.report.quantities import number, percent
from fedge.models.facts import Facts
from fedge.models.points import ModeFront, Point
from fedge.telemetry import run_folder
from fedge.types import Predictions

MOST_ROWS = 60
"""Modes in the page's table; chosen by us, --csv holds all."""


def write_front(front: ModeFront, facts: Facts, predictions: Predictions, out: Path) -> None:
    """Write the page, replacing ``out`` as a whole; ``predictions`` are those of every candidate."""
    about = facts.about
    sections = [
        Section("The front", _lead(front, facts), (charts.front_chart(front, facts, predictions),)),
        Section(
            "The knobs along it",
            "Which knob gives way first when a minibatch may take longer.",
            (charts.knobs_chart(front),),
        ),
        Section("The modes", _modes_lead(front), (), _modes(front)),
        Section("Where it comes from", "Each number with its label.", (), _sources(facts)),
    ]
    title = escape(f"{about.device}: {about.workload}")
    run_folder.write_text(out, html_page(title, _head(front, facts), sections, "Everything is per minibatch."))


def _head(front: ModeFront, facts: Facts) -> str:
    about = facts.about
    words = (
        f"batch size {about.batch_size}",
        f"predicted by <b>{escape(about.method)}</b>",
        f"{facts.modes:,} mode{'s' * (facts.modes > 1)} learnt from",
        f"{facts.candidates:,} to choose among",
    )
    return (
        f"<h1>{escape(about.workload)} on {escape(about.device)}</h1><p class='soft'>{' · '.join(words)}</p>"
        f"{_cards(front, facts)}<p>{_labels(facts)}</p>"
    )


def _labels(facts: Facts) -> str:
    origin = facts.about.origin
    predicted = f"Predictions are {badge(facts.predictions_label)}"
    if origin.label == "measured":
        return f"The modes learnt from are {badge('measured')} ({escape(origin.source)}). {predicted} from them."
    return (
        f"<b>Emulated:</b> no board was measured. The modes learnt from are {badge(origin.label)}: "
        f"{escape(origin.source)}. {predicted} from them."
    )


def _cards(front: ModeFront, facts: Facts) -> str:
    """The headline figures: what it is, the figure, and what it is to be held against."""
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
        ("MAXN", _both(maxn), _all_three(maxn)),
        ("Knee", _both(knee), f"against MAXN: {against(knee, maxn)}"),
        ("Fastest", _both(fastest), f"against MAXN: {against(fastest, maxn)}"),
        ("Mean error", *error),
    )
    return cards(shown)


def _both(point: Point) -> str:
    return f"{number(1e3 * point.step_s.value, 3, 'ms')}, {number(point.power_w.value, 3, 'W')}"


def _all_three(point: Point) -> str:
    return f"{point.mode}, {number(point.energy_j.value, 3, 'J')}"


def _lead(front: ModeFront, facts: Facts) -> str:
    dear = "draws more power" if front.against == "power" else "needs more energy"
    return (
        f"{len(front.points)} of {facts.candidates:,} modes: whatever is faster than one of them {dear}, as predicted."
    )


def _modes(front: ModeFront) -> str:
    heads = ("", *KNOBS, "ms", "W", "J", "against MAXN")
    return table(heads, [_row(point, front) for point in thinned(front, MOST_ROWS)])


def _modes_lead(front: ModeFront) -> str:
    some = f" {MOST_ROWS} modes of the front, evenly spread;" if len(front.points) > MOST_ROWS else ""
    return f"Per minibatch;{some} brackets hold a value with 90 %."


def _row(point: Point, front: ModeFront) -> tuple[Cell, ...]:
    return (
        Cell(word_of(point, front)),
        *(figure(knob) for knob in knobs(point.mode)),
        figure(interval(point.step_s, 1e3)),
        figure(interval(point.power_w)),
        figure(interval(point.energy_j)),
        figure(against(point, front.maxn)),
    )


def _sources(facts: Facts) -> str:
    return table(("", ""), [(text(word), text(sentence)) for word, sentence in facts_lines(facts)])
