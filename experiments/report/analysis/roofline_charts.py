"""Charts of a roofline page: both rooflines with network and layers, and time over energy of all modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.report.chart import (
    Chart,
    ChartFrame,
    Trace,
    axis,
    highlight_trace,
    line_trace,
    log_ticks,
    scatter_trace,
    xy_layout,
)
from experiments.report.palette import ALARM, COLOURS, GREY, SYMBOLS
from experiments.report.quantities import number, percent
from fedge.analysis.roofline.roofline_model import Roofline, batch_to_work, describe_implication
from fedge.costs.layers.network_cost import LayerCost
from fedge.modes import find_mode_index
from fedge.types import Floats

if TYPE_CHECKING:
    from fedge.analysis.roofline.roofline_analysis import RooflineAnalysis

MAX_BACKGROUND_MODES = 1500
"""Default number of modes drawn behind the front: more make the page slow without showing more."""
MAX_FRONT_MODES = 12
"""Default number of front modes in the menus, so that a menu fits on the screen."""
MAX_LAYER_KINDS = 7
"""Number of layer kinds with a colour of their own; the rest is grey."""
ROOF_POINTS = 80
"""Number of points of a roof's line."""
MAX_TIME_RATIO = 1.6
"""Default end of the time axis, as a multiple of MAXN's time; slower modes appear when zooming out."""


@dataclass(frozen=True, slots=True)
class _RooflineAxis:
    """One of the two rooflines.

    Attributes:
        roof: Attainable value of a mode at an intensity (FLOP per byte).
        balance: A mode's balance point, in FLOP per byte.
    """

    key: str
    title: str
    unit: str
    roof: Callable[[Roofline, float], float]
    balance: Callable[[Roofline], float]


TIME_AXIS = _RooflineAxis(
    "time",
    title="Time roofline",
    unit="GFLOP/s",
    roof=lambda line, at: line.flop_per_s(at) / 1e9,
    balance=lambda line: line.balance,
)
ENERGY_AXIS = _RooflineAxis(
    "energy",
    title="Energy roofline",
    unit="GFLOP/J",
    roof=lambda line, at: line.flop_per_j(at) / 1e9,
    balance=lambda line: line.energy_balance,
)


def roofline_chart(found: RooflineAnalysis, side: _RooflineAxis) -> Chart:
    """Plot performance, or performance per joule, over intensity, with a menu of modes."""
    frames = tuple(_mode_frame(found, side, word, row) for word, row in _list_menu_modes(found))
    other = (
        "Dotted: MAXN's roof. Marks: layers, at the limit of the roof. Star: the predicted whole network, below the "
        "roof because a roofline omits launching, loading and copying on the CPU."
    )
    return Chart(side.key, side.title, other, [], layout={}, height_px=460, frames=frames, menu="power mode")


def time_energy_chart(found: RooflineAnalysis) -> Chart:
    """Plot time over energy of every mode, with MAXN, the chosen mode, the front and the allowed slowdown."""
    spent_ms, joules = 1e3 * found.batch_times.total_s, found.joules
    maxn, chosen = found.choice.maxn_row, found.choice.row
    front = found.front
    rows = np.random.default_rng(0).permutation(len(spent_ms))[:MAX_BACKGROUND_MODES]
    limit_ms = found.options.max_slowdown * float(spent_ms[maxn])
    last_ms = max(MAX_TIME_RATIO * float(spent_ms[maxn]), 1.05 * limit_ms)
    near = spent_ms <= last_ms
    low, high = float(joules[near].min()), float(joules[near].max())
    data = [
        _background_trace(found, rows, spent_ms, joules),
        line_trace(
            "front",
            spent_ms[front].tolist(),
            joules[front].tolist(),
            colour=COLOURS[0],
            markers=True,
            marker={"size": 5},
            hover=[_hover_text(found, row) for row in front],
        ),
        line_trace(
            f"{percent(found.options.max_slowdown - 1)} slower than MAXN",
            [limit_ms, limit_ms],
            [0.0, 2.0 * high],
            colour=GREY,
            dash="dash",
            markers=False,
        ),
        _highlight_mode(found, "MAXN", maxn, "star"),
        _highlight_mode(found, "chosen", chosen, "diamond"),
    ]
    if found.shown_row not in {maxn, chosen}:
        data.append(_highlight_mode(found, "requested", found.shown_row, "square"))
    layout = xy_layout(
        axis("time per batch (ms)", range=[0.97 * float(spent_ms.min()), last_ms]),
        axis("energy per batch (J)", range=[0.95 * low, 1.05 * high]),
    )
    caption = (
        f"Grey: {min(MAX_BACKGROUND_MODES, len(spent_ms)):,} of {len(spent_ms):,} modes; zoom out for slower ones. "
        "Front: the non-dominated modes."
    )
    return Chart("plane", "Time and energy of all modes", caption, data, layout=layout, height_px=460)


