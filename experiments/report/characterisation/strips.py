"""Loads, memory, disk, watts and temperature over a point's time, one strip per sensor; missing sensors are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from experiments.report.characterisation.chosen import chosen
from experiments.report.characterisation.families import short_names
from experiments.report.characterisation.settings import Setting
from experiments.report.characterisation.thinning import extremes
from experiments.report.chart import Chart, Frame, Section, Trace, axis
from fedge.characterisation.result import Finished
from fedge.characterisation.seen import Strip
from fedge.errors import BadInput
from fedge.types import Floats

MOST_POINTS = 40
"""Behind the menu. Chosen by us, as are the next two: 1.5 MB of the page at most."""
MOST_SAMPLES = 400
STRIP_PX, AROUND_PX = 92, 70


@dataclass(frozen=True, slots=True)
class Sensor:
    """One strip: a field of ``Strip``, what it is called, and what its values are multiplied by."""

    field: str
    name: str
    unit: str
    factor: float
    colour: str


SENSORS = (
    Sensor("cpu_load", "CPU", "% of cores", 100.0, "#009E73"),
    Sensor("gpu_load", "GPU", "%", 100.0, "#117a8b"),
    Sensor("memory_mb", "memory", "MB", 1.0, "#8C8C1A"),
    Sensor("disk_mb_per_s", "disk reads", "MB/s", 1.0, "#8b4a2b"),
    Sensor("power_w", "power", "W", 1.0, "#D55E00"),
    Sensor("temperature_c", "temperature", "°C", 1.0, "#c2185b"),
)


def section(settings: Sequence[Setting], finished: Mapping[str, Finished]) -> Section:
    """With a menu of points; the first is the typical one."""
    title = "Loads, memory, disk, power, temperature"
    frames, lost = [], []
    picked, names = chosen(settings, MOST_POINTS), short_names(settings)
    for one, why in picked:
        try:
            frame = _frame(one.key, f"{names[one.key]}{f' ({why})' if why else ''}", finished[one.key].strip())
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
    chart = Chart("strips", "What the machine did meanwhile", "", [], {}, height, tuple(frames), menu="point")
    return Section(title, f"Over the whole point, on the clock of the minibatches above.{left}", (chart,), said)


def _frame(key: str, label: str, strip: Strip) -> Frame | None:
    """None without a sample of any sensor."""
    there = [one for one in SENSORS if np.isfinite(getattr(strip, one.field)).any()]
    if not there:
        return None
    absent = [one.name for one in SENSORS if one not in there]
    rows = extremes([getattr(strip, one.field) for one in there], MOST_SAMPLES)
    data = [{**_line(one, strip, rows, place), "meta": key} for place, one in enumerate(there)]
    told = f"No sensor: {', '.join(absent)}." if absent else "All sensors."
    if len(rows) < len(strip.at_s):
        told += f" {len(rows)} of {len(strip.at_s):,} samples drawn, with all extremes."
    return Frame(label, data, _layout(there, strip.at_s), told)


def _line(sensor: Sensor, strip: Strip, rows: Any, place: int) -> Trace:
    values = sensor.factor * getattr(strip, sensor.field)[rows]
    return {
        "type": "scatter", "mode": "lines", "name": sensor.name, "x": strip.at_s[rows].tolist(),
        "y": [float(value) if np.isfinite(value) else None for value in values],
        "yaxis": f"y{place + 1}" if place else "y", "line": {"color": sensor.colour, "width": 1.6},
        "hovertemplate": f"{sensor.name} %{{y:.4g}} {sensor.unit} at %{{x:.4g}} s<extra></extra>",
    }  # fmt: skip


def _layout(there: Sequence[Sensor], at_s: Floats) -> dict[str, Any]:
    """One below the other, the first at the top, all over one axis of time."""
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
