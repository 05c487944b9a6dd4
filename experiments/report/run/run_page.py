"""Writes the report of one run, or a comparison of several, as one HTML file, and its tables as CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import COLOURS, GREY, Chart, Trace, axis, line_trace
from experiments.report.page import Card, Section, render_page
from experiments.report.quantities import (
    UNKNOWN,
    capitalise,
    duration,
    energy,
    energy_scale,
    format_metric,
    metric_scale,
    metric_title,
    number,
    percent,
    time_scale,
)
from experiments.report.run import (
    board_sections,
    comparison_page,
    energy_section,
    prediction_section,
    run_tables,
    timeline_charts,
)
from experiments.report.run.loaded_runs import LoadedRun, load_run, load_runs, sample_run
from experiments.report.run.run_tables import describe_emulation
from experiments.report.tables import Table
from fedge.atomic_files import write_text
from fedge.errors import BadInput
from fedge.experiment import Experiment, choose_training_device
from fedge.telemetry.savings import Baseline
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import EvaluationRow
from fedge.workloads import NULL_TASK
from fedge.yaml_files import format_value

MODES_LEAD = Markup(
    'Colour: share of the board\'s maximum, 0<span class="scale"></span>100 %. Hover for the exact value. '
)
PARTICIPATION_LEAD = "Selected boards, their outcome and their charge."
TIMELINE_LEADS = {
    False: "Phases of every board, and the straggler of each round.",
    True: "Phases of every board, and the result that completed each model.",
}
"""Introduction of the timeline, by whether the run is asynchronous."""
EVERY_ROUND = "Each point is the aggregated model after a round, on test samples that no board trains on."


def write_report(folders: Sequence[Path], out: Path, first: Sequence[Section] = ()) -> None:
    """Write the report of one run folder, or a comparison of several with ``first`` at its head, atomically.

    Raises:
        BadInput: If a folder is not a run folder, or has no finished round.
    """
    text = render_report(folders, first)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text)


def render_report(folders: Sequence[Path], first: Sequence[Section] = ()) -> str:
    """Render the report of one run folder, or a comparison of several; the arguments are those of ``write_report``."""
    _check_folders(folders)
    if len(folders) == 1:
        return _render_run(load_run(folders[0]))
    return comparison_page.render_comparison(load_runs(folders), first)


def write_report_tables(folders: Sequence[Path], out: Path, first: Sequence[Table] = ()) -> tuple[Path, ...]:
    """Write all tables of a report, and those of ``first``, as NAME.csv and NAME.tex, and return their paths.

    Existing files are replaced atomically.

    Raises:
        BadInput: If a folder is not a run folder.
    """
    _check_folders(folders)
    one = len(folders) == 1
    tables = _list_tables(load_run(folders[0])) if one else comparison_page.list_comparison_tables(load_runs(folders))
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for table in (*first, *tables):
        for suffix, text in (("csv", table.csv), ("tex", table.latex)) if table.rows else ():
            written.append(out / f"{table.key}.{suffix}")
            write_text(written[-1], text)
    return tuple(written)


def _check_folders(folders: Sequence[Path]) -> None:
    if not folders:
        raise BadInput("report", "no run folder", "one or more")


def _list_tables(run: LoadedRun) -> tuple[Table, ...]:
    return (
        run_tables.provenance_table(run),
        run_tables.origin_table(run),
        prediction_section.errors_by_samples_table(run),
        prediction_section.error_quantile_table(run),
        board_sections.serving_table(run),
        board_sections.asked_work_table(run),
        board_sections.memory_reduction_table(run),
        run_tables.events_table(run),
        run_tables.last_round_table(run),
    )


def _render_run(run: LoadedRun) -> str:
    experiment, boards, done = run.experiment, [*run.device_by_board.values()], len(run.rounds)
    kinds = ", ".join(f"{boards.count(device)} {device}" for device in run.styles)
    rounds = f"{done} of {experiment.rounds}" if done < experiment.rounds else str(done)
    return render_page(
        f"{run.name}: {experiment.policy.name}",
        build_run_sections(run),
        f"Run folder: {run.folder}",
        heading=run.name,
        facts=(
            Markup("policy <b>{}</b>").format(experiment.policy.name),
            f"{rounds} round{'s' * (experiment.rounds > 1)}",
            f"{len(boards)} board{'s' * (len(boards) > 1)} ({kinds})",
            experiment.strategy.name,
            f"predictor {experiment.predictor}",
            f"backend {experiment.backend}",
            f"seed {experiment.seed}",
            *_describe_options(experiment),
        ),
        cards=_list_cards(run),
        notes=(describe_emulation(run), *map(capitalise, run_tables.describe_estimates(run.labels))),
        below=run_tables.provenance_table(run).html,
    )


def _describe_options(experiment: Experiment) -> Iterator[str]:
    data, schedule = experiment.data, experiment.workload.schedule
    if experiment.backend != "flower" and experiment.workload.task != NULL_TASK:
        yield f"partition {data.partition}" + (f" (alpha {data.alpha:g})" if data.partition == "dirichlet" else "")
    if schedule is not None:
        options = ", ".join(f"{name} {format_value(value)}" for name, value in schedule.options.items())
        yield f"learning rate by {schedule.name}" + (f" ({options})" if options else "")
    if experiment.mods:
        yield f"mods {', '.join(mod.name for mod in experiment.mods)}"
    for entry in experiment.fleet:
        if entry.serving is not None and entry.serving.placement is not None:
            yield f"placement {Path(entry.serving.placement).name} ({entry.name or entry.device})"
    if choose_training_device(experiment) != "cpu":
        yield "trained on CUDA, not bit-reproducible"


def _list_cards(run: LoadedRun) -> Iterator[Card]:
    figure, metric = run.summary, run.experiment.workload.metric
    if run.accuracies:
        loss = f"test loss {number(figure['final_loss'])}"
        yield Card(f"Final {metric}", format_metric(metric, figure["final_accuracy"]), loss)
    training = f"{energy(figure['train_energy_j'])} of it for training"
    yield Card("Energy of the fleet", energy(figure["energy_j"]), training)
    clock = f"on the fleet clock; wall time {duration(figure['wall_s'])}"
    yield Card("Makespan", duration(figure["makespan_s"]), clock)
    yield from list_evaluation_cards(run)
    yield from _list_special_cards(run)
    if not run.asynchronous:
        yield from _list_maxn_cards(run)


def list_evaluation_cards(run: LoadedRun) -> Iterator[Card]:
    """Yield the clients' final accuracy and the cost of their evaluations; nothing without any."""
    figure, metric = run.summary, run.experiment.workload.metric
    if figure.get("evaluation_energy_j") is None:
        return
    loss = f"loss {number(figure['final_client_loss'])}, on the clients' own test samples"
    yield Card(f"{capitalise(metric)} on the clients", format_metric(metric, figure["final_client_accuracy"]), loss)
    labels = {label["evaluation"]["label"] for label in run.labels.values() if "evaluation" in label}
    priced = f", {' and '.join(sorted(labels))}" if labels else ""
    remark = f"{duration(figure['evaluation_s'])} after the rounds, not in the energy of the fleet{priced}"
    yield Card("Evaluation by clients", energy(figure["evaluation_energy_j"]), remark)


