"""A placement for the terminal and as an HTML page: the choice, combinations, power over latency, the fit, sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import COLOURS, GREY, Chart, Trace, assign_styles, axis, line_trace, scatter_trace
from experiments.report.page import Card, Section, render_badge, render_paragraph, write_page
from experiments.report.quantities import UNKNOWN, number
from experiments.report.tables import (
    Cell,
    Table,
    build_table,
    number_cell,
    print_lines,
    swatch_cell,
    text_cell,
    value_cell,
)
from fedge.analysis.placement.accelerator_fit import predict_images_per_s
from fedge.analysis.placement.accelerators import Placement
from fedge.analysis.placement.placement_outcome import PlacementOutcome

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.analysis.placement.placement_advice import PlacementAdvice


PLANE_CAPTION = (
    "Numbers: the table below, each combination at its batch size of highest throughput; thin lines: its other batch "
    "sizes. Star: the chosen placement, {}."
)
AIM_WORDS = {"throughput": "most images per second", "latency": "least latency", "energy": "least joules per image"}


def print_placement_advice(console: Console, advice: PlacementAdvice) -> None:
    """Print the whole plan."""
    chosen, plan = advice.chosen, advice.plan
    at, latency_of = _describe_load(advice)
    lines = [
        f"{advice.network.name} on {advice.board.name}: {_describe_goal(advice)} ({advice.label})",
        f"Place    {chosen.placement}",
        f"Rate     {number(chosen.images_per_s, 4)} images/s",
        f"Latency  {number(1e3 * chosen.latency_s, 4)} ms ({latency_of})",
    ]
    if advice.knows_watts:
        lines.append(f"Power    {number(chosen.power_w, 3)} W {at}, {number(chosen.joules_per_image, 3)} J per image")
    print_lines(console, lines)
    _instances_table(advice).print(console)
    _combinations_table(advice).print(console)
    counts = f"{plan.considered:,} placements, {plan.computed:,} computed, {advice.planning_s:.2f} s."
    origin = f"Accelerators: {advice.board.source} ({advice.board.label})."
    print_lines(console, (counts, origin, *_describe_fit_and_notes(advice)))


def _describe_load(advice: PlacementAdvice) -> tuple[str, str]:
    """Return what power and energy refer to (the load), and what the latency covers."""
    rate_hz = advice.plan.goal.rate_hz
    if rate_hz is None:
        return "at full load", "inference of a full batch"
    return f"at {rate_hz:g} images/s", "collecting and inferring a batch"


def _describe_goal(advice: PlacementAdvice) -> str:
    goal = advice.plan.goal
    limits = (
        ("at", goal.rate_hz, "images/s"),
        ("at most", goal.max_power_w, "W"),
        ("within", goal.max_latency_s, "s"),
    )
    words = [f"{text} {value:g} {unit}" for text, value, unit in limits if value is not None]
    return ", ".join([AIM_WORDS[goal.objective], *words])


def _instances_table(advice: PlacementAdvice) -> Table:
    return build_table(
        "instances",
        (
            ("accelerator", lambda one: text_cell(one.instance.accelerator)),
            ("batch", lambda one: value_cell(one.instance.batch_size)),
            ("precision", lambda one: text_cell(one.instance.precision)),
            ("images/s", lambda one: _figure_cell(one.images_per_s)),
            ("alone, ms", lambda one: _figure_cell(1e3 * one.alone_s, "ms")),
            ("batch, ms", lambda one: _figure_cell(1e3 * one.batch_s, "ms")),
            ("slowdown", lambda one: value_cell(one.batch_s / one.alone_s, lambda factor: f"{factor:.2f} ×")),
        ),
        advice.chosen.instances,
        "Concurrent instances",
    )


def _figure_cell(value: float, unit: str = "") -> Cell:
    return number_cell(number(value, 4), value, unit)


def _combinations_table(advice: PlacementAdvice) -> Table:
    """Build a table of every combination's images per second by batch size, the best of each size highlighted."""
    sizes = [_batch_size(one.placement) for one in advice.curves[0].outcomes]
    best = [max(curve.outcomes[i].images_per_s for curve in advice.curves) for i in range(len(sizes))]
    rows = []
    for curve in advice.curves:
        rates = [one.images_per_s for one in curve.outcomes]
        cells = (
            Cell(number(rate, 4), numeric=True, best=rate >= most, value=rate)
            for rate, most in zip(rates, best, strict=True)
        )
        rows.append((text_cell(_shorten(curve.combination)), *cells))
    title = "Images/s at full load, one instance on each, by batch size"
    return Table("combinations", ("combination", *map(str, sizes)), tuple(rows), title)


