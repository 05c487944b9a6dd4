"""A roofline analysis for the terminal and as a page: both rooflines, time over energy of all modes, constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from experiments.report.chart import (
    Chart,
    ChartFrame,
    Trace,
    axis,
    highlight_trace,
    line_trace,
    log_ticks,
    menu_chart,
    scatter_trace,
    xy_chart,
    xy_layout,
)
from experiments.report.page import Card, Section, render_badge, write_page
from experiments.report.palette import ALARM, COLOURS, GREY, SYMBOLS
from experiments.report.quantities import number, percent
from experiments.report.tables import Cell, Table, percent_cell, print_lines, text_cell, value_cell
from fedge.analysis.roofline.board_constants import activation_intensity
from fedge.analysis.roofline.microbenchmark import RooflineSweep
from fedge.analysis.roofline.roofline_analysis import RooflineAnalysis, is_fitted
from fedge.analysis.roofline.roofline_model import Roofline, batch_to_work, describe_balance_side, describe_implication
from fedge.costs.layers.network_cost import LayerCost
from fedge.modes import find_mode_index
from fedge.types import Floats

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.analysis.roofline.roofline_analysis import RooflineAnalysis


def print_analysis(console: Console, analysis: RooflineAnalysis) -> None:
    """Print the network, the modes compared, the choice and the constants."""
    network, options = analysis.network, analysis.options
    work = batch_to_work(analysis.batch)
    counts = f"{number(work.flop / 1e9)} GFLOP, {number(work.bytes / 1e6)} MB, {len(network.layers)} layers"
    head = f"{network.name} on {analysis.basis.spec.name}, inference in batches of {options.batch_size}"
    print_lines(console, [f"{head}: {counts}"])
    modes_table(analysis).print(console)
    modes, shown = analysis.basis.modes, analysis.lines.mode_roofline(analysis.shown_row)
    limit = f"at most {percent(options.max_slowdown - 1)} slower than MAXN"
    lines = (
        f"{modes[analysis.shown_row]}: {describe_balance_side(shown, work)}. {describe_implication(shown)}",
        describe_implying_modes(analysis),
        f"Chosen, {limit}: {modes[analysis.choice.row]}. {analysis.explanation}",
        describe_constants(analysis),
    )
    print_lines(console, lines)


def describe_implying_modes(analysis: RooflineAnalysis) -> str:
    """Say in how many modes time-efficient implies energy-efficient."""
    count, total = analysis.implying_mode_count, len(analysis.basis.modes)
    return f"Time-efficient implies energy-efficient in {count:,} of {total:,} modes."


def describe_constants(analysis: RooflineAnalysis) -> str:
    """Describe the constants' source, label and errors."""
    constants = analysis.basis.constants
    text = (
        f"Constants are {analysis.lines.label}, fitted to {constants.source}, within "
        f"{percent(constants.time_sd_log)} in time and {percent(constants.power_sd_log)} in power (robust spread)."
    )
    if not is_fitted(constants, activation_intensity(analysis.network)):
        near = " and ".join(f"{one.network} ({one.intensity:.3g})" for one in constants.networks)
        mine = activation_intensity(analysis.network)
        text += (
            f" This network, of {mine:.3g} FLOP per byte, was not among them; its rooflines are drawn as if it "
            f"used the board like {near}. {analysis.caution}"
        )
    if len(analysis.network.layers) == 1:
        text += " Its layers are unknown, so its time does not include launching them."
    return text


def list_shown_rows(analysis: RooflineAnalysis) -> list[tuple[str, int]]:
    """Return the label and row of MAXN, the chosen mode and the requested one."""
    rows = [("MAXN", analysis.choice.maxn_row), ("chosen", analysis.choice.row)]
    if analysis.shown_row not in {row for _, row in rows}:
        rows.append(("requested", analysis.shown_row))
    return rows


MODE_QUANTITIES = (
    "ms", "W", "J", "GFLOP/s", "GB/s", "pJ/FLOP", "pJ/B", "constant W", "balance, FLOP/B", "energy balance, FLOP/B",
)  # fmt: skip


def list_mode_values(analysis: RooflineAnalysis, row: int) -> list[float]:
    """Return one mode's costs, constants and balance points, one value per entry of ``MODE_QUANTITIES``."""
    line: Roofline = analysis.lines.mode_roofline(row)
    seconds, joules = float(analysis.batch_times.total_s[row]), float(analysis.joules[row])
    costs = (1e3 * seconds, joules / seconds, joules)
    constants = (1e-9 / line.tau_f, 1e-9 / line.tau_m, 1e12 * line.eps_f, 1e12 * line.eps_m, line.pi_0_w)
    return [float(value) for value in (*costs, *constants, line.balance, line.energy_balance)]


