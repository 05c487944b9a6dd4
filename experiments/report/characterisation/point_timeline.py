"""Charts of one point over time: its steps (with warm-up and outliers marked) and its sensors.

Of a long series, ``MAX_STEPS`` are drawn: from each stretch those with the extremes of each part, so that no peak is
lost. The axis ends above the steady steps; higher values are drawn at its top, marked and labelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from experiments.report import chart
from experiments.report.characterisation.characterisation_summary import SettingSummary, choose_settings
from experiments.report.characterisation.setting_charts import FETCH, PREPROCESS, TIMELINE_PARTS, select_extremes
from experiments.report.characterisation.setting_families import make_short_names
from experiments.report.chart import ALARM, WAIT, Chart, ChartFrame, Trace, axis
from experiments.report.page import Section, render_paragraph
from experiments.report.quantities import number
from fedge.characterisation.point_measurement import MinibatchTimes, PointMeasurement
from fedge.characterisation.stability import assess_steadiness
from fedge.errors import BadInput
from fedge.types import Floats

MAX_STEPS = 2_000
MAX_TIMELINE_POINTS = 12
"""Points in the menu, each up to 100 kB of the page. Default limits of the page's size, as are the next four."""
MAX_MARKED = 500
"""Maximum number of marked outliers; the caption counts all of them."""
MAX_SENSOR_POINTS, MAX_SAMPLES = 40, 400
AXIS_HEADROOM = 1.25
"""The axis ends at this multiple of the 99.5th percentile of the drawn steps."""
HEIGHT_PX = 460


@dataclass(frozen=True, slots=True)
class SensorStrip:
    """One strip of the sensor chart: a field of ``SensorTrace``, which ``factor`` converts to its unit."""

    field: str
    name: str
    unit: str
    colour: str
    factor: float = 1.0


SENSORS = (
    SensorStrip("cpu_load", "CPU", "% of cores", "#009E73", factor=100.0),
    SensorStrip("gpu_load", "GPU", "%", "#117a8b", factor=100.0),
    SensorStrip("memory_mb", "memory", "MB", "#8C8C1A"),
    SensorStrip("disk_mb_per_s", "disk reads", "MB/s", "#8b4a2b"),
    SensorStrip("power_w", "power", "W", "#D55E00"),
    SensorStrip("temperature_c", "temperature", "°C", "#c2185b"),
)


def build_point_section(
    settings: Sequence[SettingSummary], finished: Mapping[str, PointMeasurement], discard: int
) -> Section:
    """Build the section of step times and sensors over time with a menu of points each, the typical one first.

    The first ``discard`` epochs are shaded because they are not counted. Points whose files cannot be read are listed.
    """
    steps, lost_steps = _collect_frames(
        settings, MAX_TIMELINE_POINTS, lambda label, key: _make_step_frame(label, finished[key], discard)
    )
    sensors, lost_sensors = _collect_frames(
        settings, MAX_SENSOR_POINTS, lambda label, key: _make_sensor_frame(label, finished[key])
    )
    charts: list[Chart] = []
    missing: list[str] = []
    for key, title, frames, none in (
        ("steps", "Step times", steps, "No steps are recorded."),
        ("sensors", "Sensors", sensors, "No point has sensor samples."),
    ):
        omitted = f"The menu has {len(frames)} of {len(settings):,} settings." * (len(frames) < len(settings))
        if frames:
            charts.append(chart.frame_chart(key, title, frames, caption=omitted, height_px=HEIGHT_PX, menu="point"))
        else:
            missing.append(none)
    missing += [f"Not shown: {reason}." for reason in dict.fromkeys([*lost_steps, *lost_sensors])]
    lead = (
        "Time of each step, and the loads, memory, disk, power and temperature. With loader workers, fetching and "
        "preprocessing overlap with training; without workers they are the stall. Grey: discarded epochs and warm-up. "
        "Circled: outliers of the time from end to end; they count in every sum."
    )
    html = Markup().join(render_paragraph(text, "caption") for text in missing)
    return Section("Single points over time", lead, tuple(charts), html, min_width="420px")


def _collect_frames(
    settings: Sequence[SettingSummary], most: int, make: Callable[[str, str], ChartFrame | None]
) -> tuple[list[ChartFrame], list[str]]:
    """Return the frames of chosen settings, and why files could not be read."""
    names = make_short_names(settings)
    frames, lost = [], []
    for one, why in choose_settings(settings, most):
        try:
            frame = make(f"{names[one.key]}{f' ({why})' if why else ''}", one.key)
        except BadInput as error:
            lost.append(str(error))
            continue
        if frame is not None:
            frames.append(frame)
    return frames, lost


