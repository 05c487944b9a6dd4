"""Writes every table of a report as NAME.csv and NAME.tex."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.report.html_elements import ReportTable
from experiments.report.run import error_quantiles, memory_section, run_tables, seed_comparison, serving_section
from experiments.report.run.loaded_runs import LoadedRun, load_run, load_runs
from experiments.report.run.seed_groups import group_by_experiment
from fedge.errors import BadInput
from fedge.telemetry import run_folder


def write_report_tables(folders: Sequence[Path], out: Path) -> tuple[Path, ...]:
    """Write all tables of a report.

    Args:
        folders: One or more run folders.
        out: The folder to write to; existing files are replaced atomically.

    Returns:
        The files written.

    Raises:
        BadInput: If a folder is not a run folder.
    """
    if not folders:
        raise BadInput("report", "no run folder", "one or more")
    found = list_run_tables(load_run(folders[0])) if len(folders) == 1 else list_comparison_tables(load_runs(folders))
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for table in found:
        for suffix, told in (("csv", table.csv), ("tex", table.latex)):
            written.append(out / f"{table.key}.{suffix}")
            run_folder.write_text(written[-1], told)
    return tuple(written)


def list_run_tables(run: LoadedRun) -> tuple[ReportTable, ...]:
    """Return the tables of one run's report with all their rows."""
    found = (
        run_tables.provenance_table(run),
        run_tables.errors_by_samples_table(run),
        error_quantiles.error_quantile_table(run),
        serving_section.serving_table(run),
        memory_section.memory_reduction_table(run),
        run_tables.events_table(run),
        run_tables.last_round_table(run),
    )
    return tuple(table for table in found if table.rows)


def list_comparison_tables(runs: Sequence[LoadedRun]) -> tuple[ReportTable, ...]:
    """Return the tables of a comparison; those over seeds only if there are several."""
    groups = group_by_experiment(runs)
    seeds = seed_comparison.has_several_seeds(groups)
    found = (
        run_tables.runs_table(runs),
        *(
            (seed_comparison.seed_summary_table(runs, groups), seed_comparison.paired_difference_table(runs, groups))
            if seeds
            else ()
        ),
        run_tables.prediction_errors_table(runs),
        run_tables.labels_table(runs),
        run_tables.differences_table(runs),
    )
    return tuple(table for table in found if table.rows)
