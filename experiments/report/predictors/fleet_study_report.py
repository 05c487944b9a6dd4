"""A fleet study for the terminal and as an HTML page: time over energy, rounds, and the energy of every board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.report.chart import (
    Chart,
    Trace,
    axis,
    round_axis,
    scatter_trace,
    xy_chart,
)
from experiments.report.page import LABELS, Section, render_badge, render_paragraph, write_page
from experiments.report.palette import ALARM, COLOURS, GREY, assign_colours, assign_symbols
from experiments.report.predictors.mode_choice_report import (
    COLUMNS_NOTE,
    ChoiceColumn,
    FigureRow,
    describe_seeds,
    group_rows,
    mean_line_trace,
)
from experiments.report.tables import Table, print_lines, swatch_cell, text_cell
from fedge.devices.board_kinds import build_kind
from fedge.experiment import Experiment, FleetBoard
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
BASELINE_COLUMNS = (
    ChoiceColumn("round, s", "round_s", 1, None),
    ChoiceColumn("energy, kJ", field="energy_j", digits=2, worst=None, factor=1e-3),
)
BASELINES = {
    "oracle_": ("oracle: the same plan from true values", "star"),
    "oracle_all_rows_": ("oracle with implausible modes", "star-open"),
    "maxn_": ("MAXN", "x"),
    "maxn_low_": ("MAXN, low idle", "triangle-down"),
    "preset_": ("each board's best preset within the limit", "square-open"),
    "preset_but_maxn_": ("each board's best preset except MAXN", "diamond-open"),
}
"""Display name and marker of each baseline, by its prefix in the rows."""


def select_baseline(rows: Sequence[FigureRow], prefix: str) -> list[FigureRow]:
    """Return the round time and energy of a baseline as rows with the plain field names."""
    return [{name: row[prefix + name] for name in ("round_s", "energy_j")} for row in rows]


def describe_engine(runs: Sequence[FleetRun]) -> str:
    """Say how the rounds were played."""
    if runs[0].engine == "columns":
        return "Engine: columns. Boards of a kind share one posterior, with an offset per board."
    return "Engine: coordinator. Boards of a kind share measurements."


def describe_infeasible_limits(rows: Sequence[FigureRow]) -> list[str]:
    """Return a sentence per policy whose limits even the oracle cannot meet in some rounds."""
    sentences = []
    for (policy,), group in group_rows(rows, "policy").items():
        beyond, played = (sum(int(row.get(key) or 0) for row in group) for key in ("limits_out_of_reach", "rounds"))
        if beyond:
            rounds = f"{beyond} of {played} round{'s' * (played > 1)}"
            sentences.append(
                f"{policy}: in {rounds} even the oracle exceeds the limits, so gap and share are not reported."
            )
    return sentences


def print_fleet_study(console: Console, runs: Sequence[FleetRun]) -> None:
    """Print the fleet study: rounds, energy and gap to the oracle per policy, and the baselines."""
    rows: list[FigureRow] = [run.row for run in runs]
    for table in build_fleet_tables(rows):
        table.print(console)
    gap = "Gap: to the oracle's objective. Share: of the oracle's saving."
    seeds = describe_seeds(len({row["seed"] for row in rows}))
    print_lines(console, (gap, COLUMNS_NOTE, describe_engine(runs), seeds, *describe_infeasible_limits(rows)))


def build_fleet_tables(rows: Sequence[FigureRow]) -> tuple[Table, Table, Table]:
    """Build the tables of means per round, of energy saved, and of the baselines."""
    groups = group_rows(rows, "policy")
    colour = assign_colours([str(policy) for (policy,) in groups])
    shown, saved = (
        tuple(
            (swatch_cell(colour[str(policy)], str(policy)), *(column.make_cell(group) for column in columns))
            for (policy,), group in groups.items()
        )
        for columns in (FLEET_COLUMNS, SAVING_COLUMNS)
    )
    others = tuple(
        (
            text_cell(name),
            text_cell(policy),
            *(column.make_cell(select_baseline(group, prefix)) for column in BASELINE_COLUMNS),
        )
        for (policy,), group in groups.items()
        for prefix, (name, _) in BASELINES.items()
    )
    title = "Baselines on the same boards and partitions"
    return (
        Table("policies", ("policy", *(column.heading for column in FLEET_COLUMNS)), shown, "Fleet: means per round"),
        Table("savings", ("policy", *(column.heading for column in SAVING_COLUMNS)), saved, "Energy saved"),
        Table("baselines", ("against", "policy", *(column.heading for column in BASELINE_COLUMNS)), others, title),
    )


MAX_BOARDS_DRAWN = 120


def write_fleet_page(experiment: Experiment, runs: Sequence[FleetRun], out: Path) -> None:
    """Write the page atomically."""
    by_policy = {policy: [run for run in runs if run.policy == policy] for policy in _list_policies(runs)}
    sections = [
        Section(
            "Time and energy",
            "Further left is faster, further down uses less energy.",
            (_plane_chart(runs),),
            _render_tables(runs),
        ),
        Section(
            "Convergence",
            "How quickly do the boards find good modes?",
            (_gap_chart(by_policy), _explored_chart(by_policy)),
        ),
        *(_boards_section(place, policy, group[0]) for place, (policy, group) in enumerate(by_policy.items())),
    ]
    foot = ", ".join(f"{entry.count} x {entry.name or entry.device}" for entry in experiment.fleet)
    seeds = len({run.seed for run in runs})
    note = Markup(
        "Boards choose modes and the server plans from predictions. Figures use the true time and power of every "
        "mode, without measurement noise; these are {}. The oracle plans in the same way from the true values. Nothing "
        "is trained; otherwise the rounds are those of a run."
    ).format(_describe_truths(experiment))
    write_page(
        out,
        "Fleet study",
        sections,
        foot,
        facts=(
            Markup("<b>{}</b>").format(experiment.name),
            f"{sum(entry.count for entry in experiment.fleet):,} boards",
            f"{len(runs[0].rounds)} round{'s' * (len(runs[0].rounds) > 1)}",
            f"{seeds} seed{'s' * (seeds > 1)}",
        ),
        notes=(note, describe_engine(runs)),
    )


def _describe_truths(experiment: Experiment) -> Markup:
    """Describe the provenance of the boards' true costs, with the number of boards."""
    labels = Counter[str]()
    for entry in experiment.fleet:
        board = FleetBoard(name=entry.name or entry.device, index=0, entry=entry)
        labels[build_kind(board, experiment.workload).truth_label] += entry.count
    parts = (Markup("{} for {}").format(render_badge(label), labels[label]) for label in LABELS if labels[label])
    return Markup("{} of the {} boards").format(Markup(", ").join(parts), sum(labels.values()))


