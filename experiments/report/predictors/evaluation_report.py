"""A predictor study for the terminal and as an HTML page: errors, predictions, fronts and mode choices per target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from experiments.report.chart import (
    Chart,
    ChartFrame,
    Trace,
    axis,
    error_bars,
    line_trace,
    log_ticks,
    scatter_trace,
    xy_chart,
    xy_layout,
)
from experiments.report.page import EMPTY, Section, render_badge, render_paragraph, write_page
from experiments.report.palette import GREY, assign_colours, assign_symbols
from experiments.report.predictors.mode_choice_report import ChoiceColumn, describe_seeds, list_known_values
from experiments.report.quantities import UNKNOWN, number
from experiments.report.tables import Cell, Column, Table, build_table, print_lines, swatch_cell, text_cell, value_cell
from fedge.pareto import front_mask
from fedge.studies.prediction_study import (
    MARGIN_CONFIDENCE,
    CellResult,
    MethodSetup,
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
    EvaluationColumn("fit, s", "fit_s", 2, None),
    EvaluationColumn("predict, ms", field="predict_s", digits=0, worst=None, factor=1e3),
    EvaluationColumn("profile, s", "profiling_s", 0, None),
)
CHOICE_COLUMNS = (
    EvaluationColumn("penalty median, %", "penalty_median"),
    EvaluationColumn("mean, %", "penalty_mean"),
    EvaluationColumn("excess, W", "excess_w", 2),
    EvaluationColumn("over, %", "over_limit", 0),
    EvaluationColumn("by > 1 W, %", "over_limit_1w", 0),
    EvaluationColumn("verified modes", "verify_modes", 2, None),
)
PLAUSIBLE_COLUMNS = (
    EvaluationColumn("time, plausible rows, %", "time_mape_plausible"),
    EvaluationColumn("power, plausible rows, %", "power_mape_plausible"),
)
ALL_ROWS_COLUMNS = (
    EvaluationColumn("with implausible rows: penalty median, %", "penalty_median_all"),
    EvaluationColumn("mean, %", "penalty_mean_all"),
    EvaluationColumn("by > 1 W, %", "over_limit_1w_all", 0),
)
"""Further columns of a page's tables of errors and choices."""
COLUMNS_NOTE = "time, power: MAPE; in 90 %: share inside the 90 % interval."


def print_evaluation(console: Console, rows: Sequence[PredictionRow]) -> None:
    """Print two tables per target: mean over the seeds, worst in brackets, and how each method works."""
    for table in build_evaluation_tables(rows):
        table.print(console)
    note = describe_seeds(len({row.seed for row in rows}))
    ways = {f"{row.method}: profiles by {row.explorer}, chooses {row.choice}" for row in rows}
    print_lines(console, (note, COLUMNS_NOTE, *sorted(ways)))


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
    columns: tuple[Column[MethodSetup], ...] = (
        ("method", lambda setup: swatch_cell(colour[setup.method], setup.method)),
        ("explorer", lambda setup: text_cell(setup.explorer)),
        ("mode choice", lambda setup: text_cell(f"{setup.choice}: {CHOICE_DESCRIPTIONS[setup.choice]}")),
    )
    return build_table("methods", columns, study.setups)


def _target_sections(key: str, name: str, target: PredictionTarget, outcomes: Sequence[CellResult]) -> list[Section]:
    rows = [outcome.row for outcome in outcomes]
    groups = group_seeds(rows)
    drawn = any(outcome.predictions is not None for outcome in outcomes)
    pictures = [
        Section(
            f"{name}: predicted and measured",
            "One seed. The slider sets the number of profiled modes.",
            build_scatter_charts(key, target, outcomes),
        ),
        Section(
            f"{name}: fronts",
            "How close is each predicted front to the measured one?",
            (build_fronts_chart(key, target, outcomes),),
        ),
    ]
    return [
        Section(
            f"{name}: errors",
            _describe_table(target),
            build_error_charts(key, rows),
            evaluation_table(f"{key}-errors", groups, (*ERROR_COLUMNS, *PLAUSIBLE_COLUMNS)).html,
        ),
        *(pictures if drawn else ()),
        Section(
            f"{name}: choices",
            _describe_budgets(target, rows),
            html=evaluation_table(f"{key}-choices", groups, (*CHOICE_COLUMNS, *ALL_ROWS_COLUMNS)).html,
        ),
        Section(
            f"{name}: prior knowledge", "None of it includes the table's workload.", html=_background_table(target).html
        ),
    ]


def _describe_table(target: PredictionTarget) -> str:
    count, strange = len(target.table.modes), int((~target.plausible).sum())
    modes = f"{count:,} modes ({target.table.label}), {strange} of them implausible; batch {target.table.batch_size}."
    return f"{modes} In the table, {COLUMNS_NOTE}"


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


