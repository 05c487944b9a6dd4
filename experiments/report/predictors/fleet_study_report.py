"""A fleet study for the terminal and as an HTML page: time over energy, rounds, and the energy of every board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import ALARM, COLOURS, GREY, Chart, SeriesStyle, Trace, assign_styles, axis
from experiments.report.page import LABELS, Section, render_badge, render_paragraph, write_page
from experiments.report.predictors.mode_choice_report import (
    COLUMNS_NOTE,
    ChoiceColumn,
    FigureRow,
    build_choice_table,
    describe_seeds,
    mean_line_trace,
)
from experiments.report.tables import Table, print_lines, swatch_cell, text_cell
from fedge.devices.board_kinds import build_kind
from fedge.experiment import Experiment, FleetBoard
from fedge.groups import group_by
from fedge.studies.fleet.fleet_costs import FleetCost
from fedge.studies.fleet.round_comparison import SETTLED_FROM, FleetRun, RoundComparison

if TYPE_CHECKING:
    from rich.console import Console


FLEET_COLUMNS = (
    ChoiceColumn("round, s", "round_s", 1, None),
    ChoiceColumn("energy, kJ", field="energy_j", digits=2, worst=None, factor=1e-3),
    ChoiceColumn("gap, %", "objective_gap_pct"),
    ChoiceColumn("from 10 on, %", "objective_gap_pct_settled"),
    ChoiceColumn("missed", "deadlines_missed", 1, None, total_field="deadlines"),
    ChoiceColumn("modes", "modes_explored_mean", 1, None),
)
SAVING_COLUMNS = (
    ChoiceColumn("saved, %", "saving_pct", 1, min),
    ChoiceColumn("oracle saves, %", "oracle_saving_pct", 1, None),
    ChoiceColumn("share, %", "saving_share_pct", 1, min),
    ChoiceColumn("from 10 on, %", "saving_share_pct_settled", 1, min),
)
BASELINE_COLUMNS = FLEET_COLUMNS[:2]
BASELINES = {
    "oracle_": ("oracle: the same plan from true values", "star"),
    "oracle_all_rows_": ("oracle with implausible modes", "star-open"),
    "maxn_": ("MAXN", "x"),
    "maxn_low_": ("MAXN, low idle", "triangle-down"),
    "preset_": ("each board's best preset within the limit", "square-open"),
    "preset_but_maxn_": ("each board's best preset except MAXN", "diamond-open"),
}
"""Display name and marker of each baseline, by its prefix in the rows."""


def describe_engine(runs: Sequence[FleetRun]) -> str:
    """Say how the rounds were played."""
    if runs[0].engine == "columns":
        return "Engine: columns. Boards of a kind share one posterior, with an offset per board."
    return "Engine: coordinator. Boards of a kind share measurements."


def _describe_infeasible_limits(groups: Mapping[str, Sequence[FleetRun]]) -> list[str]:
    """Return a sentence per policy whose limits even the oracle cannot meet in some rounds."""
    sentences = []
    for policy, group in groups.items():
        beyond, played = (sum(int(run.row.get(key) or 0) for run in group) for key in ("limits_out_of_reach", "rounds"))
        if beyond:
            rounds = f"{beyond} of {played} round{'s' * (played > 1)}"
            sentences.append(
                f"{policy}: in {rounds} even the oracle exceeds the limits, so gap and share are not reported."
            )
    return sentences


def print_fleet_study(console: Console, runs: Sequence[FleetRun]) -> None:
    """Print the fleet study: rounds, energy and gap to the oracle per policy, and the baselines."""
    groups = group_by(runs, lambda run: run.policy)
    for table in _build_tables(groups):
        table.print(console)
    gap = "Gap: to the oracle's objective. Share: of the oracle's saving."
    seeds = describe_seeds(len({run.seed for run in runs}))
    print_lines(console, (gap, COLUMNS_NOTE, describe_engine(runs), seeds, *_describe_infeasible_limits(groups)))


def _build_tables(groups: Mapping[str, Sequence[FleetRun]]) -> tuple[Table, Table, Table]:
    styles = assign_styles(groups)
    rows = {policy: [run.row for run in runs] for policy, runs in groups.items()}
    named = [((swatch_cell(styles[policy].colour, policy),), own) for policy, own in rows.items()]
    against = [
        (
            (text_cell(name), text_cell(policy)),
            [{column.field: row[prefix + column.field] for column in BASELINE_COLUMNS} for row in own],
        )
        for policy, own in rows.items()
        for prefix, (name, _) in BASELINES.items()
    ]
    title = "Baselines on the same boards and partitions"
    return (
        build_choice_table("policies", ("policy",), named, FLEET_COLUMNS, title="Fleet: means per round"),
        build_choice_table("savings", ("policy",), named, SAVING_COLUMNS, title="Energy saved"),
        build_choice_table("baselines", ("against", "policy"), against, BASELINE_COLUMNS, title=title),
    )


MAX_BOARDS_DRAWN = 120


def write_fleet_page(experiment: Experiment, runs: Sequence[FleetRun], out: Path) -> None:
    """Write the page atomically."""
    groups = group_by(runs, lambda run: run.policy)
    shown, saved, others = _build_tables(groups)
    notes = ("Gap: to the oracle's objective. Saved: energy, against MAXN.", *_describe_infeasible_limits(groups))
    captions = Markup().join(render_paragraph(sentence, "caption") for sentence in notes)
    seeds = len({run.seed for run in runs})
    note = Markup(
        "Boards choose modes and the server plans from predictions. Figures use the true time and power of every "
        "mode, without measurement noise; these are {}. The oracle plans in the same way from the true values. Nothing "
        "is trained; otherwise the rounds are those of a run."
    ).format(_describe_truths(experiment))
    write_page(
        out,
        "Fleet study",
        (
            Section(
                "Time and energy",
                "Further left is faster, further down uses less energy.",
                (_plane_chart(groups),),
                shown.html + saved.html + captions + others.html,
            ),
            Section("Convergence", "How quickly do the boards find good modes?", tuple(_list_round_charts(groups))),
            *(_boards_section(place, group[0]) for place, group in enumerate(groups.values())),
        ),
        ", ".join(f"{entry.count} x {entry.name or entry.device}" for entry in experiment.fleet),
        facts=(
            Markup("<b>{}</b>").format(experiment.name),
            f"{sum(entry.count for entry in experiment.fleet):,} boards",
            f"{len(runs[0].rounds)} round{'s' * (len(runs[0].rounds) > 1)}",
            f"{seeds} seed{'s' * (seeds > 1)}",
        ),
        notes=(note, describe_engine(runs)),
    )


def _describe_truths(experiment: Experiment) -> Markup:
    labels = Counter[str]()
    for entry in experiment.fleet:
        board = FleetBoard(name=entry.name or entry.device, index=0, entry=entry)
        labels[build_kind(board, experiment.workload).truth_label] += entry.count
    parts = (Markup("{} for {}").format(render_badge(label), labels[label]) for label in LABELS if labels[label])
    return Markup("{} of the {} boards").format(Markup(", ").join(parts), sum(labels.values()))


def _plane_chart(groups: Mapping[str, Sequence[FleetRun]]) -> Chart:
    styles = assign_styles(groups)
    rows = {policy: [run.row for run in runs] for policy, runs in groups.items()}
    data = [_points_trace(policy, own, "", styles[policy].marker(11)) for policy, own in rows.items()]
    # Where no mode is implausible, both oracles are one.
    alike = all(
        row[f"oracle_all_rows_{what}"] == row[f"oracle_{what}"]
        for own in rows.values()
        for row in own
        for what in ("round_s", "energy_j")
    )
    for prefix in BASELINES:
        if prefix != "oracle_all_rows_" or not alike:
            data += _baseline_traces(prefix, rows, styles)
    count = len(next(iter(groups.values()))[0].rounds)
    return chart.xy_chart(
        "plane",
        "Round time and energy",
        data,
        xaxis=axis("mean round (% of MAXN)", rangemode="normal"),
        yaxis=axis("mean energy (% of MAXN)", rangemode="normal"),
        caption=f"One mark per seed; boards and partitions differ between seeds. All {count} rounds.",
        height_px=420,
    )


def _baseline_traces(
    prefix: str, rows: Mapping[str, Sequence[FigureRow]], styles: Mapping[str, SeriesStyle]
) -> list[Trace]:
    """Return a baseline's marks: one if it is equal for all policies, otherwise one per policy in its colour."""
    name, symbol = BASELINES[prefix]
    mark = {"symbol": symbol, "size": 11}
    first, *others = (
        [[round(_percent_of_maxn(row, prefix, what), 3) for what in ("round_s", "energy_j")] for row in own]
        for own in rows.values()
    )
    if all(other == first for other in others):
        return [_points_trace(name, next(iter(rows.values())), prefix, {**mark, "color": GREY})]
    return [
        _points_trace(f"{name} ({policy})", own, prefix, {**mark, "color": styles[policy].colour})
        for policy, own in rows.items()
    ]


