"""Studies of choices over seeds: columns with mean and worst seed, and the mode-choice study of one board."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.report.chart import (
    Chart,
    Trace,
    axis,
    line_trace,
    round_axis,
    scatter_trace,
    xy_chart,
)
from experiments.report.page import Section, render_badge, write_page
from experiments.report.palette import GREY, assign_colours, assign_symbols
from experiments.report.quantities import UNKNOWN, energy_scale
from experiments.report.tables import Cell, Table, number_cell, print_lines, swatch_cell
from fedge.studies.mode_choice_study import ModeChoiceResult
from fedge.types import ProfileTable

if TYPE_CHECKING:
    from rich.console import Console


FigureRow = Mapping[str, str | int | float | None]
"""One run's values by field, as in JSON."""


@dataclass(frozen=True, slots=True)
class ChoiceColumn:
    """A column of a table; rows are records or mappings.

    Attributes:
        worst: Selects the worst seed's value, or None to show only the mean.
        factor: Factor from the field's unit to the heading's.
        is_whole_number: Whether single values are whole numbers; the worst is then shown without decimals.
        total_field: Field with the total that the value is a part of ("3 of 20"); a dash is shown if it is zero.
        large_digits: Most decimals of values from 100 on, which keeps columns narrow.
    """

    heading: str
    field: str
    digits: int = 2
    worst: Callable[[Sequence[float]], float] | None = max
    factor: float = 1.0
    is_whole_number: bool = False
    total_field: str = ""
    large_digits: int = 1

    def format_cell(self, rows: Sequence[object]) -> str:
        """Format the mean and, in brackets, the worst value over the seeds; a dash if no seed has a value."""
        values = self._list_values(rows)
        if not values:
            return UNKNOWN
        digits = 0 if self.total_field and len(values) == 1 else self.digits
        mean = self._format_figure(sum(values) / len(values), digits)
        if self.total_field:
            most = sum(list_known_values(rows, self.total_field)) / len(rows)
            return f"{mean} of {self._format_figure(most, 0)}" if most else UNKNOWN
        if self.worst is None or len(values) == 1:
            return mean
        return f"{mean} ({self._format_figure(self.worst(values), 0 if self.is_whole_number else self.digits)})"

    def make_cell(self, rows: Sequence[object]) -> Cell:
        """Return the formatted cell with the unrounded mean behind it."""
        shown, values = self.format_cell(rows), self._list_values(rows)
        return number_cell(shown, None if shown == UNKNOWN else sum(values) / len(values))

    def _list_values(self, rows: Sequence[object]) -> list[float]:
        return [self.factor * value for value in list_known_values(rows, self.field)]

    def _format_figure(self, value: float, digits: int) -> str:
        return f"{value:,.{min(digits, self.large_digits) if abs(value) >= 100.0 else digits}f}"


def list_known_values(rows: Sequence[object], field: str) -> list[float]:
    """Return the values of a field that are not None."""
    values = [row.get(field) if isinstance(row, Mapping) else getattr(row, field) for row in rows]
    return [float(value) for value in values if value is not None]


def describe_seeds(count: int) -> str:
    """Describe what the columns show."""
    return f"Mean of {count} seeds, the worst seed in brackets." if count > 1 else "One seed."


MODE_CHOICE_COLUMNS = (
    ChoiceColumn("regret, %", "regret_pct"),
    ChoiceColumn("from 10 on, %", "regret_after10_pct"),
    ChoiceColumn("saved, %", "energy_saved_pct", 1, min),
    ChoiceColumn("missed", "deadlines_missed", 1, is_whole_number=True),
    ChoiceColumn("modes", "modes_explored", 1, is_whole_number=True),
)


