"""The page that compares runs: a sentence per group, tables, and charts of accuracy, time, energy and predictions."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from experiments.report.page import Section, render_head, render_page, render_paragraph
from experiments.report.quantities import duration, energy, percent
from experiments.report.run import comparison_charts, comparison_tables, pareto_charts, seed_comparison
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_emulation import describe_emulation
from experiments.report.run.seed_groups import RunFigure, SeedGroup, group_by_experiment, has_several_seeds
from experiments.report.tables import Table

ERRORS_LEAD = (
    "Means over the boards. Over all modes, against the emulated truth: before the first measurement, and in the last "
    "round. In the modes used in the last round: against measurements."
)


def render_comparison(runs: Sequence[LoadedRun], first: Sequence[Section] = ()) -> str:
    """Render the page, with the sections ``first`` before the others."""
    groups = group_by_experiment(runs)
    title = f"{len(runs)} runs side by side"
    foot = Markup("<br>").join(f"{run.name}: {run.folder}" for run in runs)
    sections = [*first, *_build_sections(runs, groups)]
    return render_page(title, _render_comparison_head(title, runs, groups), sections, foot)


def list_comparison_tables(runs: Sequence[LoadedRun]) -> tuple[Table, ...]:
    """Return the tables of a comparison; those over seeds only if there are several."""
    groups = group_by_experiment(runs)
    over_seeds = (
        seed_comparison.seed_summary_table(runs, groups),
        seed_comparison.seed_errors_table(groups),
        seed_comparison.paired_difference_table(runs, groups),
    )
    return (
        comparison_tables.cost_table(runs),
        comparison_tables.saving_table(runs),
        *(over_seeds if has_several_seeds(groups) else ()),
        comparison_tables.prediction_errors_table(runs),
        comparison_tables.labels_table(runs),
        comparison_tables.differences_table(runs),
    )


def _build_sections(runs: Sequence[LoadedRun], groups: Sequence[SeedGroup]) -> list[Section]:
    tables = comparison_tables.cost_table(runs).html + comparison_tables.saving_table(runs).html
    marks = "One mark per group: the mean over its seeds." if has_several_seeds(groups) else "One mark per run."
    errors = comparison_charts.describe_left_out_runs(runs) + comparison_tables.prediction_errors_table(runs).html
    accuracy = comparison_charts.accuracy_over_cost_charts(runs)
    differences = comparison_tables.render_differences(runs)
    return [
        Section("Every run", "★ marks the best figure of a column.", (), tables),
        *seed_comparison.build_seed_sections(runs),
        Section("Accuracy", "Test accuracy over simulated time and energy.", accuracy),
        Section("Time against energy", marks, pareto_charts.build_pareto_charts(groups)),
        Section("Cost", "One bar per run.", comparison_charts.cost_bar_charts(runs)),
        Section("Prediction error", ERRORS_LEAD, comparison_charts.prediction_error_charts(runs), errors),
        Section("Labels", "Provenance of each run's figures.", (), comparison_tables.labels_table(runs).html),
        Section("Differences", "Fields in which the experiments differ.", (), differences),
    ]


def _render_comparison_head(title: str, runs: Sequence[LoadedRun], groups: Sequence[SeedGroup]) -> Markup:
    texts = dict.fromkeys(describe_emulation(run) for run in runs)
    same = next(iter(texts)) if len(texts) == 1 else "The runs differ in workload or cost: see Differences below."
    sentence = Markup('<i class="swatch" style="background:{}"></i>{}')
    sentences = [render_paragraph(sentence.format(group.colour, text)) for group, text in describe_groups(groups)]
    return render_head(title, dict.fromkeys(run.experiment.name for run in runs), *sentences, render_paragraph(same))


# Sentences ------------------------------------------------------------------------------------------------------------


def describe_groups(groups: Sequence[SeedGroup]) -> list[tuple[SeedGroup, str]]:
    """Return a sentence per group: first the reference, which is the group with policy maxn or else the first one."""
    reference = next((one for one in groups if one.runs[0].experiment.policy.name == "maxn"), groups[0])
    others = [(one, _describe_against(one, reference)) for one in groups if one is not reference]
    return [(reference, _describe_reference(reference)), *others]


def _describe_reference(group: SeedGroup) -> str:
    joules, seconds, accuracy = (_mean_over(group, figure, [*group.by_seed]) for figure in FIGURES)
    over = f"; means over {len(group.by_seed)} seeds" if len(group.by_seed) > 1 else ""
    return f"{group.name}: {energy(joules)}, {duration(seconds)}, accuracy {percent(accuracy)}{over}."


def _describe_against(group: SeedGroup, reference: SeedGroup) -> str:
    """Compare the means over common seeds; over all seeds if there is none in common."""
    common = [seed for seed in group.by_seed if seed in reference.by_seed]
    ours, theirs = (
        [_mean_over(one, figure, common or [*one.by_seed]) for figure in FIGURES] for one in (group, reference)
    )
    saved = _describe_change(ours[0] / theirs[0] - 1, "energy")
    slower = _describe_change(ours[1] / theirs[1] - 1, "time")
    rounds = [max(len(run.rounds) for run in one.runs) for one in (group, reference)]
    unequal = f" ({rounds[0]} rounds against {rounds[1]})" if rounds[0] != rounds[1] else ""
    over = f"; means over {len(common)} common seeds" if len(common) > 1 else ""
    accuracy = f"accuracy {percent(ours[2])} against {percent(theirs[2])}"
    return f"{group.name}: {saved}, {slower} than {reference.name}{unequal}; {accuracy}{over}."


def _describe_change(share: float, what: str) -> str:
    """Describe a relative change, in whole percent if that tells it to two digits."""
    if abs(share) < 0.0005:
        return f"no more {what}"
    return f"{percent(abs(share), 0 if abs(share) >= 0.0995 else 1)} {'less' if share < 0 else 'more'} {what}"


FIGURES: tuple[RunFigure, ...] = (
    lambda run: run.energy_with_idle_j,
    lambda run: run.summary["makespan_s"],
    lambda run: run.summary["final_accuracy"],
)
"""Energy in joules, time in seconds, and accuracy of a run."""


def _mean_over(group: SeedGroup, figure: RunFigure, seeds: Sequence[int]) -> float:
    return sum(figure(group.by_seed[seed]) or 0.0 for seed in seeds) / len(seeds)
