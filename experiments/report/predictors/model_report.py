"""A fitted model for the terminal, and its front as a page: data and prior, a chosen mode beside MAXN, front, knobs."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import COLOURS, GREY, SYMBOLS, Chart, Trace, axis
from experiments.report.page import Card, Section, render_badge, write_page
from experiments.report.quantities import duration, energy, number, percent
from experiments.report.tables import Cell, Table, number_cell, text_cell, value_cell
from fedge.decisions.mode_objectives import compute_step_energy_j
from fedge.knowledge.model_file import ModelInfo
from fedge.knowledge.model_summary import ModelSummary, PhysicalBreakdown
from fedge.knowledge.saved_model import ModeFront, ModePoint, PredictionInterval
from fedge.predictors.explorers.budgeted_explorer import POWER_SETTLE_S, STEPS
from fedge.types import Label, Measurement, PowerMode, Prediction, Predictions

MAX_TABLE_ROWS = 20
"""Rows of a table on the terminal; --json and --out write all."""
KNOB_HEADINGS = ("cores", "CPU MHz", "GPU MHz", "mem. MHz")
MODE_HEADING = "cores/CPU/GPU/mem. MHz"
POINT_QUANTITIES = (("ms", 1e3, "step_s"), ("W", 1.0, "power_w"), ("J", 1.0, "energy_j"))
"""Shown unit, factor to it, and field of a front's point."""


def describe_model(about: ModelInfo) -> str:
    """Describe a model's board, workload and predictor in one line."""
    return f"{about.device}, {about.workload}, batch size {about.batch_size}, predicted by {about.method}"


def measured_table(facts: ModelSummary) -> Table:
    """Build a table of measured and predicted values; of many measurements, those with the largest errors."""
    title, count = describe_origin(facts.about.origin.label), len(facts.measurements)
    pairs = list(zip(facts.measurements, facts.predicted, strict=True))
    if count > MAX_TABLE_ROWS:
        title += f". The {MAX_TABLE_ROWS} of {count} with the largest errors; --json has all."
        pairs = heapq.nlargest(MAX_TABLE_ROWS, pairs, key=lambda pair: _compute_log_error(*pair))
    rows = tuple(
        (
            text_cell("/".join(format_knobs(measured.mode))),
            *_error_cells(1e3 * measured.step_s, 1e3 * predicted.step_s, "ms"),
            *_error_cells(measured.power_w, predicted.power_w, "W"),
        )
        for measured, predicted in pairs
    )
    heads = (MODE_HEADING, "ms", "predicted", "error", "W", "predicted", "error")
    return Table("measured", heads, rows, title)


def _compute_log_error(measured: Measurement, predicted: Prediction) -> float:
    ratios = (predicted.step_s / measured.step_s, predicted.power_w / measured.power_w)
    return max(abs(math.log(ratio)) for ratio in ratios)


def describe_origin(label: Label) -> str:
    """Return a word for modes that were profiled: measured, emulated or of unknown origin."""
    return {"measured": "measured", "unknown": "of unknown origin"}.get(label, "emulated")


def _error_cells(value: float, guess: float, unit: str) -> tuple[Cell, ...]:
    return (
        number_cell(number(value), value, unit),
        number_cell(number(guess), guess, unit),
        number_cell(_format_change(guess / value, 1), 100 * (guess / value - 1), "%"),
    )


def meaning_table(meaning: PhysicalBreakdown) -> Table:
    """Build a table of the physical model's time and power terms at MAXN, in ms and W."""
    columns = [
        [(text_cell(name), value_cell(factor * value, number)) for name, value in parts.items()]
        for parts, factor in ((meaning.time_s, 1e3), (meaning.power_w, 1.0))
    ]
    rows = tuple(time + power for time, power in zip_longest(*columns, fillvalue=(Cell(""), number_cell(""))))
    title = "terms of the physical model at MAXN; the times overlap"
    return Table("terms", ("time", "ms", "power", "W"), rows, title)


