"""Groups of runs over their seeds: figures with confidence intervals, paired differences, lines with bands."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, product
from typing import Any

from markupsafe import Markup

from experiments.report.chart import Chart, Trace, axis, band_trace, line_trace, round_axis, xy_chart
from experiments.report.page import Section, render_paragraph
from experiments.report.quantities import (
    UNKNOWN,
    capitalise,
    duration,
    energies,
    energy_scale,
    format_metric,
    metric_scale,
    metric_title,
    number,
    percent,
    time_scale,
)
from experiments.report.run.loaded_runs import LoadedRun, find_common_goal, find_metric
from experiments.report.run.run_names import experiment_key
from experiments.report.tables import Cell, Table, number_cell, swatch_cell, text_cell, value_cell
from fedge.confidence_interval import ConfidenceInterval, mean_interval, paired_interval
from fedge.groups import group_pairs

RunFigure = Callable[[LoadedRun], float | None]
RoundFigures = Callable[[LoadedRun], Sequence[float | None]]
"""Returns a value for every round of a run, None if unknown."""


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs of one experiment with several seeds; if a seed was run twice, the first run counts."""

    name: str
    by_seed: Mapping[int, LoadedRun]

    @property
    def runs(self) -> tuple[LoadedRun, ...]:
        """Return the runs that count."""
        return tuple(self.by_seed.values())

    @property
    def colour(self) -> str:
        """Return the colour of the group's first run, which stands for it."""
        return self.runs[0].style.colour

    def mean_interval(self, figure: RunFigure) -> ConfidenceInterval | None:
        """Return the mean of a figure over the seeds with its confidence interval, or None if unknown."""
        return mean_interval([figure(run) for run in self.runs])

    def paired_difference(self, other: SeedGroup, figure: RunFigure) -> ConfidenceInterval | None:
        """Return the mean of the figure's paired difference to ``other`` over common seeds."""
        ours, theirs = ({seed: figure(run) for seed, run in one.by_seed.items()} for one in (self, other))
        return paired_interval(ours, theirs)


def group_by_experiment(runs: Sequence[LoadedRun]) -> tuple[SeedGroup, ...]:
    """Group the runs that differ only in the seed, in the order of their first runs; a repeated seed begins another."""
    groups: dict[tuple[str, int], dict[int, LoadedRun]] = {}
    repeats = Counter[tuple[str, int]]()
    for run in runs:
        key, seed = experiment_key(run.experiment), run.experiment.seed
        groups.setdefault((key, repeats[key, seed]), {})[seed] = run
        repeats[key, seed] += 1
    firsts = [(repeat, next(iter(by_seed.values())), by_seed) for (_, repeat), by_seed in groups.items()]
    return tuple(SeedGroup(run.name if repeat else run.group_name, by_seed) for repeat, run, by_seed in firsts)


def has_several_seeds(groups: Sequence[SeedGroup]) -> bool:
    """Return whether any group has more than one seed."""
    return any(len(group.by_seed) > 1 for group in groups)


MAX_PAIRED_GROUPS = 4
"""Number of groups up to which all pairs are compared; with more, each is compared with the first.

A default that bounds the table's length.
"""
UNDECIDED_NOTES = {
    "undecided": "undecided",
    "one seed": "one common seed: no interval",
    "equal": "equal with every seed",
}
INTERVALS_LEAD = (
    "Mean ± half of its 95 % confidence interval over the seeds: t · s / √n, where n is the number of seeds, s the "
    "standard deviation of their figures (n − 1) and t the 97.5 % quantile of Student's distribution with n − 1 "
    "degrees of freedom. One seed has no interval. Lines: means over the seeds that reached the round; bands: their "
    "intervals, clipped to possible values."
)
PAIRED_LEAD = (
    "Paired differences, first group minus second, over the seeds of both, with 95 % confidence intervals. If the "
    "interval excludes zero, the difference is significant and the better group is named; otherwise more seeds are "
    "needed. Decide by this table, not by overlapping intervals. One in twenty comparisons is significant by chance."
)


FigureFormat = Callable[..., tuple[str, ...]]
"""Formats one or several values in a common unit."""


