"""The page of several runs: costs, provenance and differences in tables; accuracy, costs and errors in charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import GREY, Chart, SeriesStyle, Trace, assign_styles, axis, line_trace, scatter_trace
from experiments.report.page import Section, render_badge, render_page, render_paragraph
from experiments.report.quantities import (
    UnitScale,
    capitalise,
    duration,
    energies,
    energy,
    energy_scale,
    format_metric,
    metric_scale,
    metric_title,
    number,
    percent,
    time_scale,
)
from experiments.report.run import seed_comparison
from experiments.report.run.loaded_runs import LoadedRun, find_common_goal, find_metric
from experiments.report.run.prediction_section import error_over_all_modes, explain_missing_errors
from experiments.report.run.run_names import find_differences
from experiments.report.run.run_tables import describe_emulation
from experiments.report.run.seed_comparison import HeadlineFigure, RunFigure, SeedGroup, format_each
from experiments.report.tables import Cell, Table, number_cell, percent_cell, swatch_cell, text_cell
from fedge.confidence_interval import ConfidenceInterval, mean_interval

MEGABYTES, SHARES, COUNTS = format_each(number, 3, "MB"), format_each(percent, 0), format_each(format, ".0f")
CLIENT_FIGURES = (
    HeadlineFigure("moved", "client_moved_mb", MEGABYTES, "MB"),
    HeadlineFigure("energy", "client_energy_j", energies, "J"),
    HeadlineFigure("energy of a step", "client_step_j", energies, "J"),
    HeadlineFigure("peak memory", "client_memory_mb", MEGABYTES, "MB"),
    HeadlineFigure("predicted memory", "client_predicted_memory_mb", MEGABYTES, "MB"),
)
SAVING_FIGURES = (
    HeadlineFigure("saving vs MAXN", "saving_vs_maxn", format_each(percent), better=max),
    HeadlineFigure("of oracle's saving", lambda run: run.share_of_oracle_saving("maxn").share, SHARES, better=max),
    HeadlineFigure("saving vs MAXN, low idle", "saving_vs_maxn_parked", format_each(percent), better=max),
    HeadlineFigure(
        "of oracle's saving, low idle", lambda run: run.share_of_oracle_saving("maxn_parked").share, SHARES, better=max
    ),
    HeadlineFigure("late", "late", COUNTS),
    HeadlineFigure("failed", "failed", COUNTS),
    HeadlineFigure("cancelled", "cancelled", COUNTS, better=None),
)


MAX_NAMED_RUNS = 3
"""Runs that a sentence names before it counts them; a default that keeps it short."""


def _costs_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table with accuracy, energy and time of every run; accuracy as a share, as in the store."""
    metric = replace(seed_comparison.metric_figure(find_metric(runs)), unit="", per=1.0)
    accuracy = (metric,) if any(run.accuracies for run in runs) else ()
    costs = (*seed_comparison.list_energy_figures(runs), seed_comparison.MEAN_ROUND, seed_comparison.MAKESPAN)
    return _runs_table("runs", runs, (*accuracy, *costs, *reversed(seed_comparison.list_goal_figures(runs))))


def client_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table with what a client of every run moves, draws and needs in a round on average."""
    return _runs_table("clients", runs, CLIENT_FIGURES)


def _runs_table(key: str, runs: Sequence[LoadedRun], columns: Sequence[HeadlineFigure]) -> Table:
    """Build a table of figures of every run, the best value of each column highlighted.

    Beside the number of rounds is the number that savings cover, if it is smaller.
    """
    by_column, rows = [column.build_cells(runs) for column in columns], []
    for i, run in enumerate(runs):
        compared = f" (savings: {len(run.compared_rounds)})" if run.compared_note else ""
        rounds = number_cell(f"{len(run.rounds)}{compared}", len(run.rounds))
        rows.append((swatch_cell(run.style.colour, run.name), rounds, *(cells[i] for cells in by_column)))
    return Table(key, ("run", "rounds", *(column.heading for column in columns)), tuple(rows))


def differences_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table of the experiment fields that differ, with the longer side down; without rows if none differs."""
    found = find_differences([run.experiment for run in runs])
    keys = dict.fromkeys(key for one in found for key in one)
    differences = {key: [one.get(key, "") for one in found] for key in keys}
    if 0 < len(differences) < len(runs):
        rows = tuple(
            (swatch_cell(run.style.colour, run.name), *(text_cell(values[i]) for values in differences.values()))
            for i, run in enumerate(runs)
        )
        return Table("differences", ("run", *differences), rows)
    rows = tuple((text_cell(key), *(text_cell(value) for value in values)) for key, values in differences.items())
    return Table("differences", ("field", *(run.name for run in runs)), rows)