def choice_table(word: str, chosen: ModePoint, maxn: ModePoint) -> Table:
    """Build a table that compares the chosen mode with MAXN, by knob and by quantity."""
    knobs = zip(KNOB_HEADINGS, format_knobs(chosen.mode), format_knobs(maxn.mode), strict=True)
    rows = [(text_cell(name), number_cell(ours), number_cell(top), number_cell("")) for name, ours, top in knobs]
    for unit, factor, name in POINT_QUANTITIES:
        ours_90, top_90 = getattr(chosen, name), getattr(maxn, name)
        change = ours_90.value / top_90.value
        rows.append((
            text_cell(unit),
            number_cell(format_interval(ours_90, factor), factor * ours_90.value),
            number_cell(format_interval(top_90, factor), factor * top_90.value),
            number_cell(_format_change(change), 100 * (change - 1)),
        ))  # fmt: skip
    return Table("choice", ("quantity", word, "MAXN", "difference"), tuple(rows))


def front_table(front: ModeFront, shown: Sequence[ModePoint]) -> Table:
    """Build a table of front modes with 90 % intervals (ms, W, J) and a remark each."""
    rows = tuple(
        (text_cell("/".join(format_knobs(point.mode))), *_quantity_cells(point), Cell(describe_point(point, front)))
        for point in shown
    )
    return Table("front", (MODE_HEADING, *(unit for unit, *_ in POINT_QUANTITIES), "remark"), rows)


def _quantity_cells(point: ModePoint) -> Iterator[Cell]:
    for unit, factor, name in POINT_QUANTITIES:
        interval = getattr(point, name)
        yield number_cell(format_interval(interval, factor), factor * interval.value, unit)


def thin_front(front: ModeFront, most: int = MAX_TABLE_ROWS) -> list[ModePoint]:
    """Return about ``most`` points of a front, evenly over the ranks, including both ends, the knee and MAXN.

    MAXN is last if it is not on the front.
    """
    points = front.points
    last = len(points) - 1
    even = range(len(points)) if last < most else {round(i * last / (most - 1)) for i in range(most)}
    shown = [point for i, point in enumerate(points) if i in even or point in (front.knee, front.maxn)]
    return shown if front.maxn in shown else [*shown, front.maxn]


def describe_point(point: ModePoint, front: ModeFront) -> str:
    """Return a remark on a point of the front, e.g. that it is the knee; empty for an ordinary one."""
    words = {"MAXN": point == front.maxn, "knee": point == front.knee, "measured": point.measured}
    return ", ".join(word for word, holds in words.items() if holds)


def compare_with_maxn(point: ModePoint, maxn: ModePoint) -> str:
    """Format time, power and energy relative to MAXN, e.g. ``+12 % ms, −38 % W, −30 % J``."""
    return ", ".join(
        f"{_format_change(getattr(point, name).value / getattr(maxn, name).value)} {unit}"
        for unit, _, name in POINT_QUANTITIES
    )


