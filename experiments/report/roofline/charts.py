"""The pictures of a roofline page: both rooflines with the network and its layers, and time and energy of all modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.report.chart import LEGEND, Chart, Frame, Trace, axis, log_ticks
from experiments.report.palette import ALARM, COLOURS, GREY, SYMBOLS
from experiments.report.quantities import number, percent
from fedge.layers.network import LayerCost
from fedge.roofline.model import Roofline, implication
from fedge.roofline.surface import work_of
from fedge.types import Floats

if TYPE_CHECKING:
    from experiments.commands.roofline import Analysis

MOST_DOTS = 1500
"""Modes drawn behind the front; chosen by us, so that the page stays quick."""
FRONT_SHOWN = 12
"""Modes of the front in the menus; chosen by us."""
MOST_KINDS = 7
"""Kinds of layers with a colour of their own; the others are grey together."""
CURVE = 80
"""Points of a roof."""
TAIL = 1.6
"""The plane ends at so many times MAXN's time; what is slower still is seen by zooming out. Chosen by us."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two rooflines: its key, titles, unit, and what a mode reaches at an intensity."""

    key: str
    title: str
    unit: str
    roof: Callable[[Roofline, float], float]
    balance: Callable[[Roofline], float]


TIME = _Side("time", "Time roofline", "GFLOP/s", lambda line, at: line.flop_per_s(at) / 1e9, lambda line: line.balance)
ENERGY = _Side(
    "energy", "Energy roofline", "GFLOP/J", lambda line, at: line.flop_per_j(at) / 1e9, lambda line: line.energy_balance
)


def roofline_chart(found: Analysis, side: _Side) -> Chart:
    """Performance, or performance per joule, over intensity; a menu of modes."""
    frames = tuple(_frame(found, side, word, row) for word, row in _menu(found))
    other = (
        "Dotted: MAXN's roof. Marks: layers, at the best that the roof allows. Star: the whole network as predicted, "
        "below the roof by what a roofline leaves out (launching, loading and copying on the CPU)."
    )
    return Chart(side.key, side.title, other, [], {}, 460, frames, menu="power mode")