MAX_SCATTER_POINTS = 700
"""Modes drawn per method in a scatter plot; the error figures use all of them."""
METHOD_SHIFT_DECADES = 0.012
"""Horizontal shift between methods, in decades, so that their error bars do not overlap."""


def build_error_charts(key: str, rows: Sequence[PredictionRow]) -> tuple[Chart, Chart]:
    """Plot the mean errors of time and power over the number of profiled modes; bars span the seeds."""
    return (
        _error_chart(f"{key}-time", "Error of predicted time", "time_mape", rows),
        _error_chart(f"{key}-power", "Error of predicted power", "power_mape", rows),
    )


def build_scatter_charts(key: str, target: PredictionTarget, outcomes: Sequence[CellResult]) -> tuple[Chart, Chart]:
    """Plot predicted over measured time and power of modes not profiled (seed 0), with a slider over profiled modes."""
    table = target.table
    return (
        _scatter_chart(f"{key}-predicted-time", ("time per step", "ms"), 1e3 * table.step_s, target, outcomes=outcomes),
        _scatter_chart(f"{key}-predicted-power", ("power", "W"), table.power_w, target, outcomes=outcomes),
    )


def build_fronts_chart(key: str, target: PredictionTarget, outcomes: Sequence[CellResult]) -> Chart:
    """Plot the measured front, each method's predicted front, and measured values of the latter's modes (seed 0)."""
    layout = xy_layout(
        axis("time per step (ms)", type="log", **log_ticks(*_log_range((1e3 * target.table.step_s).tolist()))),
        axis("power (W)", rangemode="normal"),
    )
    frames = []
    for count in _list_counts(outcomes):
        data = [_measured_front_trace(target)]
        for outcome in _outcomes_with_predictions(outcomes, count):
            data += _predicted_front_traces(target, outcome, _list_methods(outcomes))
        frames.append(ChartFrame(f"{count} modes profiled", data, layout))
    caption = (
        "Line: the measured front, without implausible rows. Dashed: the front that a method predicts. Marks: the "
        "measured values of the modes on the predicted front; on the line they are optimal."
    )
    title = "Fronts of time and power"
    return Chart(f"{key}-fronts", title, caption, [], layout=layout, height_px=420, frames=tuple(frames))


def _error_chart(key: str, title: str, field: str, rows: Sequence[PredictionRow]) -> Chart:
    methods = tuple(dict.fromkeys(row.method for row in rows))
    counts = sorted({row.modes for row in rows})
    colour, symbol = assign_colours(methods), assign_symbols(methods)
    data: list[Trace] = []
    for place, method in enumerate(methods):
        shift = 10 ** (METHOD_SHIFT_DECADES * (place - (len(methods) - 1) / 2))
        values_by_count = {
            n: list_known_values([r for r in rows if r.method == method and r.modes == n], field) for n in counts
        }
        known = {n: values for n, values in values_by_count.items() if values}
        means = [sum(values) / len(values) for values in known.values()]
        data.append(
            line_trace(
                method,
                [shift * n for n in known],
                means,
                colour=colour[method],
                markers=True,
                marker={"symbol": symbol[method], "size": 8},
                error_y=error_bars(
                    [max(values) - mean for values, mean in zip(known.values(), means, strict=True)],
                    [mean - min(values) for values, mean in zip(known.values(), means, strict=True)],
                    colour=colour[method],
                ),
                hover=[_hover_text(method, n, values) for n, values in known.items()],
            )
        )
    values = list_known_values(rows, field)
    ticks = {"tickvals": counts, "ticktext": [str(n) for n in counts], "range": _log_range(counts)}
    return xy_chart(
        f"{key}-error",
        title,
        data,
        xaxis=axis("modes profiled", type="log", **ticks),
        yaxis=axis("MAPE (%), logarithmic", type="log", range=_log_range(values), **log_ticks(*_log_range(values))),
        caption="Mean absolute error over the modes not profiled: mean over seeds, bars from best to worst seed.",
        height_px=330,
    )


