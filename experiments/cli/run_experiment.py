"""``fedge run`` and ``fedge resume``: checks, launches and shows an experiment, and prints the report's path."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.command_options import AsJson, DryRun, Jobs, Overrides, Run, Tags
from experiments.cli.command_options import Experiment as ExperimentFile
from experiments.cli.command_output import (
    check_folder,
    make_console,
    make_progress_console,
    print_json,
    print_plan,
    warn,
)
from experiments.report.tables import print_lines
from fedge.errors import LOWER_RATE, RunFailed, prefix_errors
from fedge.phases import begin_phase
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.experiment import Experiment

RayDashboard = Annotated[bool, typer.Option("--ray-dashboard", help="Show the boards on Ray's own dashboard.")]
RayPort = Annotated[
    int | None, typer.Option("--ray-dashboard-port", min=1024, max=65535, help="Port of Ray's dashboard.")
]
NO_BOARD_MESSAGE = "no board can be asked"
"""The server's message if boards are gone for good or their batteries too low."""


BUDGET_HINT = "raise policy.budget_j"
"""Part of the launcher's message if not even the first round fits the energy budget."""


def run(
    config: ExperimentFile,
    backend: Annotated[str | None, typer.Option(help="local, sim or fleet; by default the file's own.")] = None,
    *,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of all random choices; by default the file's own.")
    ] = None,
    override: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Folder to write; by default runs/<name>-<overrides>-<time>."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the run, whose folder is runs/NAME.")
    ] = None,
    tags: Tags = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    ray_dashboard: RayDashboard = False,
    ray_dashboard_port: RayPort = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment and write its run folder.

    Example: fedge run experiments/configs/quickstart.yaml --set rounds=3
    """
    check_folder("--folder", out or run_folder.RUNS)
    from experiments.spec import experiment_checks
    from experiments.spec.experiment_loader import blame_overrides, load_experiment, parse_override

    given = {"backend": backend, "seed": seed, "jobs": jobs}
    overrides = [*(override or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    console = make_console(stderr=as_json)
    begin_phase("reading the experiment and counting its network's layers")
    experiment = load_experiment(config, overrides, note=warn)
    experiment_checks.require_libraries(experiment, "fedge run")
    begin_phase("checking task, data, boards and their costs")
    from experiments.backends import launcher

    experiment = launcher.add_tags(experiment, tags or ())
    changes = [parse_override(override) for override in overrides]
    folder = launcher.choose_folder(experiment, out, name=name, changes=changes)
    with blame_overrides(config, [key for key, _ in changes]), prefix_errors(str(config)):
        launcher.check_runnable(experiment)
        if not dry_run:
            launcher.start_local_workers(experiment)
        print_lines(console, _list_start_notes(experiment, config))
    if dry_run:
        print_plan(describe_plan(experiment, folder), as_json)
        return
    # The dashboard is not stored with the experiment: a run resumed without it is not shown.
    execute = partial(launcher.start_run, written=experiment)
    with _mirror_to_ray(experiment, folder, resolve_ray_port(ray_dashboard, ray_dashboard_port), console) as mirrored:
        _launch(execute, mirrored, folder, console=console, as_json=as_json)


def resume(
    folder: Run,
    ray_dashboard: RayDashboard = False,
    ray_dashboard_port: RayPort = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run from its last checkpoint.

    Example: fedge resume runs/office
    """
    from experiments.backends import launcher

    experiment, console = launcher.load_saved_experiment(folder), make_console(stderr=as_json)
    with prefix_errors(str(folder / run_folder.RUN_YAML)):
        launcher.check_runnable(experiment)
    port = resolve_ray_port(ray_dashboard, ray_dashboard_port)
    with _mirror_to_ray(experiment, folder.resolve(), port, console) as mirrored:
        _launch(launcher.continue_run, mirrored, folder.resolve(), console=console, as_json=as_json)


def resolve_ray_port(wanted: bool, port: int | None) -> int | None:
    """Return the port of Ray's dashboard: 0 for any free one, None without a dashboard."""
    return port or 0 if wanted or port else None


def describe_plan(experiment: Experiment, folder: Path) -> dict[str, object]:
    """Describe a run that would start now."""
    kinds = Counter[str]()
    for entry in experiment.fleet:
        kinds[entry.device] += entry.count
    policy = ", ".join(
        (experiment.policy.name, *(f"{key} {value:g}" for key, value in experiment.policy.limits.items()))
    )
    return {
        "experiment": experiment.name,
        "backend": experiment.backend,
        "rounds": experiment.rounds,
        "seed": experiment.seed,
        "boards": ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
        "task": experiment.workload.task,
        "policy": policy,
        "strategy": experiment.strategy.name,
        "selection": experiment.selection.name,
        "folder": str(folder),
    }