def _list_policies(runs: Sequence[FleetRun]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run.policy for run in runs))


def _render_tables(runs: Sequence[FleetRun]) -> Markup:
    rows: list[FigureRow] = [run.row for run in runs]
    shown, saved, others = build_fleet_tables(rows)
    notes = ("Gap: to the oracle's objective. Saved: energy, against MAXN.", *describe_infeasible_limits(rows))
    captions = Markup().join(render_paragraph(sentence, "caption") for sentence in notes)
    return shown.html + saved.html + captions + others.html


def _plane_chart(runs: Sequence[FleetRun]) -> Chart:
    """Plot mean round time over mean energy of every policy and baseline, in percent of MAXN's."""
    policies = _list_policies(runs)
    colour, symbol = assign_colours(policies), assign_symbols(policies)
    data: list[Trace] = []
    for policy in policies:
        group = [run.row for run in runs if run.policy == policy]
        data.append(_points_trace(policy, group, "", {"color": colour[policy], "symbol": symbol[policy], "size": 11}))
    rows = {policy: [run.row for run in runs if run.policy == policy] for policy in policies}
    for prefix in BASELINES:
        if prefix != "oracle_all_rows_" or _has_implausible_modes(rows):
            data += _baseline_traces(prefix, rows, colour)
    caption = f"One mark per seed; boards and partitions differ between seeds. All {len(runs[0].rounds)} rounds."
    return xy_chart(
        "plane",
        "Round time and energy",
        data,
        xaxis=axis("mean round (% of MAXN)", rangemode="normal"),
        yaxis=axis("mean energy (% of MAXN)", rangemode="normal"),
        caption=caption,
        height_px=420,
    )


def _has_implausible_modes(rows: Mapping[str, Sequence[FigureRow]]) -> bool:
    """Return whether the oracle over all rows differs from the oracle over plausible rows; otherwise one is drawn."""
    return any(
        row[f"oracle_all_rows_{what}"] != row[f"oracle_{what}"]
        for group in rows.values()
        for row in group
        for what in ("round_s", "energy_j")
    )


def _baseline_traces(prefix: str, rows: Mapping[str, Sequence[FigureRow]], colour: Mapping[str, str]) -> list[Trace]:
    """Return a baseline's marks: one if it is equal for all policies, otherwise one per policy in its colour."""

    def places(of_policy: Sequence[FigureRow]) -> list[tuple[float, float]]:
        return [
            (round(_percent_of_maxn(row, prefix, "round_s"), 3), round(_percent_of_maxn(row, prefix, "energy_j"), 3))
            for row in of_policy
        ]

    name, symbol = BASELINES[prefix]
    mark = {"symbol": symbol, "size": 11}
    first, *others = rows.values()
    if all(places(other) == places(first) for other in others):
        return [_points_trace(name, first, prefix, {**mark, "color": GREY})]
    return [
        _points_trace(f"{name} ({policy})", of_policy, prefix, {**mark, "color": colour[policy]})
        for policy, of_policy in rows.items()
    ]