def plane_chart(found: Analysis) -> Chart:
    """Time against energy of every mode; MAXN, the chosen mode and the front; the allowed slowdown as a line."""
    spent_ms, joules = 1e3 * found.spent.total_s, found.joules
    maxn, chosen = found.choice.maxn_row, found.choice.row
    front = found.front
    rows = np.random.default_rng(0).permutation(len(spent_ms))[:MOST_DOTS]
    limit_ms = found.asked.max_slowdown * float(spent_ms[maxn])
    last_ms = max(TAIL * float(spent_ms[maxn]), 1.05 * limit_ms)
    near = spent_ms <= last_ms
    low, high = float(joules[near].min()), float(joules[near].max())
    data = [
        _dots(found, rows, spent_ms, joules),
        {
            "type": "scatter", "mode": "lines+markers", "name": "front",
            "x": spent_ms[front].tolist(), "y": joules[front].tolist(), "line": {"color": COLOURS[0], "width": 2},
            "marker": {"size": 5}, "hovertext": [_told(found, row) for row in front], "hoverinfo": "text",
        },
        {
            "type": "scatter", "mode": "lines", "name": f"{percent(found.asked.max_slowdown - 1)} slower than MAXN",
            "x": [limit_ms, limit_ms], "y": [0.0, 2.0 * high], "line": {"color": GREY, "dash": "dash"},
            "hoverinfo": "skip",
        },
        _mark(found, "MAXN", maxn, {"symbol": "star", "size": 15, "color": ALARM}),
        _mark(found, "chosen", chosen, {"symbol": "diamond", "size": 13, "color": COLOURS[1]}),
    ]  # fmt: skip
    if found.shown_row not in {maxn, chosen}:
        data.append(_mark(found, "asked for", found.shown_row, {"symbol": "square", "size": 12, "color": COLOURS[2]}))
    layout = {
        "xaxis": axis("time per batch (ms)", range=[0.97 * float(spent_ms.min()), last_ms]),
        "yaxis": axis("energy per batch (J)", range=[0.95 * low, 1.05 * high]),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    caption = (
        f"Grey: {min(MOST_DOTS, len(spent_ms)):,} of {len(spent_ms):,} modes; zoom out for slower ones. Front: modes "
        "that no other beats in both time and energy."
    )
    return Chart("plane", "Time and energy of all modes", caption, data, layout, 460)


def _menu(found: Analysis) -> list[tuple[str, int]]:
    """The chosen mode first, then what was asked for, MAXN, the presets and some of the front."""
    spec, modes = found.basis.spec, found.basis.modes
    rows: dict[int, str] = {}
    asked = [("asked for", found.shown_row)] if found.asked.mode is not None else []
    for word, row in (*asked, ("chosen", found.choice.row), ("MAXN", found.choice.maxn_row)):
        rows.setdefault(row, word)
    for name, preset in spec.presets.items():
        hits = np.flatnonzero((np.abs(modes.knobs - [*_knobs(preset)]) < 1e-6).all(axis=1))
        if len(hits):
            rows.setdefault(int(hits[0]), name)
    front = found.front
    for place in np.linspace(0, len(front) - 1, min(FRONT_SHOWN, len(front))).round().astype(int):
        rows.setdefault(front[int(place)], "front")
    return [(word, row) for row, word in rows.items()]


def _knobs(mode: Any) -> tuple[float, float, float, float]:
    return (mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz)


def _frame(found: Analysis, side: _Side, word: str, row: int) -> Frame:
    line, maxn = found.lines.at(row), found.lines.at(found.choice.maxn_row)
    low, high = _reach(found, maxn)
    along = np.geomspace(low, high, CURVE)
    data = [
        _roof("MAXN's roof", side, maxn, along, {"color": GREY, "width": 1.5, "dash": "dot"}),
        _roof("roof", side, line, along, {"color": COLOURS[0], "width": 2.5}),
        *_layers(found, side, line),
        _balance(side, line),
        _whole(found, side, row),
    ]
    lowest, highest = _heights(found, side, low, high)
    x_range, y_range = np.log10([low, high]).tolist(), np.log10([lowest, highest]).tolist()
    layout = {
        "xaxis": axis("intensity (FLOP per byte)", type="log", range=x_range, **log_ticks(*x_range)),
        "yaxis": axis(side.unit, type="log", range=y_range, **log_ticks(*y_range)),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    spent, joules = float(found.spent.total_s[row]), float(found.joules[row])
    told = (
        f"{number(1e3 * spent)} ms, {number(joules / spent)} W, {number(joules)} J; balance "
        f"{number(side.balance(line))} FLOP per byte. {implication(line).partition(':')[0]}."
    )
    return Frame(f"{found.basis.modes[row]} ({word})", data, layout, told)


def _reach(found: Analysis, line: Roofline) -> tuple[float, float]:
    """Intensities that show every layer, the network and the balance."""
    seen = [at for layer in found.network.layers if (at := _intensity(found, layer)) > 0]
    seen += [work_of(found.batch).intensity, line.balance, line.energy_balance]
    return 0.6 * max(min(seen), 1e-2), 1.8 * max(seen)


def _heights(found: Analysis, side: _Side, low: float, high: float) -> tuple[float, float]:
    """The same for every mode, so that going through the menu shows what changes."""
    lines = [found.lines.at(row) for _, row in _menu(found)]
    least = min(side.roof(line, low) for line in lines)
    whole = min(_whole_height(found, side, row) for _, row in _menu(found))
    return 0.6 * min(least, whole), 2.0 * max(side.roof(line, high) for line in lines)


def _intensity(found: Analysis, layer: LayerCost) -> float:
    size = layer.weight_bytes + found.asked.batch_size * (layer.read_bytes + layer.written_bytes)
    return found.asked.batch_size * layer.flop / size if size > 0 else 0.0


def _roof(name: str, side: _Side, line: Roofline, along: Floats, style: dict[str, Any]) -> Trace:
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": along.tolist(),
        "y": [side.roof(line, float(at)) for at in along], "line": style,
        "hovertemplate": f"{name}: %{{y:.4g}} {side.unit} at %{{x:.3g}} FLOP per byte<extra></extra>",
    }  # fmt: skip


def _layers(found: Analysis, side: _Side, line: Roofline) -> list[Trace]:
    """One trace per kind of layer, those with most FLOP first."""
    layers = [layer for layer in found.network.layers if layer.flop > 0 and _intensity(found, layer) > 0]
    flop: dict[str, float] = {}
    for layer in layers:
        flop[layer.kind] = flop.get(layer.kind, 0.0) + layer.flop
    ordered = sorted(flop, key=lambda kind: -flop[kind])
    kinds = [(kind, {kind}) for kind in ordered[:MOST_KINDS]]
    if ordered[MOST_KINDS:]:
        kinds.append(("others", set(ordered[MOST_KINDS:])))
    shades = (*COLOURS[2:], *COLOURS[1:2], GREY)
    return [
        _kind(found, side, line, name, [layer for layer in layers if layer.kind in those], shades[i % len(shades)], i)
        for i, (name, those) in enumerate(kinds)
    ]


def _kind(  # noqa: PLR0917 - one caller
    found: Analysis, side: _Side, line: Roofline, name: str, layers: Sequence[LayerCost], colour: str, place: int
) -> Trace:
    most = max(layer.flop for layer in found.network.layers)
    at = [_intensity(found, layer) for layer in layers]
    return {
        "type": "scatter", "mode": "markers", "name": name.replace("_", " "), "x": at,
        "y": [side.roof(line, one) for one in at],
        "marker": {
            "color": colour, "symbol": SYMBOLS[place % len(SYMBOLS)], "opacity": 0.75,
            "size": [8.0 + 9.0 * float(np.sqrt(layer.flop / most)) for layer in layers],
        },
        "hovertext": [
            f"<b>{layer.name}</b> ({layer.kind})<br>{number(layer.flop * found.asked.batch_size / 1e6)} MFLOP, "
            f"{one:.3g} FLOP per byte"
            for layer, one in zip(layers, at, strict=True)
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _balance(side: _Side, line: Roofline) -> Trace:
    at = side.balance(line)
    return {
        "type": "scatter", "mode": "markers", "name": "balance", "x": [at], "y": [side.roof(line, at)],
        "marker": {"symbol": "line-ns-open", "size": 22, "color": COLOURS[0], "line": {"width": 2}},
        "hovertemplate": "balance: %{x:.3g} FLOP per byte<extra></extra>",
    }  # fmt: skip


def _whole_height(found: Analysis, side: _Side, row: int) -> float:
    per = found.spent.total_s[row] if side is TIME else found.joules[row]
    return work_of(found.batch).flop / float(per) / 1e9


def _whole(found: Analysis, side: _Side, row: int) -> Trace:
    height = _whole_height(found, side, row)
    return {
        "type": "scatter", "mode": "markers", "name": found.network.name,
        "x": [work_of(found.batch).intensity], "y": [height],
        "marker": {"symbol": "star", "size": 17, "color": ALARM, "line": {"width": 1.5, "color": "white"}},
        "hovertext": [f"<b>{found.network.name}</b>, batch {found.asked.batch_size}<br>{_told(found, row)}"],
        "hoverinfo": "text",
    }  # fmt: skip


def _dots(found: Analysis, rows: Any, spent_ms: Floats, joules: Floats) -> Trace:
    return {
        "type": "scatter", "mode": "markers", "name": "other modes", "x": spent_ms[rows].tolist(),
        "y": joules[rows].tolist(), "marker": {"color": GREY, "size": 4, "opacity": 0.4},
        "hovertext": [str(found.basis.modes[int(row)]) for row in rows], "hoverinfo": "text",
    }  # fmt: skip


def _mark(found: Analysis, name: str, row: int, marker: dict[str, Any]) -> Trace:
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": [1e3 * float(found.spent.total_s[row])],
        "y": [float(found.joules[row])], "marker": {**marker, "line": {"width": 1.5, "color": "white"}},
        "hovertext": [f"{name}: {_told(found, row)}"], "hoverinfo": "text",
    }  # fmt: skip


def _told(found: Analysis, row: int) -> str:
    seconds, joules = float(found.spent.total_s[row]), float(found.joules[row])
    return (
        f"<b>{found.basis.modes[row]}</b><br>{number(1e3 * seconds)} ms, {number(joules / seconds)} W, "
        f"{number(joules)} J"
    )