@contextmanager
def _mirror_to_ray(experiment: Experiment, folder: Path, port: int | None, console: Console) -> Iterator[Experiment]:
    """Show the experiment on Ray's dashboard at ``port``: 0 for any free one, None for no dashboard."""
    if port is None:
        yield experiment
        return
    from experiments.backends import ray_dashboard
    from fedge.experiment import list_boards

    ray_dashboard.check_dashboard(experiment, port or None, os.environ)
    with open_ray_dashboard(port, len(list_boards(experiment)), folder, console):
        yield ray_dashboard.add_ray_exporter(experiment, os.environ)


@contextmanager
def open_ray_dashboard(port: int, tasks: int, folder: Path, console: Console) -> Iterator[None]:
    """Start Ray with its dashboard, or find that of the cluster at RAY_ADDRESS, and print where it is."""
    from experiments.backends import ray_dashboard

    with ExitStack() as stack:
        with make_progress_console().status(ray_dashboard.STARTING_MESSAGE):
            dashboard = stack.enter_context(ray_dashboard.open_dashboard(tasks, folder, port or None))
        print_lines(console, [str(dashboard)])
        yield


def _list_start_notes(experiment: Experiment, config: Path) -> Iterator[str]:
    """Yield what a step is priced as, which boards cannot meet the power limit, and the faster engine for many."""
    from experiments.report.run.run_tables import can_encode, describe_costs, describe_links
    from experiments.spec import experiment_checks
    from fedge.studies.fleet.column_study import describe_faster_engine
    from fedge.workloads import NULL_TASK

    labels = experiment_checks.build_link_labels(experiment)
    kind = "predicted as" if experiment.backend == experiment_checks.FLEET_BACKEND else "priced as"
    moved = describe_links(labels, encoded=can_encode(experiment))
    yield f"a step is {kind} {describe_costs(labels)}; moved: {moved}"
    for line in experiment_checks.describe_other_references(experiment):
        yield f"note: {line}"
    counts = Counter(board.entry.device for board in experiment_checks.boards_over_power_limit(experiment))
    for device, count in counts.items():
        yield f"note: {count} x {device} cannot keep {experiment.policy.power_w:g} W; they run in their lowest mode"
    columns = f"`fedge study fleet {config} --engine columns --rounds {experiment.rounds}` with the same --set"
    if experiment.workload.task == NULL_TASK and (faster := describe_faster_engine(experiment, columns)):
        yield f"note: {faster}"


def _launch(
    execute: Callable[[Experiment, Path, Callable[[], None]], dict[str, Any]],
    experiment: Experiment,
    folder: Path,
    console: Console,
    as_json: bool,
) -> None:
    from experiments.report.run.live_terminal import LiveView, print_run_summary

    # What is loaded by now stays. Python otherwise looks for garbage in all of it while the run goes on, and several
    # times at the end of the process: 0.9 s. Not at the end itself, where DuckDB would report its own objects as leaks.
    gc.freeze()
    try:
        with interrupt_on_sigterm(), LiveView(folder, experiment, make_progress_console(stderr=as_json)) as view:
            summary = execute(experiment, folder, view.refresh)
    except KeyboardInterrupt:
        print_lines(console, [f"stopped; `fedge resume {folder}` goes on from the last checkpoint"])
        raise
    except RunFailed as error:
        raise RunFailed(f"{error}\n  run folder: {folder}; {_suggest_fix(str(error), folder)}") from error
    print_run_summary(console, summary)
    print_lines(console, [*_list_notes(summary), f"report: {folder / run_folder.REPORT}"])
    if as_json:
        print_json({**summary, "folder": str(folder)})


def _list_notes(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes needed to interpret the summary: provenance of the costs, and goals that were not met."""
    from experiments.report.run.run_tables import (
        describe_estimates,
        describe_knowledge,
        describe_origins,
        describe_problems,
    )

    yield describe_origins(summary)
    yield from (f"note: {line}" for line in describe_estimates(summary["labels"]))
    yield from describe_knowledge(summary.get("knowledge") or {})
    if summary.get("bit_reproducible") is False and summary.get("backend") != "fleet":
        yield "note: the clients trained on CUDA: another run gives other bits"
    if summary.get("ended"):
        continuation = f"{BUDGET_HINT} in its {run_folder.RUN_YAML} and `fedge resume` it to go on"
        yield f"note: the energy budget ended it; {continuation}"
    if problems := describe_problems(summary):
        yield f"note: {problems}; see the report"


def _suggest_fix(reason: str, folder: Path) -> str:
    """Suggest how to continue a failed run: some would fail again unchanged."""
    resume = f"`fedge resume {folder}`"
    if BUDGET_HINT in reason:
        return f"then {resume} runs it"
    if NO_BOARD_MESSAGE in reason:
        return f"change the boards' availability, battery or memory in its {run_folder.RUN_YAML}, then {resume}"
    if LOWER_RATE in reason:
        return f"lower workload.learning_rate in its {run_folder.RUN_YAML}, then {resume}"
    return f"{resume} tries again"


def interrupt_on_sigterm() -> AbstractContextManager[None]:
    """Treat SIGTERM as Ctrl-C inside the block, so that the run's processes are ended as well."""
    from fedge.child_processes import handle_signals

    return handle_signals(numbers=(signal.SIGTERM,))
