"""A placement for the terminal and as an HTML page: the choice, combinations, power over latency, the fit, sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from experiments.report.chart import (
    Chart,
    Trace,
    axis,
    highlight_trace,
    line_trace,
    log_ticks,
    scatter_trace,
    xy_chart,
)
from experiments.report.page import Card, Section, render_badge, render_paragraph, write_page
from experiments.report.palette import COLOURS, GREY, assign_colours, assign_dashes, assign_symbols
from experiments.report.quantities import UNKNOWN, number
from experiments.report.tables import (
    Cell,
    Column,
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
from fedge.analysis.placement.placement_outcome import InstanceOutcome, PlacementOutcome

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.analysis.placement.accelerator_fit import FittedBoard
    from fedge.analysis.placement.placement_advice import PlacementAdvice
    from fedge.types import LabelledValue


AIM_WORDS = {"throughput": "most images per second", "latency": "least latency", "energy": "least joules per image"}


def print_placement_advice(console: Console, advice: PlacementAdvice) -> None:
    """Print the whole plan."""
    print_lines(console, _describe_choice(advice))
    instances_table(advice).print(console)
    combinations_table(advice).print(console)
    print_lines(console, _describe_sources(advice))


def _describe_choice(advice: PlacementAdvice) -> Iterator[str]:
    goal, chosen = advice.plan.goal, advice.chosen
    yield (
        f"{advice.network.name} on {advice.board.name}: {AIM_WORDS[goal.objective]}{describe_limits(advice)} "
        f"({advice.label})"
    )
    yield f"Place    {chosen.placement}"
    at, latency_of = describe_load(advice)
    yield f"Rate     {number(chosen.images_per_s, 4)} images/s"
    yield f"Latency  {number(1e3 * chosen.latency_s, 4)} ms ({latency_of})"
    if advice.knows_watts:
        yield f"Power    {number(chosen.power_w, 3)} W {at}, {number(chosen.joules_per_image, 3)} J per image"


def describe_load(advice: PlacementAdvice) -> tuple[str, str]:
    """Return what power and energy refer to (the load), and what the latency covers."""
    rate_hz = advice.plan.goal.rate_hz
    if rate_hz is None:
        return "at full load", "inference of a full batch"
    return f"at {rate_hz:g} images/s", "collecting and inferring a batch"


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


def instances_table(advice: PlacementAdvice) -> Table:
    """Build a table of the chosen instances and how much they slow each other down."""
    columns: tuple[Column[InstanceOutcome], ...] = (
        ("accelerator", lambda one: text_cell(one.instance.accelerator)),
        ("batch", lambda one: value_cell(one.instance.batch_size)),
        ("precision", lambda one: text_cell(one.instance.precision)),
        ("images/s", lambda one: number_cell(number(one.images_per_s, 4), one.images_per_s)),
        ("alone, ms", lambda one: number_cell(number(1e3 * one.alone_s, 4), 1e3 * one.alone_s, "ms")),
        ("batch, ms", lambda one: number_cell(number(1e3 * one.batch_s, 4), 1e3 * one.batch_s, "ms")),
        ("slowdown", lambda one: number_cell(f"{one.batch_s / one.alone_s:.2f} ×", one.batch_s / one.alone_s)),
    )
    return build_table("instances", columns, advice.chosen.instances, "Concurrent instances")


def combinations_table(advice: PlacementAdvice) -> Table:
    """Build a table of every combination's images per second by batch size, the best of each size highlighted."""
    sizes = [one.placement.instances[0].batch_size for one in advice.curves[0].outcomes]
    best = [max(curve.outcomes[i].images_per_s for curve in advice.curves) for i in range(len(sizes))]
    rows = tuple(
        (
            text_cell(shorten_combination(curve.combination)),
            *(
                Cell(number(one.images_per_s, 4), numeric=True, best=one.images_per_s >= most, value=one.images_per_s)
                for one, most in zip(curve.outcomes, best, strict=True)
            ),
        )
        for curve in advice.curves
    )
    title = "Images/s at full load, one instance on each, by batch size"
    return Table("combinations", ("combination", *map(str, sizes)), rows, title)


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
    left = "" if fitted.left_out_error is None else f", {fitted.left_out_error:.1f} % on held-out rows"
    power = "" if fitted.power_error is None else f"; watts {fitted.power_error:.1f} %"
    doubtful = f" Rows with a low weight: {', '.join(map(str, fitted.doubtful))}." if fitted.doubtful else ""
    return f"Fitted to {fitted.rows} measured rows: mean error {fitted.error:.1f} %{left}{power}.{doubtful}"


