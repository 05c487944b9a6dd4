"""Energy of one run, board by board, beside what the oracle and MAXN would have spent; pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from experiments.report.chart import LEGEND, Chart, Trace, axis
from experiments.report.palette import GREY, SEND, WAIT, colours
from experiments.report.quantities import Scale, energy_scale
from experiments.report.runs import Run
from experiments.report.sampling import MAX_BOARDS
from fedge.telemetry.rows import ClientRow

CAPTION = (
    "Summed over all rounds. Compare the end of a bar with the marks, which count the same waiting at idle power: ◇ is "
    "the least that a planner who knows the truth would have spent in rounds of this length, ┃ the board at MAXN in "
    "the same rounds. What lies between the bar's end and ◇ is energy that better predictions could save."
)


def energy_of_clients(run: Run) -> Chart:
    """Energy per board (in large fleets, per kind the mean board), and what other modes would have cost."""
    groups = _groups(run)
    sums = {name: _sums(rows, share) for name, (_, rows, share) in groups.items()}
    scale = energy_scale([one["total"] for one in sums.values()])
    names = list(groups)
    data = [*_work_bars(run, groups, sums, scale)]
    data.append(_energy_bar("radio", SEND, names, [sums[name]["radio"] for name in names], scale))
    data.append(_energy_bar("idle and waiting", WAIT, names, [sums[name]["rest"] for name in names], scale))
    data += _marked(names, sums, scale)
    layout = {
        "barmode": "stack",
        "xaxis": axis(f"energy ({scale.unit})", rangemode="tozero"),
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False, "fixedrange": True},
        "legend": LEGEND,
        "hovermode": "closest",
    }
    caption = CAPTION if any(one["oracle"] is not None for one in sums.values()) else "Summed over all rounds."
    if len(run.kinds) > MAX_BOARDS:
        caption += f" With {len(run.kinds)} boards, each bar is the mean board of its kind."
    return Chart("energy-clients", "Energy per board", caption, data, layout, 130 + 26 * max(3, len(names)))


Groups = dict[str, tuple[str, list[ClientRow], float]]


def _groups(run: Run) -> Groups:
    """Bar's name -> kind, rows, and by how many boards their sums are divided."""
    if len(run.kinds) <= MAX_BOARDS:
        return {board: (kind, [r for r in run.clients if r.board == board], 1.0) for board, kind in run.kinds.items()}
    count = {device: sum(kind == device for kind in run.kinds.values()) for device in run.devices}
    return {d: (d, [row for row in run.clients if row.device == d], float(count[d])) for d in run.devices}


def _sums(rows: Sequence[ClientRow], share: float) -> dict[str, float | None]:
    total, work, radio = (sum(getattr(row, name) for row in rows) / share for name in ("energy_j", "work_j", "radio_j"))
    return {
        "total": total,
        "work": work,
        "radio": radio,
        "rest": total - work - radio,
        "oracle": _otherwise(rows, "oracle", share),
        "maxn": _otherwise(rows, "maxn", share),
    }


def _otherwise(rows: Sequence[ClientRow], planner: str, share: float) -> float | None:
    """The energy in another mode, waiting for the same rounds to end; None without the truth."""
    total_j = 0.0
    for row in rows:
        work_s, work_j = getattr(row, f"{planner}_work_s"), getattr(row, f"{planner}_work_j")
        if row.status == "failed":
            total_j += row.energy_j
        elif work_s is None or work_j is None:
            return None
        else:
            round_s = row.down_s + row.work_s + row.up_s + row.wait_s
            total_j += work_j + row.radio_j + row.idle_w * max(0.0, round_s - work_s)
    return total_j / share if any(row.status != "failed" for row in rows) else None


def _work_bars(run: Run, groups: Groups, sums: dict[str, dict[str, float | None]], scale: Scale) -> list[Trace]:
    colour = colours(run.devices)
    by_kind = {device: [name for name, (kind, _, _) in groups.items() if kind == device] for device in run.devices}
    return [
        _energy_bar(f"work: {escape(device)}", colour[device], names, [sums[n]["work"] for n in names], scale)
        for device, names in by_kind.items()
        if names
    ]


def _energy_bar(name: str, colour: str, names: Sequence[str], values: Sequence[float | None], scale: Scale) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [escape(one) for one in names],
        "x": [scale.of(value) for value in values],
        "width": 0.7,
        "marker": {"color": colour},
        "hovertemplate": f"%{{y}}: %{{x:.3~g}} {scale.unit}<extra>{name}</extra>",
    }


def _marked(names: Sequence[str], sums: dict[str, dict[str, float | None]], scale: Scale) -> list[Trace]:
    marks: tuple[tuple[str, str, Trace], ...] = (
        ("oracle", "oracle", {"symbol": "diamond", "size": 9, "color": "white"}),
        ("maxn", "MAXN", {"symbol": "line-ns", "size": 14}),
    )
    traces = []
    for key, name, marker in marks:
        shown = [one for one in names if sums[one][key] is not None]
        line: Trace = {"color": "#30363d" if key == "oracle" else GREY, "width": 1.5 if key == "oracle" else 3}
        mark: Trace = {**marker, "line": line}
        if shown:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "y": [escape(one) for one in shown],
                    "x": [scale.of(sums[one][key]) for one in shown],
                    "marker": mark,
                    "hovertemplate": f"%{{y}}: %{{x:.3~g}} {scale.unit}<extra>{name}</extra>",
                }
            )
    return traces
