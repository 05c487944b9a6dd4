"""A roofline analysis for the terminal and as a page: both rooflines, time over energy of all modes, constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import ALARM, COLOURS, GREY, SYMBOLS, Chart, ChartFrame, Trace, line_trace, scatter_trace
from experiments.report.page import Card, Section, render_badge, write_page
from experiments.report.quantities import number, percent
from experiments.report.tables import Cell, Column, Table, build_table, percent_cell, print_lines, text_cell, value_cell
from fedge.analysis.roofline.board_constants import activation_intensity
from fedge.analysis.roofline.layer_benchmark import REFERENCE_KIND, LayerPoint
from fedge.analysis.roofline.microbenchmark import RooflineSweep
from fedge.analysis.roofline.roofline_analysis import KIND_NAMES, RooflineAnalysis, is_fitted
from fedge.analysis.roofline.roofline_model import (
    Roofline,
    RooflineBatch,
    batch_to_work,
    build_roofline_batch,
    describe_balance_side,
    describe_implication,
)
from fedge.costs.layers.network_cost import LayerCost
from fedge.modes import find_mode_index

if TYPE_CHECKING:
    from rich.console import Console


def print_analysis(console: Console, analysis: RooflineAnalysis) -> None:
    """Print the network, the modes compared, the choice and the constants."""
    network, options = analysis.network, analysis.options
    work = batch_to_work(analysis.batch)
    counts = f"{number(work.flop / 1e9)} GFLOP, {number(work.bytes / 1e6)} MB, {len(network.layers)} layers"
    head = (
        f"{network.name} on {analysis.basis.spec.name}, {KIND_NAMES[options.kind]} in batches of {options.batch_size}"
    )
    print_lines(console, [f"{head}: {counts}"])
    _modes_table(analysis).print(console)
    modes, shown = analysis.basis.modes, analysis.lines.mode_roofline(analysis.shown_row)
    limit = f"at most {percent(options.max_slowdown - 1)} slower than MAXN"
    chosen = f"Chosen, {limit}: {modes[analysis.choice.row]}. {analysis.explanation}"
    lines = (
        f"{modes[analysis.shown_row]}: {describe_balance_side(shown, work)}. {describe_implication(shown)}",
        _describe_implying_modes(analysis),
        *(() if analysis.is_refused else (chosen,)),
        describe_constants(analysis),
    )
    print_lines(console, lines)


def _describe_implying_modes(analysis: RooflineAnalysis) -> str:
    count, total = analysis.implying_mode_count, len(analysis.basis.modes)
    return f"Time-efficient implies energy-efficient in {count:,} of {total:,} modes."


def describe_constants(analysis: RooflineAnalysis) -> str:
    """Describe the constants' source, label and errors."""
    constants = analysis.basis.constants
    text = (
        f"Constants are {analysis.lines.label}, fitted to {constants.source}, within "
        f"{percent(constants.time_sd_log)} in time and {percent(constants.power_sd_log)} in power (robust spread)."
    )
    mine = activation_intensity(analysis.network)
    if not is_fitted(constants, mine):
        near = " and ".join(f"{one.network} ({one.intensity:.3g})" for one in constants.networks)
        text += (
            f" This network, of {mine:.3g} FLOP per byte, was not among them; its rooflines are drawn as if it "
            f"used the board like {near}."
        )
    if len(analysis.network.layers) == 1:
        text += " Its layers are unknown, so its time does not include launching them."
    return f"{text} {analysis.caution}"


def _modes_table(analysis: RooflineAnalysis) -> Table:
    shown = [("MAXN", analysis.choice.maxn_row), ("chosen", analysis.choice.row)]
    if analysis.shown_row not in {row for _, row in shown}:
        shown.append(("requested", analysis.shown_row))
    columns = [_list_mode_values(analysis, row) for _, row in shown]
    modes = (Cell(str(analysis.basis.modes[row]).removesuffix(" MHz"), numeric=True) for _, row in shown)
    rows = [(text_cell("mode, MHz"), *modes)]
    rows += [(text_cell(name), *(value_cell(column[name], number) for column in columns)) for name in columns[0]]
    return Table("roofline-constants", ("quantity", *(word for word, _ in shown)), tuple(rows))


