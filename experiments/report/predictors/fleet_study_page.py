"""Writes a fleet study as one HTML file: time over energy, rounds, and the energy of every board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from markupsafe import Markup

from experiments.report.chart import (
    LEGEND,
    Chart,
    Trace,
    axis,
    legend_layout,
    line_trace,
    round_axis,
    scatter_trace,
    xy_layout,
)
from experiments.report.page import LABELS, Section, render_badge, render_paragraph, write_page
from experiments.report.palette import ALARM, COLOURS, GREY, assign_colours, assign_symbols
from experiments.report.predictors.choice_terminal import (
    BASELINE_NAMES,
    FigureRow,
    build_fleet_tables,
    describe_engine,
    describe_infeasible_limits,
)
from fedge.devices.board_kinds import build_kind
from fedge.experiment import Experiment, FleetBoard
from fedge.studies.fleet.fleet_costs import FleetCost
from fedge.studies.fleet.round_comparison import SETTLED_FROM, FleetRun, RoundComparison

BASELINE_MARKS = {
    "oracle_": "star",
    "oracle_all_rows_": "star-open",
    "maxn_": "x",
    "maxn_low_": "triangle-down",
    "preset_": "square-open",
    "preset_but_maxn_": "diamond-open",
}
"""Marker of each baseline in the time-energy chart."""
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
    for prefix, name in BASELINE_NAMES.items():
        if prefix != "oracle_all_rows_" or _has_implausible_modes(rows):
            data += _baseline_traces(prefix, name, rows, colour)
    layout = xy_layout(
        axis("mean round (% of MAXN)", rangemode="normal"),
        axis("mean energy (% of MAXN)", rangemode="normal"),
        legend_layout(len(data), [trace["name"] for trace in data]),
    )
    caption = f"One mark per seed; boards and partitions differ between seeds. All {len(runs[0].rounds)} rounds."
    return Chart("plane", "Round time and energy", caption, data, layout=layout, height_px=420)


def _has_implausible_modes(rows: Mapping[str, Sequence[FigureRow]]) -> bool:
    """Return whether the oracle over all rows differs from the oracle over plausible rows; otherwise one is drawn."""
    return any(
        row[f"oracle_all_rows_{what}"] != row[f"oracle_{what}"]
        for group in rows.values()
        for row in group
        for what in ("round_s", "energy_j")
    )


def _baseline_traces(
    prefix: str, name: str, rows: Mapping[str, Sequence[FigureRow]], colour: Mapping[str, str]
) -> list[Trace]:
    """Return a baseline's marks: one if it is equal for all policies, otherwise one per policy in its colour."""

    def places(of_policy: Sequence[FigureRow]) -> list[tuple[float, float]]:
        return [
            (round(_percent_of_maxn(row, prefix, "round_s"), 3), round(_percent_of_maxn(row, prefix, "energy_j"), 3))
            for row in of_policy
        ]

    mark = {"symbol": BASELINE_MARKS[prefix], "size": 11}
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
            each = [[of(one) for one in run.rounds] for run in runs]
            data.append(
                line_trace(
                    f"{policy}: {what}",
                    [one.round for one in runs[0].rounds],
                    [sum(of_round) / len(of_round) for of_round in zip(*each, strict=True)],
                    colour=colour[policy],
                    dash=dash,
                    markers=False,
                    hover=f"{escape(policy)}, {what}, round %{{x}}: %{{y:.3g}} %",
                )
            )
    layout = {
        "xaxis": round_axis(_count_rounds(by_policy)),
        "yaxis": axis("excess over the oracle (%)", rangemode="normal"),
        "legend": LEGEND,
    }
    caption = f"Mean over seeds. Rounds 1 to {SETTLED_FROM - 1} count as learning."
    return Chart("gaps", "Gap to the oracle", caption, data, layout=layout, height_px=320)


def _count_rounds(by_policy: Mapping[str, Sequence[FleetRun]]) -> int:
    return max(len(run.rounds) for runs in by_policy.values() for run in runs)


def _energy_gap_percent(one: RoundComparison) -> float:
    return 100.0 * (one.chosen.energy_j / one.oracle.energy_j - 1.0)


def _time_gap_percent(one: RoundComparison) -> float:
    return 100.0 * (one.chosen.round_s / one.oracle.round_s - 1.0)


def _explored_chart(by_policy: Mapping[str, Sequence[FleetRun]]) -> Chart:
    colour = assign_colours(tuple(by_policy))
    data: list[Trace] = [
        line_trace(
            policy,
            [one.round for one in runs[0].rounds],
            [sum(means) / len(means) for means in zip(*(run.explored for run in runs), strict=True)],
            colour=colour[policy],
            markers=False,
            hover=f"{escape(policy)}, round %{{x}}: %{{y:.3g}} modes",
        )
        for policy, runs in by_policy.items()
    ]
    layout = {
        "xaxis": round_axis(_count_rounds(by_policy)),
        "yaxis": axis("distinct modes tried", rangemode="tozero"),
        "legend": LEGEND,
        "showlegend": True,
    }
    return Chart("explored", "Modes tried", "Mean over boards and seeds.", data, layout=layout, height_px=320)


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
    layout = {
        "xaxis": axis("", type="category", tickangle=-60),
        "yaxis": axis("mean energy (% of the board's at MAXN)", rangemode="normal"),
        "legend": LEGEND,
        "hovermode": "x",
    }
    shown = f"Rounds {rounds[0].round} to {rounds[-1].round}, seed {run.seed}."
    whose = "entry of the fleet" if run.engine == "columns" else "board"
    chart = Chart(f"boards-{place}", f"Energy of every {whose}", shown, data, layout=layout, height_px=420)
    return Section(f"Boards under {policy}", f"Energy of each {whose} and of the oracle's choice.", (chart,))


def _mean_energy_j(spent: Sequence[FleetCost], board: str) -> float:
    energies = [one.energies_j[board] for one in spent if board in one.energies_j]
    return sum(energies) / len(energies) if energies else 0.0
