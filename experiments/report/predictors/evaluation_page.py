"""Writes a predictor study as one HTML file: errors, predictions, fronts and mode choices per target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from experiments.report.page import EMPTY, Section, render_badge, render_head, render_page, render_paragraph
from experiments.report.palette import assign_colours
from experiments.report.predictors import evaluation_charts
from experiments.report.predictors.evaluation_tables import (
    EvaluationColumn,
    evaluation_table,
    group_seeds,
    name_targets,
)
from experiments.report.quantities import UNKNOWN, number
from experiments.report.tables import Table, swatch_cell, text_cell
from fedge.atomic_files import write_text
from fedge.studies.budget_choices import MARGIN_CONFIDENCE
from fedge.studies.prediction_cells import CellResult, PredictionRow, PredictionTarget
from fedge.studies.prediction_study import PredictionStudy

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
    write_text(out, render_page("Evaluation of predictors", _render_head(study, rows), sections, foot))


def _render_head(study: PredictionStudy, rows: Sequence[PredictionRow]) -> Markup:
    facts = (
        f"{len(study.targets)} table{'s' * (len(study.targets) > 1)}",
        Markup(", ").join(Markup("<b>{}</b>").format(setup.method) for setup in study.setups),
        f"{', '.join(map(str, study.modes))} modes profiled",
        f"{study.seeds} seed{'s' * (study.seeds > 1)}",
    )
    note = Markup(
        "{} values come from a table. {} values come from a method that profiled few modes. Errors are over the modes "
        "that were not profiled; figures are means over seeds, with the worst seed in brackets."
    ).format(render_badge("measured"), render_badge("predicted"))
    failed = [row for row in rows if row.error is not None]
    trouble = render_paragraph(f"{len(failed)} of {len(rows)} cells failed: {failed[0].error}") if failed else EMPTY
    return render_head("Evaluation of predictors", facts, render_paragraph(note), _methods_table(study).html, trouble)


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
    return f"{count:,} measured modes, {strange} of them implausible; batch {target.table.batch_size}."


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