def _list_mode_values(analysis: RooflineAnalysis, row: int) -> dict[str, float]:
    """Return one mode's costs, constants and balance points, by quantity."""
    line: Roofline = analysis.lines.mode_roofline(row)
    seconds, joules = _read_cost(analysis, row)
    return {
        "ms": 1e3 * seconds,
        "W": joules / seconds,
        "J": joules,
        "GFLOP/s": 1e-9 / line.tau_f,
        "GB/s": 1e-9 / line.tau_m,
        "pJ/FLOP": 1e12 * line.eps_f,
        "pJ/B": 1e12 * line.eps_m,
        "constant W": line.pi_0_w,
        "balance, FLOP/B": line.balance,
        "energy balance, FLOP/B": line.energy_balance,
    }


def _read_cost(analysis: RooflineAnalysis, row: int) -> tuple[float, float]:
    """Return the seconds and joules of a batch in a mode."""
    return float(analysis.batch_times.total_s[row]), float(analysis.joules[row])


def print_sweep(console: Console, sweep: RooflineSweep) -> None:
    """Print a micro-benchmark: its kernels, and the constants fitted to them."""
    kernels = build_table(
        "kernels",
        (
            ("kernel", lambda point: text_cell(point.kernel)),
            ("FLOP/B", lambda point: value_cell(point.work.intensity, number)),
            ("ms", lambda point: value_cell(1e3 * point.seconds, number)),
            ("GFLOP/s", lambda point: value_cell(1e-9 * point.flop / point.seconds, number)),
            ("GB/s", lambda point: value_cell(1e-9 * point.bytes / point.seconds, number)),
            (
                "of the roof",
                lambda point: percent_cell(max(point.flop * sweep.tau_f, point.bytes * sweep.tau_m) / point.seconds, 0),
            ),
            ("J", lambda point: value_cell(point.joules, number, "J")),
        ),
        sweep.points,
    )
    kernels.print(console)
    if sweep.layers:
        _build_layers_table(sweep).print(console)
    balance = f"balance {number(sweep.tau_m / sweep.tau_f)} FLOP per byte ({sweep.label})"
    reached = f"{percent(sweep.reached, 0)} of the roof is reached in the median"
    rates = f"{number(1e-9 / sweep.tau_f)} GFLOP/s, {number(1e-9 / sweep.tau_m)} GB/s"
    lines = [f"{sweep.device}, {sweep.mode}: {rates}, {balance}; {reached}."]
    line = sweep.roofline
    if line is not None:
        lines.append(
            f"{number(1e12 * line.eps_f)} pJ per FLOP, {number(1e12 * line.eps_m)} pJ per byte, {number(line.pi_0_w)} "
            f"W constant power, energy within {percent(sweep.energy_mape)}. {describe_implication(line)}"
        )
    if any(layer.flop * sweep.tau_f > layer.seconds for layer in sweep.layers):
        lines.append("Layers reach more FLOP/s than the machine: other programs disturbed the measurement. Repeat it.")
    made = sweep.conditions
    if made is not None:
        threads = f"{made.threads} thread{'' if made.threads == 1 else 's'}"
        lines.append(f"{made.machine}; torch {made.torch}, {threads}, {made.precision}; {made.date}.")
    print_lines(console, [*lines, f"{sweep.note[0].upper()}{sweep.note[1:]}."])


def _build_layers_table(sweep: RooflineSweep) -> Table:
    """Build the table of kinds of layers; bytes are counted without caches, so that a rate may exceed the memory's."""
    dense = {(one.step, one.batch_size): one.gflop_per_s for one in sweep.layers if one.kind == REFERENCE_KIND}

    def compare(point: LayerPoint) -> float | None:
        reference = dense.get((point.step, point.batch_size))
        return None if reference is None else point.gflop_per_s / reference

    columns: tuple[Column[LayerPoint], ...] = (
        ("layer", lambda point: text_cell(point.kind)),
        ("step", lambda point: text_cell(point.step)),
        ("sample", lambda point: text_cell("x".join(map(str, point.sample)))),
        ("batch", lambda point: value_cell(point.batch_size, "d")),
        ("ms", lambda point: value_cell(1e3 * point.seconds, number)),
        ("GFLOP/s", lambda point: value_cell(point.gflop_per_s, number)),
        (f"of {REFERENCE_KIND}", lambda point: percent_cell(compare(point), 0)),
        ("GB/s", lambda point: value_cell(point.gb_per_s, number)),
        ("of memory's", lambda point: percent_cell(1e9 * point.gb_per_s * sweep.tau_m, 0)),
    )
    return build_table("layers", columns, sweep.layers)


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


