"""A predictor study for the terminal and as an HTML page: errors, predictions, fronts and mode choices per target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from experiments.report import chart
from experiments.report.chart import GREY, Chart, ChartFrame, Trace, assign_styles, axis, line_trace, scatter_trace
from experiments.report.page import EMPTY, Section, render_badge, render_paragraph, write_page
from experiments.report.predictors.mode_choice_report import (
    ChoiceColumn,
    build_choice_table,
    describe_seeds,
    list_known_values,
)
from experiments.report.quantities import UNKNOWN, number
from experiments.report.tables import Table, build_table, print_lines, swatch_cell, text_cell, value_cell
from fedge.groups import group_by
from fedge.pareto import front_mask
from fedge.studies.prediction_study import (
    MARGIN_CONFIDENCE,
    CellResult,
    PredictionRow,
    PredictionStudy,
    PredictionTarget,
)
from fedge.types import Floats, weakest_label

if TYPE_CHECKING:
    from rich.console import Console


EvaluationKey = tuple[str, str, int]
"""Display name of a target, method, number of profiled modes."""
EvaluationGroups = Mapping[EvaluationKey, Sequence[PredictionRow]]
"""Rows that differ only in the seed, by what they have in common."""


study_column = partial(ChoiceColumn, digits=1, large_digits=0)
"""A column of a predictor study."""


def group_seeds(rows: Sequence[PredictionRow]) -> dict[EvaluationKey, list[PredictionRow]]:
    """Group rows that differ only in the seed, in the order of the rows."""
    names = name_targets(rows)
    return group_by(rows, lambda row: (names[row.target], row.method, row.modes))


def name_targets(rows: Sequence[PredictionRow]) -> dict[str, str]:
    """Return ``device/workload`` for each target's path, or the path where that name is ambiguous."""
    short = {row.target: f"{row.device}/{row.workload}" for row in rows}
    names = list(short.values())
    return {path: name if names.count(name) == 1 else path for path, name in short.items()}


ERROR_COLUMNS = (
    study_column("time, %", "time_mape"),
    study_column("power, %", "power_mape"),
    study_column("in 90 %, %", "coverage90", digits=0, worst=min),
    study_column("fit, s", "fit_s", digits=2, worst=None),
    study_column("predict, ms", field="predict_s", digits=0, worst=None, factor=1e3),
    study_column("profile, s", "profiling_s", digits=0, worst=None),
)
CHOICE_COLUMNS = (
    study_column("penalty median, %", "penalty_median"),
    study_column("mean, %", "penalty_mean"),
    study_column("excess, W", "excess_w", digits=2),
    study_column("over, %", "over_limit", digits=0),
    study_column("by > 1 W, %", "over_limit_1w", digits=0),
    study_column("verified modes", "verify_modes", digits=2, worst=None),
)
PLAUSIBLE_COLUMNS = (
    study_column("time, plausible rows, %", "time_mape_plausible"),
    study_column("power, plausible rows, %", "power_mape_plausible"),
)
ALL_ROWS_COLUMNS = (
    study_column("with implausible rows: penalty median, %", "penalty_median_all"),
    study_column("mean, %", "penalty_mean_all"),
    study_column("by > 1 W, %", "over_limit_1w_all", digits=0),
)
"""Further columns of a page's tables of errors and choices."""
COLUMNS_NOTE = "time, power: MAPE; in 90 %: share inside the 90 % interval."


def print_evaluation(console: Console, rows: Sequence[PredictionRow]) -> None:
    """Print two tables per target: mean over the seeds, worst in brackets, and how each method works."""
    every = group_seeds(rows)
    for target in dict.fromkeys(target for target, _, _ in every):
        groups = {key: group for key, group in every.items() if key[0] == target}
        problems = _count_problems(row for group in groups.values() for row in group) or 0
        evaluation_table("errors", groups, ERROR_COLUMNS, f"{target}: errors on modes not profiled").print(console)
        title = f"{target}: fastest mode within {problems} power budgets"
        evaluation_table("choices", groups, CHOICE_COLUMNS, title).print(console)
    note = describe_seeds(len({row.seed for row in rows}))
    ways = {f"{row.method}: profiles by {row.explorer}, chooses {row.choice}" for row in rows}
    print_lines(console, (note, COLUMNS_NOTE, *sorted(ways)))