def _list_maxn_cards(run: LoadedRun) -> Iterator[Card]:
    rounds, length, note = run.compared_rounds or run.rounds, run.summary["round_vs_maxn"], run.compared_note
    baselines: tuple[tuple[Baseline, str, str], ...] = (
        ("maxn", "MAXN", "at work and while idle"),
        ("maxn_parked", "MAXN, low idle", "at work, lowest mode while idle"),
    )
    for key, name, how in baselines:
        spent_j = [getattr(row, f"{key}_energy_j") for row in run.compared_rounds]
        remark = f"MAXN {how}: {energy(sum(spent_j) if spent_j else None)}"
        yield Card(f"Saving vs {name}", percent(run.summary[f"saving_vs_{key}"]), _join_remarks(remark, note))
    mean_s = sum(row.round_s for row in rounds) / len(rounds)
    remark = f"{duration(mean_s)}; MAXN: {duration(run.summary['maxn_mean_round_s'])}"
    times = UNKNOWN if length is None else f"{length:.2f} ×"
    yield Card("Mean round vs MAXN", times, _join_remarks(remark, note))
    for (key, name, _), title in zip(baselines, ("Share of the oracle's saving", "The same, low idle"), strict=True):
        found, best = run.share_of_oracle_saving(key), percent(run.summary[f"oracle_saving_vs_{key}"])
        remark = f"the oracle saves {best} vs {name}"
        yield Card(title, percent(found.share, 0), _join_remarks(found.why, remark))


