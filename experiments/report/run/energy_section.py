"""Energy of a run per board with its baselines, and power over time: the stored samples, averaged over equal cells.

A cell's power is the energy of its samples divided by its length, so the area under a line equals the samples' energy
for any averaging. Symbols: ``cell_s`` is the length of a cell, ``cells`` their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import GREY, SEND, WAIT, Chart, ChartFrame, SeriesStyle, Trace, assign_styles, axis
from experiments.report.page import Section, render_paragraph
from experiments.report.quantities import duration, energy, energy_scale, number, time_scale
from experiments.report.run.loaded_runs import MAX_BOARDS, LoadedRun
from fedge.groups import group_by
from fedge.telemetry.store_records import ClientRow

ENERGY_CAPTION = (
    "Marks: ┃ the board works and waits at MAXN; △ it works at MAXN and waits in its lowest mode, both in rounds as "
    "long as the fleet takes at MAXN; ◇ the oracle, which knows the true time and power, in rounds of the actual "
    "length, waiting in the lowest mode. From ┃ to △: saved by the low idle mode, without predictions. From △ to the "
    "end of the bar: saved by mode choice. From there to ◇: what better predictions could save."
)


ENERGY_MARKS: tuple[tuple[str, str, Trace], ...] = (
    ("oracle", "oracle", {"symbol": "diamond", "size": 9, "color": "white"}),
    ("maxn", "MAXN", {"symbol": "line-ns", "size": 14}),
    ("maxn_parked", "MAXN, low idle", {"symbol": "triangle-up", "size": 9, "color": "white"}),
)
"""Key, name and marker of every baseline."""


@dataclass(frozen=True, slots=True)
class _EnergyBar:
    """A board, or the average board of a kind: the joules of its parts and of its baselines, None if unknown."""

    name: str
    device: str
    energies_j: Mapping[str, float | None]


def client_energy_chart(run: LoadedRun) -> Chart:
    """Plot the energy per board, or per average board of each kind in large fleets, with the baselines."""
    bars = list(_list_bars(run))
    scale = energy_scale([bar.energies_j[key] for bar in bars for key in ("total", "maxn")])
    work = ((f"work: {device}", style.colour, "work", device) for device, style in run.styles.items())
    parts = (*work, ("radio", SEND, "radio", ""), ("idle and waiting", WAIT, "rest", ""))

    hover = Markup("%{{y}}: %{{x:.3~g}} {}<extra>{}</extra>")
    data: list[Trace] = []
    for name, colour, key, device in parts:
        own = [bar for bar in bars if device in {"", bar.device}]
        names, spent = [bar.name for bar in own], [scale.convert(bar.energies_j[key]) for bar in own]
        if own:
            shown = hover.format(scale.unit, name)
            data.append(chart.bar_trace(name, names, spent, colour=colour, horizontal=True, width=0.7, hover=shown))
    for key, name, marker in ENERGY_MARKS if run.compared_rounds else ():
        own = [bar for bar in bars if bar.energies_j[key] is not None]
        names, spent = [bar.name for bar in own], [scale.convert(bar.energies_j[key]) for bar in own]
        line = {"color": GREY, "width": 3} if key == "maxn" else {"color": "#30363d", "width": 1.5}
        if own:
            shown = hover.format(scale.unit, name)
            data.append(chart.scatter_trace(name, spent, names, marker={**marker, "line": line}, hover=shown))
    part = f"{run.compared_note}: those in which every board finished on time and its true time and power are known"
    caption = (
        f"Summed {part if run.compared_note else 'over all rounds'}. {ENERGY_CAPTION if run.compared_rounds else ''}"
    )
    if len(run.device_by_board) > MAX_BOARDS:
        caption += f" With {len(run.device_by_board)} boards, each bar is the mean of a kind."
    return chart.xy_chart(
        "energy-clients",
        "Energy per board",
        data,
        xaxis=axis(f"energy ({scale.unit})", rangemode="tozero"),
        yaxis=chart.CATEGORY_AXIS,
        caption=caption,
        height_px=chart.FRAME_PX + 26 * max(3, len(bars)),
        barmode="stack",
    )


def _list_bars(run: LoadedRun) -> Iterator[_EnergyBar]:
    counted = {row.round for row in run.compared_rounds or run.rounds}
    by_kind = len(run.device_by_board) > MAX_BOARDS
    bars = dict.fromkeys((kind if by_kind else board, kind) for board, kind in run.device_by_board.items())
    clients = (row for row in run.clients if row.round in counted)
    rows = group_by(clients, lambda row: run.device_by_board[row.board] if by_kind else row.board)
    for name, kind in bars:
        boards = sum(one == kind for one in run.device_by_board.values()) if by_kind else 1
        yield _EnergyBar(name, kind, _sum_energy(rows.get(name, ()), float(boards)))


def _sum_energy(rows: Sequence[ClientRow], boards: float) -> dict[str, float | None]:
    """Return the joules per board by part and by baseline; a baseline is None if the truth of a row is unknown."""
    total, work, radio = (sum(getattr(row, key) for row in rows) / boards for key in ("energy_j", "work_j", "radio_j"))
    energies_j: dict[str, float | None] = {"total": total, "work": work, "radio": radio, "rest": total - work - radio}
    for key, *_ in ENERGY_MARKS:
        known = [value for row in rows if (value := getattr(row, f"{key}_energy_j")) is not None]
        energies_j[key] = sum(known) / boards if known and len(known) == len(rows) else None
    return energies_j


MOST_CELLS, FEWEST_CELLS = 600, 20
"""Default bounds on the cells per line: as many as a wide screen resolves, and enough to show the course of a run."""
MAX_NUMBERS = 150_000
"""Bound on the cells of all boards together, which limits them to 1.5 MB of the page."""
NO_SAMPLES_NOTE = (
    "This run has no samples, so there is no power over time to draw: an older version wrote it, or no board reported "
    "any."
)
BINNED_POWER_SQL = """
with stretches as (
  select board, at_s - {begin_s} as a, at_s + span_s - {begin_s} as b, power_w
  from samples where round <= {last} and span_s > 0
), pieces as (
  select board, a, b, power_w, unnest(range(
    greatest(0, least({cells} - 1, cast(floor(a / {cell_s}) as bigint))),
    least({cells}, cast(ceil(b / {cell_s}) as bigint)))) as cell from stretches
)
select board, cell, sum(power_w * greatest(0, least(b, (cell + 1) * {cell_s}) - greatest(a, cell * {cell_s}))) as joules
from pieces group by board, cell
"""


@dataclass(frozen=True, slots=True)
class PowerCurves:
    """Power of every board over time.

    Attributes:
        begin_s: Start of the first cell, in seconds.
        boards: Watts per cell by board name; None for a cell without samples.
    """

    begin_s: float
    cell_s: float
    boards: Mapping[str, Sequence[float | None]]

    def energy_j(self, board: str) -> float:
        """Return the area under the board's line, in joules."""
        return self.cell_s * sum(filter(None, self.boards[board]))


