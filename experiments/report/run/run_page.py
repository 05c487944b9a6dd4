"""Writes the report of one run, or a comparison of several, as one HTML file, and its tables as CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from experiments.report.page import Card, Section, render_page
from experiments.report.quantities import UNKNOWN, capitalise, duration, energy, format_metric, number, percent
from experiments.report.run import (
    accuracy_section,
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
from fedge.workloads import NULL_TASK
from fedge.yaml_files import format_value

MODES_LEAD = Markup(
    'Colour: share of the board\'s maximum, 0<span class="scale"></span>100 %. Hover for the exact value. '
)


def write_report(folders: Sequence[Path], out: Path, first: Sequence[Section] = ()) -> None:
    """Write the report of one run folder, or a comparison of several, atomically.

    Args:
        folders: The run folders.
        out: The HTML file.
        first: Sections at the head of a comparison.

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
    """Write all tables of a report, as NAME.csv and NAME.tex, and return their paths.

    Existing files are replaced atomically.

    Args:
        folders: The run folders.
        out: The folder of the files.
        first: Tables besides those of the runs.

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
    """Return the tables of one run's report with all their rows."""
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
    experiment, boards, done = run.experiment, len(run.device_by_board), len(run.rounds)
    kinds = ", ".join(f"{sum(k == device for k in run.device_by_board.values())} {device}" for device in run.devices)
    rounds = f"{done} of {experiment.rounds}" if done < experiment.rounds else str(done)
    return render_page(
        f"{run.name}: {run.experiment.policy.name}",
        build_run_sections(run),
        f"Run folder: {run.folder}",
        heading=run.name,
        facts=(
            Markup("policy <b>{}</b>").format(experiment.policy.name),
            f"{rounds} round{'s' * (experiment.rounds > 1)}",
            f"{boards} board{'s' * (boards > 1)} ({kinds})",
            experiment.strategy.name,
            f"predictor {experiment.predictor}",
            f"backend {experiment.backend}",
            f"seed {experiment.seed}",
            *_describe_options(experiment),
            *(["trained on CUDA, not bit-reproducible"] if choose_training_device(experiment) != "cpu" else []),
        ),
        cards=_list_cards(run),
        notes=(describe_emulation(run), *map(capitalise, run_tables.describe_estimates(run.labels))),
        below=run_tables.provenance_table(run).html,
    )


def _describe_options(experiment: Experiment) -> Iterator[str]:
    """Yield how the data are divided, and what only some runs have: a schedule, mods, and plans of placements."""
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


def _list_cards(run: LoadedRun) -> list[Card]:
    """List the headline figures, each with a reference value."""
    figure = run.summary
    training = f"{energy(figure['train_energy_j'])} of it for training"
    clock = f"on the fleet clock; wall time {duration(figure['wall_s'])}"
    loss, metric = f"test loss {number(figure['final_loss'])}", run.experiment.workload.metric
    return [
        *([Card(f"Final {metric}", format_metric(metric, figure["final_accuracy"]), loss)] if run.accuracies else []),
        Card("Energy of the fleet", energy(figure["energy_j"]), training),
        Card("Makespan", duration(figure["makespan_s"]), clock),
        *accuracy_section.list_evaluation_cards(run),
        *_list_special_cards(run),
        *([] if run.asynchronous else _list_maxn_cards(run)),
    ]


def _list_maxn_cards(run: LoadedRun) -> list[Card]:
    length = run.summary["round_vs_maxn"]
    return [
        _saving_card(run, "Saving vs MAXN", "maxn", "at work and while idle"),
        _saving_card(run, "Saving vs MAXN, low idle", "maxn_parked", "at work, lowest mode while idle"),
        Card(
            "Mean round vs MAXN",
            UNKNOWN if length is None else f"{length:.2f} ×",
            "; ".join(filter(None, (_describe_round_lengths(run), run.compared_note))),
        ),
        _oracle_share_card(run, "Share of the oracle's saving", "maxn", "MAXN"),
        _oracle_share_card(run, "The same, low idle", "maxn_parked", "MAXN, low idle"),
    ]


def _describe_round_lengths(run: LoadedRun) -> str:
    """Describe the mean round time and MAXN's, over the same rounds if they can be compared."""
    rounds = run.compared_rounds or run.rounds
    mean_s = sum(row.round_s for row in rounds) / len(rounds)
    return f"{duration(mean_s)}; MAXN: {duration(run.summary['maxn_mean_round_s'])}"


def _list_special_cards(run: LoadedRun) -> Iterator[Card]:
    """Yield cards that only some runs have: stale results, cancelled clients, idle boards, an energy budget."""
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
    if figure["budget_j"] is not None:
        resting = f", {energy(figure['resting_energy_j'])} by boards at rest" if figure["resting_energy_j"] else ""
        remark = figure["ended"] or f"of {energy(figure['budget_j'])}{resting}"
        yield Card("Energy budget spent", percent(figure["budget_spent"]), remark)


def _saving_card(run: LoadedRun, name: str, baseline: str, how: str) -> Card:
    spent_j = [getattr(row, f"{baseline}_energy_j") for row in run.compared_rounds]
    facts = (f"MAXN {how}: {energy(sum(spent_j) if spent_j else None)}", run.compared_note)
    return Card(name, percent(run.summary[f"saving_vs_{baseline}"]), "; ".join(filter(None, facts)))


def _oracle_share_card(run: LoadedRun, name: str, baseline: Baseline, reference: str) -> Card:
    best = percent(run.summary[f"oracle_saving_vs_{baseline}"])
    found = run.share_of_oracle_saving(baseline)
    facts = (found.why, f"the oracle saves {best} vs {reference}")
    return Card(name, percent(found.share, 0), "; ".join(filter(None, facts)))


# Sections -------------------------------------------------------------------------------------------------------------


def build_run_sections(run: LoadedRun) -> list[Section]:
    """Build the sections of one run's page, in their order."""
    note = sample_run(run).note
    took_part = timeline_charts.build_participation_charts(run)
    lead = "Selected boards, their outcome and their charge."
    participation = [Section("Participation", lead, took_part)] if took_part else []
    metric = run.experiment.workload.metric
    tested = f"Test {metric} over rounds, time and energy."
    accuracy = (
        [Section(capitalise(metric), tested, accuracy_section.build_accuracy_charts(run))] if run.accuracies else []
    )
    return [
        *accuracy,
        *accuracy_section.build_evaluation_sections(run),
        Section(
            "Timeline", timeline_charts.TIMELINE_LEADS[run.asynchronous], timeline_charts.build_timeline_charts(run)
        ),
        *participation,
        Section("Energy", "Energy by board and phase.", (energy_section.client_energy_chart(run),)),
        energy_section.build_power_section(run),
        *board_sections.build_serving_sections(run),
        *board_sections.build_work_sections(run),
        *board_sections.build_memory_sections(run),
        Section("Power modes", MODES_LEAD + note, board_sections.build_mode_charts(run)),
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