Side = Literal["time", "energy"]
"""One of the two rooflines."""
SIDE_UNITS: dict[Side, str] = {"time": "GFLOP/s", "energy": "GFLOP/J"}


def _read_roof(side: Side, line: Roofline, at: float) -> float:
    """Return the attainable value of a mode at an intensity (FLOP per byte)."""
    return (line.flop_per_s(at) if side == "time" else line.flop_per_j(at)) / 1e9


def _roofline_chart(found: RooflineAnalysis, side: Side) -> Chart:
    listed = _list_menu_modes(found)
    frames = (_mode_frame(found, side, word, row, listed=listed) for word, row in listed)
    caption = (
        "Dotted: MAXN's roof. Marks: layers, at the limit of the roof. Star: the predicted whole network, below the "
        "roof because a roofline omits launching, loading and copying on the CPU."
    )
    title = f"{side.capitalize()} roofline"
    return chart.frame_chart(side, title, frames, caption=caption, height_px=460, menu="power mode")


def _time_energy_chart(found: RooflineAnalysis) -> Chart:
    spent_ms, joules = 1e3 * found.batch_times.total_s, found.joules
    maxn, chosen = found.choice.maxn_row, found.choice.row
    rows = chart.thin_rows(len(spent_ms), MAX_BACKGROUND_MODES)
    limit_ms = found.options.max_slowdown * float(spent_ms[maxn])
    last_ms = max(MAX_TIME_RATIO * float(spent_ms[maxn]), 1.05 * limit_ms)
    near = spent_ms <= last_ms
    low, high = float(joules[near].min()), float(joules[near].max())
    limit = f"{percent(found.options.max_slowdown - 1)} slower than MAXN"
    plane: dict[str, Any] = {"x": lambda row: float(spent_ms[row]), "y": lambda row: float(joules[row])}
    marked = [("MAXN", maxn, "star"), ("chosen", chosen, "diamond")]
    if found.shown_row not in {maxn, chosen}:
        marked.append(("requested", found.shown_row, "square"))
    data = [
        scatter_trace(
            "other modes",
            of=rows.tolist(),
            **plane,
            marker={"color": GREY, "size": 4, "opacity": 0.4},
            hover=lambda row: str(found.basis.modes[row]),
        ),
        line_trace(
            "front",
            of=found.front,
            **plane,
            colour=COLOURS[0],
            markers=True,
            marker={"size": 5},
            hover=lambda row: _hover_text(found, row),
        ),
        line_trace(limit, [limit_ms, limit_ms], [0.0, 2.0 * high], colour=GREY, dash="dash", markers=False),
        *(
            chart.highlight_trace(name, float(spent_ms[row]), float(joules[row]), symbol, hover=_hover_text(found, row))
            for name, row, symbol in marked
        ),
    ]
    return chart.xy_chart(
        "plane",
        "Time and energy of all modes",
        data,
        xaxis=chart.axis("time per batch (ms)", range=[0.97 * float(spent_ms.min()), last_ms]),
        yaxis=chart.axis("energy per batch (J)", range=[0.95 * low, 1.05 * high]),
        caption=f"Grey: {len(rows):,} of {len(spent_ms):,} modes; zoom out for slower ones. "
        "Front: the non-dominated modes.",
        height_px=460,
    )


def _list_menu_modes(found: RooflineAnalysis) -> list[tuple[str, int]]:
    """Return the menu's modes: the chosen one, the requested one, MAXN, the presets and part of the front."""
    spec, modes, front = found.basis.spec, found.basis.modes, found.front
    rows: dict[int, str] = {}
    requested = [("requested", found.shown_row)] if found.options.mode is not None else []
    for word, row in (*requested, ("chosen", found.choice.row), ("MAXN", found.choice.maxn_row)):
        rows.setdefault(row, word)
    for name, preset in spec.presets.items():
        known = find_mode_index(modes, preset)
        if known is not None:
            rows.setdefault(known, name)
    for place in np.linspace(0, len(front) - 1, min(MAX_FRONT_MODES, len(front))).round().astype(int):
        rows.setdefault(front[int(place)], "front")
    return [(word, row) for row, word in rows.items()]


