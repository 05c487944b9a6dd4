"""``fedge sweep``: runs an experiment with other keys and seeds, side by side on Ray, and prints one summary table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import AsJson, DryRun, Jobs
from experiments.cli.command_output import check_folder, make_console, print_json, print_plan, show_job_progress, warn
from experiments.cli.run_experiment import (
    RayDashboard,
    RayPort,
    interrupt_on_sigterm,
    open_ray_dashboard,
    resolve_ray_port,
)
from experiments.report.tables import print_lines
from fedge.atomic_files import write_text
from fedge.errors import RunFailed
from fedge.json_reader import read_json
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from experiments.sweeps.point_plan import SweepPlan
    from experiments.sweeps.sweep_summary import SweepSummary

TABLE_CSV = "sweep.csv"


def sweep(
    config: Annotated[Path, typer.Argument(metavar="SWEEP", help="YAML file of the sweep.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Folder to write; by default runs/sweep-<name>. An earlier one is continued.",
        ),
    ] = None,
    jobs: Jobs = None,
    *,
    dry_run: DryRun = False,
    ray_dashboard: RayDashboard = False,
    ray_dashboard_port: RayPort = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment with other keys and seeds, and compare the results.

    Started again, it repeats nothing that ended.

    Example: fedge sweep experiments/configs/policies-sweep.yaml --jobs 2
    """
    check_folder("--folder", out or run_folder.RUNS)
    from experiments.sweeps.point_plan import plan_sweep
    from experiments.sweeps.sweep_driver import check_sweep, choose_sweep_folder

    folder, plan = choose_sweep_folder(config, out), plan_sweep(config, warn)
    check_sweep(plan)
    if dry_run:
        print_plan({"sweep": config.stem, "points": plan.count, "folder": str(folder)}, as_json)
        return
    summary = _run_shown(plan, folder, jobs, resolve_ray_port(ray_dashboard, ray_dashboard_port))
    _show_results(summary, folder, as_json)
    if summary.failures:
        reasons = "; ".join(f"{point}: {reason.splitlines()[0]}" for point, reason in summary.failures.items())
        raise RunFailed(f"{len(summary.failures)} of {summary.planned} points failed: {reasons}")


def _show_results(summary: SweepSummary, folder: Path, as_json: bool) -> None:
    """Print the sweep's table, and write it and the report into the sweep's folder."""
    from experiments.report.run.run_page import write_report
    from experiments.report.run.sweep_report import build_sweep_sections, sweep_table
    from experiments.sweeps.sweep_summary import SUMMARY_JSON, list_point_folders

    console, table = make_console(stderr=as_json), sweep_table(summary)
    table.print(console)
    write_text(folder / TABLE_CSV, table.csv)
    points = list_point_folders(folder, summary)
    if points:
        write_report(points, folder / run_folder.REPORT, build_sweep_sections([folder]))
    print_lines(console, _list_notes(summary, folder / run_folder.REPORT))
    if as_json:
        print_json(read_json(folder / SUMMARY_JSON, "the summary of the sweep", finite=False))


def _run_shown(plan: SweepPlan, folder: Path, workers: int | None, ray_port: int | None) -> SweepSummary:
    """Run the sweep with a progress bar, and with Ray's dashboard if a port is given."""
    from experiments.sweeps.sweep_driver import run_sweep

    try:
        with interrupt_on_sigterm(), ExitStack() as stack:
            if ray_port is not None:
                from experiments.backends.ray_dashboard import check_dashboard_port

                check_dashboard_port(ray_port or None, os.environ)
                stack.enter_context(open_ray_dashboard(ray_port, os.cpu_count() or 1, folder, make_console()))
            report_point = stack.enter_context(show_job_progress(plan.count))
            return run_sweep(plan, folder, workers, report_point)
    except KeyboardInterrupt:
        warn("stopped; the same command goes on with the points that have not ended")
        raise


def _list_notes(summary: SweepSummary, report: Path) -> Sequence[str]:
    notes = []
    if summary.best is not None:
        notes.append(f"best: {summary.best}")
    if len(summary.packages) > 1:
        notes.append(f"note: the points were run by different states of fedge: {', '.join(summary.packages)}")
    return [*notes, f"report: {report}"] if summary.finished_count else notes
