"""Writes the mode-choice study of one board as one HTML file: energy over deadline, regret, modes tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path

from markupsafe import Markup

from experiments.report.chart import LEGEND, Chart, Trace, axis, line_trace, round_axis, scatter_trace, xy_layout
from experiments.report.page import Section, render_badge, write_page
from experiments.report.palette import GREY, assign_colours, assign_symbols
from experiments.report.predictors.choice_terminal import mode_choice_table
from experiments.report.quantities import energy_scale
from fedge.studies.mode_choice_study import ModeChoiceResult
from fedge.types import ProfileTable


def write_mode_choice_page(target: ProfileTable, steps: int, choices: Sequence[ModeChoiceResult], out: Path) -> None:
    """Write the page atomically."""
    ratios = list(dict.fromkeys(choice.ratio for choice in choices))
    sections = [
        Section(
            "Figures",
            "Means over seeds, the worst seed in brackets. Saved: energy, against MAXN. From 10 on: from round 10 on.",
            html=mode_choice_table([choice.row for choice in choices]).html,
        ),
        *(
            Section(
                f"Deadlines up to {ratio:g} times the fastest round",
                "How close is each round to the oracle's, and how quickly?",
                tuple(_ratio_charts(f"r{place}", [choice for choice in choices if choice.ratio == ratio])),
            )
            for place, ratio in enumerate(ratios)
        ),
    ]
    seeds, rounds = len({choice.seed for choice in choices}), len(choices[0].rounds)
    note = Markup(
        "{} The table serves as the true time and power. Deadlines differ between rounds. The oracle knows the table "
        "and meets each deadline with the least energy; regret is a policy's energy in excess of the oracle's, "
        "including exploration. Savings are relative to the same rounds at MAXN."
    ).format(render_badge(target.label))
    write_page(
        out,
        "Mode choice under deadlines",
        sections,
        target.path,
        facts=(
            Markup("<b>{}</b>, {}").format(target.device, target.workload),
            f"{len(target.modes):,} modes",
            f"{rounds} round{'s' * (rounds > 1)} of {steps} steps",
            f"{seeds} seed{'s' * (seeds > 1)}",
        ),
        notes=(note,),
    )


def _ratio_charts(key: str, choices: Sequence[ModeChoiceResult]) -> Iterator[Chart]:
    yield _energy_chart(key, [choice for choice in choices if choice.seed == choices[0].seed])
    yield _regret_chart(key, choices)
    yield _explored_chart(key, choices)


def _energy_chart(key: str, choices: Sequence[ModeChoiceResult]) -> Chart:
    """Plot every round's energy over its deadline, for one seed."""
    first = choices[0].rounds
    scale = energy_scale([one.maxn_j for one in first])
    colour, symbol = assign_colours(_list_policies(choices)), assign_symbols(_list_policies(choices))
    data: list[Trace] = [
        _deadline_trace("MAXN", [(one.deadline_s, one.maxn_j / scale.per) for one in first], "dot"),
        _deadline_trace("oracle", [(one.deadline_s, one.oracle_j / scale.per) for one in first], "solid"),
    ]
    data += [
        scatter_trace(
            choice.policy,
            [one.deadline_s for one in choice.rounds],
            [one.energy_j / scale.per for one in choice.rounds],
            marker={"color": colour[choice.policy], "symbol": symbol[choice.policy], "size": 6, "opacity": 0.8},
            hover=[f"round {one.round}: {escape(one.modes)}" for one in choice.rounds],
        )
        for choice in choices
    ]
    layout = xy_layout(
        axis("the round's deadline (s)"), axis(f"energy of the round ({scale.unit})", rangemode="normal")
    )
    caption = "One mark per round, one seed. On the lower line the mode is optimal. Hover for modes."
    return Chart(f"{key}-energy", "Energy of every round", caption, data, layout=layout, height_px=340)


def _deadline_trace(name: str, points: Sequence[tuple[float, float]], dash: str) -> Trace:
    ordered = sorted(points)
    return line_trace(
        name,
        [x for x, _ in ordered],
        [y for _, y in ordered],
        colour=GREY,
        dash=dash,
        markers=False,
        hover=f"{name}: %{{y:.4g}} at %{{x:.4g}} s",
    )


def _regret_chart(key: str, choices: Sequence[ModeChoiceResult]) -> Chart:
    """Plot the cumulative energy in excess of the oracle's, averaged over the seeds."""

    def so_far(choice: ModeChoiceResult) -> list[float]:
        spent = list(accumulate(one.energy_j for one in choice.rounds))
        best = list(accumulate(one.oracle_j for one in choice.rounds))
        return [100.0 * (own / least - 1.0) for own, least in zip(spent, best, strict=True)]

    caption = "Cumulative energy in excess of the oracle's, including exploration; mean over seeds."
    return _line_chart(
        f"{key}-regret", title="Regret", label="regret so far (%)", caption=caption, choices=choices, values=so_far
    )


def _explored_chart(key: str, choices: Sequence[ModeChoiceResult]) -> Chart:
    """Plot the number of distinct modes tried up to each round, averaged over the seeds."""

    def count_tried(choice: ModeChoiceResult) -> list[float]:
        return [float(one.explored) for one in choice.rounds]

    return _line_chart(
        f"{key}-explored",
        title="Modes tried",
        label="distinct modes tried",
        caption="Mean over seeds.",
        choices=choices,
        values=count_tried,
    )


def _line_chart(
    key: str,
    title: str,
    label: str,
    caption: str,
    choices: Sequence[ModeChoiceResult],
    values: Callable[[ModeChoiceResult], list[float]],
) -> Chart:
    policies = _list_policies(choices)
    colour = assign_colours(policies)
    data: list[Trace] = []
    for policy in policies:
        runs = [values(choice) for choice in choices if choice.policy == policy]
        data.append(
            line_trace(
                policy,
                [one.round for one in choices[0].rounds],
                [sum(of_round) / len(of_round) for of_round in zip(*runs, strict=True)],
                colour=colour[policy],
                markers=False,
                hover=f"{escape(policy)}, round %{{x}}: %{{y:.4g}}",
            )
        )
    layout = {
        "xaxis": round_axis(len(choices[0].rounds)),
        "yaxis": axis(label, rangemode="tozero"),
        "legend": LEGEND,
        "showlegend": True,
    }
    return Chart(key, title, caption, data, layout=layout, height_px=340)


def _list_policies(choices: Sequence[ModeChoiceResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(choice.policy for choice in choices))
