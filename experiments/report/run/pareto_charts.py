"""Time over energy of the whole fleet, one mark per run or group of seeds, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from experiments.report.chart import LEGEND, Chart, Trace, axis
from experiments.report.confidence_intervals import ConfidenceInterval, mean_interval
from experiments.report.palette import GREY, assign_colours, assign_symbols
from experiments.report.quantities import duration, energy, energy_scale, time_scale
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_comparison import find_common_goal
from experiments.report.run.seed_groups import RunFigure, SeedGroup

ALL_ROUNDS_CAPTION = (
    "Every round, and every board: also those at rest. Further left is faster, further down cheaper. Filled marks are "
    "the front, which the line joins; hollow ones are dominated: another is as fast and as cheap, or better. Bars are "
    "95 % confidence intervals over seeds; marks whose bars overlap are not told apart here. "
)
REFERENCES_CAPTION = (
    "Small marks are the same rounds played otherwise, where all of them can be compared: ┃ at MAXN, ◇ by a planner "
    "that knows the truth, in rounds of the length played."
)
GOAL_CAPTION = "The same up to the accuracy that all runs reached: {}."


@dataclass(frozen=True, slots=True)
class RunPoint:
    """A run or group in the time-energy plane.

    Attributes:
        name: Display name.
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


def fleet_energy_j(run: LoadedRun) -> float:
    """Return the energy of all boards, idle ones included, in joules."""
    return float(run.summary["energy_j"] + (run.summary["resting_energy_j"] or 0.0))


def list_run_points(groups: Sequence[SeedGroup], time: RunFigure, joules: RunFigure) -> list[RunPoint]:
    """Return the points of the groups whose time and energy are known."""
    found = [(group.name, group.mean_interval(time), group.mean_interval(joules)) for group in groups]
    return [RunPoint(name, t, j) for name, t, j in found if t is not None and j is not None]


def build_pareto_charts(groups: Sequence[SeedGroup]) -> tuple[Chart, Chart]:
    """Plot time over energy of the whole runs, and up to the accuracy that all of them reached."""
    runs = [run for group in groups for run in group.runs]
    goal = find_common_goal(runs)
    references = [one for group in groups for one in _list_references(group)]
    whole = list_run_points(groups, lambda run: run.summary["makespan_s"], fleet_energy_j)
    to_goal = list_run_points(groups, goal.time_to_goal_s, goal.energy_to_goal_j)
    caption = ALL_ROUNDS_CAPTION + (REFERENCES_CAPTION if references else "")
    return (
        _pareto_chart("whole", title="All rounds", caption=caption, groups=groups, found=whole, references=references),
        _pareto_chart(
            "goal",
            title="To a common accuracy",
            caption=GOAL_CAPTION.format(f"{100 * goal.accuracy:.1f} %"),
            groups=groups,
            found=to_goal,
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
    maxn_s = mean_interval([sum(row.maxn_round_s or 0.0 for row in run.rounds) for run in runs])
    played_s = mean_interval([run.summary["makespan_s"] for run in runs])
    found = [("MAXN", maxn_s, "maxn_energy_j"), ("oracle", played_s, "oracle_energy_j")]
    told = [(what, time, mean_interval([run.summary[column] for run in runs])) for what, time, column in found]
    return [(group.name, what, time, joules) for what, time, joules in told if time is not None and joules is not None]


def _pareto_chart(
    key: str,
    title: str,
    caption: str,
    groups: Sequence[SeedGroup],
    found: list[RunPoint],
    references: Sequence[ReferencePoint],
) -> Chart:
    times = time_scale([*(one.time.high for one in found), *(time.mean for _, _, time, _ in references)])
    joules = energy_scale([*(one.energy.high for one in found), *(j.mean for _, _, _, j in references)])
    colour, symbol = (kind([group.name for group in groups]) for kind in (assign_colours, assign_symbols))
    data = [_front_trace(found, times.per, joules.per)]
    data += [
        _reference_trace(what, references=references, colour=colour, per_s=times.per, per_j=joules.per)
        for what in ("MAXN", "oracle")
        if references
    ]
    data += [
        _point_trace(
            one, found=found, colour=colour[one.name], symbol=symbol[one.name], per_s=times.per, per_j=joules.per
        )
        for one in found
    ]
    layout = {
        "xaxis": axis(f"fleet's clock ({times.unit})"),
        "yaxis": axis(f"energy of the whole fleet ({joules.unit})"),
        "legend": LEGEND,
        "showlegend": True,
        "hovermode": "closest",
    }
    return Chart(f"pareto-{key}", title=title, caption=caption, data=data, layout=layout, height_px=400)


def _point_trace(one: RunPoint, found: list[RunPoint], colour: str, symbol: str, per_s: float, per_j: float) -> Trace:
    above = one.find_dominating(found)
    told = f"dominated by {above}" if above else "on the front"
    n = f", n = {one.time.n}" if one.time.n > 1 else ""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(one.name) + (" (dominated)" if above else ""),
        "x": [one.time.mean / per_s],
        "y": [one.energy.mean / per_j],
        "error_x": _error_bar(one.time, per_s, colour),
        "error_y": _error_bar(one.energy, per_j, colour),
        "marker": {
            "color": colour,
            "symbol": symbol + ("-open" if above else ""),
            "size": 12,
            "line": {"width": 2 if above else 1, "color": colour},
        },
        "hovertext": [
            f"<b>{escape(one.name)}</b>: {duration(one.time.mean)}, {energy(one.energy.mean)}{n}<br>{escape(told)}"
        ],
        "hoverinfo": "text",
    }


def _error_bar(found: ConfidenceInterval, per: float, colour: str) -> Trace:
    """Return an error bar that does not extend below zero."""
    style = {"color": colour, "thickness": 1.2, "width": 4}
    half = found.half_width or 0.0
    ends = {"array": [half / per], "arrayminus": [min(half, found.mean) / per], "symmetric": False}
    return {"type": "data", **ends, "visible": found.half_width is not None, **style}


def _reference_trace(
    what: str, references: Sequence[ReferencePoint], colour: dict[str, str], per_s: float, per_j: float
) -> Trace:
    shown = [one for one in references if one[1] == what]
    outline = [colour[name] for name, *_ in shown]
    mark = {"symbol": "line-ns-open", "size": 13} if what == "MAXN" else {"symbol": "diamond-open", "size": 8}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"the same rounds: {what}",
        "x": [time.mean / per_s for _, _, time, _ in shown],
        "y": [joules.mean / per_j for _, _, _, joules in shown],
        "marker": {**mark, "color": outline, "line": {"width": 2, "color": outline}},
        "hovertext": [f"{escape(n)}, {what}: {duration(t.mean)}, {energy(j.mean)}" for n, _, t, j in shown],
        "hoverinfo": "text",
    }


def _front_trace(found: list[RunPoint], per_s: float, per_j: float) -> Trace:
    """Return the front as steps from fast to frugal: no run lies below or left of them."""
    best = sorted((one for one in found if not one.find_dominating(found)), key=lambda one: one.time.mean)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "front",
        "x": [one.time.mean / per_s for one in best],
        "y": [one.energy.mean / per_j for one in best],
        "line": {"color": GREY, "width": 1, "dash": "dot", "shape": "hv"},
        "hoverinfo": "skip",
        "showlegend": False,
    }