def count_cells(boards: int) -> int:
    """Return the number of cells per line that keeps the page small."""
    return max(FEWEST_CELLS, min(MOST_CELLS, MAX_NUMBERS // max(1, boards)))


def read_power_curves(run: LoadedRun) -> PowerCurves | None:
    """Read the power curves from the samples of finished rounds; None if there are no samples."""
    from fedge.telemetry import open_run

    last = run.rounds[-1].round
    with open_run(run.folder) as opened:
        ends = "select min(at_s) as begin_s, max(at_s + span_s) as end_s, count(distinct board) as boards from samples"
        extent = opened.query(f"{ends} where round <= {last} and span_s > 0").to_pylist()[0]
        if not extent["boards"] or not extent["end_s"] > extent["begin_s"]:
            return None
        cells = count_cells(extent["boards"])
        cell_s = (extent["end_s"] - extent["begin_s"]) / cells
        bounds = {"begin_s": repr(extent["begin_s"]), "cell_s": repr(cell_s), "cells": cells, "last": last}
        binned = opened.query(BINNED_POWER_SQL.format(**bounds)).to_pydict()
    return PowerCurves(extent["begin_s"], cell_s, _build_curves(run, binned, cells, cell_s))


def _build_curves(
    run: LoadedRun, binned: Mapping[str, list[Any]], cells: int, cell_s: float
) -> dict[str, list[float | None]]:
    lines: defaultdict[str, list[float | None]] = defaultdict(lambda: [None] * cells)
    for board, cell, joules in zip(binned["board"], binned["cell"], binned["joules"], strict=True):
        if joules is not None:
            lines[board][cell] = joules / cell_s
    order = {board: i for i, board in enumerate(run.device_by_board)}
    return {board: lines[board] for board in sorted(lines, key=lambda name: (order.get(name, len(order)), name))}


def build_power_section(run: LoadedRun) -> Section:
    """Build the section: power by kind, and one board's from a menu; only a note if there are no samples."""
    curves = read_power_curves(run)
    if curves is None:
        return Section("Power", "Power of the boards over time.", (), render_paragraph(NO_SAMPLES_NOTE))
    drawn_j = sum(curves.energy_j(board) for board in curves.boards)
    booked_j = sum(row.energy_j for row in run.clients)
    lead = (
        f"Power of the boards over time. The area under the curves is {energy(drawn_j)}; the sum over rounds is "
        f"{energy(booked_j)}. Each point is the mean over {duration(curves.cell_s)}."
    )
    frames = (_board_frame(run, curves, board) for board in curves.boards)
    gaps = "Gaps: no samples from the board."
    boards = chart.frame_chart("power-board", "One board", frames, caption=gaps, height_px=300, menu="board")
    return Section("Power", lead, (_fleet_chart(run, curves), boards))


def power_by_kind(run: LoadedRun, curves: PowerCurves) -> dict[str, list[float]]:
    """Return the summed power of each kind of board, in watts per cell."""
    cells = len(next(iter(curves.boards.values())))
    sums: dict[str, list[float]] = {}
    for board, line in curves.boards.items():
        total = sums.setdefault(run.device_by_board.get(board, "another kind"), [0.0] * cells)
        for i, power in enumerate(line):
            total[i] += power or 0.0
    return sums


def _fleet_chart(run: LoadedRun, curves: PowerCurves) -> Chart:
    sums = power_by_kind(run, curves)
    axes, steps = _scale_time(curves)
    data = [
        chart.step_trace(
            device,
            sums[device],
            colour=style.colour,
            width=0.5,
            hover=Markup("{}: %{{y:.1f}} W").format(device),
            stackgroup="fleet",
            **steps,
        )
        for device, style in assign_styles(sums).items()
    ]
    caption = "Kinds of boards, stacked: the upper edge is the power of the whole fleet."
    more: dict[str, Any] = {"showlegend": True, "hovermode": "x unified"}
    return chart.xy_chart("power-fleet", "The fleet", data, *axes, caption=caption, height_px=300, **more)


def _board_frame(run: LoadedRun, curves: PowerCurves, board: str) -> ChartFrame:
    line, style = curves.boards[board], run.styles.get(run.device_by_board.get(board, ""), SeriesStyle())
    highest_w = max(power for power in line if power is not None)
    axes, steps = _scale_time(curves)
    trace = chart.step_trace(board, line, colour=style.colour, hover="%{y:.2f} W", **steps)
    summary = f"{energy(curves.energy_j(board))}, maximum {number(highest_w, 3, 'W')}"
    return ChartFrame(board, [trace], chart.xy_layout(*axes), summary)


def _scale_time(curves: PowerCurves) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return both axes, and beginning and length of the cells on the time axis."""
    cells = len(next(iter(curves.boards.values())))
    scale = time_scale([curves.begin_s + cells * curves.cell_s])
    axes = [axis(f"fleet clock ({scale.unit})"), axis("power (W)", rangemode="tozero")]
    return axes, {"begin": curves.begin_s / scale.per, "step": curves.cell_s / scale.per}
