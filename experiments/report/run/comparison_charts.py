"""Charts that compare runs: accuracy over time and energy, bars of costs, prediction errors, the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import GREY, Chart, SeriesStyle, Trace, assign_styles, axis, line_trace, scatter_trace
from experiments.report.confidence_intervals import ConfidenceInterval, mean_interval
from experiments.report.quantities import (
    UnitScale,
    capitalise,
    duration,
    energy,
    energy_scale,
    format_metric,
    metric_scale,
    metric_title,
    time_scale,
)
from experiments.report.run.loaded_runs import LoadedRun, find_common_goal, find_metric
from experiments.report.run.prediction_section import error_over_all_modes, explain_missing_errors
from experiments.report.run.seed_comparison import RunFigure, SeedGroup

BASELINES_CAPTION = "Shorter is better. Baselines over the same rounds: ┃ MAXN"
ENERGY_REFERENCES = (
    ("MAXN", "maxn_energy_j", "line-ns"),
    ("MAXN, low idle", "maxn_parked_energy_j", "triangle-up"),
    ("oracle", "oracle_energy_j", "diamond"),
)
ROUND_REFERENCES = (("MAXN", "maxn_mean_round_s", "line-ns"),)
"""Baselines: name, column of the summary and marker."""


def accuracy_over_cost_charts(runs: Sequence[LoadedRun]) -> Iterator[Chart]:
    """Plot accuracy over simulated time and over energy, one line per run."""
    times = time_scale([run.rounds[-1].end_s for run in runs])
    joules = energy_scale([sum(row.energy_j for row in run.rounds) for run in runs])
    over_time = [[row.end_s / times.per for row in run.rounds] for run in runs]
    over_energy = [[j / joules.per for j in accumulate(row.energy_j for row in run.rounds)] for run in runs]
    metric, goal, hover = find_metric(runs), find_common_goal(runs), Markup("{}, round {}: {}")
    scale = metric_scale(metric)
    for key, title, better, ends in (
        ("time", f"fleet clock ({times.unit})", "faster", over_time),
        ("energy", f"energy of the fleet ({joules.unit})", "cheaper", over_energy),
    ):
        data = [
            line_trace(
                run.name,
                x,
                [accuracy / scale.per for accuracy in run.accuracies],
                colour=run.style.colour,
                dash=run.style.dash,
                hover=[
                    hover.format(run.name, row.round, format_metric(metric, accuracy))
                    for row, accuracy in zip(run.rounds, run.accuracies, strict=True)
                ],
            )
            for run, x in zip(runs, ends, strict=True)
        ]
        yield chart.xy_chart(
            f"accuracy-{key}",
            f"{capitalise(metric)} over {key}",
            data,
            xaxis=axis(title, rangemode="tozero"),
            yaxis=axis(metric_title(metric)),
            caption=f"Further left is {better} for the same {metric}. Dotted: the {metric} that all runs reached.",
            height_px=340,
            showlegend=True,
            shapes=[] if goal is None else [chart.horizontal_line(goal.accuracy / scale.per, GREY, width=1)],
        )


def cost_bar_charts(runs: Sequence[LoadedRun]) -> tuple[Chart, Chart]:
    """Plot energy and mean round time of each run with the oracle's and MAXN's (waiting at high or low clocks)."""
    joules = energy_scale([value for run in runs for value in (run.summary["energy_j"], run.summary["maxn_energy_j"])])
    times = time_scale([run.summary["mean_round_s"] for run in runs])
    idle = ", △ MAXN with the lowest mode while idle, ◇ the oracle, which knows the true time and power."
    return (
        _cost_bar_chart(
            runs, "energy_j", joules, ENERGY_REFERENCES, title="Energy of the fleet", caption=BASELINES_CAPTION + idle
        ),
        _cost_bar_chart(
            runs, "mean_round_s", times, ROUND_REFERENCES, title="Mean round", caption=f"{BASELINES_CAPTION}."
        ),
    )


def _cost_bar_chart(
    runs: Sequence[LoadedRun],
    column: str,
    scale: UnitScale,
    references: Sequence[tuple[str, str, str]],
    title: str,
    caption: str,
) -> Chart:
    lengths = [run.summary[column] / scale.per for run in runs]
    hover = Markup("{}: {:.4g} {}")
    data = [
        chart.bar_trace(
            "",
            list(range(len(runs))),
            lengths,
            colour=[run.style.colour for run in runs],
            horizontal=True,
            hover=[hover.format(run.name, length, scale.unit) for run, length in zip(runs, lengths, strict=True)],
            legend=False,
            width=0.6,
        )
    ]
    # Baselines over the same rounds, of the runs whose rounds can all be compared.
    hover = Markup("{}, {}: {:.4g} {}")
    for name, baseline, symbol in references:
        known = [
            (i, run.name, run.summary[baseline] / scale.per)
            for i, run in enumerate(runs)
            if run.summary[baseline] is not None and not run.compared_note
        ]
        line = {"color": GREY, "width": 3.0 if symbol == "line-ns" else 1.5}
        if known:
            data.append(
                scatter_trace(
                    name,
                    [x for *_, x in known],
                    [i for i, *_ in known],
                    marker={"symbol": symbol, "size": 11, "color": "white", "line": line},
                    hover=[hover.format(run, name, x, scale.unit) for _, run, x in known],
                )
            )
    return chart.xy_chart(
        f"bars-{column.removeprefix('mean_').rpartition('_')[0]}",
        title,
        data,
        xaxis=axis(f"{title.lower()} ({scale.unit})", rangemode="tozero"),
        yaxis=chart.row_axis([run.name for run in runs]),
        caption=caption,
        height_px=20 + chart.FRAME_PX + 34 * max(2, len(runs)),
    )


def prediction_error_charts(runs: Sequence[LoadedRun]) -> Iterator[Chart]:
    """Plot the prediction error over all modes by round, one line per run that recorded it."""
    known = [run for run in runs if not explain_missing_errors(run)]
    caption = (
        "Against the emulated truth: the mean over all modes of what a board predicted when it decided; the median "
        "over the fleet. At 0, before anything was measured."
    )
    for key in ("time", "power") if known else ():
        data = [
            line_trace(
                run.name,
                [0, *(row.round for row in run.rounds)],
                [None if e is None else 100 * e for e in error_over_all_modes(run, key)],
                colour=run.style.colour,
                dash=run.style.dash,
                hover=Markup("{}, round %{{x}}: %{{y:.1f}} %").format(run.name),
            )
            for run in known
        ]
        yield chart.xy_chart(
            f"learning-{key}",
            f"Error of predicted {key}, all modes",
            data,
            xaxis={**chart.round_axis(max(run.rounds[-1].round for run in known)), **axis("round (0: prior)")},
            yaxis=axis(f"error of {key} (%)", rangemode="tozero"),
            caption=caption,
            showlegend=True,
        )


ALL_ROUNDS_CAPTION = (
    "All rounds and all boards, including idle ones. Further left is faster, further down uses less energy. Filled: "
    "the Pareto front; hollow: dominated. Bars: 95 % confidence intervals over seeds; runs with overlapping bars are "
    "not distinguished here. "
)
REFERENCES_CAPTION = (
    "Small marks: baselines over the same rounds, if all rounds can be compared: ┃ MAXN, ◇ the oracle in rounds of the "
    "actual length."
)
CUT_AXES_CAPTION = " The axes do not start at zero."
GOAL_CAPTION = "The same up to the {} that all runs reached and kept, as the mean with the next two rounds: {}."


@dataclass(frozen=True, slots=True)
class RunPoint:
    """A run or group in the time-energy plane.

    Attributes:
        time: Seconds, with the interval over seeds.
        energy: Joules, with the interval over seeds.
    """

    name: str
    time: ConfidenceInterval
    energy: ConfidenceInterval

    def find_dominating(self, others: Sequence[RunPoint]) -> str | None:
        """Return the name of a point that dominates this one (no worse in both, better in one), or None."""
        t, j = self.time.mean, self.energy.mean
        better = (
            other.name
            for other in others
            if other.time.mean <= t and other.energy.mean <= j and (other.time.mean, other.energy.mean) != (t, j)
        )
        return next(better, None)


def _list_run_points(groups: Sequence[SeedGroup], time: RunFigure, joules: RunFigure) -> list[RunPoint]:
    """Return the points of the groups whose time and energy are known."""
    figures = [(group.name, group.mean_interval(time), group.mean_interval(joules)) for group in groups]
    return [RunPoint(name, t, j) for name, t, j in figures if t is not None and j is not None]


def build_pareto_charts(groups: Sequence[SeedGroup]) -> tuple[Chart, ...]:
    """Plot time over energy of the whole runs, and up to the accuracy that all of them reached."""
    runs = [run for group in groups for run in group.runs]
    goal, metric = find_common_goal(runs), find_metric(runs)
    references = {
        what: [point for group in groups for point in _list_references(group, what)] for what in REFERENCE_MARKS
    }
    whole = _list_run_points(groups, lambda run: run.summary["makespan_s"], lambda run: run.energy_with_idle_j)
    caption = ALL_ROUNDS_CAPTION + (REFERENCES_CAPTION if any(references.values()) else "")
    all_rounds = _pareto_chart("whole", "All rounds", caption, groups, points=whole, references=references)
    if goal is None:
        return (all_rounds,)
    reached = _list_run_points(groups, goal.time_to_goal_s, goal.energy_to_goal_j)
    caption = GOAL_CAPTION.format(metric, format_metric(metric, goal.accuracy))
    return all_rounds, _pareto_chart("goal", f"To a common {metric}", caption, groups, points=reached, references={})


REFERENCE_MARKS = {
    "MAXN": {"symbol": "line-ns-open", "size": 13},
    "oracle": {"symbol": "diamond-open", "size": 8},
}


def _list_references(group: SeedGroup, what: str) -> Iterator[RunPoint]:
    """Yield MAXN or the oracle for the same rounds, unless a round is not comparable or a board was idle."""
    runs = group.runs
    if any(len(run.compared_rounds) != len(run.rounds) or run.summary["resting_energy_j"] for run in runs):
        return
    if any(row.maxn_round_s is None for run in runs for row in run.rounds):
        return
    # Evaluations cost the same in all of them.
    lengths_s = [sum((row.maxn_round_s or 0.0) + (row.evaluation_s or 0.0) for row in run.rounds) for run in runs]
    time = mean_interval([run.summary["makespan_s"] for run in runs] if what == "oracle" else lengths_s)
    spent_j = [(run.summary[f"{what.lower()}_energy_j"], run.evaluation_j) for run in runs]
    joules = mean_interval([None if own_j is None else own_j + tests_j for own_j, tests_j in spent_j])
    if time and joules:
        yield RunPoint(group.name, time, joules)


def _pareto_chart(
    key: str,
    title: str,
    caption: str,
    groups: Sequence[SeedGroup],
    points: list[RunPoint],
    references: dict[str, list[RunPoint]],
) -> Chart:
    others = [point for drawn in references.values() for point in drawn]
    times = time_scale([*(one.time.high for one in points), *(one.time.mean for one in others)])
    joules = energy_scale([*(one.energy.high for one in points), *(one.energy.mean for one in others)])
    colours, styles = {one.name: one.colour for one in groups}, assign_styles(one.name for one in groups)
    plane: dict[str, Any] = {"x": lambda one: one.time.mean / times.per, "y": lambda one: one.energy.mean / joules.per}
    data = [scatter_trace("front", of=list_front(points), **plane, **FRONT_STYLE)]
    for what, drawn in references.items():
        outline = [colours[one.name] for one in drawn]
        if others:
            data.append(
                scatter_trace(
                    f"the same rounds: {what}",
                    of=drawn,
                    **plane,
                    marker={**REFERENCE_MARKS[what], "color": outline, "line": {"width": 2, "color": outline}},
                    hover=[
                        Markup("{}, {}: {}, {}").format(
                            one.name, what, duration(one.time.mean), energy(one.energy.mean)
                        )
                        for one in drawn
                    ],
                )
            )
    for one in points:
        style = SeriesStyle(colours[one.name], styles[one.name].symbol)
        bars_s = _error_bar(one.time, times.per, style.colour)
        bars_j = _error_bar(one.energy, joules.per, style.colour)
        look = _mark_point(one, points, style)
        data.append(scatter_trace(one.name, of=[one], **plane, **look, error_x=bars_s, error_y=bars_j))
    x, y = (
        chart.spread_range([end / scale.per for end in ends])
        for scale, ends in (
            (times, [*_list_ends([one.time for one in points]), *(one.time.mean for one in others)]),
            (joules, [*_list_ends([one.energy for one in points]), *(one.energy.mean for one in others)]),
        )
    )
    return chart.xy_chart(
        f"pareto-{key}",
        title,
        data,
        xaxis=axis(f"fleet clock ({times.unit})", range=x),
        yaxis=axis(f"energy of the whole fleet ({joules.unit})", range=y),
        caption=caption.strip() + (CUT_AXES_CAPTION if x[0] > 0 or y[0] > 0 else ""),
        height_px=400,
        showlegend=True,
    )


FRONT_STYLE: dict[str, Any] = {
    "mode": "lines",
    "line": {"color": GREY, "width": 1, "dash": "dot", "shape": "hv"},
    "legend": False,
}
"""Steps from fast to frugal: no run lies below or left of them."""


def list_front(points: list[RunPoint]) -> list[RunPoint]:
    """Return the points that none dominates, from fast to frugal."""
    return sorted((one for one in points if not one.find_dominating(points)), key=lambda one: one.time.mean)


def _list_ends(intervals: Sequence[ConfidenceInterval]) -> Iterator[float]:
    """Yield the ends of the error bars, which do not extend below zero."""
    for interval in intervals:
        yield from (max(0.0, interval.low), interval.high)


def _mark_point(one: RunPoint, points: list[RunPoint], style: SeriesStyle) -> dict[str, Any]:
    above = one.find_dominating(points)
    verdict = f"dominated by {above}" if above else "on the front"
    n = f", n = {one.time.n}" if one.time.n > 1 else ""
    figures = f"{duration(one.time.mean)}, {energy(one.energy.mean)}{n}"
    symbol, line = style.symbol + ("-open" if above else ""), {"width": 2 if above else 1, "color": style.colour}
    return {
        "marker": style.marker(12, symbol=symbol, line=line),
        "hover": [Markup("<b>{}</b>: {}<br>{}").format(one.name, figures, verdict)],
    }


def _error_bar(interval: ConfidenceInterval, per: float, colour: str) -> Trace:
    half, visible = interval.half_width or 0.0, interval.half_width is not None
    return chart.error_bars([half / per], [min(half, interval.mean) / per], colour=colour, visible=visible, width=4)
