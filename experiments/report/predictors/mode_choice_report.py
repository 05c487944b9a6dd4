"""Studies of choices over seeds: columns with mean and worst seed, and the mode-choice study of one board."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import GREY, Chart, SeriesStyle, Trace, assign_styles, axis
from experiments.report.page import Section, render_badge, write_page
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

    def make_cell(self, rows: Sequence[object]) -> Cell:
        """Show the mean and, in brackets, the worst value over the seeds; a dash if no seed has a value."""
        values = [self.factor * value for value in list_known_values(rows, self.field)]
        if not values:
            return number_cell(UNKNOWN)
        mean = sum(values) / len(values)
        shown = self._format_figure(mean, 0 if self.total_field and len(values) == 1 else self.digits)
        if self.total_field:
            most = sum(list_known_values(rows, self.total_field)) / len(rows)
            return number_cell(f"{shown} of {self._format_figure(most, 0)}", mean) if most else number_cell(UNKNOWN)
        if self.worst is not None and len(values) > 1:
            shown += f" ({self._format_figure(self.worst(values), 0 if self.is_whole_number else self.digits)})"
        return number_cell(shown, mean)

    def _format_figure(self, value: float, digits: int) -> str:
        return f"{value:,.{min(digits, self.large_digits) if abs(value) >= 100.0 else digits}f}"


def list_known_values(rows: Sequence[object], field: str) -> list[float]:
    """Return the values of a field that are not None."""
    values = [row.get(field) if isinstance(row, Mapping) else getattr(row, field) for row in rows]
    return [float(value) for value in values if value is not None]


def build_choice_table(
    key: str,
    heads: Sequence[str],
    groups: Iterable[tuple[Sequence[Cell], Sequence[object]]],
    columns: Sequence[ChoiceColumn],
    title: str = "",
) -> Table:
    """Build a table of groups of rows that differ only in the seed: the cells under ``heads``, then the columns."""
    rows = tuple((*names, *(column.make_cell(group) for column in columns)) for names, group in groups)
    return Table(key, (*heads, *(column.heading for column in columns)), rows, title)


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
COLUMNS_NOTE = "Saved: energy, against MAXN. From 10 on: from round 10 on."


def print_mode_choice(console: Console, table: ProfileTable, steps: int, choices: Sequence[ModeChoiceResult]) -> None:
    """Print the mode-choice study: regret, saving, missed deadlines and explored modes."""
    title = f"{table.device}/{table.workload}: {steps} steps per round"
    _mode_choice_table(choices, title).print(console)
    print_lines(console, (COLUMNS_NOTE, describe_seeds(len({choice.seed for choice in choices}))))


def _mode_choice_table(choices: Sequence[ModeChoiceResult], title: str = "") -> Table:
    styles, groups = _assign_policy_styles(choices), dict[tuple[str, float], list[FigureRow]]()
    for choice in choices:
        groups.setdefault((choice.policy, choice.ratio), []).append(choice.row)
    named = (
        ((swatch_cell(styles[policy].colour, policy), number_cell(f"{ratio:g}")), rows)
        for (policy, ratio), rows in groups.items()
    )
    return build_choice_table("policies", ("policy", "ratio"), named, MODE_CHOICE_COLUMNS, title=title)


def write_mode_choice_page(target: ProfileTable, steps: int, choices: Sequence[ModeChoiceResult], out: Path) -> None:
    """Write the page atomically."""
    means = f"Means over seeds, the worst seed in brackets. {COLUMNS_NOTE}"
    sections = [Section("Figures", means, html=_mode_choice_table(choices).html)]
    for place, ratio in enumerate(dict.fromkeys(choice.ratio for choice in choices)):
        title = f"Deadlines up to {ratio:g} times the fastest round"
        charts = _list_ratio_charts(f"r{place}", [choice for choice in choices if choice.ratio == ratio])
        sections.append(Section(title, "How close is each round to the oracle's, and how quickly?", tuple(charts)))
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


def _list_ratio_charts(key: str, choices: Sequence[ModeChoiceResult]) -> Iterator[Chart]:
    """Yield one seed's energy over deadlines, then regret so far and modes tried, averaged over the seeds."""
    yield _energy_chart(key, [choice for choice in choices if choice.seed == choices[0].seed])
    rounds, styles = [one.round for one in choices[0].rounds], _assign_policy_styles(choices)
    caption = "Cumulative energy in excess of the oracle's, including exploration; mean over seeds."
    drawn: tuple[tuple[str, str, str, str, Callable[[ModeChoiceResult], Sequence[float]]], ...] = (
        ("regret", "Regret", "regret so far (%)", caption, _list_regrets),
        (
            "explored",
            "Modes tried",
            "distinct modes tried",
            "Mean over seeds.",
            lambda one: [played.explored for played in one.rounds],
        ),
    )
    for what, title, label, words, values in drawn:
        data = [
            mean_line_trace(
                policy, rounds, (values(one) for one in choices if one.policy == policy), colour=style.colour
            )
            for policy, style in styles.items()
        ]
        along, up = chart.round_axis(len(rounds)), axis(label, rangemode="tozero")
        more: dict[str, Any] = {"caption": words, "height_px": 340, "showlegend": True}
        yield chart.xy_chart(f"{key}-{what}", title, data, xaxis=along, yaxis=up, **more)


def _assign_policy_styles(choices: Sequence[ModeChoiceResult]) -> dict[str, SeriesStyle]:
    return assign_styles(choice.policy for choice in choices)


def _list_regrets(choice: ModeChoiceResult) -> list[float]:
    """Return the cumulative energy in excess of the oracle's after every round, in percent."""
    spent = accumulate(one.energy_j for one in choice.rounds)
    best = accumulate(one.oracle_j for one in choice.rounds)
    return [100.0 * (own / least - 1.0) for own, least in zip(spent, best, strict=True)]


def _energy_chart(key: str, choices: Sequence[ModeChoiceResult]) -> Chart:
    first = sorted(choices[0].rounds, key=lambda one: one.deadline_s)
    scale = energy_scale([one.maxn_j for one in first])
    data: list[Trace] = [
        chart.line_trace(
            name,
            [one.deadline_s for one in first],
            [getattr(one, field) / scale.per for one in first],
            colour=GREY,
            dash=dash,
            markers=False,
            hover=f"{name}: %{{y:.4g}} at %{{x:.4g}} s",
        )
        for name, field, dash in (("MAXN", "maxn_j", "dot"), ("oracle", "oracle_j", "solid"))
    ]
    styles = _assign_policy_styles(choices)
    data += [
        chart.scatter_trace(
            choice.policy,
            of=choice.rounds,
            x=lambda one: one.deadline_s,
            y=lambda one: one.energy_j / scale.per,
            marker=styles[choice.policy].marker(6, opacity=0.8),
            hover=lambda one: f"round {one.round}: {one.modes}",
        )
        for choice in choices
    ]
    return chart.xy_chart(
        f"{key}-energy",
        "Energy of every round",
        data,
        xaxis=axis("the round's deadline (s)"),
        yaxis=axis(f"energy of the round ({scale.unit})", rangemode="normal"),
        caption="One mark per round, one seed. On the lower line the mode is optimal. Hover for modes.",
        height_px=340,
    )


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
    hover = f"{name}, round %{{x}}: %{{y:.4g}}{unit}"
    return chart.line_trace(name, rounds, means, colour=colour, dash=dash, markers=False, hover=hover)