@dataclass(frozen=True, slots=True, eq=False)
class _StepSelection:
    """The n steps of a point with masks of shape (n,), the ``rows`` that are drawn, and the axis' upper end."""

    times: MinibatchTimes
    warm_up: NDArray[np.bool_]
    outliers: NDArray[np.bool_]
    rows: NDArray[np.int64]
    top_ms: float

    longest_ms: Floats
    """Longest drawn part of each step, shape (n,)."""

    @property
    def rows_above_axis(self) -> NDArray[np.int64]:
        """The drawn steps with a part that is longer than the axis."""
        return self.rows[self.longest_ms[self.rows] > self.top_ms]


def _select_steps(times: MinibatchTimes) -> _StepSelection:
    warm_up, outliers = np.zeros(len(times), np.bool_), np.zeros(len(times), np.bool_)
    for epoch in np.unique(times.epoch):
        own = np.flatnonzero(times.epoch == epoch)
        steadiness = assess_steadiness(times.step_s[own])
        warm_up[own[: steadiness.warm_up]] = True
        outliers[own] = steadiness.outliers
    rows = select_extremes([getattr(times, part.field) for part in TIMELINE_PARTS], MAX_STEPS)
    longest_ms: Floats = 1e3 * np.maximum.reduce([getattr(times, part.field) for part in TIMELINE_PARTS])
    drawn_ms = longest_ms[rows]
    steady_ms = drawn_ms[~warm_up[rows]]
    top_ms = AXIS_HEADROOM * float(np.quantile(steady_ms if len(steady_ms) else drawn_ms, 0.995))
    return _StepSelection(times, warm_up, outliers, rows, top_ms=top_ms or 1.0, longest_ms=longest_ms)


def _make_step_frame(label: str, finished: PointMeasurement, discard: int) -> ChartFrame | None:
    times = finished.read_minibatches()
    if not len(times):
        return None
    steps = _select_steps(times)
    rows, outliers, cut = steps.rows, np.flatnonzero(steps.outliers)[:MAX_MARKED], steps.rows_above_axis
    parts_ms = {part.name: 1e3 * getattr(times, part.field) for part in TIMELINE_PARTS}
    data = [
        chart.line_trace(
            part.name,
            times.start_s[rows].tolist(),
            np.minimum(parts_ms[part.name][rows], steps.top_ms).tolist(),
            colour=part.colour,
            width=1.1 if part in {FETCH, PREPROCESS} else 2.2,
            markers=False,
            hover=Markup("{} %{{y:.4g}} ms<br>epoch %{{customdata[0]}}, step %{{customdata[1]}}").format(part.name),
            customdata=[[int(times.epoch[row]), int(times.step[row])] for row in rows],
            meta=finished.point.key,
        )
        for part in TIMELINE_PARTS
    ]
    data.append(
        chart.scatter_trace(
            "outlier",
            times.start_s[outliers].tolist(),
            np.minimum(steps.longest_ms[outliers], steps.top_ms).tolist(),
            marker={"symbol": "circle-open", "size": 11, "color": ALARM, "line": {"width": 1.6}},
            hover=[
                Markup("outlier: {} ms from end to end<br>epoch {}, step {}").format(
                    number(1e3 * float(times.step_s[row]), 4), int(times.epoch[row]), int(times.step[row])
                )
                for row in outliers
            ],
            cliponaxis=False,
        )
    )
    if len(cut):
        data.append(_make_cut_trace(steps, parts_ms))
    layout = chart.xy_layout(
        axis("time since the point began (s)"),
        axis("milliseconds", range=[0, steps.top_ms]),
        shapes=_make_shades(steps, finished, discard),
    )
    return ChartFrame(label, data, layout, _describe_steps(steps))


def _make_cut_trace(steps: _StepSelection, parts_ms: Mapping[str, Floats]) -> Trace:
    rows, top_ms = steps.rows_above_axis, steps.top_ms
    hover = [
        Markup("<br>").join(
            f"{part} {number(float(ms[row]), 4)} ms" for part, ms in parts_ms.items() if ms[row] > top_ms
        )
        for row in rows
    ]
    marker = {"symbol": "triangle-up", "size": 9, "color": ALARM}
    x, y = steps.times.start_s[rows].tolist(), [top_ms] * len(rows)
    return chart.scatter_trace("higher than the axis", x, y, marker=marker, hover=hover, cliponaxis=False)


