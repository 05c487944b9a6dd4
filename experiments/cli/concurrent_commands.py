"""``fedge concurrent``: plan, evaluate and run training and inference on one board."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import build_options, command_group
from experiments.cli.command_output import (
    Outputs,
    check_output,
    make_console,
    make_progress_console,
    print_json,
    show_job_progress,
    write_json,
)
from experiments.report.tables import print_lines
from fedge.errors import FedgeError

if TYPE_CHECKING:
    from fedge.serving.concurrent_run import ConcurrentRunOptions
    from fedge.serving.side_by_side import SideBySideJobs, SideBySideOutcome
    from fedge.studies.serving.interleaving_advice import ConcurrentPlanOptions
    from fedge.studies.serving.strategy_study import StrategyJob, StrategyRow, StrategyStudyOptions

RUN_START = '{\n  "concurrent_run"'
"""First characters of the JSON of ``run``."""

Arrivals = Annotated[
    str, typer.Option("--arrivals", help="Arrivals of requests: constant, poisson, bursts or dynamic.")
]

app = command_group("Train and infer on one board, within a latency budget.")


@app.command("run")
def run(
    *,
    train_task: Annotated[
        str, typer.Option("--train-task", metavar="TASK", help="The built-in task to train.")
    ] = "digits-cnn",
    infer_task: Annotated[
        str, typer.Option("--infer-task", metavar="TASK", help="The built-in task to serve.")
    ] = "cifar10-cnn",
    how: Annotated[
        str,
        typer.Option(
            help="Execution: managed, native, alone (training without inference), or both: managed and native."
        ),
    ] = "managed",
    seconds: Annotated[float, typer.Option(min=0.5, help="Duration in seconds (each execution).")] = 60.0,
    rate_hz: Annotated[float, typer.Option(help="Requests per second, on average.")] = 60.0,
    arrivals: Arrivals = "poisson",
    max_latency_s: Annotated[
        float, typer.Option("--max-latency-s", help="Limit of a request's latency, in seconds.")
    ] = 0.5,
    infer_batch_size: Annotated[
        int | None,
        typer.Option(
            "--infer-batch-size", min=1, help="Requests inferred together; by default chosen from measured times."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples per step (training).")] = 16,
    device: Annotated[str, typer.Option(help="Device of this machine: auto, cpu or cuda.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Torch's threads in each process; by default torch's own choice.")
    ] = None,
    worker_socket: Annotated[
        str | None,
        typer.Option("--worker-socket", metavar="SOCKET", help="The worker's socket; by default a worker of its own."),
    ] = None,
    seed: cli.Seed = 0,
    out: cli.OutFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Train one network and serve another on this machine, and measure latencies, violations and throughput.

    Example: fedge concurrent run --train-task digits-cnn --infer-task cifar10-cnn --how both --seconds 10
    """
    parameters = dict(locals())
    from fedge.serving.concurrent_run import ConcurrentRunOptions

    run_and_print(build_options(ConcurrentRunOptions, parameters), out, as_json=as_json)


def run_and_print(options: ConcurrentRunOptions, out: Path | None, *, as_json: bool = False) -> None:
    """Run, show and write the result; after Ctrl-C or a worker's failure, the results so far are kept.

    Raises:
        BadInput: If an option is invalid; raised before anything is started.
        RunFailed: If a worker cannot continue.
    """
    from experiments.report.analysis.concurrent_terminal import build_outcome_table
    from fedge.child_processes import handle_signals
    from fedge.serving.concurrent_run import concurrent_run_to_dict, run_concurrent_jobs

    check_output("--out", out, RUN_START)
    console = make_console(stderr=as_json)
    with handle_signals(_exit):
        result = run_concurrent_jobs(options, _RunDisplay(options, stderr=as_json))
    if result.outcomes:
        build_outcome_table(list(result.outcomes), options.max_latency_s).print(console)
        write_json(out, concurrent_run_to_dict(result))
        if as_json:
            print_json(concurrent_run_to_dict(result))
    if result.ended is not None:
        raise result.ended


