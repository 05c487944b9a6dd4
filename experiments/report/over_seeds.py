"""Groups of runs over their seeds: headline figures with intervals, paired differences, lines with bands; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, combinations

from experiments.report.cells import Cell, Table, measured, swatch, text
from experiments.report.chart import LEGEND, Chart, Section, Trace, axis, marks
from experiments.report.comparison import common_goal
from experiments.report.groups import Figure, Group, grouped, repeated
from experiments.report.intervals import Interval, interval
from experiments.report.palette import colours
from experiments.report.quantities import UNKNOWN, Scale, duration, energies, energy_scale, number, percent, time_scale
from experiments.report.runs import Run

MOST_PAIRED = 4
"""Groups of which every pair is compared; with more, each is with the first. Chosen by us."""
UNDECIDED = {"undecided": "not decided", "one seed": "one common seed: no interval", "equal": "equal with every seed"}
HOW = (
    "Mean ± half of its 95 % confidence interval over the seeds: t · s / √n, where n is the number of seeds, s the "
    "standard deviation of their figures (n − 1) and t the 97.5 % quantile of Student's distribution with n − 1 "
    "degrees of freedom. One seed has no interval. Lines are means over the seeds that played the round, bands "
    "their intervals, cut where no figure can lie."
)
PAIRED = (
    "The first group's figure minus the second's, seed by seed over the seeds that both played, with its 95 % "
    "confidence interval. Where the interval leaves out nought, the difference is told from chance, and its better "
    "group named; otherwise more seeds are needed. This, not whether two intervals overlap, decides between groups. "
    "Of many such comparisons, one in twenty would be told from chance by chance alone."
)


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure that groups are compared by; the interval is told in ``unit``, of which the figure has ``per``."""

    head: str
    of: Figure
    shown: Callable[..., tuple[str, ...]]
    """Figures in words, all in one unit where that can be."""
    unit: str
    per: float = 1.0
    more_is_better: bool = False

    def cell(self, found: Interval | None, seeds: int) -> Cell:
        """The mean and its interval; of how many seeds, where not all know it."""
        if found is None:
            return Cell(UNKNOWN, numeric=True)
        value, half = found.mean / self.per, None if found.half is None else found.half / self.per
        words = " ± ".join(self.shown(found.mean) if found.half is None else self.shown(found.mean, found.half))
        told = words + (f" (n = {found.n})" if found.n != seeds else "")
        return Cell(escape(told), numeric=True, value=value, unit=self.unit, half=half)

    def difference(self, found: Interval) -> Cell:
        """The same of a difference: that of two shares is in points."""
        points = self.unit == "%"
        cell = self.cell(found, found.n)
        return replace(cell, html=cell.html.replace("%", "points"), unit="points") if points else cell


def headlines(runs: Sequence[Run]) -> tuple[Headline, ...]:
    """The figures of a table over seeds."""
    goal = common_goal(runs)
    reached = f"{100 * goal.accuracy:.1f}\u00a0%"

    def share(head: str, name: str, more_is_better: bool = False) -> Headline:
        return Headline(head, lambda run: run.summary[name], _percents, "%", 0.01, more_is_better)

    return (
        share("accuracy", "final_accuracy", more_is_better=True),
        Headline(f"time to {reached}", goal.reached_s, _durations, "s"),
        Headline(f"energy to {reached}", goal.reached_j, energies, "J"),
        Headline("mean round", lambda run: run.summary["mean_round_s"], _durations, "s"),
        Headline("energy", lambda run: run.summary["energy_j"], energies, "J"),
        share("saving vs MAXN", "saving_vs_maxn", more_is_better=True),
        share("saving vs MAXN, waiting low", "saving_vs_maxn_parked", more_is_better=True),
        share("error of time, all modes", "last_time_mape"),
        share("error of power, all modes", "last_power_mape"),
        share("error of time, where it worked", "last_time_ape"),
        share("error of power, where it worked", "last_power_ape"),
    )


def _percents(*shares: float) -> tuple[str, ...]:
    """Two digits where one would say nought."""
    digits = 2 if any(0 < abs(share) < 0.001 for share in shares) else 1
    return tuple(percent(share, digits) for share in shares)


def _durations(*seconds: float) -> tuple[str, ...]:
    return tuple(duration(one) for one in seconds)


def several_seeds(groups: Sequence[Group]) -> bool:
    """Whether there is anything to say over seeds."""
    return any(len(group.by_seed) > 1 for group in groups)


def summary(runs: Sequence[Run], groups: Sequence[Group]) -> Table:
    """One row per group: how many seeds, and every headline figure with its interval."""
    colour = colours([group.name for group in groups])
    shown = headlines(runs)
    rows = tuple(
        (
            swatch(colour[group.name], group.name),
            measured(str(len(group.by_seed)), len(group.by_seed)),
            *(one.cell(group.mean(one.of), len(group.by_seed)) for one in shown),
        )
        for group in groups
    )
    return Table("over-seeds", ("group", "n", *(one.head for one in shown)), rows)


