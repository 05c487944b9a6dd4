"""``fedge place`` and ``fedge place-run``: plan and run instances of a network on a board's accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import AsJson, ChartPage, InputShape, MaxPower, Network, OutFile, build_options
from experiments.cli.command_output import Outputs, check_output, show_progress, write_output
from experiments.report.tables import Column, Table, build_table, number_cell, text_cell, value_cell
from fedge.atomic_files import write_text

if TYPE_CHECKING:
    from fedge.analysis.placement.inference_jobs import AcceleratorRuntime
    from fedge.analysis.placement.placement_advice import PlacementOptions
    from fedge.analysis.placement.placement_runs import PlacementRun, PlacementRunOptions

BatchSizes = Annotated[str, typer.Option("--batch-sizes", metavar="N,...", help="Batch sizes to choose from.")]


def place(
    network: Network,
    *,
    board: Annotated[str, typer.Option("--board", help="The board, or `here` for this machine, with --measurements.")],
    rate_hz: Annotated[float | None, typer.Option(help="Requests per second; full load by default.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What to optimise: throughput, latency or energy. By default latency with a rate, else throughput."
        ),
    ] = None,
    max_power_w: MaxPower = None,
    max_latency_s: Annotated[
        float | None, typer.Option(help="Limit of a request's latency, in seconds, waiting included.")
    ] = None,
    batch_sizes: BatchSizes = "1,2,4,8,16,32,64,128",
    max_instances: Annotated[
        int, typer.Option("--max-instances", min=1, max=3, help="Largest number of instances on one accelerator.")
    ] = 1,
    on: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these accelerators; by default all of the board.")
    ] = None,
    measurements: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your measurements (CSV), to which the board is fitted.")
    ] = None,
    input_shape: InputShape = None,
    html: ChartPage = None,
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Plan instances, batch sizes and precisions of a network on a board's accelerators.

    Example: fedge place resnet50 --board agx-orin --rate-hz 300 --max-power-w 50
    """
    parameters = dict(locals())
    from fedge.analysis.placement.placement_advice import PlacementOptions

    print_placement(build_options(PlacementOptions, parameters), Outputs(as_json, out, html))


def print_placement(options: PlacementOptions, outputs: Outputs) -> None:
    """Plan and deliver the result."""
    from experiments.report.analysis.placement_report import print_placement_advice, write_placement_page
    from fedge.analysis.placement.placement_advice import advise_placement, placement_advice_to_dict
    from fedge.analysis.placement.planned_service import PLACEMENT_FORMAT

    outputs.check(f'{{\n  "format": "{PLACEMENT_FORMAT}"')
    advice = advise_placement(options)
    view, page = partial(print_placement_advice, advice=advice), partial(write_placement_page, advice)
    outputs.deliver(placement_advice_to_dict(advice), view, page)


def place_run(
    network: Annotated[
        str | None, typer.Argument(metavar="NETWORK", help="As for `place`; without it, list what can run here.")
    ] = None,
    *,
    instances: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:BATCH:PRECISION+...",
            help="Run these together, e.g. ort-cpu:8:fp32+torch-cpu:8:fp32; may be repeated.",
        ),
    ] = None,
    batch_sizes: BatchSizes = "1,4,16",
    together: Annotated[
        int, typer.Option("--together", min=1, max=4, help="Largest number of instances in a placement.")
    ] = 2,
    seconds: Annotated[float, typer.Option(min=0.2, help="Duration in seconds (each run).")] = 5.0,
    sensor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Measure power with this sensor of a Jetson: auto, sysfs, tegrastats, jtop."),
    ] = None,
    input_shape: InputShape = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write: CSV for `fedge place --measurements`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run instances of a network side by side on this machine and measure their throughput.

    Example: fedge place-run resnet50 --batch-sizes 1,8 --seconds 2
    """
    parameters = dict(locals())
    from fedge.analysis.placement.placement_runs import PlacementRunOptions, list_host_runtimes

    if network is None:
        runtimes = list_host_runtimes()
        Outputs(as_json).deliver(runtimes, _runtimes_table(runtimes).print)
        return
    print_placement_runs(build_options(PlacementRunOptions, parameters), out, as_json=as_json)


def print_placement_runs(options: PlacementRunOptions, out: Path | None, *, as_json: bool = False) -> None:
    """Measure, print and optionally write the measurements."""
    from fedge.analysis.placement.accelerator_fit import MEASUREMENT_COLUMNS
    from fedge.analysis.placement.placement_runs import (
        placement_runs_to_csv,
        plan_placement_runs,
        run_placements,
    )

    check_output("--out", out, ",".join(MEASUREMENT_COLUMNS[:4]))
    plan = plan_placement_runs(options)
    with show_progress(len(plan.placements)) as report_placement:
        runs = run_placements(plan, report_placement)
    Outputs(as_json).deliver([run.measurement for run in runs], _measurements_table(runs).print)
    if out is not None:
        write_output("--out", out, lambda path: write_text(path, placement_runs_to_csv(runs)))


def _measurements_table(runs: Sequence[PlacementRun]) -> Table:
    columns: tuple[Column[PlacementRun], ...] = (
        ("placement", lambda run: text_cell(run.measurement.placement)),
        ("images/s", lambda run: value_cell(run.measurement.images_per_s, ".1f")),
        (
            "median batch, ms",
            lambda run: number_cell(" + ".join(f"{1e3 * one.median_s:.1f}" for one in run.instance_runs)),
        ),
        ("W", lambda run: value_cell(run.measurement.watts, ".1f")),
    )
    return build_table("measured", columns, runs, "Measured on this machine")


def _runtimes_table(runtimes: Sequence[AcceleratorRuntime]) -> Table:
    columns: tuple[Column[AcceleratorRuntime], ...] = (
        ("accelerator", lambda runtime: text_cell(runtime.accelerator)),
        ("available", lambda runtime: text_cell("yes" if runtime.reason is None else f"no: {runtime.reason}")),
        ("precision", lambda runtime: text_cell(runtime.precision)),
        ("library", lambda runtime: text_cell(runtime.library)),
    )
    return build_table("runtimes", columns, runtimes, "What can run on this machine")