def _join_remarks(*remarks: str) -> str:
    return "; ".join(filter(None, remarks))


def _list_special_cards(run: LoadedRun) -> Iterator[Card]:
    figure = run.summary
    if run.asynchronous:
        yield Card("Time per model", duration(figure["mean_round_s"]), f"{len(run.rounds)} models on average")
        yield Card("Mean staleness", number(figure["mean_staleness"]), "new models while a client trained")
    elif figure["stale"]:
        yield Card("Late results", str(figure["stale"]), "merged in a later round")
    if figure["cancelled"] and not run.asynchronous:
        yield Card("Cancelled", str(figure["cancelled"]), "board-rounds stopped because enough others had finished")
    if left_out := figure.get("left_out"):
        remark = f"not asked again, nothing fits into their memory: {', '.join(left_out)}"
        yield Card("Left out", f"{len(left_out)} of {len(run.device_by_board)} boards", remark)
    if figure["resting_energy_j"]:
        yield Card("Idle boards", energy(figure["resting_energy_j"]), "idle energy of boards that were not selected")
    if figure.get("energy_cost") is not None:
        cost = number(figure["energy_cost"], unit=figure["energy_cost_unit"])
        yield Card("Cost of the energy", cost, "of all boards, computed from the given signal")
    if figure["budget_j"] is not None:
        resting = f", {energy(figure['resting_energy_j'])} by boards at rest" if figure["resting_energy_j"] else ""
        remark = figure["ended"] or f"of {energy(figure['budget_j'])}{resting}"
        yield Card("Energy budget spent", percent(figure["budget_spent"]), remark)


# Sections -------------------------------------------------------------------------------------------------------------


def build_run_sections(run: LoadedRun) -> list[Section]:
    """Build the sections of one run's page, in their order."""
    metric, power = run.experiment.workload.metric, energy_section.build_power_section(run)
    modes, note = tuple(board_sections.build_mode_charts(run)), sample_run(run).note
    accuracy = Section(capitalise(metric), f"Test {metric} over rounds, time and energy.", _build_accuracy_charts(run))
    participation = tuple(timeline_charts.build_participation_charts(run))
    return [
        *([accuracy] if accuracy.charts else []),
        *build_evaluation_sections(run),
        Section(
            "Timeline",
            TIMELINE_LEADS[run.asynchronous],
            timeline_charts.build_timeline_charts(run),
        ),
        *([Section("Participation", PARTICIPATION_LEAD, participation)] if participation else []),
        Section("Energy", "Energy by board and phase.", (energy_section.client_energy_chart(run),)),
        power,
        *board_sections.build_serving_sections(run),
        *board_sections.build_work_sections(run),
        *board_sections.build_memory_sections(run),
        Section("Power modes", MODES_LEAD + note, modes),
        *run_tables.build_knowledge_sections(run),
        Section(
            "Predictions",
            "Predicted against measured time and power.",
            prediction_section.build_prediction_charts(run),
            prediction_section.render_prediction_errors(run),
        ),
        Section("Events", "Deviations from the plan.", (), run_tables.render_events(run)),
        Section("Last round", "Mode of every board, and the reason for it.", (), run_tables.render_last_round(run)),
    ]


def _build_accuracy_charts(run: LoadedRun) -> tuple[Chart, ...]:
    if not run.accuracies:
        return ()
    times, joules = time_scale([run.rounds[-1].end_s]), energy_scale([sum(row.energy_j for row in run.rounds)])
    over_time = over_energy = EVERY_ROUND
    maxn_time: dict[str, list[float]] = {}
    maxn_energy: dict[str, list[float]] = {}
    if len(run.compared_rounds) == len(run.rounds) and all(row.maxn_round_s is not None for row in run.rounds):
        over_time = "Dashed: the same rounds at MAXN. Left of the line is faster."
        over_energy = (
            "Dashed: all boards work and wait at MAXN; dotted: they work at MAXN and wait in their lowest mode. Left "
            f"of a line: the same {run.experiment.workload.metric} for less energy."
        )
        maxn_time["at MAXN"] = [end_s / times.per for end_s in _list_maxn_ends_s(run)]
        maxn_energy["at MAXN"] = _accumulate(run, "maxn_energy_j", joules.per)
        maxn_energy["MAXN, low idle"] = _accumulate(run, "maxn_parked_energy_j", joules.per)
    clock = axis(f"fleet clock ({times.unit})", rangemode="tozero")
    spent = axis(f"energy of the fleet ({joules.unit})", rangemode="tozero")
    numbers = [row.round for row in run.evaluated_rounds]
    ends = [row.end_s / times.per for row in run.evaluated_rounds]
    used = _accumulate(run, "energy_j", joules.per)
    return (
        _accuracy_chart(run, "rounds", chart.round_axis(len(run.rounds)), numbers, others={}, caption=EVERY_ROUND),
        _accuracy_chart(run, "time", clock, ends, others=maxn_time, caption=over_time),
        _accuracy_chart(run, "energy", spent, used, others=maxn_energy, caption=over_energy),
    )


