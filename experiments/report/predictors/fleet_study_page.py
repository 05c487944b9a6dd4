"""Writes a fleet study as one HTML file: time over energy, rounds, and the energy of every board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from experiments.report.chart import LEGEND, Chart, Section, Trace, axis, round_axis
from experiments.report.html_elements import LABELS, label_badge, number_cell, render_table, swatch_cell, text_cell
from experiments.report.palette import ALARM, COLOURS, GREY, assign_colours, assign_symbols
from experiments.report.predictors.choice_summary import (
    BASELINE_COLUMNS,
    BASELINE_NAMES,
    FLEET_COLUMNS,
    SAVING_COLUMNS,
    FigureRow,
    describe_infeasible_limits,
    group_rows,
    select_baseline,
)
from experiments.report.run.run_page import render_page
from fedge.devices.board_kinds import build_kind
from fedge.experiment import Experiment, list_boards
from fedge.studies.fleet import SETTLED_FROM, FleetCost, FleetRun, RoundComparison
from fedge.telemetry import run_folder

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
            "Left is faster, low is cheaper.",
            (_plane_chart(runs),),
            _figures_table(runs) + _baselines_table(runs),
        ),
        Section(
            "Over rounds",
            "How soon do the boards know their modes?",
            (_gap_chart(by_policy), _explored_chart(by_policy)),
        ),
        *(_boards_section(place, policy, group[0]) for place, (policy, group) in enumerate(by_policy.items())),
    ]
    foot = escape(", ".join(f"{entry.count} x {entry.name or entry.device}" for entry in experiment.fleet))
    run_folder.write_text(out, render_page("A fleet planned as one", _render_head(experiment, runs), sections, foot))


def _render_head(experiment: Experiment, runs: Sequence[FleetRun]) -> str:
    seeds = len({run.seed for run in runs})
    facts = (
        f"<b>{escape(experiment.name)}</b>",
        f"{len(list_boards(experiment))} boards",
        f"{len(runs[0].rounds)} round{'s' * (len(runs[0].rounds) > 1)}",
        f"{seeds} seed{'s' * (seeds > 1)}",
    )
    return (
        f"<h1>A fleet planned as one</h1><p class='soft'>{' · '.join(facts)}</p>"
        "<p>Boards choose and the server plans from predictions. They are judged by every mode's true seconds and "
        f"watts, without the noise of single measurements; these are {_describe_truths(experiment)}. The oracle "
        f"plans in the "
        "same way from the truth. Nothing is trained; all else is as in a run.</p>"
    )


def _describe_truths(experiment: Experiment) -> str:
    """Describe the provenance of the boards' true costs, with the number of boards."""
    labels: Counter[str] = Counter(
        build_kind(board, experiment.workload).truth_label for board in list_boards(experiment)
    )
    told = [f"{label_badge(label)} for {labels[label]}" for label in LABELS if labels[label]]
    return f"{', '.join(told)} of the {sum(labels.values())} boards"


def _list_policies(runs: Sequence[FleetRun]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run.policy for run in runs))


def _list_rows(runs: Sequence[FleetRun]) -> list[FigureRow]:
    return [run.row for run in runs]


def _figures_table(runs: Sequence[FleetRun]) -> str:
    colour = assign_colours(_list_policies(runs))
    cells = [
        (
            swatch_cell(colour[str(policy)], str(policy)),
            *(number_cell(column.format_cell(group)) for column in (*FLEET_COLUMNS, *SAVING_COLUMNS)),
        )
        for (policy,), group in group_rows(_list_rows(runs), "policy").items()
    ]
    told = "".join(
        f'<p class="caption">{escape(sentence)}</p>' for sentence in describe_infeasible_limits(_list_rows(runs))
    )
    return (
        render_table(
            ("policy", *(column.heading.replace("\n", " ") for column in (*FLEET_COLUMNS, *SAVING_COLUMNS))), cells
        )
        + told
    )