def _shorten(combination: str) -> str:
    """Shorten a combination by the suffix that all kinds of cores share."""
    return combination.replace("-cores", "")


def _describe_fit_and_notes(advice: PlacementAdvice) -> Iterator[str]:
    fitted = advice.fitted
    if fitted is not None:
        left = "" if fitted.left_out_error is None else f", {fitted.left_out_error:.1f} % on held-out rows"
        power = "" if fitted.power_error is None else f"; watts {fitted.power_error:.1f} %"
        doubtful = f" Rows with a low weight: {', '.join(map(str, fitted.doubtful))}." if fitted.doubtful else ""
        yield f"Fitted to {fitted.rows} measured rows: mean error {fitted.error:.1f} %{left}{power}.{doubtful}"
    yield from advice.notes


def _throughput_chart(advice: PlacementAdvice) -> Chart:
    styles = assign_styles(curve.combination for curve in advice.curves)
    data: list[Trace] = []
    for curve in advice.curves:
        style = styles[curve.combination]
        data.append(
            line_trace(
                _shorten(curve.combination),
                of=curve.outcomes,
                x=lambda one: _batch_size(one.placement),
                y=lambda one: one.images_per_s,
                colour=style.colour,
                dash=style.dash,
                markers=True,
                marker={"symbol": style.symbol, "size": 8},
                hover=lambda one: _hover_text(one, advice.knows_watts),
            )
        )
    lines = {(curve.combination, str(one.placement)) for curve in advice.curves for one in curve.outcomes}
    rows = [row for row in advice.measured if (row.placement.combination, str(row.placement)) in lines]
    if rows:
        shades = [styles[row.placement.combination].colour for row in rows]
        data.append(
            scatter_trace(
                "measured",
                of=rows,
                x=lambda row: _batch_size(row.placement),
                y=lambda row: row.images_per_s,
                marker={"symbol": "circle-open", "size": 14, "color": shades, "line": {"width": 2}},
                hover=lambda row: Markup("<b>{}</b><br>measured {:.1f}").format(row.placement, row.images_per_s),
            )
        )
    sizes = [_batch_size(one.placement) for one in advice.curves[0].outcomes]
    return chart.xy_chart(
        "throughput",
        "Throughput of accelerator combinations",
        data,
        xaxis=axis("batch size of every instance", type="log", tickvals=sizes, ticktext=[str(s) for s in sizes]),
        yaxis=axis("images per second", rangemode="tozero"),
        caption="Full load. Hollow: measured rows." if advice.measured else "Full load.",
        height_px=480,
    )


def power_latency_chart(advice: PlacementAdvice) -> Chart:
    """Plot power over latency: every combination's fastest point with its place in ``curves``, and the choice."""
    styles = assign_styles(curve.combination for curve in advice.curves)
    plane: dict[str, Any] = {"x": lambda one: 1e3 * one.latency_s, "y": lambda one: one.power_w}
    plane["hover"] = lambda one: _hover_text(one, advice.knows_watts)
    data = [
        line_trace(
            _shorten(curve.combination),
            of=curve.outcomes,
            **plane,
            colour=styles[curve.combination].colour,
            width=1,
            markers=True,
            marker={"size": 3},
            opacity=0.45,
            legend=False,
        )
        for curve in advice.curves
    ]
    fastest, chosen = [curve.best_outcome for curve in advice.curves], advice.chosen
    data += [
        scatter_trace(
            "combinations, by number",
            of=fastest,
            **plane,
            mode="markers+text",
            marker={"color": [styles[curve.combination].colour for curve in advice.curves], "size": 11},
            text=[str(place) for place in range(1, len(fastest) + 1)],
            textposition=_place_numbers(fastest),
            textfont={"size": 13},
        ),
        chart.highlight_trace("chosen", 1e3 * chosen.latency_s, chosen.power_w, "star", hover=plane["hover"](chosen)),
        *_limit_traces(advice),
    ]
    # The chosen placement has its own load, so its latency may lie outside the combinations'.
    latencies_ms = [1e3 * one.latency_s for curve in advice.curves for one in curve.outcomes]
    load, rate_hz = "at full load", advice.plan.goal.rate_hz
    if rate_hz is not None:
        load = f"at {rate_hz:g} images/s, including the time to collect a batch"
    return chart.xy_chart(
        "plane",
        "Power against latency",
        data,
        xaxis=chart.log_axis("latency (ms), logarithmic", *chart.log_range([*latencies_ms, 1e3 * chosen.latency_s])),
        yaxis=axis("power (W)", rangemode="tozero"),
        caption=PLANE_CAPTION.format(load),
        height_px=480,
    )