def _make_shades(steps: _StepSelection, finished: PointMeasurement, discard: int) -> list[dict[str, Any]]:
    """Shade epochs that are not counted as a whole, and the warm-up of the others."""
    times = steps.times
    counted = {one.epoch for one in finished.epochs[discard:] or finished.epochs}
    shades = []
    for epoch in np.unique(times.epoch):
        rows = np.flatnonzero((times.epoch == epoch) & (steps.warm_up | (int(epoch) not in counted)))
        if len(rows):
            ends = {"x0": float(times.start_s[rows[0]]), "x1": float(times.start_s[rows[-1]] + times.step_s[rows[-1]])}
            box = {"type": "rect", "xref": "x", "yref": "paper", **ends, "y0": 0, "y1": 1}
            shades.append({**box, "fillcolor": WAIT, "line": {"width": 0}, "layer": "below"})
    return shades


def _describe_steps(steps: _StepSelection) -> str:
    count, drawn, outliers = len(steps.times), len(steps.rows), int(steps.outliers.sum())
    omitted = f", {drawn:,} shown with all extremes" if drawn < count else ""
    marked = f", the first {MAX_MARKED} marked" if outliers > MAX_MARKED else ""
    high = len(steps.rows_above_axis)
    above = f"; {high} above the axis" if high else ""
    return f"{count:,} steps{omitted}; {outliers:,} outlier{'s' * (outliers != 1)}{marked}{above}"


def _make_sensor_frame(label: str, finished: PointMeasurement) -> ChartFrame | None:
    """Draw a point's sensors as strips; None if it has no samples of any sensor."""
    samples = finished.read_sensor_trace()
    present = [one for one in SENSORS if np.isfinite(getattr(samples, one.field)).any()]
    if not present:
        return None
    rows = select_extremes([getattr(samples, one.field) for one in present], MAX_SAMPLES)
    data = []
    for place, one in enumerate(present, 1):
        values = one.factor * getattr(samples, one.field)[rows]
        trace = chart.line_trace(
            one.name,
            samples.at_s[rows].tolist(),
            [float(value) if np.isfinite(value) else None for value in values],
            colour=one.colour,
            width=1.6,
            markers=False,
            hover=f"{one.name} %{{y:.4g}} {one.unit} at %{{x:.4g}} s",
            yaxis=f"y{place}" if place > 1 else "y",
            meta=finished.point.key,
        )
        data.append(trace)
    absent = [one.name for one in SENSORS if one not in present]
    remark = f"No sensor: {', '.join(absent)}." if absent else "All sensors."
    if len(rows) < len(samples.at_s):
        remark += f" {len(rows)} of {len(samples.at_s):,} samples shown, with all extremes."
    return ChartFrame(label, data, _make_sensor_layout(present, samples.at_s), remark)


def _make_sensor_layout(sensors: Sequence[SensorStrip], at_s: Floats) -> dict[str, Any]:
    """Stack the strips over one time axis, the first at the top."""
    height = 1.0 / len(sensors)
    end_s = float(at_s[-1]) if len(at_s) else 1.0
    layout: dict[str, Any] = {"showlegend": False, "hovermode": "closest", "annotations": []}
    line = {"showline": True, "linecolor": "#8c959f", "gridcolor": "rgba(128,138,150,0.22)", "zeroline": False}
    for place, one in enumerate(sensors):
        top = 1.0 - place * height
        floor = {} if one.field == "temperature_c" else {"rangemode": "tozero"}
        strip = {"domain": [top - 0.72 * height, top - 0.02 * height], "anchor": "x", "nticks": 3, "automargin": True}
        layout[f"yaxis{place + 1 if place else ''}"] = {
            **axis(one.unit, **line, **strip, tickfont={"size": 11}, **floor),
            "title": {"text": one.unit, "font": {"size": 11}},
        }
        corner = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top, "yanchor": "bottom"}
        layout["annotations"].append({"text": f"<b>{one.name}</b>", **corner, "showarrow": False, "font": {"size": 12}})
    last = f"y{len(sensors)}" if len(sensors) > 1 else "y"
    return {**layout, "xaxis": axis("time since the point began (s)", anchor=last, range=[0, end_s])}