def format_each(show: Callable[..., str], *options: object) -> FigureFormat:
    """Return a format that shows every value by itself."""
    return lambda *values: tuple(show(value, *options) for value in values)


@dataclass(frozen=True, slots=True)
class HeadlineFigure:
    """A figure by which runs and groups are compared.

    Attributes:
        figure: How it is read from a run, or its name in the run's summary.
        unit: Unit of the exported number and of the interval.
        per: Divisor from the figure's unit to ``unit``.
        better: Selects the better value, ``max`` or ``min``; None if none is.
    """

    heading: str
    figure: RunFigure | str
    format: FigureFormat
    unit: str = ""
    per: float = 1.0
    better: Callable[[Sequence[float]], float] | None = min

    def read(self, run: LoadedRun) -> float | None:
        """Return a run's value, None if unknown."""
        value: float | None = run.summary[self.figure] if isinstance(self.figure, str) else self.figure(run)
        return value

    def build_cells(self, runs: Sequence[LoadedRun]) -> list[Cell]:
        """Build a cell per run, of which the best is marked."""
        values = [self.read(run) for run in runs]
        given = [value for value in values if value is not None]
        best = self.better(given) if self.better and len(set(given)) > 1 else None
        shown = [UNKNOWN if value is None else self.format(value)[0] for value in values]
        return [
            Cell(
                text,
                numeric=True,
                best=value is not None and value == best,
                value=None if value is None else value / self.per,
                unit=self.unit,
            )
            for text, value in zip(shown, values, strict=True)
        ]

    def build_cell(self, interval: ConfidenceInterval | None, seeds: int) -> Cell:
        """Build a cell with mean and interval, and the number of seeds if not all have the figure."""
        if interval is None:
            return number_cell(UNKNOWN)
        half = None if interval.half_width is None else interval.half_width / self.per
        values = (interval.mean,) if interval.half_width is None else (interval.mean, interval.half_width)
        count = f" (n = {interval.n})" if interval.n != seeds else ""
        words = " ± ".join(self.format(*values)) + count
        return Cell(words, numeric=True, value=interval.mean / self.per, unit=self.unit, half_interval=half)

    def build_difference_cell(self, interval: ConfidenceInterval) -> Cell:
        """Build a cell of a difference; differences of shares are in percentage points."""
        cell = self.build_cell(interval, interval.n)
        return replace(cell, content=cell.content.replace("%", "points"), unit="points") if self.unit == "%" else cell

    def is_improved(self, verdict: str) -> bool:
        """Return whether a difference with this verdict, ``higher`` or ``lower``, is for the better."""
        return (verdict == "higher") == (self.better is max)


def _share_figure(heading: str, name: str, better: Callable[[Sequence[float]], float] = min) -> HeadlineFigure:
    return HeadlineFigure(heading, name, _format_percents, "%", per=0.01, better=better)


def _format_percents(*shares: float) -> tuple[str, ...]:
    """Format shares in percent, with two decimals if one would show zero."""
    digits = 2 if any(0 < abs(share) < 0.001 for share in shares) else 1
    return tuple(percent(share, digits) for share in shares)


DURATIONS, NUMBERS = format_each(duration), format_each(number)
ENERGY = HeadlineFigure("energy", lambda run: run.energy_with_idle_j, energies, "J")
MEAN_ROUND = HeadlineFigure("mean round", "mean_round_s", DURATIONS, "s")
MAKESPAN = HeadlineFigure("makespan", "makespan_s", DURATIONS, "s")
SAVINGS = (
    _share_figure("saving vs MAXN", "saving_vs_maxn", max),
    _share_figure("saving vs MAXN, low idle", "saving_vs_maxn_parked", max),
)
ERROR_FIGURES = (
    _share_figure("error of time, all modes", "last_time_mape"),
    _share_figure("error of power, all modes", "last_power_mape"),
    _share_figure("error of time, modes used", "last_time_ape"),
    _share_figure("error of power, modes used", "last_power_ape"),
)
"""Prediction errors of the last round."""


def metric_figure(metric: str) -> HeadlineFigure:
    """Return the final figure of merit, in percent if it is a share."""
    share = _share_figure(metric, "final_accuracy", max)
    return share if metric_scale(metric).unit else replace(share, format=NUMBERS, unit="", per=1.0)


