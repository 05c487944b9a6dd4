"""Charts that compare runs: accuracy over time and energy, bars of energy and round time, prediction errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from experiments.report.chart import (
    Chart,
    Trace,
    axis,
    bar_trace,
    horizontal_line,
    legend_layout,
    line_trace,
    round_axis,
    row_axis,
    scatter_trace,
    xy_layout,
)
from experiments.report.page import render_paragraph
from experiments.report.palette import GREY
from experiments.report.quantities import (
    UnitScale,
    capitalise,
    energy_scale,
    format_metric,
    metric_scale,
    metric_title,
    time_scale,
)
from experiments.report.run.loaded_runs import LoadedRun, find_common_goal, find_metric
from experiments.report.run.prediction_errors import error_over_all_modes, explain_missing_errors

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
    metric = find_metric(runs)
    further_left = f"Further left is {{}} for the same {metric}. Dotted: the {metric} that all runs reached."
    return (
        _accuracy_chart(
            runs, key="time", title=f"fleet clock ({times.unit})", x=over_time, caption=further_left.format("faster")
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
    metric = find_metric(runs)
    scale = metric_scale(metric)
    data = [
        line_trace(
            run.name,
            x[run.name],
            [accuracy / scale.per for accuracy in run.accuracies],
            colour=run.colour,
            dash=run.dash,
            hover=[
                Markup("{}, round {}: {}").format(run.name, row.round, format_metric(metric, accuracy))
                for row, accuracy in zip(run.rounds, run.accuracies, strict=True)
            ],
        )
        for run in runs
    ]
    goal = find_common_goal(runs)
    layout = {
        "xaxis": axis(title, rangemode="tozero"),
        "yaxis": axis(metric_title(metric)),
        "legend": runs_legend(runs),
        "showlegend": True,
        "shapes": [] if goal is None else [horizontal_line(goal.accuracy / scale.per, GREY, width=1)],
    }
    return Chart(f"accuracy-{key}", f"{capitalise(metric)} over {key}", caption, data, layout=layout, height_px=340)


def runs_legend(runs: Sequence[LoadedRun]) -> dict[str, Any]:
    """Return a legend with an entry per run."""
    return legend_layout(len(runs), [run.name for run in runs])


def cost_bar_charts(runs: Sequence[LoadedRun]) -> tuple[Chart, Chart]:
    """Plot energy and mean round time of each run with the oracle's and MAXN's (waiting at high or low clocks)."""
    joules = energy_scale([value for run in runs for value in (run.summary["energy_j"], run.summary["maxn_energy_j"])])
    times = time_scale([run.summary["mean_round_s"] for run in runs])
    idle = ", △ MAXN with the lowest mode while idle, ◇ the oracle, which knows the true time and power."
    return (
        _cost_bar_chart(
            runs,
            words=("energy", f"energy of the fleet ({joules.unit})", BASELINES_CAPTION + idle),
            column="energy_j",
            references=ENERGY_REFERENCES,
            scale=joules,
        ),
        _cost_bar_chart(
            runs,
            words=("round", f"mean round ({times.unit})", f"{BASELINES_CAPTION}."),
            column="mean_round_s",
            references=ROUND_REFERENCES,
            scale=times,
        ),
    )


def _cost_bar_chart(
    runs: Sequence[LoadedRun],
    words: tuple[str, str, str],
    *,
    column: str,
    references: Sequence[tuple[str, str, str]],
    scale: UnitScale,
) -> Chart:
    """Build a bar chart; ``words`` are key, title of the axis and caption."""
    key, title, caption = words
    hover = Markup("{}: {:.4g} {}")
    lengths = [run.summary[column] / scale.per for run in runs]
    texts = [hover.format(run.name, length, scale.unit) for run, length in zip(runs, lengths, strict=True)]
    rows, colours = list(range(len(runs))), [run.colour for run in runs]
    bars = bar_trace("", rows, lengths, colour=colours, horizontal=True, hover=texts, legend=False, width=0.6)
    marks = [_reference_trace(runs, reference, scale) for reference in references]
    data = [bars, *(mark for mark in marks if mark["x"])]
    layout = xy_layout(
        axis(title, rangemode="tozero"),
        row_axis([run.name for run in runs]),
        legend_layout(len(data), [trace["name"] for trace in data], 34 * max(2, len(runs))),
    )
    return Chart(
        f"bars-{key}",
        title.partition(" (")[0].capitalize(),
        caption,
        data,
        layout=layout,
        height_px=150 + 34 * max(2, len(runs)),
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
    layout = {
        "xaxis": {**round_axis(max(run.rounds[-1].round for run in runs)), **axis("round (0: prior)")},
        "yaxis": axis(f"error of {key} (%)", rangemode="tozero"),
        "legend": runs_legend(runs),
        "showlegend": True,
    }
    caption = (
        "Against the emulated truth: the mean over all modes of what a board predicted when it decided; the median "
        "over the fleet. At 0, before anything was measured."
    )
    return Chart(f"learning-{key}", f"Error of predicted {key}, all modes", caption, data, layout=layout, height_px=320)
