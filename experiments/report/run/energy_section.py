"""Energy of a run per board with its baselines, and power over time: the stored samples, averaged over equal cells.

A cell's power is the energy of its samples divided by its length, so the area under a line equals the samples' energy
for any averaging. Symbols: ``cell_s`` is the length of a cell, ``cells`` their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from experiments.report.chart import (
    CATEGORY_AXIS,
    FRAME_PX,
    Chart,
    ChartFrame,
    Trace,
    axis,
    bar_trace,
    menu_chart,
    scatter_trace,
    step_trace,
    xy_chart,
    xy_layout,
)
from experiments.report.page import Section, render_paragraph
from experiments.report.palette import COLOURS, GREY, SEND, WAIT, assign_colours
from experiments.report.quantities import (
    UnitScale,
    duration,
    energy,
    energy_scale,
    number,
    time_scale,
)
from experiments.report.run.loaded_runs import MAX_BOARDS, LoadedRun
from fedge.telemetry.store_records import ClientRow

ENERGY_CAPTION = (
    "Marks: ┃ the board works and waits at MAXN; △ it works at MAXN and waits in its lowest mode, both in rounds as "
    "long as the fleet takes at MAXN; ◇ the oracle, which knows the true time and power, in rounds of the actual "
    "length, waiting in the lowest mode. From ┃ to △: saved by the low idle mode, without predictions. From △ to the "
    "end of the bar: saved by mode choice. From there to ◇: what better predictions could save."
)


def client_energy_chart(run: LoadedRun) -> Chart:
    """Plot the energy per board, or per average board of each kind in large fleets, with the baselines."""
    groups = _group_bars(run)
    sums = {name: _sum_energy(rows, share) for name, (_, rows, share) in groups.items()}
    scale = energy_scale([value for one in sums.values() for value in (one["total"], one["maxn"])])
    names = list(groups)
    colour = assign_colours(run.devices)
    work = {f"work: {d}": (colour[d], "work", [n for n in names if groups[n][0] == d]) for d in run.devices}
    parts = {**work, "radio": (SEND, "radio", names), "idle and waiting": (WAIT, "rest", names)}
    data = [_energy_trace(name, part, sums, scale) for name, part in parts.items() if part[2]]
    data += _reference_traces(names, sums, scale) if run.compared_rounds else []
    part = f"{run.compared_note}: those in which every board finished on time and its true time and power are known"
    caption = (
        f"Summed {part if run.compared_note else 'over all rounds'}. {ENERGY_CAPTION if run.compared_rounds else ''}"
    )
    if len(run.device_by_board) > MAX_BOARDS:
        caption += f" With {len(run.device_by_board)} boards, each bar is the mean of a kind."
    return xy_chart(
        "energy-clients",
        "Energy per board",
        data,
        xaxis=axis(f"energy ({scale.unit})", rangemode="tozero"),
        yaxis=CATEGORY_AXIS,
        caption=caption,
        height_px=FRAME_PX + 26 * max(3, len(names)),
        barmode="stack",
    )


BarGroups = dict[str, tuple[str, list[ClientRow], float]]


def _group_bars(run: LoadedRun) -> BarGroups:
    """Return each bar's kind, rows and number of boards that its sums are divided by, by the bar's name."""
    counted = {row.round for row in run.compared_rounds or run.rounds}
    clients = [row for row in run.clients if row.round in counted]
    if len(run.device_by_board) <= MAX_BOARDS:
        return {
            board: (kind, [r for r in clients if r.board == board], 1.0) for board, kind in run.device_by_board.items()
        }
    count = {device: sum(kind == device for kind in run.device_by_board.values()) for device in run.devices}
    return {
        d: (d, [row for row in clients if run.device_by_board[row.board] == d], float(count[d])) for d in run.devices
    }


def _sum_energy(rows: Sequence[ClientRow], share: float) -> dict[str, float | None]:
    total, work, radio = (sum(getattr(row, name) for row in rows) / share for name in ("energy_j", "work_j", "radio_j"))
    return {
        "total": total,
        "work": work,
        "radio": radio,
        "rest": total - work - radio,
        **{name: _sum_known(rows, f"{name}_energy_j", share) for name in ("oracle", "maxn", "maxn_parked")},
    }


def _sum_known(rows: Sequence[ClientRow], column: str, share: float) -> float | None:
    """Return the sum of a baseline's energy; None if the truth is unknown."""
    known = [value for row in rows if (value := getattr(row, column)) is not None]
    return sum(known) / share if known and len(known) == len(rows) else None


