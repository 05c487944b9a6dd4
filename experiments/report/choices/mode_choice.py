"""Writes the study of one board as one HTML file: energy over deadlines, regret over rounds, modes tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path

from experiments.report.cells import badge, figure, swatch, table
from experiments.report.chart import LEGEND, Chart, Section, Trace, axis, round_axis
from experiments.report.choices.summary import MODE_CHOICE, Choice, Figures, grouped
from experiments.report.page import html_page
from experiments.report.palette import GREY, colours, symbols
from experiments.report.quantities import energy_scale
from fedge.telemetry import run_folder
from fedge.types import ProfileTable

TITLE = "Modes under deadlines"


def write_mode_choice(target: ProfileTable, steps: int, choices: Sequence[Choice], out: Path) -> None:
    """Write the page, replacing ``out`` as a whole."""
    ratios = list(dict.fromkeys(choice.ratio for choice in choices))
    sections = [
        Section("Figures", "Means over the seeds, the worst seed in brackets.", (), _figures(choices)),
        *(
            Section(
                f"Deadlines up to {ratio:g} times the fastest round",
                "How near is each round to the oracle's, and how soon?",
                tuple(_charts(f"r{place}", [choice for choice in choices if choice.ratio == ratio])),
            )
            for place, ratio in enumerate(ratios)
        ),
    ]
    page = html_page(TITLE, _head(target, steps, choices), sections, escape(target.path))
    run_folder.write_text(out, page)


def _head(target: ProfileTable, steps: int, choices: Sequence[Choice]) -> str:
    seeds, rounds = len({choice.seed for choice in choices}), len(choices[0].played.rounds)
    facts = (
        f"<b>{escape(target.device)}</b>, {escape(target.workload)}",
        f"{len(target.modes):,} modes",
        f"{rounds} round{'s' * (rounds > 1)} of {steps} minibatches",
        f"{seeds} seed{'s' * (seeds > 1)}",
    )
    return (
        f"<h1>{TITLE}</h1><p class='soft'>{' · '.join(facts)}</p>"
        f"<p>{badge('measured')} The table is the board's truth. Every round has another deadline. The oracle knows "
        "the table and spends the least energy that meets the deadline; regret is what a policy spends beyond it, "
        "trying modes included. Saved is against the same rounds at MAXN.</p>"
    )


def _figures(choices: Sequence[Choice]) -> str:
    rows: list[Figures] = [choice.row for choice in choices]
    colour = colours(_policies(choices))
    cells = [
        (
            swatch(colour[str(policy)], str(policy)),
            figure(f"{ratio:g}"),
            *(figure(column.text(group)) for column in MODE_CHOICE),
        )
        for (policy, ratio), group in grouped(rows, "policy", "ratio").items()
    ]
    heads = ("policy", "ratio", *(column.heading.replace("\n", " ") for column in MODE_CHOICE))
    return table(heads, cells)


def _charts(key: str, choices: Sequence[Choice]) -> Iterator[Chart]:
    yield _energies(key, [choice for choice in choices if choice.seed == choices[0].seed])
    yield _regret(key, choices)
    yield _explored(key, choices)


def _energies(key: str, choices: Sequence[Choice]) -> Chart:
    """Every round's energy over its deadline, one seed."""
    first = choices[0].played.rounds
    scale = energy_scale([one.maxn_j for one in first])
    colour, symbol = colours(_policies(choices)), symbols(_policies(choices))
    data: list[Trace] = [
        _over_deadline("MAXN", [(one.deadline_s, one.maxn_j / scale.per) for one in first], "dot"),
        _over_deadline("oracle", [(one.deadline_s, one.oracle_j / scale.per) for one in first], "solid"),
    ]
    data += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape(choice.policy),
            "x": [one.deadline_s for one in choice.played.rounds],
            "y": [one.energy_j / scale.per for one in choice.played.rounds],
            "marker": {"color": colour[choice.policy], "symbol": symbol[choice.policy], "size": 6, "opacity": 0.8},
            "hovertext": [f"round {one.round}: {escape(one.modes)}" for one in choice.played.rounds],
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
    return Chart(f"{key}-energy", "Energy of every round", caption, data, layout, 340)


def _over_deadline(name: str, points: Sequence[tuple[float, float]], dash: str) -> Trace:
    ordered = sorted(points)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x for x, _ in ordered],
        "y": [y for _, y in ordered],
        "line": {"color": GREY, "width": 2, "dash": dash},
    }


def _regret(key: str, choices: Sequence[Choice]) -> Chart:
    """Energy beyond the oracle's, all rounds so far, mean of the seeds."""

    def so_far(choice: Choice) -> list[float]:
        spent = list(accumulate(one.energy_j for one in choice.played.rounds))
        best = list(accumulate(one.oracle_j for one in choice.played.rounds))
        return [100.0 * (own / least - 1.0) for own, least in zip(spent, best, strict=True)]

    caption = "Energy beyond the oracle's over all rounds so far, trying modes included; mean of the seeds."
    return _lines(f"{key}-regret", "Regret", "regret so far (%)", caption, choices, so_far)


def _explored(key: str, choices: Sequence[Choice]) -> Chart:
    """How many different modes the board had tried after each round, mean of the seeds."""

    def tried(choice: Choice) -> list[float]:
        return [float(one.explored) for one in choice.played.rounds]

    return _lines(f"{key}-explored", "Modes tried", "different modes tried", "Mean of the seeds.", choices, tried)


def _lines(
    key: str, title: str, label: str, caption: str, choices: Sequence[Choice], values: Callable[[Choice], list[float]]
) -> Chart:
    policies = _policies(choices)
    colour = colours(policies)
    data: list[Trace] = []
    for policy in policies:
        runs = [values(choice) for choice in choices if choice.policy == policy]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape(policy),
                "x": [one.round for one in choices[0].played.rounds],
                "y": [sum(of_round) / len(of_round) for of_round in zip(*runs, strict=True)],
                "line": {"color": colour[policy], "width": 2},
            }
        )
    layout = {
        "xaxis": round_axis(len(choices[0].played.rounds)),
        "yaxis": axis(label, rangemode="tozero"),
        "legend": LEGEND,
        "showlegend": True,
    }
    return Chart(key, title, caption, data, layout, 340)


def _policies(choices: Sequence[Choice]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(choice.policy for choice in choices))