def modes_table(analysis: RooflineAnalysis) -> Table:
    """Build a table of MAXN, the chosen mode and the requested one, one column each."""
    shown = list_shown_rows(analysis)
    modes = (Cell(str(analysis.basis.modes[row]).removesuffix(" MHz"), numeric=True) for _, row in shown)
    columns = [list_mode_values(analysis, row) for _, row in shown]
    rows = [(text_cell("mode, MHz"), *modes)]
    for quantity, *values in zip(MODE_QUANTITIES, *columns, strict=True):
        rows.append((text_cell(quantity), *(value_cell(value, number) for value in values)))
    return Table("roofline-constants", ("quantity", *(word for word, _ in shown)), tuple(rows))


def print_sweep(console: Console, sweep: RooflineSweep) -> None:
    """Print a micro-benchmark: its kernels, and the constants fitted to them."""
    sweep_table(sweep).print(console)
    gflops, gbps = 1e-9 / sweep.tau_f, 1e-9 / sweep.tau_m
    balance = f"balance {number(sweep.tau_m / sweep.tau_f)} FLOP per byte ({sweep.label})"
    reached = f"{percent(sweep.reached, 0)} of the roof is reached in the median"
    rates = f"{number(gflops)} GFLOP/s, {number(gbps)} GB/s"
    lines = [f"{sweep.device}, {sweep.mode}: {rates}, {balance}; {reached}."]
    line = sweep.roofline
    if line is not None:
        lines.append(
            f"{number(1e12 * line.eps_f)} pJ per FLOP, {number(1e12 * line.eps_m)} pJ per byte, {number(line.pi_0_w)} "
            f"W constant power, energy within {percent(sweep.energy_mape)}. {describe_implication(line)}"
        )
    print_lines(console, [*lines, f"{sweep.note[0].upper()}{sweep.note[1:]}."])


def sweep_table(sweep: RooflineSweep) -> Table:
    """Build a table of a micro-benchmark's kernels."""
    heads = ("kernel", "FLOP/B", "ms", "GFLOP/s", "GB/s", "of the roof", "J")
    rows = []
    for point in sweep.points:
        reached = max(point.flop * sweep.tau_f, point.bytes * sweep.tau_m) / point.seconds
        figures = (point.work.intensity, 1e3 * point.seconds)
        rates = (1e-9 * point.flop / point.seconds, 1e-9 * point.bytes / point.seconds)
        rows.append((
            text_cell(point.kernel),
            *(value_cell(value, number) for value in (*figures, *rates)),
            percent_cell(reached, 0),
            value_cell(point.joules, number, "J"),
        ))  # fmt: skip
    return Table("kernels", heads, tuple(rows))


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
    "time", "Time roofline", "GFLOP/s", lambda line, at: line.flop_per_s(at) / 1e9, balance=lambda line: line.balance
)
ENERGY_AXIS = _RooflineAxis(
    "energy",
    "Energy roofline",
    "GFLOP/J",
    lambda line, at: line.flop_per_j(at) / 1e9,
    balance=lambda line: line.energy_balance,
)


def roofline_chart(found: RooflineAnalysis, side: _RooflineAxis) -> Chart:
    """Plot performance, or performance per joule, over intensity, with a menu of modes."""
    frames = tuple(_mode_frame(found, side, word, row) for word, row in _list_menu_modes(found))
    other = (
        "Dotted: MAXN's roof. Marks: layers, at the limit of the roof. Star: the predicted whole network, below the "
        "roof because a roofline omits launching, loading and copying on the CPU."
    )
    return menu_chart(side.key, side.title, frames, caption=other, height_px=460, menu="power mode")


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
    caption = (
        f"Grey: {min(MAX_BACKGROUND_MODES, len(spent_ms)):,} of {len(spent_ms):,} modes; zoom out for slower ones. "
        "Front: the non-dominated modes."
    )
    return xy_chart(
        "plane",
        "Time and energy of all modes",
        data,
        xaxis=axis("time per batch (ms)", range=[0.97 * float(spent_ms.min()), last_ms]),
        yaxis=axis("energy per batch (J)", range=[0.95 * low, 1.05 * high]),
        caption=caption,
        height_px=460,
    )


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
    flop: dict[str, float] = {}
    for layer in found.network.layers:
        if _layer_intensity(found, layer) > 0:
            flop[layer.kind] = flop.get(layer.kind, 0.0) + layer.flop
    ordered = sorted(flop, key=lambda kind: -flop[kind])
    kinds = [(kind, {kind}) for kind in ordered[:MAX_LAYER_KINDS]]
    if ordered[MAX_LAYER_KINDS:]:
        kinds.append(("others", set(ordered[MAX_LAYER_KINDS:])))
    shades = (*COLOURS[2:], *COLOURS[1:2], GREY)
    marks = [{"color": shades[i % len(shades)], "symbol": SYMBOLS[i % len(SYMBOLS)]} for i in range(len(kinds))]
    return [
        _layer_kind_trace(found, side, line, name, kinds=those, mark=mark)
        for (name, those), mark in zip(kinds, marks, strict=True)
    ]


