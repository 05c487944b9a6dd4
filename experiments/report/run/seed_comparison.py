"""Groups of runs over their seeds: figures with confidence intervals, paired differences, lines with bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, combinations

from experiments.report.chart import LEGEND, Chart, Section, Trace, axis, line_mode
from experiments.report.confidence_intervals import ConfidenceInterval, mean_interval
from experiments.report.html_elements import ReportTable, TableCell, swatch_cell, text_cell, value_cell
from experiments.report.palette import assign_colours
from experiments.report.quantities import (
    UNKNOWN,
    UnitScale,
    duration,
    energies,
    energy_scale,
    number,
    percent,
    time_scale,
)
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_comparison import find_common_goal
from experiments.report.run.seed_groups import RunFigure, SeedGroup, group_by_experiment, list_repeated_runs

MAX_PAIRED_GROUPS = 4
"""Number of groups up to which all pairs are compared; with more, each is compared with the first.

A default that bounds the table's length.
"""
UNDECIDED_NOTES = {
    "undecided": "not decided",
    "one seed": "one common seed: no interval",
    "equal": "equal with every seed",
}
INTERVALS_LEAD = (
    "Mean ± half of its 95 % confidence interval over the seeds: t · s / √n, where n is the number of seeds, s the "
    "standard deviation of their figures (n − 1) and t the 97.5 % quantile of Student's distribution with n − 1 "
    "degrees of freedom. One seed has no interval. Lines are means over the seeds that played the round, bands "
    "their intervals, cut where no figure can lie."
)
PAIRED_LEAD = (
    "The first group's figure minus the second's, seed by seed over the seeds that both played, with its 95 % "
    "confidence interval. Where the interval leaves out nought, the difference is told from chance, and its better "
    "group named; otherwise more seeds are needed. This, not whether two intervals overlap, decides between groups. "
    "Of many such comparisons, one in twenty would be told from chance by chance alone."
)


@dataclass(frozen=True, slots=True)
class HeadlineFigure:
    """A figure by which groups are compared.

    Attributes:
        heading: Column heading.
        figure: The figure's value of a run.
        unit: Unit in which the interval is shown.
        per: Divisor from the figure's unit to ``unit``.
        more_is_better: Whether larger values are better.
    """

    heading: str
    figure: RunFigure
    format: Callable[..., tuple[str, ...]]
    """Formats one or several values in a common unit."""
    unit: str
    per: float = 1.0
    more_is_better: bool = False

    def build_cell(self, found: ConfidenceInterval | None, seeds: int) -> TableCell:
        """Build a cell with mean and interval, and the number of seeds if not all have the figure."""
        if found is None:
            return TableCell(UNKNOWN, numeric=True)
        value, half = found.mean / self.per, None if found.half_width is None else found.half_width / self.per
        words = " ± ".join(
            self.format(found.mean) if found.half_width is None else self.format(found.mean, found.half_width)
        )
        told = words + (f" (n = {found.n})" if found.n != seeds else "")
        return TableCell(escape(told), numeric=True, value=value, unit=self.unit, half_interval=half)

    def build_difference_cell(self, found: ConfidenceInterval) -> TableCell:
        """Build a cell of a difference; differences of shares are in percentage points."""
        points = self.unit == "%"
        cell = self.build_cell(found, found.n)
        return replace(cell, html=cell.html.replace("%", "points"), unit="points") if points else cell


def list_headline_figures(runs: Sequence[LoadedRun]) -> tuple[HeadlineFigure, ...]:
    """Return the figures of the tables over seeds."""
    goal = find_common_goal(runs)
    reached = f"{100 * goal.accuracy:.1f}\u00a0%"

    def share(head: str, name: str, more_is_better: bool = False) -> HeadlineFigure:
        return HeadlineFigure(
            head,
            figure=lambda run: run.summary[name],
            format=_format_percents,
            unit="%",
            per=0.01,
            more_is_better=more_is_better,
        )

    return (
        share("accuracy", "final_accuracy", more_is_better=True),
        HeadlineFigure(f"time to {reached}", goal.time_to_goal_s, _format_durations, "s"),
        HeadlineFigure(f"energy to {reached}", goal.energy_to_goal_j, energies, "J"),
        HeadlineFigure("mean round", lambda run: run.summary["mean_round_s"], _format_durations, "s"),
        HeadlineFigure("energy", lambda run: run.summary["energy_j"], energies, "J"),
        share("saving vs MAXN", "saving_vs_maxn", more_is_better=True),
        share("saving vs MAXN, waiting low", "saving_vs_maxn_parked", more_is_better=True),
        share("error of time, all modes", "last_time_mape"),
        share("error of power, all modes", "last_power_mape"),
        share("error of time, where it worked", "last_time_ape"),
        share("error of power, where it worked", "last_power_ape"),
    )


def _format_percents(*shares: float) -> tuple[str, ...]:
    """Format shares in percent, with two decimals if one would show zero."""
    digits = 2 if any(0 < abs(share) < 0.001 for share in shares) else 1
    return tuple(percent(share, digits) for share in shares)


def _format_durations(*seconds: float) -> tuple[str, ...]:
    return tuple(duration(one) for one in seconds)


def has_several_seeds(groups: Sequence[SeedGroup]) -> bool:
    """Return whether any group has more than one seed."""
    return any(len(group.by_seed) > 1 for group in groups)


def seed_summary_table(runs: Sequence[LoadedRun], groups: Sequence[SeedGroup]) -> ReportTable:
    """Build a table with one row per group: number of seeds, and every headline figure with its interval."""
    colour = assign_colours([group.name for group in groups])
    shown = list_headline_figures(runs)
    rows = tuple(
        (
            swatch_cell(colour[group.name], group.name),
            value_cell(str(len(group.by_seed)), len(group.by_seed)),
            *(one.build_cell(group.mean_interval(one.figure), len(group.by_seed)) for one in shown),
        )
        for group in groups
    )
    return ReportTable("over-seeds", ("group", "n", *(one.heading for one in shown)), rows)


def list_group_pairs(groups: Sequence[SeedGroup]) -> list[tuple[SeedGroup, SeedGroup]]:
    """Return the pairs of groups to compare."""
    return (
        list(combinations(groups, 2)) if len(groups) <= MAX_PAIRED_GROUPS else [(one, groups[0]) for one in groups[1:]]
    )


def paired_difference_table(runs: Sequence[LoadedRun], groups: Sequence[SeedGroup]) -> ReportTable:
    """Build a table with one row per pair of groups and figure: the paired difference and its interpretation."""
    rows = tuple(
        _difference_row(a, b, one, found)
        for a, b in list_group_pairs(groups)
        for one in list_headline_figures(runs)
        if (found := a.paired_difference(b, one.figure)) is not None
    )
    return ReportTable("paired-differences", ("groups", "figure", "seeds", "difference", "better"), rows)


def _difference_row(
    a: SeedGroup, b: SeedGroup, one: HeadlineFigure, found: ConfidenceInterval
) -> tuple[TableCell, ...]:
    better = UNDECIDED_NOTES.get(found.verdict) or (a if (found.verdict == "higher") == one.more_is_better else b).name
    told = TableCell(escape(better), best=found.verdict not in UNDECIDED_NOTES)
    return (
        text_cell(f"{a.name} − {b.name}"),
        text_cell(one.heading),
        value_cell(str(found.n), found.n),
        one.build_difference_cell(found),
        told,
    )


def build_band_charts(groups: Sequence[SeedGroup]) -> tuple[Chart, ...]:
    """Plot accuracy, cumulative energy and cumulative time over the rounds: means over the seeds with intervals."""
    runs = [run for group in groups for run in group.runs]
    joules = energy_scale([sum(row.energy_j for row in run.rounds) for run in runs])
    times = time_scale([run.rounds[-1].end_s for run in runs])
    return (
        _band_chart(
            groups,
            key="accuracy",
            title="Accuracy",
            unit="test accuracy (%)",
            values=lambda run: [r.accuracy for r in run.rounds],
            per=0.01,
        ),
        _band_chart(groups, "energy", *_cumulative_titles("Energy", joules), _cumulative_energy_j, joules.per),
        _band_chart(
            groups, "time", *_cumulative_titles("Time", times), lambda run: [row.end_s for row in run.rounds], times.per
        ),
    )


def _cumulative_titles(what: str, scale: UnitScale) -> tuple[str, str]:
    return f"{what} so far", f"{what.lower()} so far ({scale.unit})"


def _cumulative_energy_j(run: LoadedRun) -> list[float]:
    return list(accumulate(row.energy_j for row in run.rounds))


def _band_chart(
    groups: Sequence[SeedGroup], key: str, title: str, unit: str, values: Callable[[LoadedRun], list[float]], per: float
) -> Chart:
    colour = assign_colours([group.name for group in groups])
    data = [
        one
        for group in groups
        for one in _band_traces(key, group=group, colour=colour[group.name], values=values, per=per)
    ]
    layout = {
        "xaxis": axis("round"),
        "yaxis": axis(unit, **({} if key == "accuracy" else {"rangemode": "tozero"})),
        "legend": LEGEND,
        "showlegend": True,
    }
    return Chart(f"seeds-{key}", title=title, caption="", data=data, layout=layout, height_px=320)


def _band_traces(
    key: str, group: SeedGroup, colour: str, values: Callable[[LoadedRun], list[float]], per: float
) -> Iterator[Trace]:
    """Yield the interval as a filled outline, then the line of means."""
    by_round: dict[int, list[float]] = {}
    for run in group.runs:
        for row, value in zip(run.rounds, values(run), strict=True):
            by_round.setdefault(row.round, []).append(value / per)
    means = {number: found for number, one in sorted(by_round.items()) if (found := mean_interval(one)) is not None}
    top = 1.0 / per if key == "accuracy" else math.inf
    known = [(number, found) for number, found in means.items() if found.half_width is not None]
    if known:
        numbers = [number for number, _ in known]
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": [*numbers, *reversed(numbers)],
            "y": [*(min(top, one.high) for _, one in known), *(max(0.0, one.low) for _, one in reversed(known))],
            "fill": "toself",
            "fillcolor": f"rgba({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))}, 0.18)",
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    yield {
        "type": "scatter",
        "mode": line_mode(len(means)),
        "name": escape(group.name),
        "x": list(means),
        "y": [found.mean for found in means.values()],
        "line": {"color": colour, "width": 2},
        "hovertext": [_hover_text(group.name, at, found) for at, found in means.items()],
        "hoverinfo": "text",
    }


def _hover_text(name: str, at: int, found: ConfidenceInterval) -> str:
    spread = "" if found.half_width is None else f" ± {number(found.half_width)}"
    return f"{escape(name)}, round {at}: {number(found.mean, 4)}{spread} (n = {found.n})"


def build_seed_sections(runs: Sequence[LoadedRun]) -> list[Section]:
    """Build the sections of a comparison over seeds; empty if no group has two."""
    groups = group_by_experiment(runs)
    if not has_several_seeds(groups):
        return []
    left_out = list_repeated_runs(runs, groups)
    note = "".join(
        f'<p class="caption">{escape(run.name)} is not counted: a run of its experiment and seed comes before it.</p>'
        for run in left_out
    )
    found = [
        Section("Over seeds", INTERVALS_LEAD, build_band_charts(groups), seed_summary_table(runs, groups).html + note),
    ]
    if len(groups) > 1:
        table = paired_difference_table(runs, groups)
        told = "" if len(groups) <= MAX_PAIRED_GROUPS else f" Each group is compared with {escape(groups[0].name)}."
        none = "<p>No two groups played a seed in common: there is nothing to pair.</p>"
        found.append(Section("Which is better", PAIRED_LEAD + told, (), table.html if table.rows else none))
    return found