def _points_trace(name: str, rows: Sequence[FigureRow], prefix: str, marker: Mapping[str, object]) -> Trace:
    return chart.scatter_trace(
        name,
        of=rows,
        x=lambda row: _percent_of_maxn(row, prefix, "round_s"),
        y=lambda row: _percent_of_maxn(row, prefix, "energy_j"),
        marker=marker,
        hover=Markup("%{{x:.2f}} % of the time, %{{y:.2f}} % of the energy<extra>{}</extra>").format(name),
    )


def _percent_of_maxn(row: FigureRow, prefix: str, what: str) -> float:
    return 100.0 * float(row[prefix + what] or 0.0) / float(row[f"maxn_{what}"] or 1.0)


def _list_round_charts(groups: Mapping[str, Sequence[FleetRun]]) -> Iterator[Chart]:
    styles = assign_styles(groups)
    gaps: list[Trace] = []
    explored: list[Trace] = []
    for policy, runs in groups.items():
        rounds, colour = [one.round for one in runs[0].rounds], styles[policy].colour
        for what, dash, field in (("energy", "solid", "energy_j"), ("time", "dot", "round_s")):
            each = [
                [100.0 * (getattr(one.chosen, field) / getattr(one.oracle, field) - 1.0) for one in run.rounds]
                for run in runs
            ]
            gaps.append(mean_line_trace(f"{policy}: {what}", rounds, each, colour=colour, unit=" %", dash=dash))
        tried = [run.explored for run in runs]
        explored.append(mean_line_trace(policy, rounds, tried, colour=colour, unit=" modes"))
    along = chart.round_axis(max(len(run.rounds) for runs in groups.values() for run in runs))
    caption = f"Mean over seeds. Rounds 1 to {SETTLED_FROM - 1} count as learning."
    excess = axis("excess over the oracle (%)", rangemode="normal")
    yield chart.xy_chart("gaps", "Gap to the oracle", gaps, xaxis=along, yaxis=excess, caption=caption)
    yield chart.xy_chart(
        "explored",
        "Modes tried",
        explored,
        xaxis=along,
        yaxis=axis("distinct modes tried", rangemode="tozero"),
        caption="Mean over boards and seeds.",
        showlegend=True,
    )