def _points_trace(name: str, rows: Sequence[FigureRow], prefix: str, marker: Mapping[str, object]) -> Trace:
    return scatter_trace(
        name,
        [_percent_of_maxn(row, prefix, "round_s") for row in rows],
        [_percent_of_maxn(row, prefix, "energy_j") for row in rows],
        marker=marker,
        hover=f"%{{x:.2f}} % of the time, %{{y:.2f}} % of the energy<extra>{escape(name)}</extra>",
    )


def _percent_of_maxn(row: FigureRow, prefix: str, what: str) -> float:
    return 100.0 * float(row[prefix + what] or 0.0) / float(row[f"maxn_{what}"] or 1.0)


def _gap_chart(by_policy: Mapping[str, Sequence[FleetRun]]) -> Chart:
    """Plot energy and time of every round relative to the oracle's, averaged over the seeds."""
    colour = assign_colours(tuple(by_policy))
    data: list[Trace] = []
    for policy, runs in by_policy.items():
        for what, dash, of in (("energy", "solid", _energy_gap_percent), ("time", "dot", _time_gap_percent)):
            numbers, each = [one.round for one in runs[0].rounds], [[of(one) for one in run.rounds] for run in runs]
            data.append(
                mean_line_trace(f"{policy}: {what}", numbers, each, colour=colour[policy], unit=" %", dash=dash)
            )
    caption = f"Mean over seeds. Rounds 1 to {SETTLED_FROM - 1} count as learning."
    excess = axis("excess over the oracle (%)", rangemode="normal")
    return xy_chart(
        "gaps", "Gap to the oracle", data, xaxis=round_axis(_count_rounds(by_policy)), yaxis=excess, caption=caption
    )


def _count_rounds(by_policy: Mapping[str, Sequence[FleetRun]]) -> int:
    return max(len(run.rounds) for runs in by_policy.values() for run in runs)


def _energy_gap_percent(one: RoundComparison) -> float:
    return 100.0 * (one.chosen.energy_j / one.oracle.energy_j - 1.0)


def _time_gap_percent(one: RoundComparison) -> float:
    return 100.0 * (one.chosen.round_s / one.oracle.round_s - 1.0)


def _explored_chart(by_policy: Mapping[str, Sequence[FleetRun]]) -> Chart:
    colour = assign_colours(tuple(by_policy))
    data = [
        mean_line_trace(
            policy,
            [one.round for one in runs[0].rounds],
            [run.explored for run in runs],
            colour=colour[policy],
            unit=" modes",
        )
        for policy, runs in by_policy.items()
    ]
    return xy_chart(
        "explored",
        "Modes tried",
        data,
        xaxis=round_axis(_count_rounds(by_policy)),
        yaxis=axis("distinct modes tried", rangemode="tozero"),
        caption="Mean over boards and seeds.",
        showlegend=True,
    )


def _boards_section(place: int, policy: str, run: FleetRun) -> Section:
    """Build a section with every board's mean energy over the rounds after exploration, for one seed."""
    rounds = [one for one in run.rounds if one.round >= SETTLED_FROM] or list(run.rounds)
    names = list(rounds[0].chosen.energies_j)[:MAX_BOARDS_DRAWN]
    ways = (
        (policy, COLOURS[0], "circle", [one.chosen for one in rounds]),
        ("oracle", ALARM, "star", [one.oracle for one in rounds]),
        ("best preset within the limit", GREY, "square-open", [one.preset for one in rounds]),
    )
    maxn_j = {board: _mean_energy_j([one.maxn for one in rounds], board) for board in names}
    data: list[Trace] = [
        scatter_trace(
            name,
            names,
            [100.0 * _mean_energy_j(spent, board) / maxn_j[board] for board in names],
            marker={"color": colour, "symbol": symbol, "size": 8},
            hover=f"{escape(name)}: %{{y:.1f}} %",
        )
        for name, colour, symbol, spent in ways
    ]
    whose = "entry of the fleet" if run.engine == "columns" else "board"
    chart = xy_chart(
        f"boards-{place}",
        f"Energy of every {whose}",
        data,
        xaxis=axis("", type="category", tickangle=-60),
        yaxis=axis("mean energy (% of the board's at MAXN)", rangemode="normal"),
        caption=f"Rounds {rounds[0].round} to {rounds[-1].round}, seed {run.seed}.",
        height_px=420,
        hovermode="x",
    )
    return Section(f"Boards under {policy}", f"Energy of each {whose} and of the oracle's choice.", (chart,))


def _mean_energy_j(spent: Sequence[FleetCost], board: str) -> float:
    energies = [one.energies_j[board] for one in spent if board in one.energies_j]
    return sum(energies) / len(energies) if energies else 0.0