def labels_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table of each run's provenance: its kinds of board by the label of their costs and priors."""
    rows = []
    for run in runs:
        cells = []
        for which in ("truth", "prior"):
            listed = {label: ", ".join(names) for label, names in _group_by_label(run, which).items()}
            content = Markup("<br>").join(render_badge(label) + f" {names}" for label, names in listed.items())
            cells.append(Cell(content, words="; ".join(f"{label}: {names}" for label, names in listed.items())))
        rows.append((swatch_cell(run.style.colour, run.name), *cells))
    return Table("labels", ("run", "time and power", "prior of predictions"), tuple(rows))


def _group_by_label(run: LoadedRun, which: str) -> dict[str, list[str]]:
    """Return a run's fleet entries by the label of their ``truth`` or ``prior``, both sorted by label."""
    boards: dict[str, dict[str, None]] = {}
    for entry in run.experiment.fleet:
        name = entry.name or entry.device
        labels = run.labels.get(name) or run.labels.get(entry.device) or {}
        boards.setdefault((labels.get(which) or {}).get("label", "not recorded"), {})[name] = None
    return {label: list(names) for label, names in sorted(boards.items())}


def describe_unlike_labels(runs: Sequence[LoadedRun]) -> list[str]:
    """Return a sentence if the runs' time and power are not of the same labels; a difference may then be theirs."""
    by_labels: dict[str, list[str]] = {}
    for run in runs:
        by_labels.setdefault(" and ".join(_group_by_label(run, "truth")), []).append(run.name)
    if len(by_labels) < 2:
        return []
    named = "; ".join(
        f"{labels} in {' and '.join(names) if len(names) <= MAX_NAMED_RUNS else f'{len(names)} runs'}"
        for labels, names in by_labels.items()
    )
    return [f"Time and power do not come from alike sources, which may be the difference: {named}."]


def prediction_errors_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table of each run's prediction errors before the first and in the last round."""
    columns = {
        f"{key}: {what}": name
        for key in ("time", "power")
        for what, name in (
            ("prior", f"prior_{key}_mape"),
            ("last round", f"last_{key}_mape"),
            ("modes used", f"last_{key}_ape"),
        )
    }
    rows = tuple(
        (swatch_cell(run.style.colour, run.name), *(percent_cell(run.summary[name]) for name in columns.values()))
        for run in runs
    )
    return Table("prediction-errors", ("run", *columns), rows)


CLIENTS_LEAD = (
    "Means over the rounds that clients finished. Moved: the model fetched and the one sent. Memory: the peak that the "
    "boards reported, emulated where they are, and its prediction for the priced network."
)
EVERY_RUN_LEAD = "★ marks the best figure of a column. Energy is that of all boards, idle and evaluating ones too."
ERRORS_LEAD = (
    "Means over the boards. Over all modes, against the emulated truth: before the first measurement, and in the last "
    "round. In the modes used in the last round: against measurements."
)


def render_comparison(runs: Sequence[LoadedRun], first: Sequence[Section] = ()) -> str:
    """Render the page, with the sections ``first`` before the others."""
    groups = seed_comparison.group_by_experiment(runs)
    texts = {describe_emulation(run) for run in runs}
    differ = "The runs differ in workload, cost or bytes moved: see Differences below."
    return render_page(
        f"{len(runs)} runs side by side",
        [*first, *build_comparison_sections(runs)],
        Markup("<br>").join(f"{run.name}: {run.folder}" for run in runs),
        facts=dict.fromkeys(run.experiment.name for run in runs),
        notes=[
            *(swatch_cell(group.colour, text).content for group, text in describe_groups(groups)),
            *describe_unlike_labels(runs),
            texts.pop() if len(texts) == 1 else differ,
        ],
    )


def list_comparison_tables(runs: Sequence[LoadedRun]) -> tuple[Table, ...]:
    """Return the tables of a comparison; those over seeds only if there are several."""
    groups = seed_comparison.group_by_experiment(runs)
    return (
        _costs_table(runs),
        _runs_table("savings", runs, SAVING_FIGURES),
        client_table(runs),
        *(seed_comparison.list_seed_tables(runs, groups) if seed_comparison.has_several_seeds(groups) else ()),
        prediction_errors_table(runs),
        labels_table(runs),
        differences_table(runs),
    )


def build_comparison_sections(runs: Sequence[LoadedRun]) -> list[Section]:
    """Build the sections of the page, in their order."""
    groups, metric, trained = (
        seed_comparison.group_by_experiment(runs),
        find_metric(runs),
        [run for run in runs if run.accuracies],
    )
    costs = _costs_table(runs).html + _runs_table("savings", runs, SAVING_FIGURES).html
    marks = (
        "One mark per group: the mean over its seeds."
        if seed_comparison.has_several_seeds(groups)
        else "One mark per run."
    )
    left_out = [f"{run.name}: {reason}" for run in runs if (reason := explain_missing_errors(run))]
    notes = Markup().join(render_paragraph(sentence, "caption") for sentence in left_out)
    errors = tuple(prediction_error_charts(runs))
    accuracy = tuple(accuracy_over_cost_charts(trained)) if trained else ()
    over = f"Test {metric} over simulated time and energy."
    same = render_paragraph("These runs come from the same experiment, field by field.")
    return [
        Section("Every run", EVERY_RUN_LEAD, (), costs),
        Section("Per client and round", CLIENTS_LEAD, (), client_table(runs).html),
        *seed_comparison.build_seed_sections(runs, groups),
        *([Section(capitalise(metric), over, accuracy)] if accuracy else []),
        Section("Time against energy", marks, build_pareto_charts(groups)),
        Section("Cost", "One bar per run.", cost_bar_charts(runs)),
        Section("Prediction error", ERRORS_LEAD, errors, notes + prediction_errors_table(runs).html),
        Section("Labels", "Provenance of each run's figures.", (), labels_table(runs).html),
        Section("Differences", "Fields in which the experiments differ.", (), differences_table(runs).html or same),
    ]