def _boards_section(place: int, run: FleetRun) -> Section:
    rounds = [one for one in run.rounds if one.round >= SETTLED_FROM] or list(run.rounds)
    known = list(dict.fromkeys(name for one in rounds for name in one.chosen.energies_j))
    names = known[:MAX_BOARDS_DRAWN]
    data: list[Trace] = [
        chart.scatter_trace(
            name,
            names,
            [100.0 * _mean_energy_j(rounds, way, board) / _mean_energy_j(rounds, "maxn", board) for board in names],
            marker={"color": colour, "symbol": symbol, "size": 8},
            hover=f"{name}: %{{y:.1f}} %",
        )
        for name, way, colour, symbol in (
            (run.policy, "chosen", COLOURS[0], "circle"),
            ("oracle", "oracle", ALARM, "star"),
            ("best preset within the limit", "preset", GREY, "square-open"),
        )
    ]
    whose = "entry of the fleet" if run.engine == "columns" else "board"
    omitted = f" The first {len(names)} of {len(known):,}." if len(names) < len(known) else ""
    drawn = chart.xy_chart(
        f"boards-{place}",
        f"Energy of every {whose}",
        data,
        xaxis=axis("", type="category", tickangle=-60),
        yaxis=axis("mean energy (% of the board's at MAXN)", rangemode="normal"),
        caption=f"Rounds {rounds[0].round} to {rounds[-1].round}, seed {run.seed}.{omitted}",
        height_px=420,
        hovermode="x",
    )
    return Section(f"Boards under {run.policy}", f"Energy of each {whose} and of the oracle's choice.", (drawn,))


def _mean_energy_j(rounds: Sequence[RoundComparison], way: str, board: str) -> float:
    spent: list[FleetCost] = [getattr(one, way) for one in rounds]
    energies = [one.energies_j[board] for one in spent if board in one.energies_j]
    return sum(energies) / len(energies) if energies else 0.0
