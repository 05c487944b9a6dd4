"""The page that compares runs: a sentence per group, tables, and charts of accuracy, time, energy and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from experiments.report.page import Section, render_badge, render_page, render_paragraph
from experiments.report.quantities import capitalise, duration, energies, energy, format_metric, number, percent
from experiments.report.run import comparison_charts, seed_comparison
from experiments.report.run.loaded_runs import LoadedRun, find_metric
from experiments.report.run.prediction_section import explain_missing_errors
from experiments.report.run.run_names import flatten_experiment
from experiments.report.run.run_tables import describe_emulation
from experiments.report.run.seed_comparison import HeadlineFigure, RunFigure, SeedGroup, format_each, summary_figure
from experiments.report.tables import Cell, Table, number_cell, percent_cell, swatch_cell, text_cell

MEGABYTES, SHARES, COUNTS = format_each(number, 3, "MB"), format_each(percent, 0), format_each(format, ".0f")
CLIENT_FIGURES = (
    summary_figure("moved", "client_moved_mb", MEGABYTES, "MB"),
    summary_figure("energy", "client_energy_j", energies, "J"),
    summary_figure("energy of a step", "client_step_j", energies, "J"),
    summary_figure("peak memory", "client_memory_mb", MEGABYTES, "MB"),
    summary_figure("predicted memory", "client_predicted_memory_mb", MEGABYTES, "MB"),
)
SAVING_FIGURES = (
    summary_figure("saving vs MAXN", "saving_vs_maxn", format_each(percent), better=max),
    HeadlineFigure("of oracle's saving", lambda run: run.share_of_oracle_saving("maxn").share, SHARES, better=max),
    summary_figure("saving vs MAXN, low idle", "saving_vs_maxn_parked", format_each(percent), better=max),
    HeadlineFigure(
        "of oracle's saving, low idle", lambda run: run.share_of_oracle_saving("maxn_parked").share, SHARES, better=max
    ),
    summary_figure("late", "late", COUNTS),
    summary_figure("failed", "failed", COUNTS),
    summary_figure("cancelled", "cancelled", COUNTS, better=None),
)


MAX_NAMED_RUNS = 3
"""Runs that a sentence names before it counts them; a default that keeps it short."""


def _costs_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table with accuracy, energy and time of every run; accuracy as a share, as in the store."""
    metric = replace(seed_comparison.metric_figure(find_metric(runs)), unit="", per=1.0)
    accuracy = (metric,) if any(run.accuracies for run in runs) else ()
    costs = (seed_comparison.ENERGY, seed_comparison.MEAN_ROUND, seed_comparison.MAKESPAN)
    return _runs_table("runs", runs, (*accuracy, *costs, *reversed(seed_comparison.list_goal_figures(runs))))


def client_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table with what a client of every run moves, draws and needs in a round on average."""
    return _runs_table("clients", runs, CLIENT_FIGURES)


def _runs_table(key: str, runs: Sequence[LoadedRun], columns: Sequence[HeadlineFigure]) -> Table:
    """Build a table of figures of every run, the best value of each column highlighted.

    Beside the number of rounds is the number that savings cover, if it is smaller.
    """
    by_column, rows = [column.build_cells(runs) for column in columns], []
    for i, run in enumerate(runs):
        compared = f" (savings: {len(run.compared_rounds)})" if run.compared_note else ""
        rounds = number_cell(f"{len(run.rounds)}{compared}", len(run.rounds))
        rows.append((swatch_cell(run.style.colour, run.name), rounds, *(cells[i] for cells in by_column)))
    return Table(key, ("run", "rounds", *(column.heading for column in columns)), tuple(rows))


def differences_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table of the experiment fields that differ, with the longer side down; without rows if none differs."""
    differences = find_experiment_differences(runs)
    if 0 < len(differences) < len(runs):
        rows = tuple(
            (swatch_cell(run.style.colour, run.name), *(text_cell(values[i]) for values in differences.values()))
            for i, run in enumerate(runs)
        )
        return Table("differences", ("run", *differences), rows)
    rows = tuple((text_cell(key), *(text_cell(value) for value in values)) for key, values in differences.items())
    return Table("differences", ("field", *(run.name for run in runs)), rows)


