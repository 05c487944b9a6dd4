"""Accuracy of one run over rounds, simulated time and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from experiments.report.chart import LEGEND, Chart, Trace, axis, line_trace, round_axis
from experiments.report.palette import COLOURS, GREY
from experiments.report.quantities import UnitScale, energy_scale, time_scale
from experiments.report.run.loaded_runs import LoadedRun

EVERY_ROUND = "Each point is the aggregated model after a round, on test samples that no board trains on."


def build_accuracy_charts(run: LoadedRun) -> tuple[Chart, Chart, Chart]:
    """Plot accuracy over rounds, simulated time and energy, each beside the costs that MAXN would have had."""
    times, joules = time_scale([run.rounds[-1].end_s]), energy_scale([sum(row.energy_j for row in run.rounds)])
    spent = list(accumulate(row.energy_j for row in run.rounds))
    caption = EVERY_ROUND
    if _is_maxn_known(run):
        caption = "Dashed: the same rounds at MAXN. Left of the line is faster."
    over_energy = (
        "Dashed: all boards work and wait at MAXN; dotted: they work at MAXN and wait in their lowest mode. Left of a "
        "line: the same accuracy for less energy."
    )
    return (
        _accuracy_chart(run, key="rounds", title="round", x=[row.round for row in run.rounds], others={}),
        _accuracy_chart(
            run,
            key="time",
            title=f"fleet clock ({times.unit})",
            x=[row.end_s / times.per for row in run.rounds],
            others={"at MAXN": _accumulate_maxn(run, [row.maxn_round_s for row in run.rounds], times)},
            caption=caption,
        ),
        _accuracy_chart(
            run,
            key="energy",
            title=f"energy of the fleet ({joules.unit})",
            x=[value / joules.per for value in spent],
            others={
                "at MAXN": _accumulate_maxn(run, [row.maxn_energy_j for row in run.rounds], joules),
                "MAXN, low idle": _accumulate_maxn(run, [row.maxn_parked_energy_j for row in run.rounds], joules),
            },
            caption=over_energy if _is_maxn_known(run) else "",
        ),
    )


def _is_maxn_known(run: LoadedRun) -> bool:
    return len(run.compared_rounds) == len(run.rounds) and all(row.maxn_round_s is not None for row in run.rounds)


def _accumulate_maxn(run: LoadedRun, per_round: Sequence[float | None], scale: UnitScale) -> list[float]:
    if not _is_maxn_known(run):
        return []
    return [value / scale.per for value in accumulate(value for value in per_round if value is not None)]


def _accuracy_chart(
    run: LoadedRun, key: str, title: str, x: Sequence[float], others: Mapping[str, Sequence[float]], caption: str = ""
) -> Chart:
    y = [100 * row.accuracy for row in run.rounds]
    data: list[Trace] = [
        line_trace(name, other, y, colour=GREY, width=1.5, dash=dash, markers=False, hover="%{x:.4~g}: %{y:.1f} %")
        for (name, other), dash in zip(others.items(), ("dash", "dot"), strict=False)
        if other
    ]
    hover = [f"round {r.round}: {100 * r.accuracy:.1f} %, loss {r.loss:.3g}" for r in run.rounds]
    data.append(line_trace("this run", x, y, colour=COLOURS[0], hover=hover))
    layout = {
        "xaxis": round_axis(len(run.rounds)) if key == "rounds" else axis(title, rangemode="tozero"),
        "yaxis": axis("test accuracy (%)"),
        "legend": LEGEND,
        "showlegend": len(data) > 1,
    }
    return Chart(
        f"accuracy-{key}",
        title=f"Over {key}",
        caption=caption or EVERY_ROUND,
        data=data,
        layout=layout,
        height_px=280,
    )