def _hover_text(method: str, count: int, values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return f"<b>{escape(method)}</b>, {count} modes: {mean:.2f} %<br>{min(values):.2f} to {max(values):.2f} %"


def _log_range(values: Sequence[float]) -> list[float]:
    """Return the range of a logarithmic axis, slightly wider than the values."""
    positive = [value for value in values if value > 0]
    if not positive:
        return [0.0, 1.0]
    return [math.log10(min(positive)) - 0.1, math.log10(max(positive)) + 0.1]


def _scatter_chart(
    key: str, words: tuple[str, str], measured: Floats, target: PredictionTarget, outcomes: Sequence[CellResult]
) -> Chart:
    """Build one chart; ``words`` are the quantity and its unit."""
    title, unit = words
    reach = _log_range(measured.tolist())
    ends = {"type": "log", "range": reach, **log_ticks(*reach)}
    layout = xy_layout(axis(f"measured {title} ({unit})", **ends), axis(f"predicted {title} ({unit})", **ends))
    frames = []
    for count in _list_counts(outcomes):
        known, methods = _outcomes_with_predictions(outcomes, count), _list_methods(outcomes)
        points = (_points_trace(outcome, methods, measured, unit, plausible=target.plausible) for outcome in known)
        data: list[Trace] = [_diagonal_trace(reach), *points]
        frames.append(ChartFrame(f"{count} modes profiled", data, layout))
    caption = (
        "Marks above the diagonal are predicted too high. Seed 0, modes that were not profiled"
        f"{f', {MAX_SCATTER_POINTS} of them' if len(measured) > MAX_SCATTER_POINTS else ''}. Hollow: implausible "
        f"rows of the table."
    )
    title = f"Predicted and measured {title}"
    return Chart(key, title, caption, [], layout=layout, height_px=420, frames=tuple(frames))


def _points_trace(
    outcome: CellResult, methods: Sequence[str], measured: Floats, unit: str, plausible: NDArray[np.bool_]
) -> Trace:
    assert outcome.predictions is not None
    method, predictions = outcome.row.method, outcome.predictions
    predicted = 1e3 * predictions.step_s if unit == "ms" else predictions.power_w
    rows = _select_rows(len(measured), outcome.profiled)
    colour, symbol = assign_colours(methods)[method], assign_symbols(methods)[method]
    shapes = [symbol if plausible[row] else f"{symbol}-open" for row in rows]
    return scatter_trace(
        method,
        measured[rows].tolist(),
        predicted[rows].tolist(),
        marker={"color": colour, "symbol": shapes, "size": 4.5, "opacity": 0.55},
        hover=f"measured %{{x:.4g}} {unit}, predicted %{{y:.4g}} {unit}<extra>{escape(method)}</extra>",
    )


def _select_rows(count: int, profiled: Sequence[int]) -> list[int]:
    """Return the rows to draw, the same for every method except for the modes it profiled."""
    excluded = {*profiled}
    order = np.random.default_rng(0).permutation(count)[: MAX_SCATTER_POINTS + len(excluded)].tolist()
    return [row for row in order if row not in excluded][:MAX_SCATTER_POINTS]


def _diagonal_trace(reach: Sequence[float]) -> Trace:
    ends = [10.0**end for end in reach]
    return line_trace("equal", ends, ends, colour=GREY, width=1, dash="dash", markers=False, legend=False)


def _measured_front_trace(target: PredictionTarget) -> Trace:
    rows = np.flatnonzero(target.plausible)
    step_s, power_w = target.table.step_s[rows], target.table.power_w[rows]
    best = _front_rows(step_s, power_w)
    return line_trace(
        "measured",
        (1e3 * step_s[best]).tolist(),
        power_w[best].tolist(),
        colour=GREY,
        width=4,
        markers=False,
        hover="%{x:.4g} ms, %{y:.3g} W<extra>measured front</extra>",
    )


def _predicted_front_traces(target: PredictionTarget, outcome: CellResult, methods: Sequence[str]) -> list[Trace]:
    assert outcome.predictions is not None
    method, predictions = outcome.row.method, outcome.predictions
    rows = np.flatnonzero(target.plausible)
    best = rows[_front_rows(predictions.step_s[rows], predictions.power_w[rows])]
    colour, symbol = assign_colours(methods)[method], assign_symbols(methods)[method]
    return [
        line_trace(
            f"{method}: predicted",
            (1e3 * predictions.step_s[best]).tolist(),
            predictions.power_w[best].tolist(),
            colour=colour,
            width=1.5,
            dash="dash",
            markers=False,
            legendgroup=method,
            hover=f"%{{x:.4g}} ms, %{{y:.3g}} W<extra>{escape(method)} predicts</extra>",
        ),
        scatter_trace(
            f"{method}: measured there",
            (1e3 * target.table.step_s[best]).tolist(),
            target.table.power_w[best].tolist(),
            marker={"color": colour, "symbol": symbol, "size": 6, "opacity": 0.75},
            legendgroup=method,
            hover=f"%{{x:.4g}} ms, %{{y:.3g}} W<extra>measured, front of {escape(method)}</extra>",
        ),
    ]


def _front_rows(step_s: Floats, power_w: Floats) -> NDArray[np.intp]:
    """Return the rows on the Pareto front of time and power, from fastest to slowest."""
    rows = np.flatnonzero(front_mask(step_s, power_w))
    return rows[np.argsort(step_s[rows])]


def _list_methods(outcomes: Sequence[CellResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(outcome.row.method for outcome in outcomes))


def _list_counts(outcomes: Sequence[CellResult]) -> list[int]:
    return sorted({outcome.cell.modes for outcome in outcomes if outcome.predictions is not None})


def _outcomes_with_predictions(outcomes: Sequence[CellResult], count: int) -> list[CellResult]:
    return [outcome for outcome in outcomes if outcome.cell.modes == count and outcome.predictions is not None]
