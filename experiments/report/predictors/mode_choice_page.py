"""Writes the mode-choice study of one board as one HTML file: energy over deadline, regret, modes tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path

from experiments.report.chart import LEGEND, Chart, Section, Trace, axis, round_axis
from experiments.report.html_elements import label_badge, number_cell, render_table, swatch_cell
from experiments.report.palette import GREY, assign_colours, assign_symbols
from experiments.report.predictors.choice_summary import MODE_CHOICE_COLUMNS, FigureRow, PolicyRun, group_rows
from experiments.report.quantities import energy_scale
from experiments.report.run.run_page import render_page
from fedge.telemetry import run_folder
from fedge.types import ProfileTable

MODE_CHOICE_TITLE = "Modes under deadlines"


def write_mode_choice_page(target: ProfileTable, steps: int, choices: Sequence[PolicyRun], out: Path) -> None:
    """Write the page atomically."""
    ratios = list(dict.fromkeys(choice.ratio for choice in choices))
    sections = [
        Section("Figures", "Means over the seeds, the worst seed in brackets.", (), _figures_table(choices)),
        *(
            Section(
                f"Deadlines up to {ratio:g} times the fastest round",
                "How near is each round to the oracle's, and how soon?",
                tuple(_ratio_charts(f"r{place}", [choice for choice in choices if choice.ratio == ratio])),
            )
            for place, ratio in enumerate(ratios)
        ),
    ]
    page = render_page(MODE_CHOICE_TITLE, _render_head(target, steps, choices), sections, escape(target.path))
    run_folder.write_text(out, page)


def _render_head(target: ProfileTable, steps: int, choices: Sequence[PolicyRun]) -> str:
    seeds, rounds = len({choice.seed for choice in choices}), len(choices[0].result.rounds)
    facts = (
        f"<b>{escape(target.device)}</b>, {escape(target.workload)}",
        f"{len(target.modes):,} modes",
        f"{rounds} round{'s' * (rounds > 1)} of {steps} minibatches",
        f"{seeds} seed{'s' * (seeds > 1)}",
    )
    return (
        f"<h1>{MODE_CHOICE_TITLE}</h1><p class='soft'>{' · '.join(facts)}</p>"
        f"<p>{label_badge('measured')} The table is the board's truth. Every round has another deadline. The oracle "
        f"knows "
        "the table and spends the least energy that meets the deadline; regret is what a policy spends beyond it, "
        "trying modes included. Saved is against the same rounds at MAXN.</p>"
    )


def _figures_table(choices: Sequence[PolicyRun]) -> str:
    rows: list[FigureRow] = [choice.row for choice in choices]
    colour = assign_colours(_list_policies(choices))
    cells = [
        (
            swatch_cell(colour[str(policy)], str(policy)),
            number_cell(f"{ratio:g}"),
            *(number_cell(column.format_cell(group)) for column in MODE_CHOICE_COLUMNS),
        )
        for (policy, ratio), group in group_rows(rows, "policy", "ratio").items()
    ]
    heads = ("policy", "ratio", *(column.heading.replace("\n", " ") for column in MODE_CHOICE_COLUMNS))
    return render_table(heads, cells)


def _ratio_charts(key: str, choices: Sequence[PolicyRun]) -> Iterator[Chart]:
    yield _energy_chart(key, [choice for choice in choices if choice.seed == choices[0].seed])
    yield _regret_chart(key, choices)
    yield _explored_chart(key, choices)


def _energy_chart(key: str, choices: Sequence[PolicyRun]) -> Chart:
    """Plot every round's energy over its deadline, for one seed."""
    first = choices[0].result.rounds
    scale = energy_scale([one.maxn_j for one in first])
    colour, symbol = assign_colours(_list_policies(choices)), assign_symbols(_list_policies(choices))
    data: list[Trace] = [
        _deadline_trace("MAXN", [(one.deadline_s, one.maxn_j / scale.per) for one in first], "dot"),
        _deadline_trace("oracle", [(one.deadline_s, one.oracle_j / scale.per) for one in first], "solid"),
    ]
    data += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape(choice.policy),
            "x": [one.deadline_s for one in choice.result.rounds],
            "y": [one.energy_j / scale.per for one in choice.result.rounds],
            "marker": {"color": colour[choice.policy], "symbol": symbol[choice.policy], "size": 6, "opacity": 0.8},
            "hovertext": [f"round {one.round}: {escape(one.modes)}" for one in choice.result.rounds],
        }
        for choice in choices
    ]
    layout = {
        "xaxis": axis("the round's deadline (s)"),
        "yaxis": axis(f"energy of the round ({scale.unit})", rangemode="normal"),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    caption = "One mark per round, one seed. On the lower line no mode would have done better. Hover for modes."
    return Chart(
        f"{key}-energy", title="Energy of every round", caption=caption, data=data, layout=layout, height_px=340
    )


def _deadline_trace(name: str, points: Sequence[tuple[float, float]], dash: str) -> Trace:
    ordered = sorted(points)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x for x, _ in ordered],
        "y": [y for _, y in ordered],
        "line": {"color": GREY, "width": 2, "dash": dash},
    }


def _regret_chart(key: str, choices: Sequence[PolicyRun]) -> Chart:
    """Plot the cumulative energy in excess of the oracle's, averaged over the seeds."""

    def so_far(choice: PolicyRun) -> list[float]:
        spent = list(accumulate(one.energy_j for one in choice.result.rounds))
        best = list(accumulate(one.oracle_j for one in choice.result.rounds))
        return [100.0 * (own / least - 1.0) for own, least in zip(spent, best, strict=True)]

    caption = "Energy beyond the oracle's over all rounds so far, trying modes included; mean of the seeds."
    return _line_chart(
        f"{key}-regret", title="Regret", label="regret so far (%)", caption=caption, choices=choices, values=so_far
    )


def _explored_chart(key: str, choices: Sequence[PolicyRun]) -> Chart:
    """Plot the number of distinct modes tried up to each round, averaged over the seeds."""

    def tried(choice: PolicyRun) -> list[float]:
        return [float(one.explored) for one in choice.result.rounds]

    return _line_chart(
        f"{key}-explored",
        title="Modes tried",
        label="different modes tried",
        caption="Mean of the seeds.",
        choices=choices,
        values=tried,
    )


def _line_chart(
    key: str,
    title: str,
    label: str,
    caption: str,
    choices: Sequence[PolicyRun],
    values: Callable[[PolicyRun], list[float]],
) -> Chart:
    policies = _list_policies(choices)
    colour = assign_colours(policies)
    data: list[Trace] = []
    for policy in policies:
        runs = [values(choice) for choice in choices if choice.policy == policy]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape(policy),
                "x": [one.round for one in choices[0].result.rounds],
                "y": [sum(of_round) / len(of_round) for of_round in zip(*runs, strict=True)],
                "line": {"color": colour[policy], "width": 2},
            }
        )
    layout = {
        "xaxis": round_axis(len(choices[0].result.rounds)),
        "yaxis": axis(label, rangemode="tozero"),
        "legend": LEGEND,
        "showlegend": True,
    }
    return Chart(key, title=title, caption=caption, data=data, layout=layout, height_px=340)


def _list_policies(choices: Sequence[PolicyRun]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(choice.policy for choice in choices))
