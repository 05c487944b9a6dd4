"""Writes a study as one HTML file: per target its errors, predictions, fronts and choices; nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from experiments.report.cells import Cell, badge, figure, swatch, table, text
from experiments.report.chart import Section
from experiments.report.page import html_page
from experiments.report.palette import colours
from experiments.report.quantities import UNKNOWN, number
from experiments.report.study import charts
from experiments.report.study.summary import Column, grouped, target_names
from fedge.evaluation.cells import Outcome, Row, Target
from fedge.evaluation.choosing import CONFIDENCE
from fedge.evaluation.study import Study
from fedge.telemetry import run_folder

ERRORS = (
    Column("time MAPE, %", "time_mape"),
    Column("power MAPE, %", "power_mape"),
    Column("time, plausible rows", "time_mape_plausible"),
    Column("power, plausible rows", "power_mape_plausible"),
    Column("inside 90 % interval, %", "coverage90", 0, min),
    Column("fit, s", "fit_s", 2, None),
    Column("predict, s", "predict_s", 3, None),
    Column("profiling, s", "profiling_s", 0, None),
)
CHOICES = (
    Column("penalty median, %", "penalty_median"),
    Column("penalty mean, %", "penalty_mean"),
    Column("excess, W", "excess_w", 2),
    Column("over the limit, %", "over_limit", 0),
    Column("over by > 1 W, %", "over_limit_1w", 0),
    Column("verified modes", "verify_modes", 2, None),
    Column("with implausible rows: median, %", "penalty_median_all"),
    Column("mean, %", "penalty_mean_all"),
    Column("by > 1 W, %", "over_limit_1w_all", 0),
)
WAYS = {
    "plain": "of the predicted front the point of largest power within the limit",
    "margin": f"the fastest mode that keeps the limit with {CONFIDENCE:.0%} confidence",
    "verified": "up to two modes more are measured; the fastest one measured to keep the limit",
}


def write_study(study: Study, outcomes: Sequence[Outcome], out: Path) -> None:
    """Write the page of a played study, replacing ``out`` as a whole."""
    rows = [outcome.row for outcome in outcomes]
    names = target_names(rows)
    sections = [
        section
        for place, target in enumerate(study.targets)
        for section in _sections(
            f"t{place}",
            names[target.table.path],
            target,
            [outcome for outcome in outcomes if outcome.cell.target == place],
        )
    ]
    foot = "<br>".join(escape(target.table.path) for target in study.targets)
    run_folder.write_text(out, html_page("Predictors judged", _head(study, rows), sections, foot))


def _head(study: Study, rows: Sequence[Row]) -> str:
    seeds = f"{study.seeds} seed{'s' * (study.seeds > 1)}"
    facts = (
        f"{len(study.targets)} table{'s' * (len(study.targets) > 1)}",
        ", ".join(f"<b>{escape(way.method)}</b>" for way in study.ways),
        f"{', '.join(map(str, study.modes))} modes profiled",
        seeds,
    )
    failed = [row for row in rows if row.error is not None]
    trouble = f"<p>{len(failed)} of {len(rows)} cells failed: {escape(str(failed[0].error))}</p>" if failed else ""
    return (
        f"<h1>Predictors judged</h1><p class='soft'>{' · '.join(facts)}</p>"
        f"<p>{badge('measured')} is what a table says of a mode. {badge('predicted')} is what a method predicts of it "
        "from the few modes that it profiled. Every error is of modes that were not profiled; figures are means of the "
        f"seeds, with the worst seed in brackets.</p>{_ways(study)}{trouble}"
    )


def _ways(study: Study) -> str:
    colour = colours([way.method for way in study.ways])
    rows = [
        (swatch(colour[way.method], way.method), text(way.explorer), text(f"{way.choice}: {WAYS[way.choice]}"))
        for way in study.ways
    ]
    return table(("method", "what is profiled", "how it chooses"), rows)


def _sections(key: str, name: str, target: Target, outcomes: Sequence[Outcome]) -> list[Section]:
    rows = [outcome.row for outcome in outcomes]
    title = escape(name)
    drawn = any(outcome.predictions is not None for outcome in outcomes)
    pictures = [
        Section(
            f"{title}: predicted and measured",
            "One seed. The slider says how many modes were profiled.",
            charts.scatters(key, target, outcomes),
        ),
        Section(
            f"{title}: fronts",
            "Who finds the modes from which none is both faster and less hungry?",
            (charts.fronts(key, target, outcomes),),
        ),
    ]
    return [
        Section(f"{title}: errors", _table_facts(target), charts.errors(key, rows), _figures(rows, ERRORS)),
        *(pictures if drawn else ()),
        Section(f"{title}: choices", _budget_facts(target, rows), (), _figures(rows, CHOICES)),
        Section(f"{title}: known beforehand", "Nothing of it saw the table's workload.", (), _known(target)),
    ]


def _table_facts(target: Target) -> str:
    count, strange = len(target.table.modes), int((~target.plausible).sum())
    return f"{count:,} measured modes, {strange} of them implausible; batch {target.table.batch_size}."


def _budget_facts(target: Target, rows: Sequence[Row]) -> str:
    budgets = target.budgets_w
    problems = next((row.problems for row in rows if row.problems is not None), None)
    which = f"{number(budgets[0])} to {number(budgets[-1])} W" if budgets else UNKNOWN
    return (
        f"{len(budgets)} power budgets, {which}; the table can keep {problems or UNKNOWN} of them. "
        "The penalty is the chosen mode's measured time over that of the table's fastest mode within the budget. "
        "Implausible rows can be neither, but for the last three columns."
    )


def _figures(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    colour = colours(tuple(dict.fromkeys(row.method for row in rows)))
    cells: list[tuple[Cell, ...]] = [
        (
            swatch(colour[method], method),
            figure(str(count)),
            *(figure(column.text(group)) for column in columns),
        )
        for (_, method, count), group in grouped(rows).items()
    ]
    return table(("method", "modes", *(column.heading for column in columns)), cells)


def _known(target: Target) -> str:
    background = target.background
    rows = [
        (text("board's top mode"), text(background.knowledge.maxn)),
        (text("priors, calibrated to"), text("; ".join(background.prior_tables) or "none")),
        (text("reference tables"), text("; ".join(background.references) or "none")),
        *((text("note"), text(note)) for note in background.notes),
    ]
    return table(("what", "which"), rows)
