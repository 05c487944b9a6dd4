"""``fedge place`` and ``fedge place-run``: plan and run instances of a network on a board's accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.command_options import ChartPage, build_options
from experiments.cli.command_output import check_output, make_console, show_progress, write_json, write_output
from experiments.report.tables import Table, number_cell, text_cell, value_cell
from fedge.atomic_files import write_text

if TYPE_CHECKING:
    from fedge.analysis.placement.execution.host_runtimes import AcceleratorRuntime
    from fedge.analysis.placement.execution.placement_runs import PlacementRun, PlacementRunOptions
    from fedge.analysis.placement.placement_advice import PlacementOptions

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A torchvision name (resnet50), a workload of fedge, module:function, an .onnx file, or a .json of "
        "`fedge layers`.",
    ),
]
InputShape = Annotated[
    str | None, typer.Option("--input", metavar="CxHxW", help="One sample's shape; the network's own by default.")
]
Batches = Annotated[str, typer.Option(metavar="N,...", help="Batch sizes to choose from.")]


def place(
    model: Model,
    *,
    device: Annotated[str, typer.Option(help="The board; `here` for this machine, with --measurements.")],
    rate_hz: Annotated[
        float | None,
        typer.Option("--rate", metavar="HZ", help="Images per second to keep up with; full load by default."),
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="throughput, latency or energy; by default latency with a rate, else throughput.")
    ] = None,
    max_power_w: Annotated[float | None, typer.Option(help="Limit of the board's power, in watts.")] = None,
    max_latency_s: Annotated[
        float | None, typer.Option(help="Limit of an image's latency, waiting included, in seconds.")
    ] = None,
    batches: Batches = "1,2,4,8,16,32,64,128",
    instances: Annotated[int, typer.Option(min=1, max=3, help="Largest number of instances on one accelerator.")] = 1,
    on: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these accelerators; by default all of the board.")
    ] = None,
    measurements: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your measurements (CSV), to which the board is fitted.")
    ] = None,
    input_shape: InputShape = None,
    html: ChartPage = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the plan as JSON.")] = None,
) -> None:
    """Plan instances, batch sizes and precisions of a network on a board's accelerators."""
    parameters = dict(locals())
    from fedge.analysis.placement.placement_advice import PlacementOptions

    options = build_options(PlacementOptions, parameters, others=("html", "json_file"))
    print_placement(options, html, json_file)


def print_placement(options: PlacementOptions, html: Path | None, json_file: Path | None) -> None:
    """Plan, print and write the results."""
    from experiments.report.analysis.placement_terminal import print_placement_advice
    from fedge.analysis.placement.placement_advice import advise_placement, placement_advice_to_dict
    from fedge.analysis.placement.planned_service import PLACEMENT_FORMAT

    check_output("--json", json_file, f'{{\n  "format": "{PLACEMENT_FORMAT}"')
    check_output("--html", html, "<!doctype html")
    advice = advise_placement(options)
    print_placement_advice(make_console(), advice)
    write_json(json_file, placement_advice_to_dict(advice))
    if html is not None:
        from experiments.report.analysis.placement_page import write_placement_page

        write_output("--html", html, lambda path: write_placement_page(advice, path))


def place_run(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="As for place; without it, list what can run here.")
    ] = None,
    *,
    instances: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:BATCH:PRECISION+...",
            help="Run these together, e.g. ort-cpu:8:fp32+torch-cpu:8:fp32; may be repeated.",
        ),
    ] = None,
    batches: Batches = "1,4,16",
    most: Annotated[
        int, typer.Option("--together", min=1, max=4, help="Largest number of instances in a placement.")
    ] = 2,
    seconds: Annotated[float, typer.Option(min=0.2, help="Duration of each run.")] = 5.0,
    sensor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Measure power with this sensor of a Jetson: auto, sysfs, tegrastats, jtop."),
    ] = None,
    input_shape: InputShape = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the measurements (CSV) for fedge place --measurements.")
    ] = None,
) -> None:
    """Run instances of a network side by side on this machine and measure their throughput."""
    parameters = dict(locals())
    from fedge.analysis.placement.execution.placement_runs import PlacementRunOptions, list_host_runtimes

    if model is None:
        _runtimes_table(list_host_runtimes()).print(make_console())
        return
    options = build_options(PlacementRunOptions, parameters, others=("out",))
    print_placement_runs(options, out)


def print_placement_runs(options: PlacementRunOptions, out: Path | None) -> None:
    """Measure, print and optionally write the measurements."""
    from fedge.analysis.placement.execution.placement_runs import (
        placement_runs_to_csv,
        plan_placement_runs,
        run_placements,
    )
    from fedge.analysis.placement.placement_measurements import MEASUREMENT_COLUMNS

    check_output("--out", out, ",".join(MEASUREMENT_COLUMNS[:4]))
    plan = plan_placement_runs(options)
    with show_progress(len(plan.placements)) as report_placement:
        runs = run_placements(plan, report_placement)
    _measurements_table(runs).print(make_console())
    if out is not None:
        write_output("--out", out, lambda path: write_text(path, placement_runs_to_csv(runs)))


def _measurements_table(runs: Sequence[PlacementRun]) -> Table:
    rows = tuple(
        (
            text_cell(each.measurement.placement),
            value_cell(each.measurement.images_per_s, ".1f"),
            number_cell(" + ".join(f"{1e3 * one.median_s:.1f}" for one in each.instance_runs)),
            value_cell(each.measurement.watts, ".1f"),
        )
        for each in runs
    )
    return Table("measured", ("placement", "images/s", "median batch, ms", "W"), rows, "Measured on this machine")


def _runtimes_table(runtimes: Sequence[AcceleratorRuntime]) -> Table:
    rows = tuple(
        (
            text_cell(runtime.accelerator),
            text_cell("yes" if runtime.reason is None else f"no: {runtime.reason}"),
            text_cell(runtime.precision),
            text_cell(runtime.library),
        )
        for runtime in runtimes
    )
    heads = ("accelerator", "available", "precision", "library")
    return Table("runtimes", heads, rows, "What can run on this machine")


def register_commands(app: typer.Typer) -> None:
    """Add the commands to ``fedge``."""
    app.command("place")(place)
    app.command("place-run")(place_run)
