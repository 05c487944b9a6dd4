"""Writes a predictor study as one HTML file: errors, predictions, fronts and mode choices per target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.report.palette import assign_colours
from experiments.report.predictors.choice_terminal import ChoiceColumn, describe_seeds
from experiments.report.tables import Cell, Table, print_lines, swatch_cell, value_cell
from fedge.studies.prediction_cells import PredictionRow

if TYPE_CHECKING:
    from rich.console import Console

from pathlib import Path

from markupsafe import Markup

from experiments.report.page import EMPTY, Section, render_badge, render_paragraph, write_page
from experiments.report.predictors import evaluation_charts
from experiments.report.quantities import UNKNOWN, number
from experiments.report.tables import text_cell
from fedge.studies.prediction_cells import MARGIN_CONFIDENCE, CellResult, PredictionTarget
from fedge.studies.prediction_study import PredictionStudy
from fedge.types import weakest_label

EvaluationKey = tuple[str, str, int]
"""Display name of a target, method, number of profiled modes."""
EvaluationGroups = Mapping[EvaluationKey, Sequence[PredictionRow]]
"""Rows that differ only in the seed, by what they have in common."""


@dataclass(frozen=True, slots=True)
class EvaluationColumn(ChoiceColumn):
    """A column of a predictor study."""

    digits: int = 1
    large_digits: int = 0


def group_seeds(rows: Sequence[PredictionRow]) -> dict[EvaluationKey, list[PredictionRow]]:
    """Group rows that differ only in the seed, in the order of the rows."""
    names = name_targets(rows)
    groups: dict[EvaluationKey, list[PredictionRow]] = {}
    for row in rows:
        groups.setdefault((names[row.target], row.method, row.modes), []).append(row)
    return groups


def name_targets(rows: Sequence[PredictionRow]) -> dict[str, str]:
    """Return ``device/workload`` for each target's path, or the path where that name is ambiguous."""
    short = {row.target: f"{row.device}/{row.workload}" for row in rows}
    names = list(short.values())
    return {path: name if names.count(name) == 1 else path for path, name in short.items()}


ERROR_COLUMNS = (
    EvaluationColumn("time, %", "time_mape"),
    EvaluationColumn("power, %", "power_mape"),
    EvaluationColumn("in 90 %, %", "coverage90", 0, min),
    EvaluationColumn("fit, s", "fit_s", 1, None),
    EvaluationColumn("predict, ms", field="predict_s", digits=0, worst=None, factor=1e3),
    EvaluationColumn("profile, s", "profiling_s", 0, None),
)
CHOICE_COLUMNS = (
    EvaluationColumn("penalty median, %", "penalty_median"),
    EvaluationColumn("mean, %", "penalty_mean"),
    EvaluationColumn("excess, W", "excess_w", 2, None),
    EvaluationColumn("over, %", "over_limit", 0, None),
    EvaluationColumn("by > 1 W, %", "over_limit_1w", 0),
    EvaluationColumn("verified modes", "verify_modes", 2, None),
)


def print_evaluation(console: Console, rows: Sequence[PredictionRow]) -> None:
    """Print two tables per target: mean over the seeds, worst in brackets, and how each method works."""
    for table in build_evaluation_tables(rows):
        table.print(console)
    note = describe_seeds(len({row.seed for row in rows}))
    ways = {f"{row.method}: profiles by {row.explorer}, chooses {row.choice}" for row in rows}
    print_lines(console, (note, "time, power: MAPE; in 90 %: share inside the 90 % interval.", *sorted(ways)))


def build_evaluation_tables(rows: Sequence[PredictionRow]) -> list[Table]:
    """Build tables per target with one line per method and number of modes."""
    groups = group_seeds(rows)
    return [
        table
        for target in dict.fromkeys(target for target, _, _ in groups)
        for table in _target_tables(target, {key: group for key, group in groups.items() if key[0] == target})
    ]


def _target_tables(target: str, groups: EvaluationGroups) -> tuple[Table, Table]:
    problems = next((row.problems for group in groups.values() for row in group if row.problems is not None), 0)
    errors, choices = (
        f"{target}: errors on modes not profiled",
        f"{target}: fastest mode within {problems} power budgets",
    )
    return (
        evaluation_table("errors", groups, ERROR_COLUMNS, errors),
        evaluation_table("choices", groups, CHOICE_COLUMNS, choices),
    )


def evaluation_table(key: str, groups: EvaluationGroups, columns: Sequence[EvaluationColumn], title: str = "") -> Table:
    """Build a table of one target with one line per method and number of modes."""
    colour = assign_colours(tuple(dict.fromkeys(method for _, method, _ in groups)))
    rows: list[tuple[Cell, ...]] = []
    for (_, method, count), group in groups.items():
        failed = sum(row.error is not None for row in group)
        name = f"{method} ({failed} failed)" if failed else method
        cells = (column.make_cell(group) for column in columns)
        rows.append((swatch_cell(colour[method], name), value_cell(count), *cells))
    return Table(key, ("method", "modes", *(column.heading for column in columns)), tuple(rows), title)