def _layer_kind_trace(
    found: RooflineAnalysis,
    side: _RooflineAxis,
    line: Roofline,
    name: str,
    kinds: AbstractSet[str],
    mark: Mapping[str, str],
) -> Trace:
    layers = [one for one in found.network.layers if one.kind in kinds and _layer_intensity(found, one) > 0]
    most = max(layer.flop for layer in found.network.layers)
    at = [_layer_intensity(found, layer) for layer in layers]
    sizes = [8.0 + 9.0 * float(np.sqrt(layer.flop / most)) for layer in layers]
    return scatter_trace(
        name.replace("_", " "),
        at,
        [side.roof(line, one) for one in at],
        marker={**mark, "opacity": 0.75, "size": sizes},
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
    return highlight_trace(name, milliseconds, joules, symbol, hover=_hover_text(found, row))


def _hover_text(found: RooflineAnalysis, row: int) -> str:
    seconds, joules = float(found.batch_times.total_s[row]), float(found.joules[row])
    return (
        f"<b>{found.basis.modes[row]}</b><br>{number(1e3 * seconds)} ms, {number(joules / seconds)} W, "
        f"{number(joules)} J"
    )


def write_roofline_page(found: RooflineAnalysis, out: Path) -> None:
    """Write the page atomically."""
    sections = [
        Section(
            "Rooflines",
            "Attainable performance, and performance per joule, over arithmetic intensity in the selected mode. Left "
            "of the balance, bytes dominate time or energy; right of it, FLOP.",
            (
                roofline_chart(found, TIME_AXIS),
                roofline_chart(found, ENERGY_AXIS),
            ),
        ),
        Section("All modes", _describe_implication(found), (time_energy_chart(found),)),
        Section("Constants", "Constants of the modes above, and predictions per batch.", html=modes_table(found).html),
        Section("Sources", "Provenance of each number.", html=_sources_table(found).html),
    ]
    work = batch_to_work(found.batch)
    label = Markup("Constants are {}; all times and energies are predicted from them.")
    write_page(
        out,
        f"{found.network.name} on {found.basis.spec.name}: rooflines",
        sections,
        "All values are predicted, per batch.",
        heading=f"{found.network.name} on {found.basis.spec.title}",
        facts=(
            f"inference, batch size {found.options.batch_size}",
            f"{number(work.flop / 1e9)} GFLOP",
            f"{number(work.bytes / 1e6)} MB",
            f"{work.intensity:.3g} FLOP per byte",
            f"{len(found.network.layers)} layers",
        ),
        cards=_list_cards(found),
        notes=(found.explanation, label.format(render_badge(found.lines.label))),
    )


def _list_cards(found: RooflineAnalysis) -> list[Card]:
    maxn, chosen = found.choice.maxn_row, found.choice.row
    line = found.lines.mode_roofline(chosen)
    slower, limit = percent(found.choice.slowdown - 1), percent(found.options.max_slowdown - 1)
    # Two values need the full width of a narrow screen.
    return [
        Card("MAXN", _format_time_energy(found, maxn), str(found.basis.modes[maxn]), wide=True),
        Card("Chosen", _format_time_energy(found, chosen), str(found.basis.modes[chosen]), wide=True),
        Card("Energy saved", percent(found.choice.saving), f"{slower} slower; limit {limit}"),
        Card("Balance", f"{number(line.balance)} FLOP/B", f"of energy {number(line.energy_balance)}; chosen mode"),
    ]


def _format_time_energy(found: RooflineAnalysis, row: int) -> str:
    seconds, joules = float(found.batch_times.total_s[row]), float(found.joules[row])
    return f"{number(1e3 * seconds, 3, 'ms')}, {number(joules, 3, 'J')}"


def _describe_implication(found: RooflineAnalysis) -> str:
    line = found.lines.mode_roofline(found.choice.row)
    return f"{describe_implying_modes(found)} In the chosen one: {describe_implication(line)}"


def _sources_table(found: RooflineAnalysis) -> Table:
    spec, network = found.basis.spec, found.network
    rows = [
        ("constants", describe_constants(found)),
        ("network", f"{network.source}; counted per operator, without fusion, at four bytes per element"),
        ("peak arithmetic", f"{spec.gpu_gflops.value:g} GFLOP/s; {spec.gpu_gflops.label}: {spec.gpu_gflops.source}"),
        ("peak memory", f"{spec.mem_gbps.value:g} GB/s; {spec.mem_gbps.label}: {spec.mem_gbps.source}"),
    ]
    return Table("sources", ("what", "source"), tuple((text_cell(word), text_cell(source)) for word, source in rows))