def _mode_frame(found: RooflineAnalysis, side: Side, kind: str, row: int, listed: list[tuple[str, int]]) -> ChartFrame:
    """Plot the roof of the mode in ``row`` over MAXN's; ``kind`` says why the menu lists it.

    The axes are the same for all ``listed`` modes, so that switching modes shows what changes.
    """
    roof, maxn_roof = found.lines.mode_roofline(row), found.lines.mode_roofline(found.choice.maxn_row)
    intensities = [at for layer in found.network.layers if (at := _layer_intensity(found, layer)) > 0]
    intensities += [batch_to_work(found.batch).intensity, maxn_roof.balance, maxn_roof.energy_balance]
    low, high = 0.6 * max(min(intensities), 1e-2), 1.8 * max(intensities)
    lines = [found.lines.mode_roofline(other) for _, other in listed]
    least = min(
        *(_read_roof(side, line, low) for line in lines), *(_network_height(found, side, one) for _, one in listed)
    )
    most = max(_read_roof(side, line, high) for line in lines)
    along = np.geomspace(low, high, ROOF_POINTS).tolist()
    at = roof.balance if side == "time" else roof.energy_balance
    batch_s, batch_j = _read_cost(found, row)
    data = [
        _roof_trace("MAXN's roof", side, maxn_roof, along, colour=GREY, width=1.5, dash="dot"),
        _roof_trace("roof", side, roof, along, colour=COLOURS[0], width=2.5),
        *_layer_traces(found, side, roof),
        scatter_trace(
            "balance",
            [at],
            [_read_roof(side, roof, at)],
            marker={"symbol": "line-ns-open", "size": 22, "color": COLOURS[0], "line": {"width": 2}},
            hover="balance: %{x:.3g} FLOP per byte",
        ),
        scatter_trace(
            found.network.name,
            [batch_to_work(found.batch).intensity],
            [_network_height(found, side, row)],
            marker={"symbol": "star", "size": 17, "color": ALARM, "line": {"width": 1.5, "color": "white"}},
            hover=[
                Markup("<b>{}</b>, batch {}<br>{}").format(
                    found.network.name, found.options.batch_size, _hover_text(found, row)
                )
            ],
        ),
    ]
    layout = chart.xy_layout(
        chart.log_axis("intensity (FLOP per byte)", *np.log10([low, high]).tolist()),
        chart.log_axis(SIDE_UNITS[side], *np.log10([0.6 * least, 2.0 * most]).tolist()),
    )
    summary = (
        f"{number(1e3 * batch_s)} ms, {number(batch_j / batch_s)} W, {number(batch_j)} J; balance "
        f"{number(at)} FLOP per byte. {describe_implication(roof).partition(':')[0]}."
    )
    return ChartFrame(f"{found.basis.modes[row]} ({kind})", data, layout, summary)


def _layer_intensity(found: RooflineAnalysis, layer: LayerCost) -> float:
    return batch_to_work(_layer_batch(found, layer)).intensity


def _layer_batch(found: RooflineAnalysis, layer: LayerCost) -> RooflineBatch:
    alone = dataclasses.replace(found.network, layers=(layer,))
    return build_roofline_batch(alone, found.options.batch_size, found.options.kind)


def _roof_trace(name: str, side: Side, line: Roofline, along: list[float], **style: Any) -> Trace:
    hover = f"{name}: %{{y:.4g}} {SIDE_UNITS[side]} at %{{x:.3g}} FLOP per byte"
    return line_trace(name, along, [_read_roof(side, line, at) for at in along], markers=False, hover=hover, **style)


def _layer_traces(found: RooflineAnalysis, side: Side, line: Roofline) -> Iterator[Trace]:
    flop: dict[str, float] = {}
    layers = [layer for layer in found.network.layers if _layer_intensity(found, layer) > 0]
    for layer in layers:
        flop[layer.kind] = flop.get(layer.kind, 0.0) + layer.flop
    ordered = sorted(flop, key=lambda kind: -flop[kind])
    kinds: list[tuple[str, AbstractSet[str]]] = [(kind, {kind}) for kind in ordered[:MAX_LAYER_KINDS]]
    if ordered[MAX_LAYER_KINDS:]:
        kinds.append(("others", {*ordered[MAX_LAYER_KINDS:]}))
    shades = (*COLOURS[2:], *COLOURS[1:2], GREY)
    most = max(layer.flop for layer in found.network.layers)
    for i, (name, those) in enumerate(kinds):
        own = [layer for layer in layers if layer.kind in those]
        sizes = [8.0 + 9.0 * float(np.sqrt(layer.flop / most)) for layer in own]
        mark = {"color": shades[i % len(shades)], "symbol": SYMBOLS[i % len(SYMBOLS)]}
        yield scatter_trace(
            name.replace("_", " "),
            of=own,
            x=lambda layer: _layer_intensity(found, layer),
            y=lambda layer: _read_roof(side, line, _layer_intensity(found, layer)),
            marker={**mark, "opacity": 0.75, "size": sizes},
            hover=lambda layer: Markup("<b>{}</b> ({})<br>{} MFLOP, {:.3g} FLOP per byte").format(
                layer.name,
                layer.kind,
                number(float(_layer_batch(found, layer).flop) / 1e6),
                _layer_intensity(found, layer),
            ),
        )