def nvpmodel_lines(values: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of an nvpmodel file for the four knobs, as returned by ``saved_model.to_control_values``."""
    yield f"CPU_ONLINE   cores 0 to {values['cpu_online'] - 1}: 1, all others: 0"
    yield f"CPU MAX_FREQ {values['cpu_max_freq_khz']} (kHz, every cluster)"
    yield f"GPU MAX_FREQ {values['gpu_max_freq_hz']} (Hz)"
    yield f"EMC MAX_FREQ {values['emc_max_freq_hz']} (Hz)"


def describe_facts(facts: ModelSummary) -> Iterator[tuple[str, str]]:
    """Yield the facts on a model, as pairs of label and sentence."""
    about, origin = facts.about, facts.about.origin
    which = f"all {origin.rows:,}" if facts.modes == origin.rows else f"{facts.modes:,} of {origin.rows:,}"
    picked = f", chosen by {origin.explorer}" if origin.explorer else ""
    yield "fitted to", f"{which} modes of {origin.source} ({origin.label}){picked}"
    if origin.sha256:
        yield "", f"sha256 {origin.sha256[:12]}"
    each = f"{STEPS} steps and {POWER_SETTLE_S:g} s of settling per mode"
    yield "profiling", f"{duration(origin.profiling_s)}, {energy(origin.profiling_j)}, estimated: {each}"
    throttled = sum(measurement.throttled for measurement in facts.measurements)
    if throttled:
        yield "throttled", f"{throttled} of the measurements, which have a low weight"
    yield "prior", _describe_prior(about) if facts.meaning else f"none that {about.method} uses"
    for one in facts.references:
        what = f"{one.workload} on {one.device}, batch size {one.batch_size}, {one.rows:,} modes"
        yield "reference", f"{what}, {one.name} ({one.label}), sha256 {one.sha256[:12]}"
    if about.idle is not None:
        yield "idle", f"{number(about.idle.value)} W at MAXN ({about.idle.label})"
    yield "candidates", f"{facts.candidates:,}: {about.candidates}"
    spreads = {"time": facts.time_spread, "power": facts.power_spread}
    words = (f"{name} ±{percent(one.median)} (95th percentile ±{percent(one.p95)})" for name, one in spreads.items())
    yield "spread", f"{', '.join(words)} ({facts.predictions_label})"
    yield "error", _describe_error(about)


def _describe_prior(about: ModelInfo) -> str:
    names = about.prior_tables
    if not names:
        return "none"
    timed = sum(name.endswith(" timed steps") for name in names)
    tables = len(names) - timed
    counted = f"{tables} table{'s' * (tables != 1)} of other workloads (calibrated)"
    besides = f" and the timed steps of {timed} network{'s' * (timed != 1)}" if timed else ""
    return f"from {counted}{besides}: {', '.join(names)}"


def _describe_error(about: ModelInfo) -> str:
    held_out = about.held_out
    if held_out is None:
        return "unknown: every mode was used for the fit"
    truth = {"measured": "", "unknown": ", against a table of unknown origin"}.get(
        about.origin.label, ", against the emulated truth"
    )
    return (
        f"time {percent(held_out.time_mape)}, power {percent(held_out.power_mape)}, mean over the {held_out.modes:,} "
        f"modes not profiled{truth}; 90 % intervals cover {percent(held_out.time_coverage90, 0)} and "
        f"{percent(held_out.power_coverage90, 0)} of them"
    )


def format_knobs(mode: PowerMode) -> tuple[str, ...]:
    """Format the four knobs in the order of ``KNOB_HEADINGS``."""
    return (str(mode.cores), *(f"{clock:g}" for clock in (mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz)))


def format_interval(value: PredictionInterval, factor: float = 1.0) -> str:
    """Format a value with its 90 % interval: ``134 (125–143)``."""
    low, high = number(factor * value.low90), number(factor * value.high90)
    return f"{number(factor * value.value)} ({low}–{high})"


def _format_change(ratio: float, digits: int = 0) -> str:
    percents = round(100 * (ratio - 1), digits) + 0.0  # no minus before a zero
    return f"{percents:+.{digits}f} %".replace("-", "−")


MAX_BACKGROUND_MODES = 1500
"""Default number of candidates drawn behind the front: more make the page slow without showing more."""
BARS = 20
GROUPS = 40
"""Default number of front points with error bars, and of mode groups in the knob chart, so that bars stay apart."""
TAIL_SHARE = 0.03
"""The chart omits the tail of the front with this share of its total saving, because the last watt may take a hundred
times as long. A default; zooming out shows the rest.
"""
LOG_AXIS_RATIO = 6.0
"""From this ratio of slowest to fastest on, the time axis is logarithmic (default)."""
INTERVAL_COLOUR = "rgba(0,114,178,0.35)"
"""Colour of the 90 % intervals: the front's own, faint."""
COST_TITLES = {"power": ("power", "W"), "energy": ("energy", "J")}
"""Title and unit of the front's cost axis, by what the front is against."""
KNOB_TITLES = (("cores", "cores"), ("cpu_mhz", "CPU clock"), ("gpu_mhz", "GPU clock"), ("mem_mhz", "memory clock"))


def front_chart(front: ModeFront, facts: ModelSummary, predictions: Predictions) -> Chart:
    """Plot time over cost: all modes, the front with intervals, the measurements, MAXN and the knee."""
    title, unit = COST_TITLES[front.against]
    near = _cut_tail(front)
    bars = _space_points(near, BARS)
    word = describe_origin(facts.about.origin.label)
    cost = predictions.power_w if unit == "W" else compute_step_energy_j(predictions)
    rows = chart.thin_rows(len(predictions.modes), MAX_BACKGROUND_MODES)
    plane: dict[str, Any] = {
        "x": lambda point: 1e3 * point.step_s.value,
        "y": lambda point: _read_cost(front, point).value,
    }
    data = [
        chart.scatter_trace(
            "other modes",
            (1e3 * predictions.step_s[rows]).tolist(),
            cost[rows].tolist(),
            marker={"color": GREY, "size": 3, "opacity": 0.35},
        ),
        chart.line_trace("front", of=front.points, **plane, colour=COLOURS[0], marker={"size": 6}, hover=_hover_text),
        chart.scatter_trace(
            "90 %",
            of=bars,
            **plane,
            marker={"size": 4, "color": COLOURS[0]},
            error_x=_error_bars([point.step_s for point in bars], 1e3),
            error_y=_error_bars([_read_cost(front, point) for point in bars], 1.0),
        ),
        _measurements_trace(facts, word, unit),
    ]
    for name, point, symbol in (("knee", front.knee, "diamond"), ("MAXN", front.maxn, "star")):
        at_ms, spent = 1e3 * point.step_s.value, _read_cost(front, point).value
        data.append(chart.highlight_trace(name, at_ms, spent, symbol, hover=_hover_text(point)))
    shown = [*near, front.knee, front.maxn]
    low_ms, high_ms = _spread_intervals([point.step_s for point in shown], 1e3)
    caption = (
        f"Bars: 90 % intervals, at most {BARS}. Grey: other modes, at most {MAX_BACKGROUND_MODES:,}. "
        f"Rings: the modes that the model was fitted to, as {word}. Zoom out for slower modes."
    )
    costs = _spread_intervals([_read_cost(front, point) for point in shown], 1.0)
    return chart.xy_chart(
        "front",
        f"Time and {title}",
        data,
        xaxis=_time_axis(low_ms, high_ms),
        yaxis=axis(f"{title}{' per step' * (unit == 'J')} ({unit})", range=[*costs]),
        caption=caption,
        height_px=480,
    )


def _measurements_trace(facts: ModelSummary, word: str, unit: str) -> Trace:
    text = Markup("<b>{}</b><br>{}: {:.4g} ms, {:.3g} W")
    return chart.scatter_trace(
        word,
        of=facts.measurements,
        x=lambda one: 1e3 * one.step_s,
        y=lambda one: one.power_w if unit == "W" else one.step_s * one.power_w,
        marker={"symbol": "circle-open", "size": 9, "color": COLOURS[2], "line": {"width": 2}},
        hover=lambda one: text.format(one.mode, word, 1e3 * one.step_s, one.power_w),
    )


def _read_cost(front: ModeFront, point: ModePoint) -> PredictionInterval:
    return point.power_w if front.against == "power" else point.energy_j


def knobs_chart(front: ModeFront) -> Chart:
    """Plot each knob along the front, as a share of the board's maximum."""
    points = _cut_tail(front)
    groups = _group_points(points)
    times_ms = [1e3 * float(np.median([point.step_s.value for point in group])) for group in groups]
    data = []
    for i, (name, title) in enumerate(KNOB_TITLES):
        top = float(getattr(front.maxn.mode, name))
        values = [float(np.mean([getattr(point.mode, name) for point in group])) for group in groups]
        data.append(
            chart.line_trace(
                title,
                times_ms,
                [100.0 * value / top for value in values],
                colour=COLOURS[i],
                markers=True,
                marker={"symbol": SYMBOLS[i], "size": 6},
                hover=f"{title}: %{{y:.0f}} % of {top:g}",
            )
        )
    return chart.xy_chart(
        "knobs",
        "Knobs along the front",
        data,
        xaxis=_time_axis(980.0 * points[0].step_s.value, 1020.0 * points[-1].step_s.value),
        yaxis=axis("share of the maximum (%)", range=[0, 104]),
        caption="Mean of neighbouring modes. Where a knob hardly matters, its mean varies between neighbours as noise.",
        height_px=330,
    )


def _time_axis(low_ms: float, high_ms: float) -> dict[str, Any]:
    """Return the time axis, logarithmic if it spans more than ``LOG_AXIS_RATIO``."""
    title = "time per step (ms)"
    if high_ms < LOG_AXIS_RATIO * low_ms:
        return axis(title, range=[low_ms, high_ms])
    return chart.log_axis(title, *np.log10([low_ms, high_ms]).tolist())


def _cut_tail(front: ModeFront) -> list[ModePoint]:
    """Return the points from the fastest to the first that costs hardly more than the cheapest."""
    costs = [_read_cost(front, point).value for point in front.points]
    enough = costs[-1] + TAIL_SHARE * (costs[0] - costs[-1])
    return list(front.points[: 1 + next(i for i, cost in enumerate(costs) if cost <= enough)])


def _space_points(points: Sequence[ModePoint], count: int) -> list[ModePoint]:
    """Return at most ``count`` points, evenly spaced in the logarithm of time, both ends included."""
    places = np.log([point.step_s.value for point in points])
    rows = {int(np.abs(places - place).argmin()) for place in np.linspace(places[0], places[-1], count)}
    return [points[row] for row in sorted(rows)]


def _group_points(points: Sequence[ModePoint]) -> list[list[ModePoint]]:
    places = np.log([point.step_s.value for point in points])
    edges = np.linspace(places[0], places[-1], GROUPS + 1)[1:-1]
    which = np.digitize(places, edges)
    return [[points[int(i)] for i in np.flatnonzero(which == group)] for group in np.unique(which)]


def _error_bars(intervals: Sequence[PredictionInterval], factor: float) -> dict[str, Any]:
    upper = [factor * (one.high90 - one.value) for one in intervals]
    return chart.error_bars(upper, [factor * (one.value - one.low90) for one in intervals], colour=INTERVAL_COLOUR)


def _hover_text(point: ModePoint) -> str:
    lines: list[str] = [Markup("<b>{}</b>").format(point.mode)]
    for unit, factor, name in POINT_QUANTITIES:
        one = getattr(point, name)
        lines.append(f"{factor * one.value:.4g} {unit} ({factor * one.low90:.3g} to {factor * one.high90:.3g})")
    return Markup("<br>").join(lines)


def _spread_intervals(intervals: Sequence[PredictionInterval], factor: float) -> tuple[float, float]:
    low, high = min(one.low90 for one in intervals), max(one.high90 for one in intervals)
    return factor * low / 1.06, factor * high * 1.06


MAX_PAGE_ROWS = 60
"""Default number of modes in the page's table; --out writes all."""


def write_front_page(front: ModeFront, facts: ModelSummary, predictions: Predictions, out: Path) -> None:
    """Write the page atomically."""
    about, many = facts.about, len(front.points) > MAX_PAGE_ROWS
    dear = "draws more power" if front.against == "power" else "needs more energy"
    which = f"{len(front.points):,} of {facts.candidates:,} modes"
    lead = f"{which}: a mode that is faster than one of them {dear} (predicted)."
    some = f" {MAX_PAGE_ROWS} modes of the front, evenly spread;" if many else ""
    knobs = "Which knob is lowered first when a step may take longer."
    sources = tuple((text_cell(word), text_cell(sentence)) for word, sentence in describe_facts(facts))
    write_page(
        out,
        f"{about.device}: {about.workload}",
        (
            Section("Pareto front", lead, (front_chart(front, facts, predictions),)),
            Section("Knobs along the front", knobs, (knobs_chart(front),)),
            Section("Modes", f"Per step;{some} brackets: 90 % intervals.", html=_modes_table(front).html),
            Section("Sources", "Provenance of each number.", html=Table("facts", ("what", "source"), sources).html),
        ),
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
    knee, fastest, maxn = front.knee, front.points[0], front.maxn
    held_out = facts.about.held_out
    spread = f"spread ±{percent(facts.time_spread.median)} and ±{percent(facts.power_spread.median)} in the median"
    error = ("unknown", "every measured mode was used for the fit")
    if held_out is not None:
        error = (
            f"{percent(held_out.time_mape)} / {percent(held_out.power_mape)}",
            f"time / power, on {held_out.modes:,} modes not profiled; {spread}",
        )
    energy_j = number(maxn.energy_j.value, 3, "J")
    return [
        Card("MAXN", _format_time_power(maxn), f"{maxn.mode}, {energy_j}"),
        Card("Knee", _format_time_power(knee), f"vs MAXN: {compare_with_maxn(knee, maxn)}"),
        Card("Fastest", _format_time_power(fastest), f"vs MAXN: {compare_with_maxn(fastest, maxn)}"),
        Card("Mean error", *error),
    ]


def _format_time_power(point: ModePoint) -> str:
    return f"{number(1e3 * point.step_s.value, 3, 'ms')}, {number(point.power_w.value, 3, 'W')}"


def _modes_table(front: ModeFront) -> Table:
    rows = tuple(
        (
            Cell(describe_point(point, front)),
            *map(number_cell, format_knobs(point.mode)),
            *_quantity_cells(point),
            number_cell(compare_with_maxn(point, front.maxn)),
        )
        for point in thin_front(front, MAX_PAGE_ROWS)
    )
    units = (unit for unit, *_ in POINT_QUANTITIES)
    return Table("modes", ("remark", *KNOB_HEADINGS, *units, "vs MAXN"), rows)
