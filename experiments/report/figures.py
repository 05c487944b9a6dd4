"""The charts of one run: accuracy, energy, modes and predictions; pure functions from rows to plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate
from typing import Any

from experiments.report.chart import Chart, Trace, axis
from experiments.report.palette import COLOURS, GREY, SEND, SHARES, WAIT, colours, symbols
from experiments.report.quantities import Scale, energy_scale, known, mean, time_scale
from experiments.report.runs import Run
from experiments.report.sampling import MAX_BOARDS, thinned, view_of
from fedge.devices import catalogue
from fedge.errors import FedgeError
from fedge.telemetry.rows import ClientRow

LEGEND = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left", "traceorder": "normal"}
KNOBS = (
    ("cores", "CPU cores", ""),
    ("cpu_mhz", "CPU clock", " MHz"),
    ("gpu_mhz", "GPU clock", " MHz"),
    ("mem_mhz", "Memory clock", " MHz"),
)
TEXT_IN_CELLS = 12
"""Rounds up to which a heatmap's cells hold their number."""


# Accuracy -------------------------------------------------------------------------------------------------------------


def accuracy(run: Run) -> tuple[Chart, Chart, Chart]:
    """The same accuracies over rounds, over the fleet's clock and over energy, beside what MAXN would have needed."""
    times, joules = time_scale([run.rounds[-1].end_s]), energy_scale([sum(row.energy_j for row in run.rounds)])
    spent = list(accumulate(row.energy_j for row in run.rounds))
    caption = "Each point is the aggregated model after a round, on test samples that no board trains on."
    if _maxn_known(run):
        caption = "Dashed: the same rounds, had every board run at MAXN. Left of the line is faster, right is slower."
    over_energy = "Left of the dashed line means the same accuracy for less energy." if _maxn_known(run) else ""
    return (
        _accuracy(run, "rounds", "round", [row.round for row in run.rounds], []),
        _accuracy(
            run,
            "time",
            f"fleet's clock ({times.unit})",
            [row.end_s / times.per for row in run.rounds],
            _at_maxn(run, [row.maxn_round_s for row in run.rounds], times),
            caption,
        ),
        _accuracy(
            run,
            "energy",
            f"energy of the fleet ({joules.unit})",
            [value / joules.per for value in spent],
            _at_maxn(run, [row.maxn_energy_j for row in run.rounds], joules),
            over_energy,
        ),
    )


def _maxn_known(run: Run) -> bool:
    return all(row.maxn_round_s is not None and row.maxn_energy_j is not None for row in run.rounds)


def _at_maxn(run: Run, per_round: Sequence[float | None], scale: Scale) -> list[float]:
    if not _maxn_known(run):
        return []
    return [value / scale.per for value in accumulate(value for value in per_round if value is not None)]


def _accuracy(run: Run, key: str, title: str, x: Sequence[float], maxn: Sequence[float], caption: str = "") -> Chart:
    y = [100 * row.accuracy for row in run.rounds]
    hover = [f"round {r.round}: {100 * r.accuracy:.1f} %, loss {r.loss:.3g}" for r in run.rounds]
    style = {"color": COLOURS[0], "width": 2}
    data: list[Trace] = [
        {"type": "scatter", "mode": _marks(run), "name": "this run", "x": list(x), "y": y, "line": style, "hovertext": hover}
    ]
    if maxn:
        dashed = {"color": GREY, "width": 1.5, "dash": "dash"}
        data.insert(0, {"type": "scatter", "mode": "lines", "name": "at MAXN", "x": list(maxn), "y": y, "line": dashed})
    layout = {
        "xaxis": axis(title, rangemode="tozero"),
        "yaxis": axis("test accuracy (%)", rangemode="tozero"),
        "legend": LEGEND,
        "showlegend": bool(maxn),
    }
    caption = caption or "Each point is the aggregated model after a round, on test samples that no board trains on."
    return Chart(f"accuracy-{key}", f"Over {'rounds' if key == 'rounds' else key}", caption, data, layout, 280)


def _marks(run: Run) -> str:
    return "lines+markers" if len(run.rounds) <= 60 else "lines"


# Energy ---------------------------------------------------------------------------------------------------------------


