"""Terminal view of a fitted model: its data and prior, a chosen mode beside MAXN, the front."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from experiments.report.quantities import duration, energy, number, percent
from experiments.report.tables import Cell, Table, number_cell, text_cell, value_cell
from fedge.knowledge.model_file import ModelInfo
from fedge.knowledge.model_summary import ModelSummary, PhysicalBreakdown, PredictionSpread
from fedge.knowledge.saved_model import ModeFront, ModePoint, PredictionInterval
from fedge.types import Label, PowerMode

MAX_TABLE_ROWS = 20
"""Rows of a table on the terminal; --json and --out write all."""
KNOB_HEADINGS = ("cores", "CPU MHz", "GPU MHz", "mem. MHz")
MODE_HEADING = "cores/CPU/GPU/mem. MHz"


def describe_model(about: ModelInfo) -> str:
    """Describe a model's board, workload and predictor in one line."""
    return f"{about.device}, {about.workload}, batch size {about.batch_size}, predicted by {about.method}"


def facts_to_table(facts: ModelSummary) -> Table:
    """Build a table of the model's training data, prior and uncertainty for a page."""
    rows = tuple((text_cell(word), text_cell(sentence)) for word, sentence in describe_facts(facts))
    return Table("facts", ("what", "source"), rows)


def measured_table(facts: ModelSummary) -> Table:
    """Build a table of measured and predicted values; of many measurements, those with the largest errors."""
    rows = sorted(range(len(facts.measurements)), key=lambda row: -_log_error(facts, row))
    few = len(rows) <= MAX_TABLE_ROWS
    title = describe_origin(facts.about.origin.label)
    if not few:
        title += f". The {MAX_TABLE_ROWS} of {len(rows)} with the largest errors; --json has all."
    lines = []
    for row in range(len(rows)) if few else rows[:MAX_TABLE_ROWS]:
        measured, predicted = facts.measurements[row], facts.predicted[row]
        pairs = ((1e3 * measured.step_s, 1e3 * predicted.step_s, "ms"), (measured.power_w, predicted.power_w, "W"))
        cells = [cell for value, guess, unit in pairs for cell in _error_cells(value, guess, unit)]
        lines.append((text_cell("/".join(format_knobs(measured.mode))), *cells))
    heads = (MODE_HEADING, "ms", "predicted", "error", "W", "predicted", "error")
    return Table("measured", heads, tuple(lines), title)


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
    count = max(len(meaning.time_s), len(meaning.power_w))
    rows = tuple((*_part_cells(meaning.time_s, i, 1e3), *_part_cells(meaning.power_w, i, 1.0)) for i in range(count))
    title = "terms of the physical model at MAXN; the times overlap"
    return Table("terms", ("time", "ms", "power", "W"), rows, title)


def choice_table(word: str, chosen: ModePoint, maxn: ModePoint) -> Table:
    """Build a table that compares the chosen mode with MAXN, by knob and by quantity."""
    knobs = zip(KNOB_HEADINGS, format_knobs(chosen.mode), format_knobs(maxn.mode), strict=True)
    rows = [(text_cell(name), number_cell(ours), number_cell(top), number_cell("")) for name, ours, top in knobs]
    for unit, ours_90, top_90 in _pair_quantities(chosen, maxn):
        factor, change = 1e3 if unit == "ms" else 1.0, ours_90.value / top_90.value
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
        (
            text_cell("/".join(format_knobs(point.mode))),
            *quantity_cells(point),
            Cell(describe_point(point, front)),
        )
        for point in shown
    )
    return Table("front", (MODE_HEADING, "ms", "W", "J", "remark"), rows)


def quantity_cells(point: ModePoint) -> tuple[Cell, Cell, Cell]:
    """Return a point's time, power and energy with 90 % intervals."""
    step_ms, power_w, energy_j = 1e3 * point.step_s.value, point.power_w.value, point.energy_j.value
    return (
        number_cell(format_interval(point.step_s, 1e3), step_ms, "ms"),
        number_cell(format_interval(point.power_w), power_w, "W"),
        number_cell(format_interval(point.energy_j), energy_j, "J"),
    )


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
        f"{_format_change(ours.value / top.value)} {unit}" for unit, ours, top in _pair_quantities(point, maxn)
    )


def _pair_quantities(
    point: ModePoint, other: ModePoint
) -> tuple[tuple[str, PredictionInterval, PredictionInterval], ...]:
    return (
        ("ms", point.step_s, other.step_s),
        ("W", point.power_w, other.power_w),
        ("J", point.energy_j, other.energy_j),
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
    yield "profiling", f"{duration(origin.profiling_s)}, {energy(origin.profiling_j)}"
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
    yield (
        "spread",
        (
            f"time {_describe_spread(facts.time_spread)}, power {_describe_spread(facts.power_spread)} "
            f"({facts.predictions_label})"
        ),
    )
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


def _describe_spread(spread: PredictionSpread) -> str:
    return f"±{percent(spread.median)} (95th percentile ±{percent(spread.p95)})"


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


def _log_error(facts: ModelSummary, row: int) -> float:
    """Return the larger absolute log error of time and power at a measurement."""
    measured, predicted = facts.measurements[row], facts.predicted[row]
    return max(abs(math.log(predicted.step_s / measured.step_s)), abs(math.log(predicted.power_w / measured.power_w)))


def _part_cells(parts: Mapping[str, float], i: int, factor: float) -> tuple[Cell, Cell]:
    if i >= len(parts):
        return Cell(""), number_cell("")
    name, value = list(parts.items())[i]
    return text_cell(name), value_cell(factor * value, number)


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
