"""Charts of a run's accuracy and energy: over rounds, time and joules, per board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from markupsafe import Markup

from experiments.report.chart import (
    CATEGORY_AXIS,
    LEGEND,
    Chart,
    Trace,
    axis,
    bar_trace,
    legend_layout,
    line_trace,
    round_axis,
    scatter_trace,
    xy_layout,
)
from experiments.report.palette import COLOURS, GREY, SEND, WAIT, assign_colours
from experiments.report.quantities import UnitScale, energy_scale, metric_scale, metric_title, time_scale
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_sample import MAX_BOARDS
from fedge.telemetry.store_records import ClientRow

EVERY_ROUND = "Each point is the aggregated model after a round, on test samples that no board trains on."


def build_accuracy_charts(run: LoadedRun) -> tuple[Chart, Chart, Chart]:
    """Plot accuracy over rounds, simulated time and energy, each beside the costs that MAXN would have had."""
    times, joules = time_scale([run.rounds[-1].end_s]), energy_scale([sum(row.energy_j for row in run.rounds)])
    spent = list(accumulate(row.energy_j for row in run.rounds))
    caption = EVERY_ROUND
    if _is_maxn_known(run):
        caption = "Dashed: the same rounds at MAXN. Left of the line is faster."
    over_energy = (
        "Dashed: all boards work and wait at MAXN; dotted: they work at MAXN and wait in their lowest mode. Left of a "
        f"line: the same {run.experiment.workload.metric} for less energy."
    )
    return (
        _accuracy_chart(run, key="rounds", title="round", x=[row.round for row in run.rounds], others={}),
        _accuracy_chart(
            run,
            key="time",
            title=f"fleet clock ({times.unit})",
            x=[row.end_s / times.per for row in run.rounds],
            others={"at MAXN": _accumulate_maxn(run, [row.maxn_round_s for row in run.rounds], times)},
            caption=caption,
        ),
        _accuracy_chart(
            run,
            key="energy",
            title=f"energy of the fleet ({joules.unit})",
            x=[value / joules.per for value in spent],
            others={
                "at MAXN": _accumulate_maxn(run, [row.maxn_energy_j for row in run.rounds], joules),
                "MAXN, low idle": _accumulate_maxn(run, [row.maxn_parked_energy_j for row in run.rounds], joules),
            },
            caption=over_energy if _is_maxn_known(run) else "",
        ),
    )


def _is_maxn_known(run: LoadedRun) -> bool:
    return len(run.compared_rounds) == len(run.rounds) and all(row.maxn_round_s is not None for row in run.rounds)


def _accumulate_maxn(run: LoadedRun, per_round: Sequence[float | None], scale: UnitScale) -> list[float]:
    if not _is_maxn_known(run):
        return []
    return [value / scale.per for value in accumulate(value for value in per_round if value is not None)]


def _accuracy_chart(
    run: LoadedRun, key: str, title: str, x: Sequence[float], others: Mapping[str, Sequence[float]], caption: str = ""
) -> Chart:
    metric, y = run.experiment.workload.metric, list(run.accuracies)
    scale = metric_scale(metric)
    y = [value / scale.per for value in y]
    digits = ".1f" if scale.unit else ".3g"
    data: list[Trace] = [
        line_trace(
            name,
            other,
            y,
            colour=GREY,
            width=1.5,
            dash=dash,
            markers=False,
            hover=f"%{{x:.4~g}}: %{{y:{digits}}} {scale.unit}",
        )
        for (name, other), dash in zip(others.items(), ("dash", "dot"), strict=False)
        if other
    ]
    hover = [
        f"round {r.round}: {at:{digits}} {scale.unit}, loss {r.loss:.3g}" for r, at in zip(run.rounds, y, strict=True)
    ]
    data.append(line_trace("this run", x, y, colour=COLOURS[0], hover=hover))
    layout = {
        "xaxis": round_axis(len(run.rounds)) if key == "rounds" else axis(title, rangemode="tozero"),
        "yaxis": axis(metric_title(metric)),
        "legend": LEGEND,
        "showlegend": len(data) > 1,
    }
    return Chart(f"accuracy-{key}", f"Over {key}", caption or EVERY_ROUND, data, layout=layout, height_px=280)


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
    data = _work_traces(run, groups, sums, scale)
    for part, colour, key in (("radio", SEND, "radio"), ("idle and waiting", WAIT, "rest")):
        data.append(_energy_trace(part, colour, names=names, values=[sums[name][key] for name in names], scale=scale))
    data += _reference_traces(names, sums, scale) if run.compared_rounds else []
    layout = xy_layout(
        axis(f"energy ({scale.unit})", rangemode="tozero"),
        CATEGORY_AXIS,
        legend_layout(len(data), [trace["name"] for trace in data], 26 * max(3, len(names))),
        barmode="stack",
    )
    part = f"{run.compared_note}: those in which every board finished on time and its true time and power are known"
    caption = (
        f"Summed {part if run.compared_note else 'over all rounds'}. {ENERGY_CAPTION if run.compared_rounds else ''}"
    )
    if len(run.device_by_board) > MAX_BOARDS:
        caption += f" With {len(run.device_by_board)} boards, each bar is the mean of a kind."
    return Chart(
        "energy-clients", "Energy per board", caption, data, layout=layout, height_px=130 + 26 * max(3, len(names))
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


def _work_traces(
    run: LoadedRun, groups: BarGroups, sums: dict[str, dict[str, float | None]], scale: UnitScale
) -> list[Trace]:
    colour = assign_colours(run.devices)
    by_kind = {device: [name for name, (kind, _, _) in groups.items() if kind == device] for device in run.devices}
    return [
        _energy_trace(
            f"work: {device}",
            colour[device],
            names=names,
            values=[sums[n]["work"] for n in names],
            scale=scale,
        )
        for device, names in by_kind.items()
        if names
    ]


def _energy_trace(
    name: str, colour: str, names: Sequence[str], values: Sequence[float | None], scale: UnitScale
) -> Trace:
    lengths = [scale.convert(value) for value in values]
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