def energy_of_clients(run: Run) -> Chart:
    """Energy per board (or the mean board of each kind, in large fleets), and what the work would have cost otherwise."""
    groups = _groups(run)
    sums = {name: _sums(rows, share) for name, (_, rows, share) in groups.items()}
    scale = energy_scale([one["total"] for one in sums.values()])
    names = list(groups)
    data = [*_work_bars(run, groups, sums, scale)]
    data.append(_energy_bar("radio", SEND, names, [sums[name]["radio"] for name in names], scale))
    data.append(_energy_bar("idle and waiting", WAIT, names, [sums[name]["rest"] for name in names], scale))
    data += _work_marks(names, sums, scale)
    layout = {
        "barmode": "stack",
        "xaxis": axis(f"energy ({scale.unit})", rangemode="tozero"),
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False, "fixedrange": True},
        "legend": LEGEND,
        "hovermode": "closest",
    }
    caption = (
        "Summed over all rounds. Compare the end of the coloured bar (work) with the marks: ◇ is the work's energy in "
        "the modes of a planner that knows the truth, ┃ the work's energy at MAXN. A bar that ends left of ◇ took a "
        "mode slower than the round's best; right of it is energy that better predictions could save."
    )
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
        "oracle": _sum_known([row.oracle_work_j for row in rows if row.status != "failed"], share),
        "maxn": _sum_known([row.maxn_work_j for row in rows if row.status != "failed"], share),
    }


def _sum_known(values: Sequence[float | None], share: float) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) / share if given and len(given) == len(values) else None


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


def _work_marks(names: Sequence[str], sums: dict[str, dict[str, float | None]], scale: Scale) -> list[Trace]:
    marks = (
        ("oracle", "work in the oracle's modes", {"symbol": "diamond", "size": 9, "color": "white"}),
        ("maxn", "work at MAXN", {"symbol": "line-ns", "size": 14}),
    )
    traces = []
    for key, name, marker in marks:
        shown = [one for one in names if sums[one][key] is not None]
        line = {"color": "#30363d" if key == "oracle" else GREY, "width": 1.5 if key == "oracle" else 3}
        if shown:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "y": [escape(one) for one in shown],
                    "x": [scale.of(sums[one][key]) for one in shown],
                    "marker": {**marker, "line": line},
                    "hovertemplate": f"%{{y}}: %{{x:.3~g}} {scale.unit}<extra>{name}</extra>",
                }
            )
    return traces


# Modes ----------------------------------------------------------------------------------------------------------------


def modes(run: Run) -> tuple[Chart, ...]:
    """Per knob a heatmap, boards by rounds, as a share of the board's maximum."""
    view = view_of(run)
    rows = {(row.board, row.round): row for row in view.rows(run)}
    numbers = [row.round for row in view.rounds]
    charts = []
    for knob, title, unit in KNOBS:
        top = _tops(run, knob)
        cells = [[_knob(rows.get((board, number)), knob) for number in numbers] for board in view.boards]
        data = [_heatmap(run, view.boards, numbers, cells, [top[run.kinds[board]] for board in view.boards], unit)]
        layout = {
            "xaxis": axis("round", type="category", showgrid=False, nticks=12),
            "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False, "fixedrange": True, "dtick": 1},
        }
        charts.append(Chart(f"modes-{knob}", title, view.note, data, layout, 90 + 24 * max(3, len(view.boards))))
    return tuple(charts)


def _knob(row: ClientRow | None, knob: str) -> float | None:
    return None if row is None else getattr(row, knob)


def _tops(run: Run, knob: str) -> dict[str, float]:
    """The knob's maximum per kind: from the catalogue, else the largest value seen."""
    tops = {}
    for device in run.devices:
        seen = [value for row in run.clients if row.device == device and (value := _knob(row, knob)) is not None]
        try:
            maxn = catalogue.find(device).maxn
        except FedgeError:
            tops[device] = max(seen, default=1.0)
        else:
            tops[device] = float(getattr(maxn, knob))
    return tops


def _heatmap(
    run: Run,
    boards: Sequence[str],
    numbers: Sequence[int],
    cells: Sequence[Sequence[float | None]],
    tops: Sequence[float],
    unit: str,
) -> Trace:
    shares = [[None if v is None else v / top for v in line] for line, top in zip(cells, tops, strict=True)]
    hover = [
        [
            f"{escape(board)} ({escape(run.kinds[board])}), round {number}: "
            + ("not known" if v is None else f"{v:g}{unit} of {top:g}{unit}, {100 * v / top:.0f} %")
            for number, v in zip(numbers, line, strict=True)
        ]
        for board, line, top in zip(boards, cells, tops, strict=True)
    ]
    trace: Trace = {
        "type": "heatmap",
        "x": [str(number) for number in numbers],
        "y": [escape(board) for board in boards],
        "z": shares,
        "zmin": 0,
        "zmax": 1,
        "colorscale": [list(stop) for stop in SHARES],
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hovertext": hover,
        "hoverinfo": "text",
    }
    if len(numbers) <= TEXT_IN_CELLS:
        trace["text"] = [["" if v is None else f"{v:.0f}" for v in line] for line in cells]
        trace["texttemplate"] = "%{text}"
        trace["textfont"] = {"size": 10}
    return trace


