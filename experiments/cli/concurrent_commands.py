"""The ``fedge concurrent`` commands: plan, evaluate and run training and inference on one board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Train and infer on one board, within a latency budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("run")
def run(
    *,
    train: Annotated[str, typer.Option(metavar="TASK", help="The built-in task that is trained.")] = "digits-cnn",
    infer: Annotated[str, typer.Option(metavar="TASK", help="The built-in task that is served.")] = "cifar10-cnn",
    how: Annotated[
        str, typer.Option(help="managed, native, alone (training without inference), or both: managed and native.")
    ] = "managed",
    minutes: Annotated[float | None, typer.Option(min=0.01, help="How long each lasts; 1 by default.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.5, help="The same in seconds.")] = None,
    rate_hz: Annotated[float, typer.Option(help="Requests per second, in the mean.")] = 60.0,
    arrivals: Annotated[str, typer.Option(help="constant, poisson, bursts or dynamic.")] = "poisson",
    latency_s: Annotated[float, typer.Option(help="The latency budget of a request.")] = 0.5,
    infer_batch: Annotated[
        int | None, typer.Option(min=1, help="Requests inferred together; measured and chosen by default.")
    ] = None,
    train_batch: Annotated[int, typer.Option(min=1, help="Samples of a training minibatch.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Torch's threads in each process; as the machine gives by default.")
    ] = None,
    worker: Annotated[
        str | None, typer.Option(metavar="SOCKET", help="A worker that runs already, e.g. the board's own.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes the arrivals.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Train one network and serve another on this machine for a while: latencies, violations, training throughput."""
    from experiments.cli.concurrent_run import ConcurrentRunOptions
    from experiments.cli.concurrent_run import run_concurrently as command

    asked = ConcurrentRunOptions(
        train=train,
        infer=infer,
        how=how,
        minutes=minutes,
        seconds=seconds,
        rate_hz=rate_hz,
        arrivals=arrivals,
        latency_s=latency_s,
        infer_batch=infer_batch,
        train_batch=train_batch,
        device=device,
        worker=worker,
        seed=seed,
        threads=threads,
    )
    command(asked, json_file)


@app.command("eval")
def evaluate(
    *,
    train: Annotated[
        list[Path] | None, typer.Option(metavar="TABLE", help="A training job's measured table; may be repeated.")
    ] = None,
    infer: Annotated[
        list[Path] | None, typer.Option(metavar="TABLE", help="An inference job's measured table; may be repeated.")
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="Strategies, separated by commas: gmd, bs, random, nn, als, oracle, fedge, your own.")
    ] = "fedge",
    problems: Annotated[
        str, typer.Option(metavar="default|FILE", help="Fulcrum's grid of problems, or a YAML or JSON list.")
    ] = "default",
    reuse: Annotated[
        bool, typer.Option("--reuse", help="What was profiled for a problem serves the next ones.")
    ] = False,
    plausible: Annotated[
        bool, typer.Option("--plausible", help="Leave out modes of which a table has a row that cannot be.")
    ] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Number of problems to draw at random, in a stream.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes everything random.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, one row each.")] = 1,
    device: Annotated[str | None, typer.Option(help="The board; from the tables' paths by default.")] = None,
    workload: Annotated[
        str | None, typer.Option(help="The workload of a table alone; from the file's name by default.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Which batch size of training, where a table holds several.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON.")] = None,
) -> None:
    """Judge strategies on measured tables: which problems they solve, how far off the best, from how many modes."""
    from experiments.cli.concurrent_eval import ConcurrentEvalOptions
    from experiments.cli.concurrent_eval import evaluate_strategies as command
    from experiments.cli.concurrent_tables import ConcurrentTableOptions

    tables = ConcurrentTableOptions(
        tuple(train or ()), infer=tuple(infer or ()), device=device, workload=workload, batch_size=batch_size
    )
    asked = ConcurrentEvalOptions(
        tables, strategy, problems, reuse=reuse, sample=sample, seed=seed, seeds=seeds, plausible=plausible
    )
    command(asked, json_file)


@app.command("plan")
def plan(
    *,
    power_w: Annotated[float, typer.Option(help="The power budget, watts.")],
    train: Annotated[Path | None, typer.Option(metavar="TABLE", help="The training job's measured table.")] = None,
    infer: Annotated[
        list[Path] | None, typer.Option(metavar="TABLE", help="An inference job's measured table; up to three.")
    ] = None,
    latency_s: Annotated[
        list[float] | None, typer.Option(help="The latency budget; one for each inference job, in their order.")
    ] = None,
    rate_hz: Annotated[
        list[float] | None, typer.Option(help="Requests per second; one for each inference job, in their order.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The board, whose calibrated costs are used where there are no tables.")
    ] = None,
    train_workload: Annotated[str | None, typer.Option(help="With --device: what is trained.")] = None,
    infer_workload: Annotated[
        list[str] | None, typer.Option(help="With --device: what is served; up to three.")
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option(metavar="N,...", help="Batch sizes of inference; the tables' own by default.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Which batch size of training, where the table holds several.")
    ] = None,
    arrivals: Annotated[str, typer.Option(help="constant, poisson, bursts or dynamic.")] = "constant",
    strategy: Annotated[str, typer.Option(help="Show what this strategy would profile; `none` for nothing.")] = "fedge",
    seed: Annotated[int, typer.Option(min=0, help="Fixes the arrivals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Which mode, batch size and interleaving for training beside inference within these limits, and why."""
    from experiments.cli.concurrent_plan import print_plan as command
    from fedge.studies.serving.interleaving_advice import ConcurrentJobOptions, ConcurrentPlanOptions

    jobs = ConcurrentJobOptions(
        train=train,
        infer=tuple(infer or ()),
        device=device,
        train_workload=train_workload,
        infer_workloads=tuple(infer_workload or ()),
        latency_s=tuple(latency_s or ()),
        rate_hz=tuple(rate_hz or ()),
        batch_sizes=batch_sizes,
        batch_size=batch_size,
    )
    command(
        ConcurrentPlanOptions(jobs, power_w=power_w, arrivals=arrivals, strategy=strategy, seed=seed), as_json=as_json
    )
