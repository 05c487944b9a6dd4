"""Comparison of several runs: accuracy over time and energy, energy and round time, differing settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any

from experiments.report.chart import LEGEND, Chart, axis, line_mode
from experiments.report.palette import GREY, assign_colours
from experiments.report.quantities import energy_scale, time_scale
from experiments.report.run import prediction_charts
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.seed_groups import flatten_experiment


@dataclass(frozen=True, slots=True)
class AccuracyGoal:
    """An accuracy reached by every run: the minimum over the runs of their best."""

    accuracy: float

    def time_to_goal_s(self, run: LoadedRun) -> float | None:
        """Return the simulated time at which the run first reached it, in seconds."""
        return next((row.end_s for row in run.rounds if row.accuracy >= self.accuracy), None)

    def energy_to_goal_j(self, run: LoadedRun) -> float | None:
        """Return the fleet's energy up to that time, in joules."""
        spent = accumulate(row.energy_j for row in run.rounds)
        return next((j for row, j in zip(run.rounds, spent, strict=True) if row.accuracy >= self.accuracy), None)


def find_common_goal(runs: Sequence[LoadedRun]) -> AccuracyGoal:
    """Return the highest accuracy that all runs reached at some time."""
    return AccuracyGoal(min(max(row.accuracy for row in run.rounds) for run in runs))


def accuracy_over_cost_charts(runs: Sequence[LoadedRun]) -> tuple[Chart, Chart]:
    """Plot accuracy over simulated time and over energy, one line per run."""
    times = time_scale([run.rounds[-1].end_s for run in runs])
    joules = energy_scale([sum(row.energy_j for row in run.rounds) for run in runs])
    over_time = {run.name: [row.end_s / times.per for row in run.rounds] for run in runs}
    over_energy = {run.name: [j / joules.per for j in accumulate(row.energy_j for row in run.rounds)] for run in runs}
    further_left = (
        "Further left is {}, at the same height equally accurate. The dotted line is the accuracy that all reached."
    )
    return (
        _accuracy_chart(
            runs, key="time", title=f"fleet's clock ({times.unit})", x=over_time, caption=further_left.format("faster")
        ),
        _accuracy_chart(
            runs,
            key="energy",
            title=f"energy of the fleet ({joules.unit})",
            x=over_energy,
            caption=further_left.format("cheaper"),
        ),
    )


def _accuracy_chart(
    runs: Sequence[LoadedRun], key: str, title: str, x: Mapping[str, list[float]], caption: str
) -> Chart:
    colour = assign_colours([run.name for run in runs])
    data = [
        {
            "type": "scatter",
            "mode": line_mode(len(run.rounds)),
            "name": escape(run.name),
            "x": x[run.name],
            "y": [100 * row.accuracy for row in run.rounds],
            "line": {"color": colour[run.name], "width": 2},
            "hovertext": [f"{escape(run.name)}, round {r.round}: {100 * r.accuracy:.1f} %" for r in run.rounds],
            "hoverinfo": "text",
        }
        for run in runs
    ]
    goal = 100 * find_common_goal(runs).accuracy
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": goal, "y1": goal}
    layout = {
        "xaxis": axis(title, rangemode="tozero"),
        "yaxis": axis("test accuracy (%)"),
        "legend": LEGEND,
        "showlegend": True,
        "shapes": [{**line, "line": {"color": GREY, "width": 1, "dash": "dot"}}],
    }
    return Chart(
        f"accuracy-{key}", title=f"Accuracy over {key}", caption=caption, data=data, layout=layout, height_px=340
    )


def cost_bar_charts(runs: Sequence[LoadedRun]) -> tuple[Chart, Chart]:
    """Plot energy and mean round time of each run with the oracle's and MAXN's (waiting at high or low clocks)."""
    joules = energy_scale([value for run in runs for value in (run.summary["energy_j"], run.summary["maxn_energy_j"])])
    times = time_scale([run.summary["mean_round_s"] for run in runs])
    return (
        _cost_bar_chart(
            runs,
            key="energy",
            title=f"energy of the fleet ({joules.unit})",
            column="energy_j",
            maxn="maxn_energy_j",
            per=joules.per,
        ),
        _cost_bar_chart(
            runs,
            key="round",
            title=f"mean round ({times.unit})",
            column="mean_round_s",
            maxn="maxn_mean_round_s",
            per=times.per,
        ),
    )


