"""Time over energy of the whole fleet, one mark per run or group of seeds, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from experiments.report.chart import (
    Chart,
    Trace,
    axis,
    error_bars,
    legend_layout,
    scatter_trace,
    spread_range,
    xy_layout,
)
from experiments.report.confidence_intervals import ConfidenceInterval, mean_interval
from experiments.report.palette import GREY, assign_symbols
from experiments.report.quantities import duration, energy, energy_scale, format_metric, time_scale
from experiments.report.run.loaded_runs import find_common_goal, find_metric
from experiments.report.run.seed_comparison import RunFigure, SeedGroup

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
GOAL_CAPTION = "The same up to the {} that all runs reached: {}."


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
    all_rounds = _pareto_chart(
        "whole", title="All rounds", caption=caption, groups=groups, points=whole, references=references
    )
    if goal is None:
        return (all_rounds,)
    return (
        all_rounds,
        _pareto_chart(
            "goal",
            title=f"To a common {metric}",
            caption=GOAL_CAPTION.format(metric, format_metric(metric, goal.accuracy)),
            groups=groups,
            points=_list_run_points(groups, goal.time_to_goal_s, goal.energy_to_goal_j),
            references=[],
        ),
    )


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
    data += [
        _reference_trace(what, references=references, colour=colour, per_s=times.per, per_j=joules.per)
        for what in ("MAXN", "oracle")
        if references
    ]
    data += [
        _point_trace(
            one, points=points, colour=colour[one.name], symbol=symbol[one.name], per_s=times.per, per_j=joules.per
        )
        for one in points
    ]
    x = _axis_range([one.time for one in points], [time for _, _, time, _ in references], times.per)
    y = _axis_range([one.energy for one in points], [j for _, _, _, j in references], joules.per)
    layout = xy_layout(
        axis(f"fleet clock ({times.unit})", range=x),
        axis(f"energy of the whole fleet ({joules.unit})", range=y),
        legend_layout(len(data), [trace["name"] for trace in data]),
        showlegend=True,
    )
    note = CUT_AXES_CAPTION if x[0] > 0 or y[0] > 0 else ""
    return Chart(f"pareto-{key}", title, caption.strip() + note, data, layout=layout, height_px=400)


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


def _reference_trace(
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