def list_goal_figures(runs: Sequence[LoadedRun]) -> tuple[HeadlineFigure, ...]:
    """Return the time and energy to the accuracy that all runs reached; empty if one of them trained nothing."""
    goal = find_common_goal(runs)
    if goal is None:
        return ()
    reached = format_metric(find_metric(runs), goal.accuracy)
    return (
        HeadlineFigure(f"time to {reached}", goal.time_to_goal_s, DURATIONS, "s"),
        HeadlineFigure(f"energy to {reached}", goal.energy_to_goal_j, energies, "J"),
    )


def list_headline_figures(runs: Sequence[LoadedRun]) -> tuple[HeadlineFigure, ...]:
    """Return the figures of the tables over seeds: accuracy, costs and savings."""
    accuracy = (metric_figure(find_metric(runs)),) if any(run.accuracies for run in runs) else ()
    return (*accuracy, *list_goal_figures(runs), MEAN_ROUND, *list_energy_figures(runs), *SAVINGS)


def list_energy_figures(runs: Sequence[LoadedRun]) -> tuple[HeadlineFigure, ...]:
    """Return the energy, and its cost by the given signals if all runs have one in the same unit."""
    units = {None if run.experiment.signal is None else run.experiment.signal.unit for run in runs}
    unit = units.pop() if len(units) == 1 else None
    return (ENERGY,) if unit is None else (ENERGY, HeadlineFigure("cost by signal", "energy_cost", NUMBERS, unit))


def describe_summary_figure(name: str, metric: str = "accuracy") -> HeadlineFigure:
    """Return how a figure of a run's summary is shown, from its name, which ends in its unit.

    ``metric`` is the name of the run's figure of merit, ``metric`` if it differs between runs.
    """
    heading = name.removesuffix("_j").removesuffix("_s").replace("_", " ")
    if name.endswith("accuracy") and not metric_scale(metric).unit:
        return HeadlineFigure(heading.replace("accuracy", metric), name, NUMBERS, better=max)
    if "saving" in name or name.endswith(("accuracy", "_mape", "_ape", "_spent")):
        return _share_figure(heading, name, min if name.endswith(("ape", "spent")) else max)
    shown, unit = (energies, "J") if name.endswith("_j") else (DURATIONS, "s") if name.endswith("_s") else (NUMBERS, "")
    return HeadlineFigure(heading, name, shown, unit)


def list_seed_tables(runs: Sequence[LoadedRun], groups: Sequence[SeedGroup]) -> tuple[Table, Table, Table]:
    """Return the headline figures and the prediction errors of every group, and the paired differences."""
    return (
        _figures_table("over-seeds", groups, list_headline_figures(runs)),
        _figures_table("errors-over-seeds", groups, ERROR_FIGURES),
        paired_difference_table(runs, groups),
    )


def _figures_table(key: str, groups: Sequence[SeedGroup], figures: Sequence[HeadlineFigure]) -> Table:
    rows = tuple(
        (
            swatch_cell(group.colour, group.name),
            value_cell(len(group.by_seed)),
            *(one.build_cell(group.mean_interval(one.read), len(group.by_seed)) for one in figures),
        )
        for group in groups
    )
    return Table(key, ("group", "n", *(one.heading for one in figures)), rows)


def paired_difference_table(runs: Sequence[LoadedRun], groups: Sequence[SeedGroup]) -> Table:
    """Build a table with one row per pair of groups and figure: the paired difference and its interpretation."""
    pairs, rows = [(one, groups[0]) for one in groups[1:]], []
    if len(groups) <= MAX_PAIRED_GROUPS:
        pairs = list(combinations(groups, 2))
    for (a, b), figure in product(pairs, (*list_headline_figures(runs), *ERROR_FIGURES)):
        interval = a.paired_difference(b, figure.read)
        if interval is not None:
            verdict = interval.verdict
            better = UNDECIDED_NOTES.get(verdict) or (a if figure.is_improved(verdict) else b).name
            rows.append((
                text_cell(f"{a.name} − {b.name}"),
                text_cell(figure.heading),
                value_cell(interval.n),
                figure.build_difference_cell(interval),
                Cell(better, best=verdict not in UNDECIDED_NOTES),
            ))  # fmt: skip
    return Table("paired-differences", ("groups", "figure", "seeds", "difference", "better"), tuple(rows))