def find_experiment_differences(runs: Sequence[LoadedRun]) -> dict[str, tuple[str, ...]]:
    """Return the experiment fields that differ, each with its value per run."""
    flat = [dict(flatten_experiment(run.experiment)) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    values = {key: tuple(str(one.get(key, "")) for one in flat) for key in keys}
    return {key: texts for key, texts in values.items() if len(set(texts)) > 1}


def labels_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table of each run's provenance: its kinds of board by the label of their costs and priors."""
    rows = []
    for run in runs:
        cells = []
        for which in ("truth", "prior"):
            listed = {label: ", ".join(names) for label, names in _group_by_label(run, which).items()}
            content = Markup("<br>").join(render_badge(label) + f" {names}" for label, names in listed.items())
            cells.append(Cell(content, words="; ".join(f"{label}: {names}" for label, names in listed.items())))
        rows.append((swatch_cell(run.style.colour, run.name), *cells))
    return Table("labels", ("run", "time and power", "prior of predictions"), tuple(rows))


def _group_by_label(run: LoadedRun, which: str) -> dict[str, list[str]]:
    """Return a run's fleet entries by the label of their ``truth`` or ``prior``, both sorted by label."""
    boards: dict[str, dict[str, None]] = {}
    for entry in run.experiment.fleet:
        name = entry.name or entry.device
        labels = run.labels.get(name) or run.labels.get(entry.device) or {}
        boards.setdefault((labels.get(which) or {}).get("label", "not recorded"), {})[name] = None
    return {label: list(names) for label, names in sorted(boards.items())}


def describe_unlike_labels(runs: Sequence[LoadedRun]) -> list[str]:
    """Return a sentence if the runs' time and power are not of the same labels; a difference may then be theirs."""
    by_labels: dict[str, list[str]] = {}
    for run in runs:
        by_labels.setdefault(" and ".join(_group_by_label(run, "truth")), []).append(run.name)
    if len(by_labels) < 2:
        return []
    named = "; ".join(
        f"{labels} in {' and '.join(names) if len(names) <= MAX_NAMED_RUNS else f'{len(names)} runs'}"
        for labels, names in by_labels.items()
    )
    return [f"Time and power do not come from alike sources, which may be the difference: {named}."]


def prediction_errors_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table of each run's prediction errors before the first and in the last round."""
    columns = {
        f"{key}: {what}": name
        for key in ("time", "power")
        for what, name in (
            ("prior", f"prior_{key}_mape"),
            ("last round", f"last_{key}_mape"),
            ("modes used", f"last_{key}_ape"),
        )
    }
    rows = tuple(
        (swatch_cell(run.style.colour, run.name), *(percent_cell(run.summary[name]) for name in columns.values()))
        for run in runs
    )
    return Table("prediction-errors", ("run", *columns), rows)


CLIENTS_LEAD = (
    "Means over the rounds that clients finished. Moved: the model fetched and the one sent. Memory: the peak that the "
    "boards reported, emulated where they are, and its prediction for the priced network."
)
EVERY_RUN_LEAD = "★ marks the best figure of a column. Energy is that of all boards, idle and evaluating ones too."
ERRORS_LEAD = (
    "Means over the boards. Over all modes, against the emulated truth: before the first measurement, and in the last "
    "round. In the modes used in the last round: against measurements."
)


def render_comparison(runs: Sequence[LoadedRun], first: Sequence[Section] = ()) -> str:
    """Render the page, with the sections ``first`` before the others."""
    groups = seed_comparison.group_by_experiment(runs)
    texts = {describe_emulation(run) for run in runs}
    differ = "The runs differ in workload, cost or bytes moved: see Differences below."
    return render_page(
        f"{len(runs)} runs side by side",
        [*first, *build_comparison_sections(runs)],
        Markup("<br>").join(f"{run.name}: {run.folder}" for run in runs),
        facts=dict.fromkeys(run.experiment.name for run in runs),
        notes=[
            *(swatch_cell(group.colour, text).content for group, text in describe_groups(groups)),
            *describe_unlike_labels(runs),
            texts.pop() if len(texts) == 1 else differ,
        ],
    )


def list_comparison_tables(runs: Sequence[LoadedRun]) -> tuple[Table, ...]:
    """Return the tables of a comparison; those over seeds only if there are several."""
    groups = seed_comparison.group_by_experiment(runs)
    return (
        _costs_table(runs),
        _runs_table("savings", runs, SAVING_FIGURES),
        client_table(runs),
        *(seed_comparison.list_seed_tables(runs, groups) if seed_comparison.has_several_seeds(groups) else ()),
        prediction_errors_table(runs),
        labels_table(runs),
        differences_table(runs),
    )


def build_comparison_sections(runs: Sequence[LoadedRun]) -> list[Section]:
    """Build the sections of the page, in their order."""
    groups, metric, trained = (
        seed_comparison.group_by_experiment(runs),
        find_metric(runs),
        [run for run in runs if run.accuracies],
    )
    costs = _costs_table(runs).html + _runs_table("savings", runs, SAVING_FIGURES).html
    marks = (
        "One mark per group: the mean over its seeds."
        if seed_comparison.has_several_seeds(groups)
        else "One mark per run."
    )
    left_out = [f"{run.name}: {reason}" for run in runs if (reason := explain_missing_errors(run))]
    notes = Markup().join(render_paragraph(sentence, "caption") for sentence in left_out)
    errors = tuple(comparison_charts.prediction_error_charts(runs))
    accuracy = tuple(comparison_charts.accuracy_over_cost_charts(trained)) if trained else ()
    over = f"Test {metric} over simulated time and energy."
    same = render_paragraph("These runs come from the same experiment, field by field.")
    return [
        Section("Every run", EVERY_RUN_LEAD, (), costs),
        Section("Per client and round", CLIENTS_LEAD, (), client_table(runs).html),
        *seed_comparison.build_seed_sections(runs, groups),
        *([Section(capitalise(metric), over, accuracy)] if accuracy else []),
        Section("Time against energy", marks, comparison_charts.build_pareto_charts(groups)),
        Section("Cost", "One bar per run.", comparison_charts.cost_bar_charts(runs)),
        Section("Prediction error", ERRORS_LEAD, errors, notes + prediction_errors_table(runs).html),
        Section("Labels", "Provenance of each run's figures.", (), labels_table(runs).html),
        Section("Differences", "Fields in which the experiments differ.", (), differences_table(runs).html or same),
    ]


# Sentences ------------------------------------------------------------------------------------------------------------


def describe_groups(groups: Sequence[SeedGroup]) -> list[tuple[SeedGroup, str]]:
    """Return a sentence per group: first the reference, which is the group with policy maxn or else the first one."""
    reference = next((one for one in groups if one.runs[0].experiment.policy.name == "maxn"), groups[0])
    others = [(one, _describe_against(one, reference)) for one in groups if one is not reference]
    return [(reference, _describe_reference(reference)), *others]


def _describe_reference(group: SeedGroup) -> str:
    joules, seconds = (_mean_over(group, figure, [*group.by_seed]) for figure in FIGURES)
    accuracy, metric = _mean_accuracy(group, [*group.by_seed]), find_metric(group.runs)
    reached = "" if accuracy is None else f", {metric} {format_metric(metric, accuracy)}"
    over = f"; means over {len(group.by_seed)} seeds" if len(group.by_seed) > 1 else ""
    return f"{group.name}: {energy(joules)}, {duration(seconds)}{reached}{over}."


def _describe_against(group: SeedGroup, reference: SeedGroup) -> str:
    """Compare the means over common seeds; over all seeds if there is none in common."""
    common = [seed for seed in group.by_seed if seed in reference.by_seed]
    both = [(one, common or [*one.by_seed]) for one in (group, reference)]
    changes = []
    for figure, what in zip(FIGURES, ("energy", "time"), strict=True):
        ours, theirs = (_mean_over(one, figure, seeds) for one, seeds in both)
        changes.append(_describe_change(ours / theirs - 1, what))
    rounds = [max(len(run.rounds) for run in one.runs) for one, _ in both]
    unequal = f" ({rounds[0]} rounds against {rounds[1]})" if rounds[0] != rounds[1] else ""
    reached, other = (_mean_accuracy(one, seeds) for one, seeds in both)
    metric = find_metric([*group.runs, *reference.runs])
    known = reached is not None and other is not None
    accuracy = f"; {metric} {format_metric(metric, reached)} against {format_metric(metric, other)}" if known else ""
    over = f"; means over {len(common)} common seeds" if len(common) > 1 else ""
    return f"{group.name}: {', '.join(changes)} than {reference.name}{unequal}{accuracy}{over}."


def _describe_change(share: float, what: str) -> str:
    """Describe a relative change, in whole percent if that tells it to two digits."""
    if abs(share) < 0.0005:
        return f"no more {what}"
    return f"{percent(abs(share), 0 if abs(share) >= 0.0995 else 1)} {'less' if share < 0 else 'more'} {what}"


FIGURES: tuple[RunFigure, ...] = (
    lambda run: run.energy_with_idle_j,
    lambda run: run.summary["makespan_s"],
)
"""Energy in joules and time in seconds of a run."""


def _mean_accuracy(group: SeedGroup, seeds: Sequence[int]) -> float | None:
    values = [group.by_seed[seed].summary["final_accuracy"] for seed in seeds]
    return None if None in values else sum(values) / len(values)


def _mean_over(group: SeedGroup, figure: RunFigure, seeds: Sequence[int]) -> float:
    return sum(figure(group.by_seed[seed]) or 0.0 for seed in seeds) / len(seeds)