def pairs(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """The pairs that are compared."""
    return list(combinations(groups, 2)) if len(groups) <= MOST_PAIRED else [(one, groups[0]) for one in groups[1:]]


def differences(runs: Sequence[Run], groups: Sequence[Group]) -> Table:
    """One row per pair of groups and figure, with what can be said of them."""
    rows = tuple(
        _difference(a, b, one, found)
        for a, b in pairs(groups)
        for one in headlines(runs)
        if (found := a.minus(b, one.of)) is not None
    )
    return Table("paired-differences", ("groups", "figure", "seeds", "difference", "better"), rows)


def _difference(a: Group, b: Group, one: Headline, found: Interval) -> tuple[Cell, ...]:
    better = UNDECIDED.get(found.verdict) or (a if (found.verdict == "higher") == one.more_is_better else b).name
    told = Cell(escape(better), best=found.verdict not in UNDECIDED)
    return (
        text(f"{a.name} − {b.name}"),
        text(one.head),
        measured(str(found.n), found.n),
        one.difference(found),
        told,
    )


def bands(groups: Sequence[Group]) -> tuple[Chart, ...]:
    """Accuracy, and energy and time so far, over the rounds: the mean over the seeds with its interval."""
    runs = [run for group in groups for run in group.runs]
    joules = energy_scale([sum(row.energy_j for row in run.rounds) for run in runs])
    times = time_scale([run.rounds[-1].end_s for run in runs])
    return (
        _bands(groups, "accuracy", "Accuracy", "test accuracy (%)", lambda run: [r.accuracy for r in run.rounds], 0.01),
        _bands(groups, "energy", *_so_far("Energy", joules), _spent_j, joules.per),
        _bands(groups, "time", *_so_far("Time", times), lambda run: [row.end_s for row in run.rounds], times.per),
    )


def _so_far(what: str, scale: Scale) -> tuple[str, str]:
    return f"{what} so far", f"{what.lower()} so far ({scale.unit})"


def _spent_j(run: Run) -> list[float]:
    return list(accumulate(row.energy_j for row in run.rounds))


def _bands(
    groups: Sequence[Group], key: str, title: str, unit: str, values: Callable[[Run], list[float]], per: float
) -> Chart:
    colour = colours([group.name for group in groups])
    data = [one for group in groups for one in _band(key, group, colour[group.name], values, per)]
    layout = {
        "xaxis": axis("round"),
        "yaxis": axis(unit, **({} if key == "accuracy" else {"rangemode": "tozero"})),
        "legend": LEGEND,
        "showlegend": True,
    }
    return Chart(f"seeds-{key}", title, "", data, layout, 320)


def _band(key: str, group: Group, colour: str, values: Callable[[Run], list[float]], per: float) -> Iterator[Trace]:
    """The interval as an outline that is filled, then the line of means."""
    by_round: dict[int, list[float]] = {}
    for run in group.runs:
        for row, value in zip(run.rounds, values(run), strict=True):
            by_round.setdefault(row.round, []).append(value / per)
    means = {number: found for number, one in sorted(by_round.items()) if (found := interval(one)) is not None}
    top = 1.0 / per if key == "accuracy" else math.inf
    known = [(number, found) for number, found in means.items() if found.half is not None]
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
        "mode": marks(len(means)),
        "name": escape(group.name),
        "x": list(means),
        "y": [found.mean for found in means.values()],
        "line": {"color": colour, "width": 2},
        "hovertext": [_hover(group.name, at, found) for at, found in means.items()],
        "hoverinfo": "text",
    }


def _hover(name: str, at: int, found: Interval) -> str:
    spread = "" if found.half is None else f" ± {number(found.half)}"
    return f"{escape(name)}, round {at}: {number(found.mean, 4)}{spread} (n = {found.n})"


def sections(runs: Sequence[Run]) -> list[Section]:
    """What a comparison says over seeds; nothing when no group has two."""
    groups = grouped(runs)
    if not several_seeds(groups):
        return []
    left_out = repeated(runs, groups)
    note = "".join(
        f'<p class="caption">{escape(run.name)} is not counted: a run of its experiment and seed comes before it.</p>'
        for run in left_out
    )
    found = [
        Section("Over seeds", HOW, bands(groups), summary(runs, groups).html + note),
    ]
    if len(groups) > 1:
        table = differences(runs, groups)
        told = "" if len(groups) <= MOST_PAIRED else f" Each group is compared with {escape(groups[0].name)}."
        none = "<p>No two groups played a seed in common: there is nothing to pair.</p>"
        found.append(Section("Which is better", PAIRED + told, (), table.html if table.rows else none))
    return found