def _list_menu_modes(found: RooflineAnalysis) -> list[tuple[str, int]]:
    """Return the menu's modes: the chosen one, the requested one, MAXN, the presets and part of the front."""
    spec, modes = found.basis.spec, found.basis.modes
    rows: dict[int, str] = {}
    requested = [("requested", found.shown_row)] if found.options.mode is not None else []
    for word, row in (*requested, ("chosen", found.choice.row), ("MAXN", found.choice.maxn_row)):
        rows.setdefault(row, word)
    for name, preset in spec.presets.items():
        known = find_mode_index(modes, preset)
        if known is not None:
            rows.setdefault(known, name)
    front = found.front
    for place in np.linspace(0, len(front) - 1, min(MAX_FRONT_MODES, len(front))).round().astype(int):
        rows.setdefault(front[int(place)], "front")
    return [(word, row) for row, word in rows.items()]


def _mode_frame(found: RooflineAnalysis, side: _RooflineAxis, kind: str, row: int) -> ChartFrame:
    """Plot the roof of the mode in ``row`` over MAXN's; ``kind`` says why the menu lists it."""
    roof, maxn_roof = found.lines.mode_roofline(row), found.lines.mode_roofline(found.choice.maxn_row)
    low, high = _intensity_range(found, maxn_roof)
    intensities = np.geomspace(low, high, ROOF_POINTS)
    data = [
        _roof_trace("MAXN's roof", side, maxn_roof, intensities, colour=GREY, width=1.5, dash="dot"),
        _roof_trace("roof", side, roof, intensities, colour=COLOURS[0], width=2.5),
        *_layer_traces(found, side, roof),
        _balance_trace(side, roof),
        _network_trace(found, side, row),
    ]
    lowest, highest = _height_range(found, side, low, high)
    x_range, y_range = np.log10([low, high]).tolist(), np.log10([lowest, highest]).tolist()
    layout = xy_layout(
        axis("intensity (FLOP per byte)", type="log", range=x_range, **log_ticks(*x_range)),
        axis(side.unit, type="log", range=y_range, **log_ticks(*y_range)),
    )
    batch_s, batch_j = float(found.batch_times.total_s[row]), float(found.joules[row])
    summary = (
        f"{number(1e3 * batch_s)} ms, {number(batch_j / batch_s)} W, {number(batch_j)} J; balance "
        f"{number(side.balance(roof))} FLOP per byte. {describe_implication(roof).partition(':')[0]}."
    )
    return ChartFrame(f"{found.basis.modes[row]} ({kind})", data, layout, summary)


def _intensity_range(found: RooflineAnalysis, line: Roofline) -> tuple[float, float]:
    """Return a range of intensities that covers every layer, the network and the balance point."""
    intensities = [at for layer in found.network.layers if (at := _layer_intensity(found, layer)) > 0]
    intensities += [batch_to_work(found.batch).intensity, line.balance, line.energy_balance]
    return 0.6 * max(min(intensities), 1e-2), 1.8 * max(intensities)


def _height_range(found: RooflineAnalysis, side: _RooflineAxis, low: float, high: float) -> tuple[float, float]:
    """Return a range that is the same for all modes, so that switching modes shows what changes."""
    lines = [found.lines.mode_roofline(row) for _, row in _list_menu_modes(found)]
    least = min(side.roof(line, low) for line in lines)
    whole = min(_network_height(found, side, row) for _, row in _list_menu_modes(found))
    return 0.6 * min(least, whole), 2.0 * max(side.roof(line, high) for line in lines)


def _layer_intensity(found: RooflineAnalysis, layer: LayerCost) -> float:
    size = layer.weight_bytes + found.options.batch_size * (layer.read_bytes + layer.written_bytes)
    return found.options.batch_size * layer.flop / size if size > 0 else 0.0


def _roof_trace(name: str, side: _RooflineAxis, line: Roofline, along: Floats, **style: Any) -> Trace:
    heights = [side.roof(line, float(at)) for at in along]
    hover = f"{name}: %{{y:.4g}} {side.unit} at %{{x:.3g}} FLOP per byte"
    return line_trace(name, along.tolist(), heights, markers=False, hover=hover, **style)