def _reference_trace(name: str, runs: list[str], values: list[float], marker: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"the same rounds: {name}",
        "y": runs,
        "x": values,
        "marker": marker,
        "hovertemplate": f"%{{y}}, {name}: %{{x:.4~g}}<extra></extra>",
    }


def _cost_bar_chart(runs: Sequence[LoadedRun], key: str, title: str, column: str, maxn: str, per: float) -> Chart:
    colour = assign_colours([run.name for run in runs])
    names = [escape(run.name) for run in runs]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": [run.summary[column] / per for run in runs],
            "width": 0.6,
            "marker": {"color": [colour[run.name] for run in runs]},
            "hovertemplate": "%{y}: %{x:.4~g}<extra></extra>",
            "showlegend": False,
        }
    ]
    references = [("MAXN", maxn, "line-ns", 3.0)]
    if key == "energy":
        references.append(("MAXN, waiting low", "maxn_parked_energy_j", "triangle-up", 1.5))
        references.append(("oracle", "oracle_energy_j", "diamond", 1.5))
    for name, reference, symbol, width in references:
        shown = [run for run in runs if run.summary[reference] is not None and not run.compared_note]
        if shown:
            mark = {"symbol": symbol, "size": 11, "color": "white", "line": {"color": GREY, "width": width}}
            values = [run.summary[reference] / per for run in shown]
            data.append(_reference_trace(name, [escape(run.name) for run in shown], values, mark))
    layout = {
        "xaxis": axis(title, rangemode="tozero"),
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False, "fixedrange": True},
        "legend": LEGEND,
        "hovermode": "closest",
    }
    caption = "Shorter is better. ┃ is what the same rounds would have needed at MAXN" + (
        ", △ the same but waiting in the lowest modes, ◇ what a planner that knows the truth would have needed."
        if key == "energy"
        else "."
    )
    return Chart(
        f"bars-{key}",
        title=title.partition(" (")[0].capitalize(),
        caption=caption,
        data=data,
        layout=layout,
        height_px=130 + 34 * max(2, len(runs)),
    )


def prediction_error_charts(runs: Sequence[LoadedRun]) -> tuple[Chart, ...]:
    """Plot the prediction error over all modes by round, one line per run that recorded it."""
    told = [run for run in runs if not prediction_charts.explain_missing_errors(run)]
    return tuple(_prediction_error_chart(runs, told, key) for key in ("time", "power")) if told else ()


def describe_left_out_runs(runs: Sequence[LoadedRun]) -> str:
    """Return a sentence per run that ``prediction_error_charts`` omits."""
    missing = [(run, prediction_charts.explain_missing_errors(run)) for run in runs]
    return "".join(f'<p class="caption">{escape(run.name)}: {why}</p>' for run, why in missing if why)


def _prediction_error_chart(runs: Sequence[LoadedRun], told: Sequence[LoadedRun], key: str) -> Chart:
    colour = assign_colours([run.name for run in runs])
    data = [
        {
            "type": "scatter",
            "mode": line_mode(len(run.rounds)),
            "name": escape(run.name),
            "x": [0, *(row.round for row in run.rounds)],
            "y": [None if e is None else 100 * e for e in prediction_charts.error_over_all_modes(run, key)],
            "line": {"color": colour[run.name], "width": 2},
            "hovertemplate": f"{escape(run.name)}, round %{{x}}: %{{y:.1f}} %<extra></extra>",
        }
        for run in told
    ]
    layout = {
        "xaxis": axis("round (0: prior)"),
        "yaxis": axis(f"error of {key} (%)", rangemode="tozero"),
        "legend": LEGEND,
        "showlegend": True,
    }
    caption = (
        "<b>Emulated truth.</b> The mean over all modes of what a board predicted when it decided; the median over the "
        "fleet. At 0, before anything was measured."
    )
    return Chart(
        f"learning-{key}",
        title=f"Error of predicted {key}, over all modes",
        caption=caption,
        data=data,
        layout=layout,
        height_px=320,
    )


def find_experiment_differences(runs: Sequence[LoadedRun]) -> dict[str, tuple[str, ...]]:
    """Return the experiment fields that differ, each with its value per run."""
    flat = [dict(flatten_experiment(run)) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    values = {key: tuple(str(one.get(key, "")) for one in flat) for key in keys}
    return {key: found for key, found in values.items() if len(set(found)) > 1}
