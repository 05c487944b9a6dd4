"""Charts of one point over time: its minibatches (with warm-up and outliers marked) and its sensors.

Of a long series, ``MAX_MINIBATCHES`` are drawn: from each stretch those with the extremes of each part, so that no peak
is lost. The axis ends above the steady minibatches; higher values are drawn at its top, marked and labelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.report.characterisation.chart_elements import (
    FETCH,
    PREPROCESS,
    TIMELINE_PARTS,
    EpochPart,
    select_extremes,
)
from experiments.report.characterisation.setting_families import make_short_names
from experiments.report.characterisation.setting_summary import SettingSummary, choose_settings
from experiments.report.chart import LEGEND, Chart, ChartFrame, Section, Trace, axis
from experiments.report.palette import ALARM, WAIT
from fedge.characterisation.point_measurement import MinibatchTimes, SensorTrace
from fedge.characterisation.steadiness import assess_steadiness
from fedge.characterisation.sweep_store import FinishedPoint
from fedge.errors import BadInput
from fedge.types import Floats

MAX_MINIBATCHES = 2_000
MAX_TIMELINE_POINTS = 12
"""Points in the menu, each up to 100 kB of the page. Default limits of the page's size, as are the next two."""
MAX_MARKED = 500
"""Maximum number of marked outliers; the caption counts all of them."""
AXIS_HEADROOM = 1.25
"""The axis ends at this multiple of the 99.5th percentile of the drawn minibatches."""


@dataclass(frozen=True, slots=True, eq=False)
class _MarkedMinibatches:
    """All minibatches with masks of warm-up and outliers; Boolean arrays of shape (n,)."""

    every: MinibatchTimes
    starts: NDArray[np.bool_]
    outliers: NDArray[np.bool_]


def build_timeline_section(
    settings: Sequence[SettingSummary], finished: Mapping[str, FinishedPoint], discard: int
) -> Section:
    """Build the section of minibatch times with a menu of points, the typical one first.

    Args:
        settings: The settings to choose from.
        finished: Finished points by key.
        discard: Number of first epochs that are shaded because they are not counted.

    Returns:
        The section, which lists points whose files cannot be read.
    """
    title = "Minibatch by minibatch"
    frames: list[ChartFrame | None] = []
    lost: list[str] = []
    picked, names = choose_settings(settings, MAX_TIMELINE_POINTS), make_short_names(settings)
    for one, why in picked:
        try:
            frames.append(
                _build_timeline_frame(f"{names[one.key]}{f' ({why})' if why else ''}", finished[one.key], discard)
            )
        except BadInput as error:
            lost.append(str(error))
    said = "".join(f'<p class="caption">Not drawn: {escape(one)}.</p>' for one in lost)
    drawn = tuple(one for one in frames if one is not None)
    if not drawn:
        return Section(title, "No minibatch is recorded.", (), said)
    left = f" The menu has {len(picked)} of {len(settings):,} settings." if len(picked) < len(settings) else ""
    lead = (
        "What each minibatch took. Fetching and preprocessing overlap with training where workers load; without "
        "workers they are the stall. Grey: epochs that do not count, and warm-up. Circled: outliers, by the time from "
        f"end to end; they are in every sum.{left}"
    )
    chart = Chart(
        "minibatches",
        title="Time of each minibatch",
        caption="",
        data=[],
        layout={},
        height_px=380,
        frames=drawn,
        menu="point",
    )
    return Section(title, lead, (chart,), said)