def throughput_chart(advice: PlacementAdvice) -> Chart:
    """Plot images per second over the batch size, one line per combination; measured rows are hollow marks."""
    names = [curve.combination for curve in advice.curves]
    colour, symbol, dash = assign_colours(names), assign_symbols(names), assign_dashes(names)
    data: list[Trace] = [
        line_trace(
            shorten_combination(curve.combination),
            [_batch_size(one.placement) for one in curve.outcomes],
            [one.images_per_s for one in curve.outcomes],
            colour=colour[curve.combination],
            dash=dash[curve.combination],
            markers=True,
            marker={"symbol": symbol[curve.combination], "size": 8},
            hover=[_hover_text(one, advice.knows_watts) for one in curve.outcomes],
        )
        for curve in advice.curves
    ]
    data += _measured_traces(advice, colour)
    sizes = [_batch_size(one.placement) for one in advice.curves[0].outcomes]
    return xy_chart(
        "throughput",
        "Throughput of accelerator combinations",
        data,
        xaxis=axis("batch size of every instance", type="log", tickvals=sizes, ticktext=[str(s) for s in sizes]),
        yaxis=axis("images per second", rangemode="tozero"),
        caption="Full load. Hollow: measured rows." if advice.measured else "Full load.",
        height_px=480,
    )


def power_latency_chart(advice: PlacementAdvice) -> Chart:
    """Plot power over latency: a numbered point per combination, its other batch sizes as a thin line, and the choice.

    The numbers are the places of the combinations in ``advice.curves``; a table lists them.
    """
    colour = assign_colours([curve.combination for curve in advice.curves])
    data = [
        line_trace(
            shorten_combination(curve.combination),
            [1e3 * one.latency_s for one in curve.outcomes],
            [one.power_w for one in curve.outcomes],
            colour=colour[curve.combination],
            width=1,
            markers=True,
            marker={"size": 3},
            opacity=0.45,
            legend=False,
            hover=[_hover_text(one, advice.knows_watts) for one in curve.outcomes],
        )
        for curve in advice.curves
    ]
    data += [_numbered_trace(advice, colour), _chosen_trace(advice), *_limit_traces(advice)]
    # The chosen placement has its own load, so its latency may lie outside the combinations'.
    latencies_ms = [1e3 * one.latency_s for curve in advice.curves for one in curve.outcomes]
    low, high = _log_range([*latencies_ms, 1e3 * advice.chosen.latency_s])
    rate_hz = advice.plan.goal.rate_hz
    at = "at full load" if rate_hz is None else f"at {rate_hz:g} images/s, including the time to collect a batch"
    caption = (
        "Numbers: the table below, each combination at its batch size of highest throughput; thin lines: its other "
        f"batch sizes. Star: the chosen placement, {at}."
    )
    return xy_chart(
        "plane",
        "Power against latency",
        data,
        xaxis=axis("latency (ms), logarithmic", type="log", range=[low, high], **log_ticks(low, high)),
        yaxis=axis("power (W)", rangemode="tozero"),
        caption=caption,
        height_px=480,
    )