def _accumulate(run: LoadedRun, column: str, per: float) -> list[float]:
    return [total / per for total in run.accumulate(column)]


def _list_maxn_ends_s(run: LoadedRun) -> list[float]:
    """Return when the evaluated rounds would end at MAXN; the clock waits for the same evaluations between them."""
    ends_s, start_s = [], 0.0
    for row in run.rounds:
        end_s = start_s + (row.maxn_round_s or 0.0)
        start_s = end_s + (row.evaluation_s or 0.0)
        if row.accuracy is not None:
            ends_s.append(end_s)
    return ends_s


def _accuracy_chart(
    run: LoadedRun,
    key: str,
    xaxis: dict[str, object],
    x: Sequence[float],
    *,
    others: dict[str, list[float]],
    caption: str,
) -> Chart:
    metric = run.experiment.workload.metric
    scale = metric_scale(metric)
    y, digits = [value / scale.per for value in run.accuracies], ".1f" if scale.unit else ".3g"
    shown = f"%{{x:.4~g}}: %{{y:{digits}}} {scale.unit}"
    data: list[Trace] = [
        line_trace(name, other, y, colour=GREY, width=1.5, dash=dash, markers=False, hover=shown)
        for (name, other), dash in zip(others.items(), ("dash", "dot"), strict=False)
    ]
    hover = [
        f"round {row.round}: {at:{digits}} {scale.unit}, loss {number(row.loss)}"
        for row, at in zip(run.evaluated_rounds, y, strict=True)
    ]
    data.append(line_trace("this run", x, y, colour=COLOURS[0], hover=hover))
    title, up = f"Over {key}", axis(metric_title(metric))
    return chart.xy_chart(f"accuracy-{key}", title, data, xaxis=xaxis, yaxis=up, caption=caption, height_px=280)


def build_evaluation_sections(run: LoadedRun) -> Iterator[Section]:
    """Yield the section on the clients' evaluations; none without any."""
    rows = [row for row in read_rows(run.folder, EvaluationRow) if row.accuracy is not None]
    if not rows:
        return
    metric = run.experiment.workload.metric
    scale = metric_scale(metric)
    data = [
        chart.scatter_trace(
            "each client",
            of=rows,
            x=lambda row: row.round,
            y=lambda row: row.accuracy / scale.per,
            marker={"color": GREY, "size": 5},
            hover=lambda row: f"{row.board}: {format_metric(metric, row.accuracy)}, {row.samples} samples",
        )
    ]
    for name, field, colour in (("clients", "client_accuracy", COLOURS[1]), ("server", "accuracy", COLOURS[0])):
        known = [(row.round, reached / scale.per) for row in run.rounds if (reached := getattr(row, field)) is not None]
        hover = f"round %{{x}}: %{{y:.3~g}} {scale.unit}"
        if known:
            data.append(line_trace(name, *zip(*known, strict=True), colour=colour, hover=hover))
    clients = chart.xy_chart(
        "accuracy-clients",
        "Over rounds",
        data,
        xaxis=chart.round_axis(len(run.rounds)),
        yaxis=axis(metric_title(metric).removeprefix("test ")),
        caption="Line: as the strategy aggregates the clients' results. Dots: each client on its own test samples.",
        height_px=300,
        showlegend=True,
    )
    lead = "The model on the clients' test samples, beside the server's."
    yield Section("Evaluation by clients", lead, (clients,))