def _layer_traces(found: RooflineAnalysis, side: _RooflineAxis, line: Roofline) -> list[Trace]:
    """Return one trace per kind of layer, those with most FLOP first."""
    layers = [layer for layer in found.network.layers if layer.flop > 0 and _layer_intensity(found, layer) > 0]
    flop: dict[str, float] = {}
    for layer in layers:
        flop[layer.kind] = flop.get(layer.kind, 0.0) + layer.flop
    ordered = sorted(flop, key=lambda kind: -flop[kind])
    kinds = [(kind, {kind}) for kind in ordered[:MAX_LAYER_KINDS]]
    if ordered[MAX_LAYER_KINDS:]:
        kinds.append(("others", set(ordered[MAX_LAYER_KINDS:])))
    shades = (*COLOURS[2:], *COLOURS[1:2], GREY)
    return [
        _layer_kind_trace(
            found,
            side=side,
            line=line,
            name=name,
            layers=[layer for layer in layers if layer.kind in those],
            colour=shades[i % len(shades)],
            place=i,
        )
        for i, (name, those) in enumerate(kinds)
    ]


def _layer_kind_trace(  # noqa: PLR0917 - one caller
    found: RooflineAnalysis,
    side: _RooflineAxis,
    line: Roofline,
    name: str,
    layers: Sequence[LayerCost],
    colour: str,
    place: int,
) -> Trace:
    most = max(layer.flop for layer in found.network.layers)
    at = [_layer_intensity(found, layer) for layer in layers]
    return scatter_trace(
        name.replace("_", " "),
        at,
        [side.roof(line, one) for one in at],
        marker={
            "color": colour,
            "symbol": SYMBOLS[place % len(SYMBOLS)],
            "opacity": 0.75,
            "size": [8.0 + 9.0 * float(np.sqrt(layer.flop / most)) for layer in layers],
        },
        hover=[
            f"<b>{escape(layer.name)}</b> ({escape(layer.kind)})<br>"
            f"{number(layer.flop * found.options.batch_size / 1e6)} MFLOP, {one:.3g} FLOP per byte"
            for layer, one in zip(layers, at, strict=True)
        ],
    )


def _balance_trace(side: _RooflineAxis, line: Roofline) -> Trace:
    at = side.balance(line)
    marker = {"symbol": "line-ns-open", "size": 22, "color": COLOURS[0], "line": {"width": 2}}
    return scatter_trace("balance", [at], [side.roof(line, at)], marker=marker, hover="balance: %{x:.3g} FLOP per byte")


def _network_height(found: RooflineAnalysis, side: _RooflineAxis, row: int) -> float:
    per = found.batch_times.total_s[row] if side is TIME_AXIS else found.joules[row]
    return batch_to_work(found.batch).flop / float(per) / 1e9


def _network_trace(found: RooflineAnalysis, side: _RooflineAxis, row: int) -> Trace:
    name = found.network.name
    return scatter_trace(
        name,
        [batch_to_work(found.batch).intensity],
        [_network_height(found, side, row)],
        marker={"symbol": "star", "size": 17, "color": ALARM, "line": {"width": 1.5, "color": "white"}},
        hover=[f"<b>{escape(name)}</b>, batch {found.options.batch_size}<br>{_hover_text(found, row)}"],
    )


def _background_trace(found: RooflineAnalysis, rows: Any, spent_ms: Floats, joules: Floats) -> Trace:
    return scatter_trace(
        "other modes",
        spent_ms[rows].tolist(),
        joules[rows].tolist(),
        marker={"color": GREY, "size": 4, "opacity": 0.4},
        hover=[str(found.basis.modes[int(row)]) for row in rows],
    )


def _highlight_mode(found: RooflineAnalysis, name: str, row: int, symbol: str) -> Trace:
    milliseconds, joules = 1e3 * float(found.batch_times.total_s[row]), float(found.joules[row])
    return highlight_trace(name, milliseconds, joules, symbol, _hover_text(found, row))


def _hover_text(found: RooflineAnalysis, row: int) -> str:
    seconds, joules = float(found.batch_times.total_s[row]), float(found.joules[row])
    return (
        f"<b>{found.basis.modes[row]}</b><br>{number(1e3 * seconds)} ms, {number(joules / seconds)} W, "
        f"{number(joules)} J"
    )
