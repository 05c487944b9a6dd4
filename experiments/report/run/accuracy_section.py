"""Accuracy of a run over rounds, time and energy, beside MAXN, and the clients' own evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from experiments.report.chart import (
    Chart,
    Trace,
    axis,
    line_trace,
    round_axis,
    scatter_trace,
    xy_chart,
)
from experiments.report.page import Card, Section
from experiments.report.palette import COLOURS, GREY
from experiments.report.quantities import (
    UnitScale,
    capitalise,
    duration,
    energy,
    energy_scale,
    format_metric,
    metric_scale,
    metric_title,
    number,
    time_scale,
)
from experiments.report.run.loaded_runs import LoadedRun
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import EvaluationRow

EVERY_ROUND = "Each point is the aggregated model after a round, on test samples that no board trains on."


def build_accuracy_charts(run: LoadedRun) -> tuple[Chart, Chart, Chart]:
    """Plot accuracy over rounds, simulated time and energy, each beside the costs that MAXN would have had."""
    times, joules = time_scale([run.rounds[-1].end_s]), energy_scale([sum(row.energy_j for row in run.rounds)])
    spent = list(accumulate(row.energy_j for row in run.rounds))
    caption = over_energy = EVERY_ROUND
    if _is_maxn_known(run):
        caption = "Dashed: the same rounds at MAXN. Left of the line is faster."
        over_energy = (
            "Dashed: all boards work and wait at MAXN; dotted: they work at MAXN and wait in their lowest mode. Left "
            f"of a line: the same {run.experiment.workload.metric} for less energy."
        )
    ends, spent = [row.end_s / times.per for row in run.rounds], [value / joules.per for value in spent]
    maxn_time = {"at MAXN": _accumulate_maxn(run, "maxn_round_s", times)}
    maxn_energy = {
        "at MAXN": _accumulate_maxn(run, "maxn_energy_j", joules),
        "MAXN, low idle": _accumulate_maxn(run, "maxn_parked_energy_j", joules),
    }
    return (
        _accuracy_chart(run, "rounds", "round", [row.round for row in run.rounds], others={}),
        _accuracy_chart(run, "time", f"fleet clock ({times.unit})", ends, others=maxn_time, caption=caption),
        _accuracy_chart(
            run, "energy", f"energy of the fleet ({joules.unit})", spent, others=maxn_energy, caption=over_energy
        ),
    )


def _is_maxn_known(run: LoadedRun) -> bool:
    return len(run.compared_rounds) == len(run.rounds) and all(row.maxn_round_s is not None for row in run.rounds)


def _accumulate_maxn(run: LoadedRun, column: str, scale: UnitScale) -> list[float]:
    return [j / scale.per for j in accumulate(getattr(row, column) for row in run.rounds if _is_maxn_known(run))]


def _accuracy_chart(
    run: LoadedRun,
    key: str,
    title: str,
    x: Sequence[float],
    others: Mapping[str, Sequence[float]],
    caption: str = EVERY_ROUND,
) -> Chart:
    metric = run.experiment.workload.metric
    scale = metric_scale(metric)
    y = [value / scale.per for value in run.accuracies]
    digits = ".1f" if scale.unit else ".3g"
    shown = f"%{{x:.4~g}}: %{{y:{digits}}} {scale.unit}"
    data: list[Trace] = [
        line_trace(name, other, y, colour=GREY, width=1.5, dash=dash, markers=False, hover=shown)
        for (name, other), dash in zip(others.items(), ("dash", "dot"), strict=False)
        if other
    ]
    hover = [
        f"round {r.round}: {at:{digits}} {scale.unit}, loss {r.loss:.3g}" for r, at in zip(run.rounds, y, strict=True)
    ]
    data.append(line_trace("this run", x, y, colour=COLOURS[0], hover=hover))
    along = round_axis(len(run.rounds)) if key == "rounds" else axis(title, rangemode="tozero")
    up = axis(metric_title(metric))
    return xy_chart(f"accuracy-{key}", f"Over {key}", data, xaxis=along, yaxis=up, caption=caption, height_px=280)


CAPTION = "Line: as the strategy aggregates the clients' results. Dots: each client on its own test samples."


def list_evaluation_cards(run: LoadedRun) -> Iterator[Card]:
    """Yield the clients' final accuracy and the cost of their evaluations; nothing without any."""
    figure = run.summary
    if figure.get("evaluation_energy_j") is None:
        return
    loss = f"loss {number(figure['final_client_loss'])}, on the clients' own test samples"
    accuracy = figure["final_client_accuracy"]
    metric = run.experiment.workload.metric
    yield Card(f"{capitalise(metric)} on the clients", format_metric(metric, accuracy), loss)
    labels = {label["evaluation"]["label"] for label in run.labels.values() if "evaluation" in label}
    priced = f", {' and '.join(sorted(labels))}" if labels else ""
    remark = f"{duration(figure['evaluation_s'])} after the rounds, not in the energy of the fleet{priced}"
    yield Card("Evaluation by clients", energy(figure["evaluation_energy_j"]), remark)


def build_evaluation_sections(run: LoadedRun) -> list[Section]:
    """Build the section on the clients' evaluations; none without any."""
    rows = [row for row in read_rows(run.folder, EvaluationRow) if row.accuracy is not None]
    if not rows:
        return []
    metric = run.experiment.workload.metric
    scale = metric_scale(metric)
    known = [(row.round, row.client_accuracy / scale.per) for row in run.rounds if row.client_accuracy is not None]
    tested = [(row.round, row.accuracy / scale.per) for row in run.rounds if row.accuracy is not None]
    dots = scatter_trace(
        "each client",
        [row.round for row in rows],
        [(row.accuracy or 0.0) / scale.per for row in rows],
        mode="markers",
        marker={"color": GREY, "size": 5},
        hover=[f"{row.board}: {format_metric(metric, row.accuracy)}, {row.samples} samples" for row in rows],
    )
    hover = f"round %{{x}}: %{{y:.3~g}} {scale.unit}"
    lines: list[Trace] = [
        line_trace(name, [at for at, _ in points], [y for _, y in points], colour=colour, hover=hover)
        for name, points, colour in (("clients", known, COLOURS[1]), ("server", tested, COLOURS[0]))
        if points
    ]
    along, up = round_axis(len(run.rounds)), axis(metric_title(metric).removeprefix("test "))
    chart = xy_chart(
        "accuracy-clients",
        "Over rounds",
        [dots, *lines],
        xaxis=along,
        yaxis=up,
        caption=CAPTION,
        height_px=300,
        showlegend=True,
    )
    return [Section("Evaluation by clients", "The model on the clients' test samples, beside the server's.", (chart,))]