PAGE_ERROR_COLUMNS = (
    EvaluationColumn("time MAPE, %", "time_mape"),
    EvaluationColumn("power MAPE, %", "power_mape"),
    EvaluationColumn("time, plausible rows", "time_mape_plausible"),
    EvaluationColumn("power, plausible rows", "power_mape_plausible"),
    EvaluationColumn("inside 90 % interval, %", "coverage90", 0, min),
    EvaluationColumn("fit, s", "fit_s", 2, None),
    EvaluationColumn("predict, s", "predict_s", 3, None),
    EvaluationColumn("profiling, s", "profiling_s", 0, None),
)
PAGE_CHOICE_COLUMNS = (
    EvaluationColumn("penalty median, %", "penalty_median"),
    EvaluationColumn("penalty mean, %", "penalty_mean"),
    EvaluationColumn("excess, W", "excess_w", 2),
    EvaluationColumn("over the limit, %", "over_limit", 0),
    EvaluationColumn("over by > 1 W, %", "over_limit_1w", 0),
    EvaluationColumn("verified modes", "verify_modes", 2, None),
    EvaluationColumn("with implausible rows: median, %", "penalty_median_all"),
    EvaluationColumn("mean, %", "penalty_mean_all"),
    EvaluationColumn("by > 1 W, %", "over_limit_1w_all", 0),
)
CHOICE_DESCRIPTIONS = {
    "plain": "the point of the predicted front with the largest power within the limit",
    "margin": f"the fastest mode that is within the limit with {MARGIN_CONFIDENCE:.0%} confidence",
    "verified": "measures up to two more modes, and takes the fastest one that is measured within the limit",
}


def write_evaluation_page(study: PredictionStudy, outcomes: Sequence[CellResult], out: Path) -> None:
    """Write the page atomically."""
    rows = [outcome.row for outcome in outcomes]
    names = name_targets(rows)
    sections = [
        section
        for place, target in enumerate(study.targets)
        for section in _target_sections(
            f"t{place}",
            names[target.table.path],
            target,
            [outcome for outcome in outcomes if outcome.cell.target == place],
        )
    ]
    foot = Markup("<br>").join(target.table.path for target in study.targets)
    note = Markup(
        "{} values come from a table. {} values come from a method that profiled few modes. Errors are over the modes "
        "that were not profiled; figures are means over seeds, with the worst seed in brackets."
    ).format(render_badge(weakest_label(target.table.label for target in study.targets)), render_badge("predicted"))
    failed = [row for row in rows if row.error is not None]
    trouble = render_paragraph(f"{len(failed)} of {len(rows)} cells failed: {failed[0].error}") if failed else EMPTY
    write_page(
        out,
        "Evaluation of predictors",
        sections,
        foot,
        facts=(
            f"{len(study.targets)} table{'s' * (len(study.targets) > 1)}",
            Markup(", ").join(Markup("<b>{}</b>").format(setup.method) for setup in study.setups),
            f"{', '.join(map(str, study.modes))} modes profiled",
            f"{study.seeds} seed{'s' * (study.seeds > 1)}",
        ),
        notes=(note,),
        below=_methods_table(study).html + trouble,
    )


def _methods_table(study: PredictionStudy) -> Table:
    colour = assign_colours([setup.method for setup in study.setups])
    rows = tuple(
        (
            swatch_cell(colour[setup.method], setup.method),
            text_cell(setup.explorer),
            text_cell(f"{setup.choice}: {CHOICE_DESCRIPTIONS[setup.choice]}"),
        )
        for setup in study.setups
    )
    return Table("methods", ("method", "explorer", "mode choice"), rows)


def _target_sections(key: str, name: str, target: PredictionTarget, outcomes: Sequence[CellResult]) -> list[Section]:
    rows = [outcome.row for outcome in outcomes]
    groups = group_seeds(rows)
    drawn = any(outcome.predictions is not None for outcome in outcomes)
    pictures = [
        Section(
            f"{name}: predicted and measured",
            "One seed. The slider sets the number of profiled modes.",
            evaluation_charts.build_scatter_charts(key, target, outcomes),
        ),
        Section(
            f"{name}: fronts",
            "How close is each predicted front to the measured one?",
            (evaluation_charts.build_fronts_chart(key, target, outcomes),),
        ),
    ]
    return [
        Section(
            f"{name}: errors",
            _describe_table(target),
            evaluation_charts.build_error_charts(key, rows),
            evaluation_table(f"{key}-errors", groups, PAGE_ERROR_COLUMNS).html,
        ),
        *(pictures if drawn else ()),
        Section(
            f"{name}: choices",
            _describe_budgets(target, rows),
            html=evaluation_table(f"{key}-choices", groups, PAGE_CHOICE_COLUMNS).html,
        ),
        Section(
            f"{name}: prior knowledge", "None of it includes the table's workload.", html=_background_table(target).html
        ),
    ]


def _describe_table(target: PredictionTarget) -> str:
    count, strange = len(target.table.modes), int((~target.plausible).sum())
    return f"{count:,} modes ({target.table.label}), {strange} of them implausible; batch {target.table.batch_size}."


def _describe_budgets(target: PredictionTarget, rows: Sequence[PredictionRow]) -> str:
    budgets = target.budgets_w
    problems = next((row.problems for row in rows if row.problems is not None), None)
    which = f"{number(budgets[0])} to {number(budgets[-1])} W" if budgets else UNKNOWN
    return (
        f"{len(budgets)} power budgets, {which}; {problems or UNKNOWN} of them are feasible. "
        "The penalty compares the measured time of the chosen mode with that of the fastest mode within the budget. "
        "Implausible rows are excluded, except in the last three columns."
    )


def _background_table(target: PredictionTarget) -> Table:
    background = target.background
    rows = [
        (text_cell("board's top mode"), text_cell(background.knowledge.maxn)),
        (text_cell("priors, calibrated to"), text_cell("; ".join(background.prior_tables) or "none")),
        (text_cell("reference tables"), text_cell("; ".join(background.references) or "none")),
        *((text_cell("note"), text_cell(note)) for note in background.notes),
    ]
    return Table("prior", ("what", "which"), tuple(rows))
