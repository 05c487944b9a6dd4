"""Charts that compare runs: accuracy over time and energy, bars of costs, prediction errors, the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from experiments.report.chart import (
    FRAME_PX,
    Chart,
    Trace,
    axis,
    bar_trace,
    error_bars,
    horizontal_line,
    line_trace,
    round_axis,
    row_axis,
    scatter_trace,
    spread_range,
    xy_chart,
)
from experiments.report.confidence_intervals import ConfidenceInterval, mean_interval
from experiments.report.page import render_paragraph
from experiments.report.palette import GREY, assign_symbols
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


def accuracy_over_cost_charts(runs: Sequence[LoadedRun]) -> tuple[Chart, Chart]:
    """Plot accuracy over simulated time and over energy, one line per run."""
    times = time_scale([run.rounds[-1].end_s for run in runs])
    joules = energy_scale([sum(row.energy_j for row in run.rounds) for run in runs])
    over_time = {run.name: [row.end_s / times.per for row in run.rounds] for run in runs}
    over_energy = {run.name: [j / joules.per for j in accumulate(row.energy_j for row in run.rounds)] for run in runs}
    return (
        _accuracy_chart(runs, "time", axis(f"fleet clock ({times.unit})", rangemode="tozero"), over_time),
        _accuracy_chart(runs, "energy", axis(f"energy of the fleet ({joules.unit})", rangemode="tozero"), over_energy),
    )


def _accuracy_chart(
    runs: Sequence[LoadedRun], key: str, xaxis: Mapping[str, Any], x: Mapping[str, list[float]]
) -> Chart:
    metric = find_metric(runs)
    scale = metric_scale(metric)
    hover = Markup("{}, round {}: {}")
    data = [
        line_trace(
            run.name,
            x[run.name],
            [accuracy / scale.per for accuracy in run.accuracies],
            colour=run.colour,
            dash=run.dash,
            hover=[
                hover.format(run.name, row.round, format_metric(metric, accuracy))
                for row, accuracy in zip(run.rounds, run.accuracies, strict=True)
            ],
        )
        for run in runs
    ]
    goal = find_common_goal(runs)
    better = {"time": "faster", "energy": "cheaper"}[key]
    return xy_chart(
        f"accuracy-{key}",
        f"{capitalise(metric)} over {key}",
        data,
        xaxis=xaxis,
        yaxis=axis(metric_title(metric)),
        caption=f"Further left is {better} for the same {metric}. Dotted: the {metric} that all runs reached.",
        height_px=340,
        showlegend=True,
        shapes=[] if goal is None else [horizontal_line(goal.accuracy / scale.per, GREY, width=1)],
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
    hover = Markup("{}: {:.4g} {}")
    lengths = [run.summary[column] / scale.per for run in runs]
    texts = [hover.format(run.name, length, scale.unit) for run, length in zip(runs, lengths, strict=True)]
    rows, colours = list(range(len(runs))), [run.colour for run in runs]
    bars = bar_trace("", rows, lengths, colour=colours, horizontal=True, hover=texts, legend=False, width=0.6)
    marks = [_reference_trace(runs, reference, scale) for reference in references]
    data = [bars, *(mark for mark in marks if mark["x"])]
    return xy_chart(
        f"bars-{column.removeprefix('mean_').rpartition('_')[0]}",
        title,
        data,
        xaxis=axis(f"{title.lower()} ({scale.unit})", rangemode="tozero"),
        yaxis=row_axis([run.name for run in runs]),
        caption=caption,
        height_px=20 + FRAME_PX + 34 * max(2, len(runs)),
    )


def _reference_trace(runs: Sequence[LoadedRun], reference: tuple[str, str, str], scale: UnitScale) -> Trace:
    """Mark a baseline over the same rounds, for the runs whose rounds can all be compared."""
    name, column, symbol = reference
    known = [(i, run) for i, run in enumerate(runs) if run.summary[column] is not None and not run.compared_note]
    width = 3.0 if symbol == "line-ns" else 1.5
    values = [run.summary[column] / scale.per for _, run in known]
    hover = Markup("{}, {}: {:.4g} {}")
    return scatter_trace(
        name,
        values,
        [i for i, _ in known],
        marker={"symbol": symbol, "size": 11, "color": "white", "line": {"color": GREY, "width": width}},
        hover=[hover.format(run.name, name, x, scale.unit) for (_, run), x in zip(known, values, strict=True)],
    )


def prediction_error_charts(runs: Sequence[LoadedRun]) -> tuple[Chart, ...]:
    """Plot the prediction error over all modes by round, one line per run that recorded it."""
    known = [run for run in runs if not explain_missing_errors(run)]
    return tuple(_prediction_error_chart(known, key) for key in ("time", "power")) if known else ()


def describe_left_out_runs(runs: Sequence[LoadedRun]) -> Markup:
    """Return a sentence per run that ``prediction_error_charts`` omits."""
    reasons = [(run, explain_missing_errors(run)) for run in runs]
    return Markup().join(render_paragraph(f"{run.name}: {reason}", "caption") for run, reason in reasons if reason)


def _prediction_error_chart(runs: Sequence[LoadedRun], key: str) -> Chart:
    data = [
        line_trace(
            run.name,
            [0, *(row.round for row in run.rounds)],
            [None if e is None else 100 * e for e in error_over_all_modes(run, key)],
            colour=run.colour,
            dash=run.dash,
            hover=Markup("{}, round %{{x}}: %{{y:.1f}} %").format(run.name),
        )
        for run in runs
    ]
    caption = (
        "Against the emulated truth: the mean over all modes of what a board predicted when it decided; the median "
        "over the fleet. At 0, before anything was measured."
    )
    return xy_chart(
        f"learning-{key}",
        f"Error of predicted {key}, all modes",
        data,
        xaxis={**round_axis(max(run.rounds[-1].round for run in runs)), **axis("round (0: prior)")},
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
        return next(
            (
                other.name
                for other in others
                if other.time.mean <= t and other.energy.mean <= j and (other.time.mean, other.energy.mean) != (t, j)
            ),
            None,
        )


def _list_run_points(groups: Sequence[SeedGroup], time: RunFigure, joules: RunFigure) -> list[RunPoint]:
    """Return the points of the groups whose time and energy are known."""
    figures = [(group.name, group.mean_interval(time), group.mean_interval(joules)) for group in groups]
    return [RunPoint(name, t, j) for name, t, j in figures if t is not None and j is not None]


def build_pareto_charts(groups: Sequence[SeedGroup]) -> tuple[Chart, ...]:
    """Plot time over energy of the whole runs, and up to the accuracy that all of them reached."""
    runs = [run for group in groups for run in group.runs]
    goal, metric = find_common_goal(runs), find_metric(runs)
    references = [one for group in groups for one in _list_references(group)]
    whole = _list_run_points(groups, lambda run: run.summary["makespan_s"], lambda run: run.energy_with_idle_j)
    caption = ALL_ROUNDS_CAPTION + (REFERENCES_CAPTION if references else "")
    all_rounds = _pareto_chart("whole", "All rounds", caption, groups, points=whole, references=references)
    if goal is None:
        return (all_rounds,)
    reached = _list_run_points(groups, goal.time_to_goal_s, goal.energy_to_goal_j)
    caption = GOAL_CAPTION.format(metric, format_metric(metric, goal.accuracy))
    return all_rounds, _pareto_chart("goal", f"To a common {metric}", caption, groups, points=reached, references=[])


ReferencePoint = tuple[str, str, ConfidenceInterval, ConfidenceInterval]
"""Name of the group, name of the baseline, seconds, joules."""


def _list_references(group: SeedGroup) -> list[ReferencePoint]:
    """Return MAXN and the oracle for the same rounds; empty unless all rounds are comparable and no board was idle."""
    runs = group.runs
    if any(len(run.compared_rounds) != len(run.rounds) or run.summary["resting_energy_j"] for run in runs):
        return []
    lengths = [row.maxn_round_s for run in runs for row in run.rounds]
    if any(length is None for length in lengths):
        return []
    # Evaluations cost the same in all of them.
    maxn_s = mean_interval([sum((r.maxn_round_s or 0.0) + (r.evaluation_s or 0.0) for r in run.rounds) for run in runs])
    played_s = mean_interval([run.summary["makespan_s"] for run in runs])
    baselines = [("MAXN", maxn_s, "maxn_energy_j"), ("oracle", played_s, "oracle_energy_j")]
    points = []
    for what, time, column in baselines:
        spent_j = [(run.summary[column], run.evaluation_j) for run in runs]
        joules = mean_interval([None if own_j is None else own_j + tests_j for own_j, tests_j in spent_j])
        points.append((what, time, joules))
    return [(group.name, what, time, joules) for what, time, joules in points if time and joules]


def _pareto_chart(
    key: str,
    title: str,
    caption: str,
    groups: Sequence[SeedGroup],
    points: list[RunPoint],
    references: Sequence[ReferencePoint],
) -> Chart:
    times = time_scale([*(one.time.high for one in points), *(time.mean for _, _, time, _ in references)])
    joules = energy_scale([*(one.energy.high for one in points), *(j.mean for _, _, _, j in references)])
    colour, symbol = {one.name: one.colour for one in groups}, assign_symbols([one.name for one in groups])
    data = [_front_trace(points, times.per, joules.per)]
    baselines = ("MAXN", "oracle") if references else ()
    data += [_baseline_trace(what, references, colour, times.per, per_j=joules.per) for what in baselines]
    data += [
        _point_trace(one, points, colour[one.name], symbol[one.name], per_s=times.per, per_j=joules.per)
        for one in points
    ]
    x = _axis_range([one.time for one in points], [time for _, _, time, _ in references], times.per)
    y = _axis_range([one.energy for one in points], [j for _, _, _, j in references], joules.per)
    return xy_chart(
        f"pareto-{key}",
        title,
        data,
        xaxis=axis(f"fleet clock ({times.unit})", range=x),
        yaxis=axis(f"energy of the whole fleet ({joules.unit})", range=y),
        caption=caption.strip() + (CUT_AXES_CAPTION if x[0] > 0 or y[0] > 0 else ""),
        height_px=400,
        showlegend=True,
    )


def _axis_range(
    points: Sequence[ConfidenceInterval], references: Sequence[ConfidenceInterval], per: float
) -> list[float]:
    """Return a range around the points with their error bars, and around the references."""
    ends = [end for point in points for end in (max(0.0, point.low), point.high)]
    return spread_range([end / per for end in (*ends, *(reference.mean for reference in references))])


def _point_trace(one: RunPoint, points: list[RunPoint], colour: str, symbol: str, per_s: float, per_j: float) -> Trace:
    above = one.find_dominating(points)
    verdict = f"dominated by {above}" if above else "on the front"
    n = f", n = {one.time.n}" if one.time.n > 1 else ""
    figures = f"{duration(one.time.mean)}, {energy(one.energy.mean)}{n}"
    return scatter_trace(
        one.name,
        [one.time.mean / per_s],
        [one.energy.mean / per_j],
        marker={
            "color": colour,
            "symbol": symbol + ("-open" if above else ""),
            "size": 12,
            "line": {"width": 2 if above else 1, "color": colour},
        },
        hover=[Markup("<b>{}</b>: {}<br>{}").format(one.name, figures, verdict)],
        error_x=_error_bar(one.time, per_s, colour),
        error_y=_error_bar(one.energy, per_j, colour),
    )


def _error_bar(interval: ConfidenceInterval, per: float, colour: str) -> Trace:
    """Return an error bar that does not extend below zero."""
    half, visible = interval.half_width or 0.0, interval.half_width is not None
    return error_bars([half / per], [min(half, interval.mean) / per], colour=colour, visible=visible, width=4)


def _baseline_trace(
    what: str, references: Sequence[ReferencePoint], colour: dict[str, str], per_s: float, per_j: float
) -> Trace:
    own = [one for one in references if one[1] == what]
    outline = [colour[name] for name, *_ in own]
    mark = {"symbol": "line-ns-open", "size": 13} if what == "MAXN" else {"symbol": "diamond-open", "size": 8}
    hover = Markup("{}, {}: {}, {}")
    return scatter_trace(
        f"the same rounds: {what}",
        [time.mean / per_s for _, _, time, _ in own],
        [joules.mean / per_j for _, _, _, joules in own],
        marker={**mark, "color": outline, "line": {"width": 2, "color": outline}},
        hover=[hover.format(n, what, duration(t.mean), energy(j.mean)) for n, _, t, j in own],
    )


def _front_trace(points: list[RunPoint], per_s: float, per_j: float) -> Trace:
    """Return the front as steps from fast to frugal: no run lies below or left of them."""
    best = sorted((one for one in points if not one.find_dominating(points)), key=lambda one: one.time.mean)
    return scatter_trace(
        "front",
        [one.time.mean / per_s for one in best],
        [one.energy.mean / per_j for one in best],
        mode="lines",
        line={"color": GREY, "width": 1, "dash": "dot", "shape": "hv"},
        legend=False,
    )