def _place_numbers(points: Sequence[PlacementOutcome]) -> list[str]:
    """Return the place of each point's number: above it, or below if its nearest neighbour lies above."""
    places = np.array([(np.log10(one.latency_s), one.power_w) for one in points])
    scaled = (places - places.min(axis=0)) / np.maximum(np.ptp(places, axis=0), 1e-9)
    apart = np.linalg.norm(scaled[:, None] - scaled[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1)
    return [
        "bottom center" if len(points) > 1 and places[near, 1] > place[1] else "top center"
        for place, near in zip(places, nearest, strict=True)
    ]


def _limit_traces(advice: PlacementAdvice) -> Iterator[Trace]:
    goal, outcomes = advice.plan.goal, [one for curve in advice.curves for one in curve.outcomes]
    style: dict[str, Any] = {"colour": GREY, "width": 1.5, "dash": "dash", "markers": False}
    if goal.max_power_w is not None:
        latencies_ms = [1e3 * one.latency_s for one in outcomes]
        ends_ms = [min(latencies_ms) / 2, 2 * max(latencies_ms)]
        yield line_trace("power limit", ends_ms, [goal.max_power_w] * 2, hover="power limit", **style)
    if goal.max_latency_s is not None:
        most_w = max(one.power_w for one in outcomes)
        yield line_trace("latency limit", [1e3 * goal.max_latency_s] * 2, [0.0, most_w], hover="latency limit", **style)


def _fit_chart(advice: PlacementAdvice) -> Chart:
    placements = [row.placement for row in advice.measured]
    measured = [row.images_per_s for row in advice.measured]
    predicted = predict_images_per_s(advice.board_fitted, advice.network, placements).tolist()
    ends = chart.log_range([*measured, *predicted])
    texts = [
        Markup("<b>{}</b><br>measured {:.1f}, predicted {:.1f} images/s").format(placement, a, b)
        for placement, a, b in zip(placements, measured, predicted, strict=True)
    ]
    rows = scatter_trace("rows", measured, predicted, marker={"color": COLOURS[0], "size": 9}, hover=texts)
    return chart.xy_chart(
        "fit",
        "Measured and predicted",
        [chart.diagonal_trace(*ends), rows],
        xaxis=chart.log_axis("measured images/s", *ends),
        yaxis=chart.log_axis("predicted images/s", *ends),
        caption="On the line, prediction and measurement agree.",
        height_px=420,
    )


def _hover_text(one: PlacementOutcome, knows_watts: bool) -> str:
    watts = (f"{one.power_w:.1f} W, {one.joules_per_image:.3f} J per image",) if knows_watts else ()
    head, latency = Markup("<b>{}</b>").format(one.placement), f"latency {1e3 * one.latency_s:.1f} ms"
    return Markup("<br>").join((head, f"{one.images_per_s:.1f} images/s", *watts, latency))


def _batch_size(placement: Placement) -> int:
    return placement.instances[0].batch_size


def write_placement_page(advice: PlacementAdvice, out: Path) -> None:
    """Write the page atomically."""
    title, plan, chosen = f"{advice.network.name} on {advice.board.name}", advice.plan, advice.chosen
    (at, latency_of), watts = _describe_load(advice), advice.knows_watts
    write_page(
        out,
        f"Placement: {title}",
        _build_sections(advice),
        f"Accelerators: {advice.board.source}.",
        heading=title,
        facts=(
            _describe_goal(advice),
            f"{plan.considered:,} placements, {plan.computed:,} of them computed, {advice.planning_s:.2f} s",
        ),
        lead=render_paragraph(Markup("{} {}").format(render_badge(advice.label), chosen.placement)),
        cards=(
            Card(
                "Throughput", number(chosen.images_per_s, 4, "images/s"), f"{len(chosen.placement.instances)} instances"
            ),
            Card("Latency", number(1e3 * chosen.latency_s, 4, "ms"), latency_of),
            Card("Power", number(chosen.power_w, 3, "W") if watts else UNKNOWN, at if watts else "not measured"),
            Card("Per image", number(chosen.joules_per_image, 3, "J") if watts else UNKNOWN, at if watts else ""),
        ),
        notes=_describe_fit_and_notes(advice),
    )


def _build_sections(advice: PlacementAdvice) -> Iterator[Section]:
    lead = "Full load: every instance always has a batch ready. Slowdown: effect of the other instances."
    yield Section("Chosen placement", lead, html=_instances_table(advice).html)
    curves = "One instance on each accelerator of a combination, all with the same batch size."
    yield Section("Throughput against batch size", curves, (_throughput_chart(advice),), _winners_table(advice).html)
    if advice.knows_watts:
        plane = "Each combination at its batch size of highest throughput, at full load, and the chosen placement."
        yield Section("Power and latency", plane, (power_latency_chart(advice),), plane_table(advice).html)
    origin = "Values before the fit; the fit changed those that the measured rows cover."
    if advice.fitted is not None:
        yield Section("Measured and predicted", "All measured rows.", (_fit_chart(advice),))
    else:
        origin = (
            "No measurements: fedge place-run measures the board, and --measurements fits the model to the results."
        )
    if advice.board.figures:
        figures = build_table(
            "figures",
            (
                ("what", lambda one: text_cell(one[0])),
                ("value", lambda one: value_cell(one[1].value, "g")),
                ("label", lambda one: Cell(render_badge(one[1].label))),
                ("source", lambda one: text_cell(one[1].source)),
            ),
            advice.board.figures,
        )
        yield Section("Sources", origin, html=figures.html)


def _winners_table(advice: PlacementAdvice) -> Table:
    styles = assign_styles(curve.combination for curve in advice.curves)
    single = [curve for curve in advice.curves if len(curve.best_outcome.placement.instances) == 1]
    rows: list[tuple[Cell, ...]] = []
    for i, one in enumerate(advice.curves[0].outcomes):
        best = max(advice.curves, key=lambda curve: curve.outcomes[i].images_per_s)
        outcome = best.outcomes[i]
        gain = outcome.images_per_s / max(curve.outcomes[i].images_per_s for curve in single) - 1
        rows.append((
            value_cell(_batch_size(one.placement)),
            swatch_cell(styles[best.combination].colour, _shorten(best.combination)),
            _figure_cell(outcome.images_per_s),
            number_cell(f"{100 * gain:+.0f} %".replace("-", "−"), 100 * gain, "%"),
            *_origin_cells(outcome, advice),
        ))  # fmt: skip
    heads = ("batch", "highest throughput", "images/s", "over the best alone", "W", "label")
    return Table("winners", heads, tuple(rows))


def plane_table(advice: PlacementAdvice) -> Table:
    """Build a table of the numbered points of the chart of power and latency."""
    styles = assign_styles(curve.combination for curve in advice.curves)
    rows = []
    for place, curve in enumerate(advice.curves, start=1):
        one, combination = curve.best_outcome, curve.combination
        watts, label = _origin_cells(one, advice)
        rows.append((
            value_cell(place),
            swatch_cell(styles[combination].colour, _shorten(combination)),
            number_cell(str(_batch_size(one.placement))),
            _figure_cell(1e3 * one.latency_s, "ms"),
            watts,
            _figure_cell(one.images_per_s),
            label,
        ))  # fmt: skip
    return Table("plane", ("number", "combination", "batch", "latency, ms", "W", "images/s", "label"), tuple(rows))


def _origin_cells(one: PlacementOutcome, advice: PlacementAdvice) -> tuple[Cell, Cell]:
    watts = value_cell(one.power_w if advice.knows_watts else None, number, "W")
    return watts, Cell(render_badge(advice.find_label(one)))