def _numbered_trace(advice: PlacementAdvice, colour: dict[str, str]) -> Trace:
    """Return each combination's fastest point with its number."""
    fastest = [curve.best_outcome for curve in advice.curves]
    return scatter_trace(
        "combinations, by number",
        [1e3 * one.latency_s for one in fastest],
        [one.power_w for one in fastest],
        mode="markers+text",
        marker={"color": [colour[curve.combination] for curve in advice.curves], "size": 11},
        text=[str(place) for place in range(1, len(fastest) + 1)],
        textposition=_place_numbers(fastest),
        textfont={"size": 13},
        hover=[_hover_text(one, advice.knows_watts) for one in fastest],
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


def _chosen_trace(advice: PlacementAdvice) -> Trace:
    chosen = advice.chosen
    hover = _hover_text(chosen, advice.knows_watts)
    return highlight_trace("chosen", 1e3 * chosen.latency_s, chosen.power_w, "star", hover=hover)


def placement_fit_chart(advice: PlacementAdvice) -> Chart:
    """Plot predicted over measured images per second for every measured row."""
    measured = [row.images_per_s for row in advice.measured]
    predicted = predict_images_per_s(
        advice.board_fitted, advice.network, [row.placement for row in advice.measured]
    ).tolist()
    low, high = _log_range([*measured, *predicted])
    ends = [10**low, 10**high]
    texts = [
        f"<b>{escape(str(row.placement))}</b><br>measured {a:.1f}, predicted {b:.1f} images/s"
        for row, a, b in zip(advice.measured, measured, predicted, strict=True)
    ]
    data = [
        line_trace("equal", ends, ends, colour=GREY, width=1, markers=False),
        scatter_trace("rows", measured, predicted, marker={"color": COLOURS[0], "size": 9}, hover=texts),
    ]
    return xy_chart(
        "fit",
        "Measured and predicted",
        data,
        xaxis=axis("measured images/s", type="log", range=[low, high], **log_ticks(low, high)),
        yaxis=axis("predicted images/s", type="log", range=[low, high], **log_ticks(low, high)),
        caption="On the line, prediction and measurement agree.",
        height_px=420,
    )


def _measured_traces(advice: PlacementAdvice, colour: dict[str, str]) -> list[Trace]:
    """Return the measured rows that belong to one of the lines."""
    lines = {(curve.combination, str(one.placement)) for curve in advice.curves for one in curve.outcomes}
    rows = [row for row in advice.measured if (row.placement.combination, str(row.placement)) in lines]
    if not rows:
        return []
    shades = [colour[row.placement.combination] for row in rows]
    return [
        scatter_trace(
            "measured",
            [_batch_size(row.placement) for row in rows],
            [row.images_per_s for row in rows],
            marker={"symbol": "circle-open", "size": 14, "color": shades, "line": {"width": 2}},
            hover=[f"<b>{escape(str(row.placement))}</b><br>measured {row.images_per_s:.1f}" for row in rows],
        )
    ]


def _limit_traces(advice: PlacementAdvice) -> list[Trace]:
    """Return the goal's limits as lines."""
    goal, latencies = advice.plan.goal, [1e3 * one.latency_s for curve in advice.curves for one in curve.outcomes]
    lines: list[Trace] = []
    if goal.max_power_w is not None:
        lines.append(_limit_trace("power limit", [min(latencies) / 2, 2 * max(latencies)], [goal.max_power_w] * 2))
    if goal.max_latency_s is not None:
        most_w = max(one.power_w for curve in advice.curves for one in curve.outcomes)
        lines.append(_limit_trace("latency limit", [1e3 * goal.max_latency_s] * 2, [0.0, most_w]))
    return lines


def _limit_trace(name: str, x: list[float], y: list[float]) -> Trace:
    return line_trace(name, x, y, colour=GREY, width=1.5, dash="dash", markers=False, hover=name)


def _hover_text(one: PlacementOutcome, knows_watts: bool) -> str:
    watts = f"{one.power_w:.1f} W, {one.joules_per_image:.3f} J per image<br>" if knows_watts else ""
    return (
        f"<b>{escape(str(one.placement))}</b><br>{one.images_per_s:.1f} images/s<br>{watts}"
        f"latency {1e3 * one.latency_s:.1f} ms"
    )


def _batch_size(placement: Placement) -> int:
    return placement.instances[0].batch_size


def _log_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of a logarithmic axis (powers of ten), slightly wider than the values."""
    return float(np.log10(min(values))) - 0.08, float(np.log10(max(values))) + 0.08


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
    curves = "One instance on each accelerator of a combination, all with the same batch size."
    sections = [
        Section("Chosen placement", lead, html=instances_table(advice).html),
        Section("Throughput against batch size", curves, (throughput_chart(advice),), _winners_table(advice).html),
    ]
    if advice.knows_watts:
        plane = "Each combination at its batch size of highest throughput, at full load, and the chosen placement."
        sections.append(Section("Power and latency", plane, (power_latency_chart(advice),), plane_table(advice).html))
    if advice.fitted is not None:
        sections.append(Section("Measured and predicted", "All measured rows.", (placement_fit_chart(advice),)))
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
    numbered = [(place, one.combination, one.best_outcome) for place, one in enumerate(advice.curves, start=1)]
    columns: tuple[Column[tuple[int, str, PlacementOutcome]], ...] = (
        ("number", lambda one: value_cell(one[0])),
        ("combination", lambda one: swatch_cell(colour[one[1]], shorten_combination(one[1]))),
        ("batch", lambda one: number_cell(str(one[2].placement.instances[0].batch_size))),
        ("latency, ms", lambda one: number_cell(number(1e3 * one[2].latency_s, 4), 1e3 * one[2].latency_s, "ms")),
        ("W", lambda one: _power_cell(one[2].power_w, advice)),
        ("images/s", lambda one: number_cell(number(one[2].images_per_s, 4), one[2].images_per_s)),
        ("label", lambda one: Cell(render_badge(advice.find_label(one[2])))),
    )
    return build_table("plane", columns, numbered)


def _power_cell(power_w: float, advice: PlacementAdvice) -> Cell:
    return number_cell(number(power_w, 3), power_w, "W") if advice.knows_watts else number_cell(UNKNOWN)


def _figures_table(advice: PlacementAdvice) -> Table:
    columns: tuple[Column[tuple[str, LabelledValue]], ...] = (
        ("what", lambda one: text_cell(one[0])),
        ("value", lambda one: value_cell(one[1].value, "g")),
        ("label", lambda one: Cell(render_badge(one[1].label))),
        ("source", lambda one: text_cell(one[1].source)),
    )
    return build_table("figures", columns, advice.board.figures)