def _build_timeline_frame(label: str, finished: FinishedPoint, discard: int) -> ChartFrame | None:
    every = finished.read_minibatches()
    if not len(every):
        return None
    judged = _mark_minibatches(every)
    rows = select_extremes([getattr(every, part.field) for part in TIMELINE_PARTS], MAX_MINIBATCHES)
    top_ms = _axis_end_ms(every, judged, rows)
    data = [
        _make_part_trace(part, every=every, rows=rows, top_ms=top_ms, key=finished.point.key) for part in TIMELINE_PARTS
    ]
    data += [_make_outlier_trace(judged, top_ms), *_make_cut_traces(every, rows, top_ms)]
    layout = {
        "xaxis": axis("time since the point began (s)"),
        "yaxis": axis("milliseconds", range=[0, top_ms]),
        "shapes": _make_shades(judged, finished, discard),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return ChartFrame(label, data, layout, _describe_timeline(judged, rows, every, top_ms))


def _mark_minibatches(every: MinibatchTimes) -> _MarkedMinibatches:
    starts, outliers = np.zeros(len(every), np.bool_), np.zeros(len(every), np.bool_)
    for epoch in np.unique(every.epoch):
        rows = np.flatnonzero(every.epoch == epoch)
        found = assess_steadiness(every.step_s[rows])
        starts[rows[: found.warm_up]] = True
        outliers[rows] = found.outliers
    return _MarkedMinibatches(every, starts, outliers)


def _axis_end_ms(every: MinibatchTimes, judged: _MarkedMinibatches, rows: NDArray[np.int64]) -> float:
    """Return the upper end of the axis: above nearly all drawn minibatches after warm-up."""
    drawn = np.maximum.reduce([getattr(every, part.field)[rows] for part in TIMELINE_PARTS])
    steady = drawn[~judged.starts[rows]]
    return 1e3 * AXIS_HEADROOM * float(np.quantile(steady if len(steady) else drawn, 0.995)) or 1.0


def _make_part_trace(part: EpochPart, every: MinibatchTimes, rows: NDArray[np.int64], top_ms: float, key: str) -> Trace:
    values = 1e3 * getattr(every, part.field)[rows]
    width = 1.1 if part in {FETCH, PREPROCESS} else 2.2
    return {
        "type": "scatter", "mode": "lines", "name": part.name, "x": every.start_s[rows].tolist(),
        "y": np.minimum(values, top_ms).tolist(), "line": {"color": part.colour, "width": width},
        "customdata": _list_steps(every, rows), "meta": key,
        "hovertemplate": f"{part.name} %{{y:.4g}} ms<br>epoch %{{customdata[0]}}, minibatch %{{customdata[1]}}"
                         "<extra></extra>",
    }  # fmt: skip


def _list_steps(every: MinibatchTimes, rows: NDArray[np.int64]) -> list[list[int]]:
    return [[int(every.epoch[row]), int(every.step[row])] for row in rows]


def _longest_part_ms(every: MinibatchTimes) -> Floats:
    """Return the longest drawn part of each minibatch in milliseconds."""
    longest: Floats = 1e3 * np.maximum.reduce([getattr(every, part.field) for part in TIMELINE_PARTS])
    return longest


def _make_outlier_trace(judged: _MarkedMinibatches, top_ms: float) -> Trace:
    rows = np.flatnonzero(judged.outliers)[:MAX_MARKED]
    every = judged.every
    return {
        "type": "scatter", "mode": "markers", "name": "outlier", "x": every.start_s[rows].tolist(),
        "y": np.minimum(_longest_part_ms(every)[rows], top_ms).tolist(),
        "marker": {"symbol": "circle-open", "size": 11, "color": ALARM, "line": {"width": 1.6}},
        "hovertext": [
            f"outlier: {1e3 * every.step_s[row]:.4g} ms from end to end<br>"
            f"epoch {int(every.epoch[row])}, minibatch {int(every.step[row])}"
            for row in rows
        ],
        "hoverinfo": "text", "cliponaxis": False,
    }  # fmt: skip


def _make_cut_traces(every: MinibatchTimes, rows: NDArray[np.int64], top_ms: float) -> list[Trace]:
    """Draw values above the axis as markers at its top."""
    high = [row for row in rows if _longest_part_ms(every)[row] > top_ms]
    if not high:
        return []
    told = [
        "<br>".join(
            f"{part.name} {1e3 * float(getattr(every, part.field)[row]):.4g} ms"
            for part in TIMELINE_PARTS
            if 1e3 * float(getattr(every, part.field)[row]) > top_ms
        )
        for row in high
    ]
    return [
        {
            "type": "scatter", "mode": "markers", "name": "higher than the axis", "x": every.start_s[high].tolist(),
            "y": [top_ms] * len(high), "marker": {"symbol": "triangle-up", "size": 9, "color": ALARM},
            "hovertext": told, "hoverinfo": "text", "cliponaxis": False,
        }
    ]  # fmt: skip


def _make_shades(judged: _MarkedMinibatches, finished: FinishedPoint, discard: int) -> list[dict[str, Any]]:
    """Shade epochs that are not counted as a whole, and the warm-up of the others."""
    shades = []
    every = judged.every
    counted = {one.epoch for one in finished.epochs[discard:] or finished.epochs}
    for epoch in np.unique(every.epoch):
        rows = np.flatnonzero((every.epoch == epoch) & (judged.starts | (int(epoch) not in counted)))
        if len(rows):
            begin, end = float(every.start_s[rows[0]]), float(every.start_s[rows[-1]] + every.step_s[rows[-1]])
            shades.append(_make_shade(begin, end))
    return shades


def _make_shade(begin_s: float, end_s: float) -> dict[str, Any]:
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": begin_s, "x1": end_s, "y0": 0, "y1": 1,
        "fillcolor": WAIT, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def _describe_timeline(
    judged: _MarkedMinibatches, rows: NDArray[np.int64], every: MinibatchTimes, top_ms: float
) -> str:
    found = int(judged.outliers.sum())
    marked = f", the first {MAX_MARKED} marked" if found > MAX_MARKED else ""
    high = int((_longest_part_ms(every)[rows] > top_ms).sum())
    words = [
        f"{len(every):,} minibatches" + (f", {len(rows):,} drawn with all extremes" if len(rows) < len(every) else ""),
        f"{found:,} outlier{'s' * (found != 1)}{marked}",
        *([f"{high} higher than the axis"] if high else []),
    ]
    return "; ".join(words)


MAX_SENSOR_POINTS = 40
"""Points in the menu; with the next two constants, a default that limits the section to 1.5 MB of the page."""
MAX_SAMPLES = 400
STRIP_PX, AROUND_PX = 92, 70


@dataclass(frozen=True, slots=True)
class SensorStrip:
    """One strip of the sensor chart.

    Attributes:
        field: A field of ``SensorTrace``.
        name: Name on the page.
        unit: Unit on the page.
        factor: Multiplies the field's values to give this unit.
        colour: Colour of the line.
    """

    field: str
    name: str
    unit: str
    factor: float
    colour: str


SENSORS = (
    SensorStrip("cpu_load", name="CPU", unit="% of cores", factor=100.0, colour="#009E73"),
    SensorStrip("gpu_load", name="GPU", unit="%", factor=100.0, colour="#117a8b"),
    SensorStrip("memory_mb", name="memory", unit="MB", factor=1.0, colour="#8C8C1A"),
    SensorStrip("disk_mb_per_s", name="disk reads", unit="MB/s", factor=1.0, colour="#8b4a2b"),
    SensorStrip("power_w", name="power", unit="W", factor=1.0, colour="#D55E00"),
    SensorStrip("temperature_c", "temperature", "°C", 1.0, "#c2185b"),
)


def build_sensor_section(settings: Sequence[SettingSummary], finished: Mapping[str, FinishedPoint]) -> Section:
    """Build the section of sensor traces with a menu of points, the typical one first.

    Args:
        settings: The settings to choose from.
        finished: Finished points by key.

    Returns:
        The section, which lists points whose files cannot be read.
    """
    title = "Loads, memory, disk, power, temperature"
    frames, lost = [], []
    picked, names = choose_settings(settings, MAX_SENSOR_POINTS), make_short_names(settings)
    for one, why in picked:
        try:
            frame = _build_sensor_frame(
                one.key, f"{names[one.key]}{f' ({why})' if why else ''}", finished[one.key].read_sensor_trace()
            )
        except BadInput as error:
            lost.append(str(error))
            continue
        if frame is not None:
            frames.append(frame)
    said = "".join(f'<p class="caption">Not drawn: {escape(one)}.</p>' for one in lost)
    if not frames:
        return Section(title, "No point has samples of any sensor.", (), said)
    left = f" The menu has {len(picked)} of {len(settings):,} settings." if len(picked) < len(settings) else ""
    tallest = max(len(one.data) for one in frames)
    height = AROUND_PX + STRIP_PX * tallest
    chart = Chart(
        "strips",
        title="What the machine did meanwhile",
        caption="",
        data=[],
        layout={},
        height_px=height,
        frames=tuple(frames),
        menu="point",
    )
    return Section(title, f"Over the whole point, on the clock of the minibatches above.{left}", (chart,), said)


def _build_sensor_frame(key: str, label: str, strip: SensorTrace) -> ChartFrame | None:
    """Build a point's strips; None if it has no samples of any sensor."""
    there = [one for one in SENSORS if np.isfinite(getattr(strip, one.field)).any()]
    if not there:
        return None
    absent = [one.name for one in SENSORS if one not in there]
    rows = select_extremes([getattr(strip, one.field) for one in there], MAX_SAMPLES)
    data = [{**_make_sensor_trace(one, strip, rows, place), "meta": key} for place, one in enumerate(there)]
    told = f"No sensor: {', '.join(absent)}." if absent else "All sensors."
    if len(rows) < len(strip.at_s):
        told += f" {len(rows)} of {len(strip.at_s):,} samples drawn, with all extremes."
    return ChartFrame(label, data, _make_sensor_layout(there, strip.at_s), told)


def _make_sensor_trace(sensor: SensorStrip, strip: SensorTrace, rows: Any, place: int) -> Trace:
    values = sensor.factor * getattr(strip, sensor.field)[rows]
    return {
        "type": "scatter", "mode": "lines", "name": sensor.name, "x": strip.at_s[rows].tolist(),
        "y": [float(value) if np.isfinite(value) else None for value in values],
        "yaxis": f"y{place + 1}" if place else "y", "line": {"color": sensor.colour, "width": 1.6},
        "hovertemplate": f"{sensor.name} %{{y:.4g}} {sensor.unit} at %{{x:.4g}} s<extra></extra>",
    }  # fmt: skip


def _make_sensor_layout(there: Sequence[SensorStrip], at_s: Floats) -> dict[str, Any]:
    """Stack the strips over one time axis, the first at the top."""
    height = 1.0 / len(there)
    layout: dict[str, Any] = {"showlegend": False, "hovermode": "closest", "annotations": []}
    for place, one in enumerate(there):
        top = 1.0 - place * height
        own = "" if place == 0 else str(place + 1)
        floor = {} if one.field == "temperature_c" else {"rangemode": "tozero"}
        layout[f"yaxis{own}"] = axis(
            one.unit, domain=[top - 0.74 * height, top - 0.02 * height], anchor="x", nticks=4, showline=True,
            gridcolor="rgba(128,138,150,0.22)", linecolor="#8c959f", zeroline=False, automargin=True,
            tickfont={"size": 11}, **floor,
        )  # fmt: skip
        layout[f"yaxis{own}"]["title"]["font"] = {"size": 11.5}
        layout["annotations"].append(
            {
                "text": f"<b>{one.name}</b>", "xref": "paper", "x": 0, "xanchor": "left", "yref": "paper",
                "y": top - 0.0 * height, "yanchor": "bottom", "showarrow": False, "font": {"size": 12},
            }
        )  # fmt: skip
    last = f"y{len(there)}" if len(there) > 1 else "y"
    end_s = float(at_s[-1]) if len(at_s) else 1.0
    layout["xaxis"] = axis("time since the point began (s)", anchor=last, range=[0, end_s])
    return layout
