"""``fedge place`` and ``fedge place-run``: plan and run instances of a network on a board's accelerators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A torchvision name (resnet50), a workload of fedge, module:function, an .onnx or a layers' .json.",
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
    rate: Annotated[
        float | None, typer.Option(metavar="HZ", help="Images per second to keep up with; full load by default.")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="throughput, latency or energy; by default latency with a rate, else throughput."),
    ] = None,
    max_power_w: Annotated[float | None, typer.Option(help="Limit of the board's watts.")] = None,
    max_latency_s: Annotated[float | None, typer.Option(help="Limit of an image's latency, waiting included.")] = None,
    batches: Batches = "1,2,4,8,16,32,64,128",
    instances: Annotated[int, typer.Option(min=1, max=3, help="Most instances on one accelerator.")] = 1,
    on: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these accelerators; the board's all by default.")
    ] = None,
    measurements: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What you measured (CSV): the board is fitted to it.")
    ] = None,
    input_shape: InputShape = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with pictures.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the plan as JSON.")] = None,
) -> None:
    """Place inference over a board's accelerators: instances, batch sizes and precisions, and what comes of them."""
    from experiments.cli.place_plan import print_placement as command
    from fedge.analysis.placement.placement_advice import PlacementOptions

    asked = PlacementOptions(
        model=model,
        device=device,
        rate_hz=rate,
        objective=objective,
        max_power_w=max_power_w,
        max_latency_s=max_latency_s,
        batches=batches,
        instances=instances,
        on=on,
        measurements=measurements,
        input_shape=input_shape,
    )
    command(asked, html, json_file)


def place_run(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="As for place; without it, say what runs here.")
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
    most: Annotated[int, typer.Option("--together", min=1, max=4, help="Most instances in all.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.2, help="How long each placement runs.")] = 5.0,
    sensor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read watts too: sysfs, tegrastats or jtop, on a Jetson.")
    ] = None,
    input_shape: InputShape = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the measurements (CSV), for fedge place --measurements.")
    ] = None,
) -> None:
    """Run instances of a network side by side on this machine and measure what they do together."""
    from experiments.cli.place_run import PlacementRunOptions
    from experiments.cli.place_run import measure_and_print as command

    command(
        PlacementRunOptions(
            model,
            instances=tuple(instances or ()),
            batches=batches,
            most=most,
            seconds=seconds,
            sensor=sensor,
            input_shape=input_shape,
        ),
        out,
    )


def register_commands(app: typer.Typer) -> None:
    """Add the commands to ``fedge``."""
    app.command("place")(place)
    app.command("place-run")(place_run)
