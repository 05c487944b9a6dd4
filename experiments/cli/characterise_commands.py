"""``fedge characterise``, ``characterise-report``, ``characterise-predict``: time and energy of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import AsJson, DryRun, StepKind, build_options
from experiments.cli.command_output import (
    Outputs,
    check_folder,
    check_output,
    make_progress_console,
    print_json,
    print_line,
    show_bar,
    warn,
    write_output,
)
from experiments.report.quantities import duration
from fedge.phases import begin_phase

if TYPE_CHECKING:
    from fedge.characterisation.sweep_prediction import EpochPredictionOptions
    from fedge.characterisation.sweep_run import SweepRun

EXIT_NO_RESULTS = 1

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder that `fedge characterise` wrote.")]


def characterise(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a YAML file.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Folder to write; by default characterised/NAME. An earlier one is continued.",
        ),
    ] = None,
    dry_run: DryRun = False,
    again: Annotated[bool, typer.Option("--again", help="Retry points that failed twice.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure time and energy of training over all settings of a plan, and write a report.

    It can be stopped: the same command goes on.

    Example: fedge characterise experiments/configs/characterisation/emulated-quick.yaml --folder quick
    """
    if dry_run:
        list_points(plan, out, as_json)
    else:
        measure_points(plan, out, as_json, again)


def measure_points(plan: Path, out: Path | None, as_json: bool, again: bool = False) -> None:
    """Measure the remaining points of a plan, write tables and report, and print a summary.

    Ctrl-C keeps the finished points. Exits with code 1 if no point has results.

    Raises:
        BadInput: If the input is invalid; raised before any measurement.
    """
    check_folder("--folder", out or Path())
    from fedge.characterisation.sweep_run import run_sweep, sweep_outcome_to_dict
    from fedge.characterisation.sweep_store import SweepResult

    def write_report(result: SweepResult) -> list[Path]:
        from experiments.report.characterisation import characterisation_page

        return characterisation_page.write_report(result)

    outcome = run_sweep(plan, out, again=again, note=warn, show_progress=show_progress, write_report=write_report)
    if as_json:
        print_json(sweep_outcome_to_dict(outcome))
    else:
        from experiments.report.characterisation.sweep_terminal import describe_outcome

        for line in describe_outcome(outcome):
            print_line(line)
    if outcome.result.plan.points and not outcome.result.points:
        raise typer.Exit(EXIT_NO_RESULTS)


def list_points(plan: Path, out: Path | None, as_json: bool) -> None:
    """Print the points in order, with their state and, for emulated boards, their duration."""
    from fedge.characterisation.sweep_run import list_sweep

    listing = list_sweep(plan, out)
    if as_json:
        print_json(listing.points)
        return
    from experiments.report.characterisation.sweep_terminal import describe_listing

    for line in describe_listing(listing):
        print_line(line)


@contextmanager
def show_progress(run: SweepRun) -> Iterator[Callable[[str, str], None]]:
    """Show a progress line: point i of n, minutes left, current step, and the point as far as it fits.

    Without a terminal, one line is printed per point measured on this machine; emulated points take no time.
    """
    from fedge.characterisation.sweep_plan import HERE

    console, total = make_progress_console(), len(run.plan.points)
    with show_bar(total) as show:

        def report(words: str, step: str) -> None:
            tried = total - len(run.remaining_points)
            left_s = run.local_remaining_s
            left = "" if left_s is None else f", {duration(left_s, 1)} left"
            place = f"point {min(tried + 1, total)} of {total}{left}"
            within = f", {step}" if step else ""
            show(tried, f"{place}{within}: {words}")
            begin_phase(f"{place}{within}")
            is_here = any(point.board == HERE for point in run.remaining_points[:1])
            if is_here and not (console.is_terminal or console.quiet or step):
                warn(f"{place}: {words}")

        yield report


def characterise_report(folder: Folder) -> None:
    """Write the report and the findings of a characterisation again, finished or not.

    Example: fedge characterise-report quick
    """
    from experiments.report.characterisation.characterisation_page import write_report
    from fedge.characterisation.sweep_store import read_result

    page, _ = write_report(read_result(folder))
    print_line(str(page.resolve()))


def characterise_predict(
    folder: Folder,
    *,
    modes: Annotated[
        list[str] | None,
        typer.Option("--mode", metavar="MODE", help="Power mode, as 12/2201.6/1300.5/3199, or maxn. May be repeated."),
    ] = None,
    board: Annotated[str | None, typer.Option(help="The board; needed if there are several.")] = None,
    workload: Annotated[str | None, typer.Option(help="The workload; by default all.")] = None,
    kind: StepKind = "train",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples per step; by default the plan's.")] = None,
    loader_workers: Annotated[
        int | None, typer.Option("--loader-workers", help="Processes of the data loader.")
    ] = None,
    prefetch: Annotated[int | None, typer.Option(help="Batches that each worker loads ahead.")] = None,
    storage: Annotated[str | None, typer.Option(help="A storage of the plan, or an emulated one.")] = None,
    cache: Annotated[str | None, typer.Option(help="The page cache: warm, or dropped (a first epoch).")] = None,
    formula: Annotated[
        str, typer.Option("--formula", help="epochs (stalls included), or simple (the paper's).")
    ] = "epochs",
    best: Annotated[str | None, typer.Option(help="Only the board's best mode by time, energy or balanced.")] = None,
    loader_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the fitted data loader, which a fleet entry may name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict time, stall and energy of an epoch at settings without a measurement; by default at the measured ones.

    Example: fedge characterise-predict quick --mode maxn --loader-workers 2
    """
    parameters = dict(locals())
    from experiments.report.characterisation.sweep_terminal import build_prediction_table
    from fedge.characterisation.sweep_prediction import EpochPredictionOptions, predict_epochs

    options = build_options(EpochPredictionOptions, parameters, others=("loader_out",))
    predictions = predict_epochs(options)
    if loader_out is not None:
        _write_loader(options, loader_out)
    Outputs(as_json).deliver(predictions, lambda console: build_prediction_table(predictions).print(console))


def _write_loader(options: EpochPredictionOptions, file: Path) -> None:
    from fedge.atomic_files import write_text
    from fedge.characterisation.sweep_prediction import fit_loader
    from fedge.wire import to_json

    check_output("--loader-out", file, starts='{"device"')
    text = to_json(fit_loader(options)) + "\n"
    write_output("--loader-out", file, lambda path: write_text(path, text))