class _RunDisplay:
    """Shows the progress of a run on the terminal."""

    def __init__(self, options: ConcurrentRunOptions, *, stderr: bool) -> None:
        self._options, self._console = options, make_progress_console(stderr=stderr)

    def report_step_times(self, step_s: float, infer_s: Mapping[int, float]) -> None:
        """Show the measured seconds of a training step, and of inference by batch size."""
        from experiments.report.analysis.concurrent_terminal import format_milliseconds

        times = ", ".join(f"{size}: {format_milliseconds(one)}" for size, one in infer_s.items())
        self._say(f"measured: a training step {format_milliseconds(step_s)} ms, inference by batch size {times} ms")

    def report_start(self, jobs: SideBySideJobs, device: str) -> None:
        """Show the jobs, the device and the threads."""
        from experiments.report.analysis.concurrent_terminal import format_milliseconds
        from fedge.child_processes import count_cores
        from fedge.serving.side_by_side import ALONE

        options = self._options
        threads = "default number of threads" if options.threads is None else f"threads {options.threads}"
        host = (
            f"cores {count_cores()}, {threads}" if options.worker_socket is None else f"worker {options.worker_socket}"
        )
        service = (
            f" serving {jobs.infer} by {jobs.infer_batch} at {options.rate_hz:g}/s ({options.arrivals}) within "
            f"{format_milliseconds(jobs.latency_s)} ms,"
        )
        serving = "" if options.how == ALONE else service
        self._say(f"training {jobs.train} by {jobs.train_batch},{serving} on {device}, {host}")

    @contextlib.contextmanager
    def follow_turn(self, jobs: SideBySideJobs) -> Iterator[Callable[[SideBySideOutcome], None]]:
        """Show the outcome of a turn so far."""
        from experiments.report.analysis.concurrent_terminal import SideBySideProgress

        title = f"{jobs.train} + {jobs.infer}"
        with SideBySideProgress(title, self._options.seconds, self._console) as progress:
            yield progress

    def _say(self, text: str) -> None:
        print_lines(self._console, [text])


def _exit(number: int, _frame: object) -> None:
    """End on a signal by an exit, so that workers are ended and remote services withdrawn."""
    sys.exit(128 + number)


