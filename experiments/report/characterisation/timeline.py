"""Every minibatch of one point over time: fetch, preprocess, stall, compute; warm-up and outliers are marked.

Of a long series 2,000 minibatches at the most are drawn: of every stretch those with the least and the greatest of each
part, so that nothing that stands out is lost. The axis ends above the steady minibatches; what is higher is drawn at
its top, marked, with its figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.report.characterisation.chosen import chosen
from experiments.report.characterisation.families import short_names
from experiments.report.characterisation.parts import FETCH, FOLLOWED, PREPROCESS, Part
from experiments.report.characterisation.settings import Setting
from experiments.report.characterisation.thinning import extremes
from experiments.report.chart import LEGEND, Chart, Frame, Section, Trace, axis
from experiments.report.palette import ALARM, WAIT
from fedge.characterisation.judging.steadiness import steadiness
from fedge.characterisation.result import Finished
from fedge.characterisation.seen import Minibatches
from fedge.errors import BadInput
from fedge.types import Floats

MOST_MINIBATCHES = 2_000
MOST_POINTS = 12
"""Behind the menu; at most 100 kB each. Chosen by us, as are the next two."""
MOST_MARKED = 500
"""Outliers marked; all are counted."""
ABOVE = 1.25
"""The axis ends at so many times what 99.5 % of the minibatches that are drawn do not exceed."""


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """All minibatches, and which of them belong to a start or are outliers; bool arrays of shape (n,)."""

    every: Minibatches
    starts: NDArray[np.bool_]
    outliers: NDArray[np.bool_]


def section(settings: Sequence[Setting], finished: Mapping[str, Finished], discard: int) -> Section:
    """With a menu of points; the first is the typical one."""
    title = "Minibatch by minibatch"
    frames: list[Frame | None] = []
    lost: list[str] = []
    picked, names = chosen(settings, MOST_POINTS), short_names(settings)
    for one, why in picked:
        try:
            frames.append(_frame(f"{names[one.key]}{f' ({why})' if why else ''}", finished[one.key], discard))
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
    chart = Chart("minibatches", "Time of each minibatch", "", [], {}, 380, drawn, menu="point")
    return Section(title, lead, (chart,), said)


def _frame(label: str, finished: Finished, discard: int) -> Frame | None:
    every = finished.minibatches()
    if not len(every):
        return None
    judged = _judge(every)
    rows = extremes([getattr(every, part.field) for part in FOLLOWED], MOST_MINIBATCHES)
    top_ms = _top_ms(every, judged, rows)
    data = [_line(part, every, rows, top_ms, finished.point.key) for part in FOLLOWED]
    data += [_outliers(judged, top_ms), *_cut(every, rows, top_ms)]
    layout = {
        "xaxis": axis("time since the point began (s)"),
        "yaxis": axis("milliseconds", range=[0, top_ms]),
        "shapes": _shades(judged, finished, discard),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return Frame(label, data, layout, _told(judged, rows, every, top_ms))


def _judge(every: Minibatches) -> _Judged:
    starts, outliers = np.zeros(len(every), np.bool_), np.zeros(len(every), np.bool_)
    for epoch in np.unique(every.epoch):
        rows = np.flatnonzero(every.epoch == epoch)
        found = steadiness(every.step_s[rows])
        starts[rows[: found.warm_up]] = True
        outliers[rows] = found.outliers
    return _Judged(every, starts, outliers)


def _top_ms(every: Minibatches, judged: _Judged, rows: NDArray[np.int64]) -> float:
    """Where the axis ends: over nearly all that is drawn and is not warm-up."""
    drawn = np.maximum.reduce([getattr(every, part.field)[rows] for part in FOLLOWED])
    steady = drawn[~judged.starts[rows]]
    return 1e3 * ABOVE * float(np.quantile(steady if len(steady) else drawn, 0.995)) or 1.0


def _line(part: Part, every: Minibatches, rows: NDArray[np.int64], top_ms: float, key: str) -> Trace:
    values = 1e3 * getattr(every, part.field)[rows]
    width = 1.1 if part in {FETCH, PREPROCESS} else 2.2
    return {
        "type": "scatter", "mode": "lines", "name": part.name, "x": every.start_s[rows].tolist(),
        "y": np.minimum(values, top_ms).tolist(), "line": {"color": part.colour, "width": width},
        "customdata": _steps(every, rows), "meta": key,
        "hovertemplate": f"{part.name} %{{y:.4g}} ms<br>epoch %{{customdata[0]}}, minibatch %{{customdata[1]}}"
                         "<extra></extra>",
    }  # fmt: skip


def _steps(every: Minibatches, rows: NDArray[np.int64]) -> list[list[int]]:
    return [[int(every.epoch[row]), int(every.step[row])] for row in rows]


def _longest(every: Minibatches) -> Floats:
    """Of the parts that are drawn, minibatch by minibatch, milliseconds."""
    longest: Floats = 1e3 * np.maximum.reduce([getattr(every, part.field) for part in FOLLOWED])
    return longest


def _outliers(judged: _Judged, top_ms: float) -> Trace:
    rows = np.flatnonzero(judged.outliers)[:MOST_MARKED]
    every = judged.every
    return {
        "type": "scatter", "mode": "markers", "name": "outlier", "x": every.start_s[rows].tolist(),
        "y": np.minimum(_longest(every)[rows], top_ms).tolist(),
        "marker": {"symbol": "circle-open", "size": 11, "color": ALARM, "line": {"width": 1.6}},
        "hovertext": [
            f"outlier: {1e3 * every.step_s[row]:.4g} ms from end to end<br>"
            f"epoch {int(every.epoch[row])}, minibatch {int(every.step[row])}"
            for row in rows
        ],
        "hoverinfo": "text", "cliponaxis": False,
    }  # fmt: skip


def _cut(every: Minibatches, rows: NDArray[np.int64], top_ms: float) -> list[Trace]:
    """What is higher than the axis, at its top."""
    high = [row for row in rows if _longest(every)[row] > top_ms]
    if not high:
        return []
    told = [
        "<br>".join(
            f"{part.name} {1e3 * float(getattr(every, part.field)[row]):.4g} ms"
            for part in FOLLOWED
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


def _shades(judged: _Judged, finished: Finished, discard: int) -> list[dict[str, Any]]:
    """Epochs that do not count as a whole, of the others the start."""
    shades = []
    every = judged.every
    counted = {one.epoch for one in finished.epochs[discard:] or finished.epochs}
    for epoch in np.unique(every.epoch):
        rows = np.flatnonzero((every.epoch == epoch) & (judged.starts | (int(epoch) not in counted)))
        if len(rows):
            begin, end = float(every.start_s[rows[0]]), float(every.start_s[rows[-1]] + every.step_s[rows[-1]])
            shades.append(_shade(begin, end))
    return shades


def _shade(begin_s: float, end_s: float) -> dict[str, Any]:
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": begin_s, "x1": end_s, "y0": 0, "y1": 1,
        "fillcolor": WAIT, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def _told(judged: _Judged, rows: NDArray[np.int64], every: Minibatches, top_ms: float) -> str:
    found = int(judged.outliers.sum())
    marked = f", the first {MOST_MARKED} marked" if found > MOST_MARKED else ""
    high = int((_longest(every)[rows] > top_ms).sum())
    words = [
        f"{len(every):,} minibatches" + (f", {len(rows):,} drawn with all extremes" if len(rows) < len(every) else ""),
        f"{found:,} outlier{'s' * (found != 1)}{marked}",
        *([f"{high} higher than the axis"] if high else []),
    ]
    return "; ".join(words)