# Predictions ----------------------------------------------------------------------------------------------------------

QUANTITIES = (("step_s", "time", "time per minibatch", "ms", 1e3), ("power_w", "power", "power", "W", 1.0))


def predictions(run: Run) -> tuple[Chart, ...]:
    """Predicted against measured, and how the error shrinks over the rounds; time first, then power."""
    return (
        *(_scatter(run, *quantity) for quantity in QUANTITIES),
        *(_errors(run, column, key) for column, key, *_ in QUANTITIES),
    )


def _pairs(rows: Sequence[ClientRow], column: str) -> list[tuple[ClientRow, float, float]]:
    """Rows with a measurement and the prediction made before it."""
    found = [(row, getattr(row, column), getattr(row, f"predicted_{column}")) for row in rows]
    return [(row, float(m), float(p)) for row, m, p in found if known(m) and known(p) and m > 0 and p > 0]


def _scatter(run: Run, column: str, key: str, title: str, unit: str, factor: float) -> Chart:
    colour, symbol = colours(run.devices), symbols(run.devices)
    pairs, note = thinned(_pairs(run.clients, column))
    data: list[Trace] = [_diagonal([value * factor for _, *both in pairs for value in both])] if pairs else []
    for device in run.devices:
        own = [pair for pair in pairs if pair[0].device == device]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(device),
                "x": [measured * factor for _, measured, _ in own],
                "y": [predicted * factor for _, _, predicted in own],
                "marker": {"color": colour[device], "symbol": symbol[device], "size": 8, "opacity": 0.75},
                "hovertext": [_missed(row, m * factor, p * factor, unit) for row, m, p in own],
                "hoverinfo": "text",
            }
        )
    layout = {
        "xaxis": axis(f"measured {title} ({unit})", type="log", nticks=6),
        "yaxis": axis(f"predicted {title} ({unit})", type="log", nticks=6),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    caption = f"On the diagonal the prediction was right; above it, it was too high. One point per board and round. {note}"
    return Chart(f"predicted-{key}", f"Predicted and measured {key}", caption, data, layout, 380)


def _diagonal(values: Sequence[float]) -> Trace:
    ends = [min(values) / 1.15, max(values) * 1.15]
    style = {"color": GREY, "width": 1, "dash": "dash"}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": ends,
        "y": ends,
        "line": style,
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _missed(row: ClientRow, measured: float, predicted: float, unit: str) -> str:
    return (
        f"<b>{escape(row.board)}</b>, round {row.round}<br>measured {measured:.3g} {unit}, "
        f"predicted {predicted:.3g} {unit} ({100 * (predicted / measured - 1):+.1f} %)"
    )


def _errors(run: Run, column: str, key: str) -> Chart:
    colour, symbol = colours(run.devices), symbols(run.devices)
    numbers = [row.round for row in run.rounds]
    data = []
    for device in run.devices:
        own = [row for row in run.clients if row.device == device]
        prior = mean(getattr(row, f"prior_{key}_ape") for row in own)
        error = {n: mean(abs(p - m) / m for _, m, p in pairs) for n, pairs in _by_round(own, column).items()}
        data.append(
            {
                "type": "scatter",
                "mode": _marks(run),
                "name": escape(device),
                "x": [0, *numbers],
                "y": [None if e is None else 100 * e for e in (prior, *(error.get(n) for n in numbers))],
                "line": {"color": colour[device], "width": 2},
                "marker": {"symbol": symbol[device], "size": 7},
                "hovertemplate": f"round %{{x}}: %{{y:.1f}} %<extra>{escape(device)}</extra>",
            }
        )
    layout: dict[str, Any] = {
        "xaxis": axis("round (0: prior)", range=[-0.4, numbers[-1] + 0.4]),
        "yaxis": axis(f"|predicted − measured| {key} (%)", rangemode="tozero"),
        "legend": LEGEND,
    }
    caption = (
        "At 0, the prior's mean error over all of the board's modes, before anything was measured; from round 1, the mean "
        "error in the modes that were played, each predicted before its round."
    )
    return Chart(f"error-{key}", f"Error of predicted {key}", caption, data, layout, 320)


def _by_round(rows: Sequence[ClientRow], column: str) -> dict[int, list[tuple[ClientRow, float, float]]]:
    found: dict[int, list[tuple[ClientRow, float, float]]] = {}
    for pair in _pairs(rows, column):
        found.setdefault(pair[0].round, []).append(pair)
    return found