def group_rows(rows: Sequence[FigureRow], *keys: str) -> dict[tuple[object, ...], list[FigureRow]]:
    """Group rows by the values of ``keys``, in the order of first occurrence."""
    groups: dict[tuple[object, ...], list[FigureRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


COLUMNS_NOTE = "Saved: energy, against MAXN. From 10 on: from round 10 on."


def print_mode_choice(console: Console, table: ProfileTable, steps: int, choices: Sequence[ModeChoiceResult]) -> None:
    """Print the mode-choice study: regret, saving, missed deadlines and explored modes."""
    rows: list[FigureRow] = [choice.row for choice in choices]
    title = f"{table.device}/{table.workload}: {steps} steps per round"
    mode_choice_table(rows, title).print(console)
    print_lines(console, (COLUMNS_NOTE, describe_seeds(len({row["seed"] for row in rows}))))


def mode_choice_table(rows: Sequence[FigureRow], title: str = "") -> Table:
    """Build a table with one line per policy and deadline ratio."""
    groups = group_rows(rows, "policy", "ratio")
    colour = assign_colours(tuple(dict.fromkeys(str(policy) for policy, _ in groups)))
    lines = tuple(
        (
            swatch_cell(colour[str(policy)], str(policy)),
            number_cell(f"{ratio:g}"),
            *(column.make_cell(group) for column in MODE_CHOICE_COLUMNS),
        )
        for (policy, ratio), group in groups.items()
    )
    return Table("policies", ("policy", "ratio", *(column.heading for column in MODE_CHOICE_COLUMNS)), lines, title)


def write_mode_choice_page(target: ProfileTable, steps: int, choices: Sequence[ModeChoiceResult], out: Path) -> None:
    """Write the page atomically."""
    ratios = list(dict.fromkeys(choice.ratio for choice in choices))
    sections = [
        Section(
            "Figures",
            "Means over seeds, the worst seed in brackets. Saved: energy, against MAXN. From 10 on: from round 10 on.",
            html=mode_choice_table([choice.row for choice in choices]).html,
        ),
        *(
            Section(
                f"Deadlines up to {ratio:g} times the fastest round",
                "How close is each round to the oracle's, and how quickly?",
                tuple(_ratio_charts(f"r{place}", [choice for choice in choices if choice.ratio == ratio])),
            )
            for place, ratio in enumerate(ratios)
        ),
    ]
    seeds, rounds = len({choice.seed for choice in choices}), len(choices[0].rounds)
    note = Markup(
        "{} The table serves as the true time and power. Deadlines differ between rounds. The oracle knows the table "
        "and meets each deadline with the least energy; regret is a policy's energy in excess of the oracle's, "
        "including exploration. Savings are relative to the same rounds at MAXN."
    ).format(render_badge(target.label))
    write_page(
        out,
        "Mode choice under deadlines",
        sections,
        target.path,
        facts=(
            Markup("<b>{}</b>, {}").format(target.device, target.workload),
            f"{len(target.modes):,} modes",
            f"{rounds} round{'s' * (rounds > 1)} of {steps} steps",
            f"{seeds} seed{'s' * (seeds > 1)}",
        ),
        notes=(note,),
    )


def _ratio_charts(key: str, choices: Sequence[ModeChoiceResult]) -> Iterator[Chart]:
    yield _energy_chart(key, [choice for choice in choices if choice.seed == choices[0].seed])
    yield _regret_chart(key, choices)
    yield _explored_chart(key, choices)


def _energy_chart(key: str, choices: Sequence[ModeChoiceResult]) -> Chart:
    """Plot every round's energy over its deadline, for one seed."""
    first = choices[0].rounds
    scale = energy_scale([one.maxn_j for one in first])
    colour, symbol = assign_colours(_list_policies(choices)), assign_symbols(_list_policies(choices))
    data: list[Trace] = [
        _deadline_trace("MAXN", [(one.deadline_s, one.maxn_j / scale.per) for one in first], "dot"),
        _deadline_trace("oracle", [(one.deadline_s, one.oracle_j / scale.per) for one in first], "solid"),
    ]
    data += [
        scatter_trace(
            choice.policy,
            [one.deadline_s for one in choice.rounds],
            [one.energy_j / scale.per for one in choice.rounds],
            marker={"color": colour[choice.policy], "symbol": symbol[choice.policy], "size": 6, "opacity": 0.8},
            hover=[f"round {one.round}: {escape(one.modes)}" for one in choice.rounds],
        )
        for choice in choices
    ]
    return xy_chart(
        f"{key}-energy",
        "Energy of every round",
        data,
        xaxis=axis("the round's deadline (s)"),
        yaxis=axis(f"energy of the round ({scale.unit})", rangemode="normal"),
        caption="One mark per round, one seed. On the lower line the mode is optimal. Hover for modes.",
        height_px=340,
    )


def _deadline_trace(name: str, points: Sequence[tuple[float, float]], dash: str) -> Trace:
    ordered = sorted(points)
    return line_trace(
        name,
        [x for x, _ in ordered],
        [y for _, y in ordered],
        colour=GREY,
        dash=dash,
        markers=False,
        hover=f"{name}: %{{y:.4g}} at %{{x:.4g}} s",
    )


def _regret_chart(key: str, choices: Sequence[ModeChoiceResult]) -> Chart:
    """Plot the cumulative energy in excess of the oracle's, averaged over the seeds."""

    def so_far(choice: ModeChoiceResult) -> list[float]:
        spent = list(accumulate(one.energy_j for one in choice.rounds))
        best = list(accumulate(one.oracle_j for one in choice.rounds))
        return [100.0 * (own / least - 1.0) for own, least in zip(spent, best, strict=True)]

    caption = "Cumulative energy in excess of the oracle's, including exploration; mean over seeds."
    return _line_chart(f"{key}-regret", "Regret", "regret so far (%)", caption, choices=choices, values=so_far)


def _explored_chart(key: str, choices: Sequence[ModeChoiceResult]) -> Chart:
    """Plot the number of distinct modes tried up to each round, averaged over the seeds."""

    def count_tried(choice: ModeChoiceResult) -> list[float]:
        return [float(one.explored) for one in choice.rounds]

    return _line_chart(
        f"{key}-explored",
        "Modes tried",
        "distinct modes tried",
        "Mean over seeds.",
        choices=choices,
        values=count_tried,
    )


def _line_chart(
    key: str,
    title: str,
    label: str,
    caption: str,
    choices: Sequence[ModeChoiceResult],
    values: Callable[[ModeChoiceResult], list[float]],
) -> Chart:
    policies, numbers = _list_policies(choices), [one.round for one in choices[0].rounds]
    colour = assign_colours(policies)
    data = [
        mean_line_trace(
            policy, numbers, [values(choice) for choice in choices if choice.policy == policy], colour=colour[policy]
        )
        for policy in policies
    ]
    along, up = round_axis(len(numbers)), axis(label, rangemode="tozero")
    return xy_chart(key, title, data, xaxis=along, yaxis=up, caption=caption, height_px=340, showlegend=True)


def mean_line_trace(
    name: str,
    rounds: Sequence[int],
    runs: Iterable[Sequence[float]],
    *,
    colour: str,
    unit: str = "",
    dash: str = "solid",
) -> Trace:
    """Return the line of means over ``runs``, each of which has a value per round."""
    means = [sum(of_round) / len(of_round) for of_round in zip(*runs, strict=True)]
    hover = f"{escape(name)}, round %{{x}}: %{{y:.4g}}{unit}"
    return line_trace(name, rounds, means, colour=colour, dash=dash, markers=False, hover=hover)


def _list_policies(choices: Sequence[ModeChoiceResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(choice.policy for choice in choices))