def _energy_trace(
    name: str, part: tuple[str, str, Sequence[str]], sums: Mapping[str, Mapping[str, float | None]], scale: UnitScale
) -> Trace:
    """Return the bars of one part: its colour, its key in ``sums``, and the boards that have it."""
    colour, key, names = part
    lengths = [scale.convert(sums[name][key]) for name in names]
    hover = Markup("%{{y}}: %{{x:.3~g}} {}<extra>{}</extra>").format(scale.unit, name)
    return bar_trace(name, names, lengths, colour=colour, horizontal=True, hover=hover, width=0.7)


def _reference_traces(names: Sequence[str], sums: dict[str, dict[str, float | None]], scale: UnitScale) -> list[Trace]:
    marks: tuple[tuple[str, str, Trace], ...] = (
        ("oracle", "oracle", {"symbol": "diamond", "size": 9, "color": "white"}),
        ("maxn", "MAXN", {"symbol": "line-ns", "size": 14}),
        ("maxn_parked", "MAXN, low idle", {"symbol": "triangle-up", "size": 9, "color": "white"}),
    )
    traces = []
    for key, name, marker in marks:
        known = [one for one in names if sums[one][key] is not None]
        line: Trace = {"color": GREY, "width": 3} if key == "maxn" else {"color": "#30363d", "width": 1.5}
        if known:
            hover = f"%{{y}}: %{{x:.3~g}} {scale.unit}<extra>{name}</extra>"
            values = [scale.convert(sums[one][key]) for one in known]
            traces.append(scatter_trace(name, values, known, marker={**marker, "line": line}, hover=hover))
    return traces


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
        return self.cell_s * sum(power or 0.0 for power in self.boards[board])


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
    lines: dict[str, list[float | None]] = {}
    for board, cell, joules in zip(binned["board"], binned["cell"], binned["joules"], strict=True):
        if joules is not None:
            lines.setdefault(board, [None] * cells)[cell] = joules / cell_s
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
    return Section("Power", lead, (_fleet_chart(run, curves), _board_chart(run, curves)))


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
    scale, sums = _time_scale(curves), power_by_kind(run, curves)
    colour = assign_colours(list(sums))
    data = [
        step_trace(
            device,
            line,
            begin=curves.begin_s / scale.per,
            step=curves.cell_s / scale.per,
            colour=colour[device],
            width=0.5,
            hover=Markup("{}: %{{y:.1f}} W").format(device),
            stackgroup="fleet",
        )
        for device, line in sums.items()
    ]
    caption = "Kinds of boards, stacked: the upper edge is the power of the whole fleet."
    more: dict[str, Any] = {"showlegend": True, "hovermode": "x unified"}
    return xy_chart("power-fleet", "The fleet", data, *_power_axes(scale), caption=caption, height_px=300, **more)


def _board_chart(run: LoadedRun, curves: PowerCurves) -> Chart:
    frames = [_board_frame(run, curves, board) for board in curves.boards]
    caption = "Gaps: no samples from the board."
    return menu_chart("power-board", "One board", frames, caption=caption, height_px=300, menu="board")


def _board_frame(run: LoadedRun, curves: PowerCurves, board: str) -> ChartFrame:
    scale, line = _time_scale(curves), curves.boards[board]
    highest_w = max(power for power in line if power is not None)
    trace = step_trace(
        board,
        line,
        begin=curves.begin_s / scale.per,
        step=curves.cell_s / scale.per,
        colour=assign_colours(run.devices).get(run.device_by_board.get(board, ""), COLOURS[0]),
        hover="%{y:.2f} W",
    )
    summary = f"{energy(curves.energy_j(board))}, maximum {number(highest_w, 3, 'W')}"
    return ChartFrame(board, [trace], xy_layout(*_power_axes(scale)), summary)


def _time_scale(curves: PowerCurves) -> UnitScale:
    cells = len(next(iter(curves.boards.values())))
    return time_scale([curves.begin_s + cells * curves.cell_s])


def _power_axes(scale: UnitScale) -> tuple[dict[str, Any], dict[str, Any]]:
    return axis(f"fleet clock ({scale.unit})"), axis("power (W)", rangemode="tozero")