def _baselines_table(runs: Sequence[FleetRun]) -> str:
    cells = [
        (
            text_cell(policy),
            text_cell(name),
            *(number_cell(column.format_cell(select_baseline(group, prefix))) for column in BASELINE_COLUMNS),
        )
        for (policy,), group in group_rows(_list_rows(runs), "policy").items()
        for prefix, name in BASELINE_NAMES.items()
    ]
    return render_table(
        ("policy", "against", *(column.heading.replace("\n", " ") for column in BASELINE_COLUMNS)), cells
    )


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
    layout = {
        "xaxis": axis("mean round (% of MAXN's)", rangemode="normal"),
        "yaxis": axis("mean energy (% of MAXN's)", rangemode="normal"),
        "legend": {"orientation": "v", "x": 1.02, "y": 1.0, "xanchor": "left"},
        "hovermode": "closest",
    }
    caption = f"One mark per seed, which has boards and shares of its own. All {len(runs[0].rounds)} rounds."
    return Chart("plane", title="Round and energy", caption=caption, data=data, layout=layout, height_px=380)


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
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(name),
        "x": [_percent_of_maxn(row, prefix, "round_s") for row in rows],
        "y": [_percent_of_maxn(row, prefix, "energy_j") for row in rows],
        "marker": dict(marker),
        "hovertemplate": f"%{{x:.2f}} % of the time, %{{y:.2f}} % of the energy<extra>{escape(name)}</extra>",
    }


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
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{escape(policy)}: {what}",
                    "x": [one.round for one in runs[0].rounds],
                    "y": [sum(of_round) / len(of_round) for of_round in zip(*each, strict=True)],
                    "line": {"color": colour[policy], "width": 2, "dash": dash},
                }
            )
    layout = {
        "xaxis": round_axis(_count_rounds(by_policy)),
        "yaxis": axis("beyond the oracle (%)", rangemode="normal"),
        "legend": LEGEND,
    }
    caption = f"Mean of the seeds. Rounds 1 to {SETTLED_FROM - 1} count as learning."
    return Chart("gaps", title="Against the oracle", caption=caption, data=data, layout=layout, height_px=320)


def _count_rounds(by_policy: Mapping[str, Sequence[FleetRun]]) -> int:
    return max(len(run.rounds) for runs in by_policy.values() for run in runs)


def _energy_gap_percent(one: RoundComparison) -> float:
    return 100.0 * (one.chosen.energy_j / one.oracle.energy_j - 1.0)


def _time_gap_percent(one: RoundComparison) -> float:
    return 100.0 * (one.chosen.round_s / one.oracle.round_s - 1.0)


def _explored_chart(by_policy: Mapping[str, Sequence[FleetRun]]) -> Chart:
    colour = assign_colours(tuple(by_policy))
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": escape(policy),
            "x": [one.round for one in runs[0].rounds],
            "y": [sum(means) / len(means) for means in zip(*(run.explored for run in runs), strict=True)],
            "line": {"color": colour[policy], "width": 2},
        }
        for policy, runs in by_policy.items()
    ]
    layout = {
        "xaxis": round_axis(_count_rounds(by_policy)),
        "yaxis": axis("different modes tried", rangemode="tozero"),
        "legend": LEGEND,
        "showlegend": True,
    }
    return Chart(
        "explored",
        title="Modes tried",
        caption="Mean of the boards and seeds.",
        data=data,
        layout=layout,
        height_px=320,
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
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape(name),
            "x": names,
            "y": [100.0 * _mean_energy_j(spent, board) / maxn_j[board] for board in names],
            "marker": {"color": colour, "symbol": symbol, "size": 8},
        }
        for name, colour, symbol, spent in ways
    ]
    layout = {
        "xaxis": axis("", type="category", tickangle=-60),
        "yaxis": axis("mean energy (% of its own at MAXN)", rangemode="normal"),
        "legend": LEGEND,
        "hovermode": "x",
    }
    shown = f"Rounds {rounds[0].round} to {rounds[-1].round}, seed {run.seed}."
    chart = Chart(
        f"boards-{place}", title="Energy of every board", caption=shown, data=data, layout=layout, height_px=420
    )
    return Section(f"Boards under {escape(policy)}", "Whose mode is far from the oracle's?", (chart,))


def _mean_energy_j(spent: Sequence[FleetCost], board: str) -> float:
    energies = [one.energies_j[board] for one in spent if board in one.energies_j]
    return sum(energies) / len(energies) if energies else 0.0