@app.command("eval")
def evaluate(
    *,
    train_tables: Annotated[
        list[Path] | None,
        typer.Option("--train-table", metavar="TABLE", help="Measured table of training; may be repeated."),
    ] = None,
    infer_tables: Annotated[
        list[Path] | None,
        typer.Option("--infer-table", metavar="TABLE", help="Measured table of inference; may be repeated."),
    ] = None,
    strategies: Annotated[
        str,
        typer.Option(
            "--strategies", help="Strategies, separated by commas: gmd, bs, random, nn, als, oracle, fedge, your own."
        ),
    ] = "fedge",
    problems: Annotated[
        str, typer.Option(metavar="default|FILE", help="Fulcrum's grid of problems, or a YAML or JSON list.")
    ] = "default",
    reuse: Annotated[bool, typer.Option("--reuse", help="Keep what was profiled for earlier problems.")] = False,
    plausible: Annotated[
        bool, typer.Option("--plausible", help="Leave out modes with an implausible row in a table.")
    ] = False,
    problem_count: Annotated[
        int | None,
        typer.Option(
            "--problem-count", min=1, help="Number of problems to draw at random, as a stream; by default all."
        ),
    ] = None,
    seed: cli.Seed = 0,
    seeds: cli.Seeds = 1,
    board: cli.TableBoard = None,
    workload: cli.TableWorkload = None,
    batch_size: cli.TableBatchSize = None,
    out: cli.OutFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Evaluate strategies on measured tables: solved problems, gap to the optimum, number of profiled modes.

    Example: fedge concurrent eval --train-table agx-orin/train/yolov8n-coco.csv --strategies gmd,fedge
    """
    parameters = dict(locals())
    from fedge.studies.serving.job_tables import JobTableOptions
    from fedge.studies.serving.strategy_study import StrategyStudyOptions

    options = build_options(StrategyStudyOptions, parameters, tables=JobTableOptions)
    evaluate_strategies(options, Outputs(as_json, out))


def evaluate_strategies(options: StrategyStudyOptions, outputs: Outputs) -> None:
    """Evaluate strategies and deliver the rows.

    Raises:
        BadInput: If the input is invalid; raised before any evaluation.
        FedgeError: At the end, if a strategy failed.
    """
    from experiments.report.analysis.concurrent_terminal import print_strategies
    from fedge.studies.prediction_study import row_to_dict
    from fedge.studies.serving.strategy_study import build_strategy_jobs

    outputs.check("[")
    rows = evaluate_jobs(build_strategy_jobs(options))
    outputs.deliver([row_to_dict(row) for row in rows], lambda console: print_strategies(console, rows))
    errors = [f"{row.strategy} on {row.pair}: {row.error}" for row in rows if row.error is not None]
    if errors:
        raise FedgeError(f"{len(errors)} of {len(rows)} rows failed; {'; '.join(dict.fromkeys(errors))}")


def evaluate_jobs(jobs: Sequence[StrategyJob], workers: int | None = None) -> list[StrategyRow]:
    """Run all jobs in parallel, by default on all cores available to this process, with a progress line on standard
    error.
    """
    from fedge.child_processes import limit_to_one_thread
    from fedge.studies.serving.strategy_study import run_strategy_job
    from fedge.studies.task_pool import run_jobs

    with limit_to_one_thread(), show_job_progress(len(jobs)) as report_job:
        return run_jobs(run_strategy_job, jobs, report_job, workers)


@app.command("plan")
def plan(
    *,
    max_power_w: Annotated[float, typer.Option("--max-power-w", help="Limit of the board's power, in watts.")],
    train_table: Annotated[
        Path | None, typer.Option("--train-table", metavar="TABLE", help="Measured table of training.")
    ] = None,
    infer_tables: Annotated[
        list[Path] | None,
        typer.Option("--infer-table", metavar="TABLE", help="Measured table of inference; up to three."),
    ] = None,
    max_latency_s: Annotated[
        list[float] | None,
        typer.Option(
            "--max-latency-s",
            help="Limit of a request's latency, in seconds; one for each inference job, in their order.",
        ),
    ] = None,
    rate_hz: Annotated[
        list[float] | None, typer.Option(help="Requests per second; one for each inference job, in their order.")
    ] = None,
    board: Annotated[
        str | None, typer.Option("--board", help="The board; its calibrated costs are used without tables.")
    ] = None,
    train_workload: Annotated[str | None, typer.Option(help="With --board: the workload to train.")] = None,
    infer_workloads: Annotated[
        list[str] | None, typer.Option("--infer-workload", help="With --board: a workload to serve; up to three.")
    ] = None,
    infer_batch_sizes: Annotated[
        str | None,
        typer.Option(
            "--infer-batch-sizes", metavar="N,...", help="Batch sizes of inference; by default those of the tables."
        ),
    ] = None,
    batch_size: cli.TableBatchSize = None,
    arrivals: Arrivals = "constant",
    strategy: Annotated[str, typer.Option(help="Show what this strategy would profile; none for nothing.")] = "fedge",
    seed: cli.Seed = 0,
    as_json: cli.AsJson = False,
) -> None:
    """Plan mode, batch sizes and interleaving of training and inference within limits.

    Example: fedge concurrent plan --board agx-orin --train-workload resnet18-imagenet --max-power-w 30
    """
    parameters = dict(locals())
    from fedge.studies.serving.interleaving_advice import ConcurrentPlanOptions
    from fedge.studies.serving.job_tables import ConcurrentJobOptions

    print_plan(build_options(ConcurrentPlanOptions, parameters, jobs=ConcurrentJobOptions), as_json=as_json)


def print_plan(options: ConcurrentPlanOptions, *, as_json: bool) -> None:
    """Plan and print the result as text or JSON."""
    from experiments.report.analysis.concurrent_terminal import print_interleaving
    from fedge.studies.serving.interleaving_advice import advise_interleaving, interleaving_advice_to_dict

    advice = advise_interleaving(options)
    if as_json:
        print_json(interleaving_advice_to_dict(advice), indent=2)
    else:
        print_interleaving(make_console(), advice)