# Charts ---------------------------------------------------------------------------------------------------------------


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
    over_time = [[row.end_s / times.per for row in run.evaluated_rounds] for run in runs]
    over_energy = [[j / joules.per for j in run.accumulate("energy_j")] for run in runs]
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
                    for row, accuracy in zip(run.evaluated_rounds, run.accuracies, strict=True)
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
    for what, drawn in references.items() if others else ():
        data.append(_reference_trace(what, drawn, colours, plane))
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


def _reference_trace(what: str, drawn: list[RunPoint], colours: dict[str, str], plane: dict[str, Any]) -> Trace:
    outline, hover = [colours[one.name] for one in drawn], Markup("{}, {}: {}, {}")
    return scatter_trace(
        f"the same rounds: {what}",
        of=drawn,
        **plane,
        marker={**REFERENCE_MARKS[what], "color": outline, "line": {"width": 2, "color": outline}},
        hover=lambda one: hover.format(one.name, what, duration(one.time.mean), energy(one.energy.mean)),
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


# Sentences ------------------------------------------------------------------------------------------------------------


def describe_groups(groups: Sequence[SeedGroup]) -> list[tuple[SeedGroup, str]]:
    """Return a sentence per group: first the reference, which is the group with policy maxn or else the first one."""
    reference = next((one for one in groups if one.runs[0].experiment.policy.name == "maxn"), groups[0])
    others = [(one, _describe_against(one, reference)) for one in groups if one is not reference]
    return [(reference, _describe_reference(reference)), *others]


def _describe_reference(group: SeedGroup) -> str:
    joules, seconds = (_mean_over(group, figure, [*group.by_seed]) for figure in FIGURES)
    accuracy, metric = _mean_accuracy(group, [*group.by_seed]), find_metric(group.runs)
    reached = "" if accuracy is None else f", {metric} {format_metric(metric, accuracy)}"
    over = f"; means over {len(group.by_seed)} seeds" if len(group.by_seed) > 1 else ""
    return f"{group.name}: {energy(joules)}, {duration(seconds)}{reached}{over}."


def _describe_against(group: SeedGroup, reference: SeedGroup) -> str:
    """Compare the means over common seeds; over all seeds if there is none in common."""
    common = [seed for seed in group.by_seed if seed in reference.by_seed]
    both = [(one, common or [*one.by_seed]) for one in (group, reference)]
    changes = []
    for figure, what in zip(FIGURES, ("energy", "time"), strict=True):
        ours, theirs = (_mean_over(one, figure, seeds) for one, seeds in both)
        changes.append(_describe_change(ours / theirs - 1, what))
    rounds = [max(len(run.rounds) for run in one.runs) for one, _ in both]
    unequal = f" ({rounds[0]} rounds against {rounds[1]})" if rounds[0] != rounds[1] else ""
    reached, other = (_mean_accuracy(one, seeds) for one, seeds in both)
    metric = find_metric([*group.runs, *reference.runs])
    known = reached is not None and other is not None
    accuracy = f"; {metric} {format_metric(metric, reached)} against {format_metric(metric, other)}" if known else ""
    over = f"; means over {len(common)} common seeds" if len(common) > 1 else ""
    return f"{group.name}: {', '.join(changes)} than {reference.name}{unequal}{accuracy}{over}."


def _describe_change(share: float, what: str) -> str:
    """Describe a relative change, in whole percent if that tells it to two digits."""
    if abs(share) < 0.0005:
        return f"no more {what}"
    return f"{percent(abs(share), 0 if abs(share) >= 0.0995 else 1)} {'less' if share < 0 else 'more'} {what}"


FIGURES: tuple[RunFigure, ...] = (
    lambda run: run.energy_with_idle_j,
    lambda run: run.summary["makespan_s"],
)
"""Energy in joules and time in seconds of a run."""


def _mean_accuracy(group: SeedGroup, seeds: Sequence[int]) -> float | None:
    values = [group.by_seed[seed].summary["final_accuracy"] for seed in seeds]
    return None if None in values else sum(values) / len(values)


def _mean_over(group: SeedGroup, figure: RunFigure, seeds: Sequence[int]) -> float:
    return sum(figure(group.by_seed[seed]) or 0.0 for seed in seeds) / len(seeds)