def build_band_charts(groups: Sequence[SeedGroup]) -> Iterator[Chart]:
    """Plot accuracy, cumulative energy and cumulative time over the rounds: means over the seeds with intervals."""
    runs = [run for group in groups for run in group.runs]
    joules = energy_scale([sum(row.energy_j for row in run.rounds) for run in runs])
    times = time_scale([run.rounds[-1].end_s for run in runs])
    trained = [group for group in groups if all(run.accuracies for run in group.runs)]
    metric = find_metric(runs)
    so_far: dict[str, str] = {"rangemode": "tozero"}
    charts: tuple[tuple[Sequence[SeedGroup], str, str, dict[str, Any], RoundFigures, float], ...]
    charts = (
        (
            trained,
            "accuracy",
            capitalise(metric),
            axis(metric_title(metric)),
            lambda run: [row.accuracy for row in run.rounds],
            metric_scale(metric).per,
        ),
        (
            groups,
            "energy",
            "Energy so far",
            axis(f"energy so far ({joules.unit})", **so_far),
            _accumulate_energy_j,
            joules.per,
        ),
        (
            groups,
            "time",
            "Time so far",
            axis(f"time so far ({times.unit})", **so_far),
            lambda run: [row.end_s for row in run.rounds],
            times.per,
        ),
    )
    for drawn, key, title, up, values, per in charts:
        if drawn:
            data = [one for group in drawn for one in _band_traces(key, group=group, values=values, per=per)]
            rounds = round_axis(max(run.rounds[-1].round for group in drawn for run in group.runs))
            yield xy_chart(f"seeds-{key}", title, data, xaxis=rounds, yaxis=up, showlegend=True)


def _accumulate_energy_j(run: LoadedRun) -> Sequence[float | None]:
    return list(accumulate(row.energy_j for row in run.rounds))


def _band_traces(key: str, group: SeedGroup, values: RoundFigures, per: float) -> Iterator[Trace]:
    by_round = group_pairs(
        (row.round, value / per)
        for run in group.runs
        for row, value in zip(run.rounds, values(run), strict=True)
        if value is not None
    )
    means = {number: mean for number, one in sorted(by_round.items()) if (mean := mean_interval(one)) is not None}
    top = 1.0 / per if key == "accuracy" and per < 1.0 else math.inf
    known = [(number, mean) for number, mean in means.items() if mean.half_width is not None]
    if known:
        red, green, blue = (int(group.colour[i : i + 2], 16) for i in (1, 3, 5))
        yield band_trace(
            [number for number, _ in known],
            [max(0.0, mean.low) for _, mean in known],
            [min(top, mean.high) for _, mean in known],
            f"rgba({red}, {green}, {blue}, 0.18)",
        )
    hover = [
        Markup("{}, round {}: {}{} (n = {})").format(
            group.name,
            at,
            number(mean.mean, 4),
            "" if mean.half_width is None else f" ± {number(mean.half_width)}",
            mean.n,
        )
        for at, mean in means.items()
    ]
    lines, style = [mean.mean for mean in means.values()], group.runs[0].style
    yield line_trace(group.name, list(means), lines, colour=style.colour, dash=style.dash, hover=hover)


def build_seed_sections(runs: Sequence[LoadedRun], groups: Sequence[SeedGroup]) -> Iterator[Section]:
    """Yield the sections of a comparison over seeds; none if no group has two."""
    if not has_several_seeds(groups):
        return
    figures, errors, paired = list_seed_tables(runs, groups)
    bands = tuple(build_band_charts(groups))
    yield Section("Statistics over seeds", INTERVALS_LEAD, bands, figures.html + errors.html)
    if len(groups) > 1:
        order = "" if len(groups) <= MAX_PAIRED_GROUPS else f" Each group is compared with {groups[0].name}."
        none = render_paragraph("No two groups have a seed in common: there is nothing to pair.")
        yield Section("Paired comparison", PAIRED_LEAD + order, (), paired.html or none)
