"""The clients' evaluations of the model beside the server's: headline figures, and accuracy over rounds."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.report.chart import LEGEND, Chart, Trace, axis, line_trace, round_axis, scatter_trace
from experiments.report.page import Card, Section
from experiments.report.palette import COLOURS, GREY
from experiments.report.quantities import (
    capitalise,
    duration,
    energy,
    format_metric,
    metric_scale,
    metric_title,
    number,
)
from experiments.report.run.loaded_runs import LoadedRun
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import EvaluationRow

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
    layout = {
        "xaxis": round_axis(len(run.rounds)),
        "yaxis": axis(metric_title(metric).removeprefix("test ")),
        "legend": LEGEND,
        "showlegend": True,
    }
    chart = Chart("accuracy-clients", "Over rounds", CAPTION, [dots, *lines], layout=layout, height_px=300)
    return [Section("Evaluation by clients", "The model on the clients' test samples, beside the server's.", (chart,))]
