"""Writes a predictor study as one HTML file: errors, predictions, fronts and mode choices per target."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from experiments.report.chart import Section
from experiments.report.html_elements import TableCell, label_badge, number_cell, render_table, swatch_cell, text_cell
from experiments.report.palette import assign_colours
from experiments.report.predictors import evaluation_charts
from experiments.report.predictors.evaluation_tables import EvaluationColumn, group_seeds, name_targets
from experiments.report.quantities import UNKNOWN, number
from experiments.report.run.run_page import render_page
from fedge.studies.budget_choices import MARGIN_CONFIDENCE
from fedge.studies.prediction_cells import CellResult, PredictionRow, PredictionTarget
from fedge.studies.prediction_study import PredictionStudy
from fedge.telemetry import run_folder

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
    "plain": "of the predicted front the point of largest power within the limit",
    "margin": f"the fastest mode that keeps the limit with {MARGIN_CONFIDENCE:.0%} confidence",
    "verified": "up to two modes more are measured; the fastest one measured to keep the limit",
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
    foot = "<br>".join(escape(target.table.path) for target in study.targets)
    run_folder.write_text(out, render_page("Predictors judged", _render_head(study, rows), sections, foot))


def _render_head(study: PredictionStudy, rows: Sequence[PredictionRow]) -> str:
    seeds = f"{study.seeds} seed{'s' * (study.seeds > 1)}"
    facts = (
        f"{len(study.targets)} table{'s' * (len(study.targets) > 1)}",
        ", ".join(f"<b>{escape(way.method)}</b>" for way in study.setups),
        f"{', '.join(map(str, study.modes))} modes profiled",
        seeds,
    )
    failed = [row for row in rows if row.error is not None]
    trouble = f"<p>{len(failed)} of {len(rows)} cells failed: {escape(str(failed[0].error))}</p>" if failed else ""
    return (
        f"<h1>Predictors judged</h1><p class='soft'>{' · '.join(facts)}</p>"
        f"<p>{label_badge('measured')} is what a table says of a mode. {label_badge('predicted')} is what a method "
        f"predicts of it "
        "from the few modes that it profiled. Every error is of modes that were not profiled; figures are means of the "
        f"seeds, with the worst seed in brackets.</p>{_methods_table(study)}{trouble}"
    )


def _methods_table(study: PredictionStudy) -> str:
    colour = assign_colours([way.method for way in study.setups])
    rows = [
        (
            swatch_cell(colour[way.method], way.method),
            text_cell(way.explorer),
            text_cell(f"{way.choice}: {CHOICE_DESCRIPTIONS[way.choice]}"),
        )
        for way in study.setups
    ]
    return render_table(("method", "what is profiled", "how it chooses"), rows)


def _target_sections(key: str, name: str, target: PredictionTarget, outcomes: Sequence[CellResult]) -> list[Section]:
    rows = [outcome.row for outcome in outcomes]
    title = escape(name)
    drawn = any(outcome.predictions is not None for outcome in outcomes)
    pictures = [
        Section(
            f"{title}: predicted and measured",
            "One seed. The slider says how many modes were profiled.",
            evaluation_charts.build_scatter_charts(key, target, outcomes),
        ),
        Section(
            f"{title}: fronts",
            "Who finds the modes from which none is both faster and less hungry?",
            (evaluation_charts.build_fronts_chart(key, target, outcomes),),
        ),
    ]
    return [
        Section(
            f"{title}: errors",
            _describe_table(target),
            evaluation_charts.build_error_charts(key, rows),
            _figures_table(rows, PAGE_ERROR_COLUMNS),
        ),
        *(pictures if drawn else ()),
        Section(f"{title}: choices", _describe_budgets(target, rows), (), _figures_table(rows, PAGE_CHOICE_COLUMNS)),
        Section(f"{title}: known beforehand", "Nothing of it saw the table's workload.", (), _background_table(target)),
    ]


def _describe_table(target: PredictionTarget) -> str:
    count, strange = len(target.table.modes), int((~target.plausible).sum())
    return f"{count:,} measured modes, {strange} of them implausible; batch {target.table.batch_size}."


def _describe_budgets(target: PredictionTarget, rows: Sequence[PredictionRow]) -> str:
    budgets = target.budgets_w
    problems = next((row.problems for row in rows if row.problems is not None), None)
    which = f"{number(budgets[0])} to {number(budgets[-1])} W" if budgets else UNKNOWN
    return (
        f"{len(budgets)} power budgets, {which}; the table can keep {problems or UNKNOWN} of them. "
        "The penalty is the chosen mode's measured time over that of the table's fastest mode within the budget. "
        "Implausible rows can be neither, but for the last three columns."
    )


def _figures_table(rows: Sequence[PredictionRow], columns: Sequence[EvaluationColumn]) -> str:
    colour = assign_colours(tuple(dict.fromkeys(row.method for row in rows)))
    cells: list[tuple[TableCell, ...]] = [
        (
            swatch_cell(colour[method], method),
            number_cell(str(count)),
            *(number_cell(column.format_cell(group)) for column in columns),
        )
        for (_, method, count), group in group_seeds(rows).items()
    ]
    return render_table(("method", "modes", *(column.heading for column in columns)), cells)


def _background_table(target: PredictionTarget) -> str:
    background = target.background
    rows = [
        (text_cell("board's top mode"), text_cell(background.knowledge.maxn)),
        (text_cell("priors, calibrated to"), text_cell("; ".join(background.prior_tables) or "none")),
        (text_cell("reference tables"), text_cell("; ".join(background.references) or "none")),
        *((text_cell("note"), text_cell(note)) for note in background.notes),
    ]
    return render_table(("what", "which"), rows)