def _network_height(found: RooflineAnalysis, side: Side, row: int) -> float:
    per = found.batch_times.total_s[row] if side == "time" else found.joules[row]
    return batch_to_work(found.batch).flop / float(per) / 1e9


def _hover_text(found: RooflineAnalysis, row: int) -> str:
    seconds, joules = _read_cost(found, row)
    figures = f"{number(1e3 * seconds)} ms, {number(joules / seconds)} W, {number(joules)} J"
    return Markup("<b>{}</b><br>{}").format(found.basis.modes[row], figures)


def write_roofline_page(found: RooflineAnalysis, out: Path) -> None:
    """Write the page atomically."""
    lead = (
        "Attainable performance, and performance per joule, over arithmetic intensity in the selected mode. Left "
        "of the balance, bytes dominate time or energy; right of it, FLOP."
    )
    line = found.lines.mode_roofline(found.choice.row)
    implied = f"{_describe_implying_modes(found)} In the chosen one: {describe_implication(line)}"
    modes = "Constants of the modes above, and predictions per batch."
    work = batch_to_work(found.batch)
    label = Markup("Constants are {}; all times and energies are predicted from them.")
    write_page(
        out,
        f"{found.network.name} on {found.basis.spec.name}: rooflines",
        (
            Section("Rooflines", lead, (_roofline_chart(found, "time"), _roofline_chart(found, "energy"))),
            Section("All modes", implied, (_time_energy_chart(found),)),
            Section("Constants", modes, html=_modes_table(found).html),
            Section("Sources", "Provenance of each number.", html=_sources_table(found).html),
        ),
        "All values are predicted, per batch.",
        heading=f"{found.network.name} on {found.basis.spec.title}",
        facts=(
            f"{KIND_NAMES[found.options.kind]}, batch size {found.options.batch_size}",
            f"{number(work.flop / 1e9)} GFLOP",
            f"{number(work.bytes / 1e6)} MB",
            f"{work.intensity:.3g} FLOP per byte",
            f"{len(found.network.layers)} layers",
        ),
        cards=_list_cards(found, line),
        notes=(*filter(None, (found.explanation,)), label.format(render_badge(found.lines.label))),
    )


def _list_cards(found: RooflineAnalysis, line: Roofline) -> Iterator[Card]:
    # Two values need the full width of a narrow screen.
    for name, row in (("MAXN", found.choice.maxn_row), ("Chosen", found.choice.row)):
        seconds, joules = _read_cost(found, row)
        cost = f"{number(1e3 * seconds, 3, 'ms')}, {number(joules, 3, 'J')}"
        yield Card(name, cost, str(found.basis.modes[row]), wide=True)
    slower, limit = percent(found.choice.slowdown - 1), percent(found.options.max_slowdown - 1)
    yield Card("Energy saved", percent(found.choice.saving), f"{slower} slower; limit {limit}")
    yield Card("Balance", f"{number(line.balance)} FLOP/B", f"of energy {number(line.energy_balance)}; chosen mode")


def _sources_table(found: RooflineAnalysis) -> Table:
    spec, network = found.basis.spec, found.network
    rows = (
        ("constants", describe_constants(found)),
        ("network", f"{network.source}; counted per operator, without fusion, at four bytes per element"),
        ("peak arithmetic", f"{spec.gpu_gflops.value:g} GFLOP/s; {spec.gpu_gflops.label}: {spec.gpu_gflops.source}"),
        ("peak memory", f"{spec.mem_gbps.value:g} GB/s; {spec.mem_gbps.label}: {spec.mem_gbps.source}"),
    )
    return Table("sources", ("what", "source"), tuple(tuple(map(text_cell, row)) for row in rows))