def _count_problems(rows: Iterable[PredictionRow]) -> int | None:
    return next((row.problems for row in rows if row.problems is not None), None)


def evaluation_table(key: str, groups: EvaluationGroups, columns: Sequence[ChoiceColumn], title: str = "") -> Table:
    """Build a table of one target with one line per method and number of modes."""
    styles, named = assign_styles(method for _, method, _ in groups), []
    for (_, method, count), group in groups.items():
        failed = sum(row.error is not None for row in group)
        name = f"{method} ({failed} failed)" if failed else method
        named.append(((swatch_cell(styles[method].colour, name), value_cell(count)), group))
    return build_choice_table(key, ("method", "modes"), named, columns, title=title)


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
        for section in _list_target_sections(
            f"t{place}", names[target.table.path], target, [one for one in outcomes if one.cell.target == place]
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
    styles = assign_styles(setup.method for setup in study.setups)
    return build_table(
        "methods",
        (
            ("method", lambda setup: swatch_cell(styles[setup.method].colour, setup.method)),
            ("explorer", lambda setup: text_cell(setup.explorer)),
            ("mode choice", lambda setup: text_cell(f"{setup.choice}: {CHOICE_DESCRIPTIONS[setup.choice]}")),
        ),
        study.setups,
    )


def _list_target_sections(
    key: str, name: str, target: PredictionTarget, outcomes: Sequence[CellResult]
) -> Iterator[Section]:
    rows = [outcome.row for outcome in outcomes]
    groups, table, background = group_seeds(rows), target.table, target.background
    strange = int((~target.plausible).sum())
    modes = f"{len(table.modes):,} modes ({table.label}), {strange} of them implausible; batch {table.batch_size}."
    yield Section(
        f"{name}: errors",
        f"{modes} In the table, {COLUMNS_NOTE}",
        (
            build_error_chart(f"{key}-time-error", "Error of predicted time", "time_mape", rows),
            build_error_chart(f"{key}-power-error", "Error of predicted power", "power_mape", rows),
        ),
        evaluation_table(f"{key}-errors", groups, (*ERROR_COLUMNS, *PLAUSIBLE_COLUMNS)).html,
    )
    if any(outcome.predictions is not None for outcome in outcomes):
        yield Section(
            f"{name}: predicted and measured",
            "One seed. The slider sets the number of profiled modes.",
            (
                build_scatter_chart(f"{key}-predicted-time", "time per step", "ms", target, outcomes=outcomes),
                build_scatter_chart(f"{key}-predicted-power", "power", "W", target, outcomes=outcomes),
            ),
        )
        lead = "How close is each predicted front to the measured one?"
        yield Section(f"{name}: fronts", lead, (build_fronts_chart(key, target, outcomes),))
    choices = evaluation_table(f"{key}-choices", groups, (*CHOICE_COLUMNS, *ALL_ROWS_COLUMNS))
    yield Section(f"{name}: choices", _describe_budgets(target, rows), html=choices.html)
    facts = (
        ("board's top mode", background.knowledge.maxn),
        ("priors, calibrated to", "; ".join(background.prior_tables) or "none"),
        ("reference tables", "; ".join(background.references) or "none"),
        *(("note", note) for note in background.notes),
    )
    known = Table("prior", ("what", "which"), tuple((text_cell(what), text_cell(which)) for what, which in facts))
    yield Section(f"{name}: prior knowledge", "None of it includes the table's workload.", html=known.html)


def _describe_budgets(target: PredictionTarget, rows: Sequence[PredictionRow]) -> str:
    budgets = target.budgets_w
    which = f"{number(budgets[0])} to {number(budgets[-1])} W" if budgets else UNKNOWN
    return (
        f"{len(budgets)} power budgets, {which}; {_count_problems(rows) or UNKNOWN} of them are feasible. "
        "The penalty compares the measured time of the chosen mode with that of the fastest mode within the budget. "
        "Implausible rows are excluded, except in the last three columns."
    )


MAX_SCATTER_POINTS = 700
"""Modes drawn per method in a scatter plot; the error figures use all of them."""
METHOD_SHIFT_DECADES = 0.012
"""Horizontal shift between methods, in decades, so that their error bars do not overlap."""


def build_error_chart(key: str, title: str, field: str, rows: Sequence[PredictionRow]) -> Chart:
    """Plot the mean error over the number of profiled modes; bars span the seeds."""
    styles, counts = assign_styles(row.method for row in rows), sorted({row.modes for row in rows})
    data: list[Trace] = []
    text = Markup("<b>{}</b>, {} modes: {:.2f} %<br>{:.2f} to {:.2f} %")
    for place, (method, style) in enumerate(styles.items()):
        shift = 10 ** (METHOD_SHIFT_DECADES * (place - (len(styles) - 1) / 2))
        found = {n: list_known_values([r for r in rows if r.method == method and r.modes == n], field) for n in counts}
        known = [(n, values, sum(values) / len(values)) for n, values in found.items() if values]
        data.append(
            line_trace(
                method,
                [shift * n for n, _, _ in known],
                [mean for _, _, mean in known],
                colour=style.colour,
                markers=True,
                marker={"symbol": style.symbol, "size": 8},
                error_y=chart.error_bars(
                    [max(values) - mean for _, values, mean in known],
                    [mean - min(values) for _, values, mean in known],
                    colour=style.colour,
                ),
                hover=[text.format(method, n, mean, min(values), max(values)) for n, values, mean in known],
            )
        )
    ticks: dict[str, Any] = {"tickvals": counts, "ticktext": [str(n) for n in counts]}
    return chart.xy_chart(
        key,
        title,
        data,
        xaxis=chart.log_axis("modes profiled", *chart.log_range(counts), **ticks),
        yaxis=chart.log_axis("MAPE (%), logarithmic", *chart.log_range(list_known_values(rows, field))),
        caption="Mean absolute error over the modes not profiled: mean over seeds, bars from best to worst seed.",
        height_px=330,
    )


def _list_frames(outcomes: Sequence[CellResult]) -> Iterator[tuple[str, list[CellResult]]]:
    """Yield the label and the outcomes with predictions (seed 0) of every number of profiled modes."""
    known = [outcome for outcome in outcomes if outcome.predictions is not None]
    for count in sorted({outcome.cell.modes for outcome in known}):
        yield f"{count} modes profiled", [outcome for outcome in known if outcome.cell.modes == count]


def build_scatter_chart(
    key: str, quantity: str, unit: str, target: PredictionTarget, outcomes: Sequence[CellResult]
) -> Chart:
    """Plot predicted over measured time or power of modes not profiled, with a slider over profiled modes."""
    measured = _scale_quantity(target.table, unit)
    styles, ends = assign_styles(outcome.row.method for outcome in outcomes), chart.log_range(measured.tolist())
    axes = [chart.log_axis(f"{what} {quantity} ({unit})", *ends) for what in ("measured", "predicted")]
    frames = []
    for label, known in _list_frames(outcomes):
        data: list[Trace] = [chart.diagonal_trace(*ends)]
        for outcome in known:
            method, rows = outcome.row.method, _select_rows(len(measured), outcome.profiled)
            style = styles[method]
            shapes = [style.symbol if target.plausible[row] else f"{style.symbol}-open" for row in rows]
            hover = f"measured %{{x:.4g}} {unit}, predicted %{{y:.4g}} {unit}"
            data.append(
                scatter_trace(
                    method,
                    measured[rows].tolist(),
                    _scale_quantity(outcome.predictions, unit)[rows].tolist(),
                    marker=style.marker(4.5, symbol=shapes, opacity=0.55),
                    hover=Markup("{}<extra>{}</extra>").format(hover, method),
                )
            )
        frames.append(ChartFrame(label, data, chart.xy_layout(*axes)))
    some = f", {MAX_SCATTER_POINTS} of them" if len(measured) > MAX_SCATTER_POINTS else ""
    caption = (
        f"Marks above the diagonal are predicted too high. Seed 0, modes that were not profiled{some}. Hollow: "
        "implausible rows of the table."
    )
    title = f"Predicted and measured {quantity}"
    return chart.frame_chart(key, title, frames, caption=caption, height_px=420, menu="")


def _scale_quantity(costs: Any, unit: str) -> Floats:
    """Return the step times in ms or the powers in W of a table or of predictions."""
    values: Floats = 1e3 * costs.step_s if unit == "ms" else costs.power_w
    return values


def _select_rows(count: int, profiled: Sequence[int]) -> list[int]:
    """Return the rows to draw, the same for every method except for the modes it profiled."""
    excluded = {*profiled}
    order = np.random.default_rng(0).permutation(count)[: MAX_SCATTER_POINTS + len(excluded)].tolist()
    return [row for row in order if row not in excluded][:MAX_SCATTER_POINTS]


FRONT_HOVER = Markup("%{{x:.4g}} ms, %{{y:.3g}} W<extra>{}</extra>")


def build_fronts_chart(key: str, target: PredictionTarget, outcomes: Sequence[CellResult]) -> Chart:
    """Plot the measured front, each method's predicted front, and measured values of the latter's modes."""
    styles = assign_styles(outcome.row.method for outcome in outcomes)
    ends = chart.log_range((1e3 * target.table.step_s).tolist())
    layout = chart.xy_layout(chart.log_axis("time per step (ms)", *ends), axis("power (W)", rangemode="normal"))
    plausible = np.flatnonzero(target.plausible)
    best = _front_rows(target.table, plausible)
    measured = _front_line("measured", target.table, best, "measured front", colour=GREY, width=4)
    frames = []
    for label, known in _list_frames(outcomes):
        data = [measured]
        for outcome in known:
            method, style = outcome.row.method, styles[outcome.row.method]
            best = _front_rows(outcome.predictions, plausible)
            look = {"colour": style.colour, "width": 1.5, "dash": "dash", "legendgroup": method}
            data += [
                _front_line(f"{method}: predicted", outcome.predictions, best, f"{method} predicts", **look),
                scatter_trace(
                    f"{method}: measured there",
                    (1e3 * target.table.step_s[best]).tolist(),
                    target.table.power_w[best].tolist(),
                    marker=style.marker(6, opacity=0.75),
                    legendgroup=method,
                    hover=FRONT_HOVER.format(f"measured, front of {method}"),
                ),
            ]
        frames.append(ChartFrame(label, data, layout))
    caption = (
        "Line: the measured front, without implausible rows. Dashed: the front that a method predicts. Marks: the "
        "measured values of the modes on the predicted front; on the line they are optimal."
    )
    title = "Fronts of time and power"
    return chart.frame_chart(f"{key}-fronts", title, frames, caption=caption, height_px=420, menu="")


def _front_line(name: str, costs: Any, rows: NDArray[np.intp], words: str, **look: Any) -> Trace:
    times_ms, watts = (1e3 * costs.step_s[rows]).tolist(), costs.power_w[rows].tolist()
    return line_trace(name, times_ms, watts, markers=False, hover=FRONT_HOVER.format(words), **look)


def _front_rows(costs: Any, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return those of the rows that are on the Pareto front of time and power, from fastest to slowest."""
    best = rows[front_mask(costs.step_s[rows], costs.power_w[rows])]
    return best[np.argsort(costs.step_s[best])]
