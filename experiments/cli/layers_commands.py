"""``fedge layers``: computation and data movement of a network by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from experiments.cli.command_options import InputShape
from experiments.cli.command_output import check_output, make_console


def layers(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A classifier of torchvision (resnet50), a workload (resnet18-imagenet), module:function, or a file: "
            ".onnx, or a .json of this command.",
        ),
    ],
    *,
    batch: Annotated[int, typer.Option(min=1, help="Samples per minibatch.")] = 1,
    input_shape: InputShape = None,
    kind: Annotated[
        Literal["train", "infer"],
        typer.Option(help="infer: a forward pass; train: a training step, which costs three times as much."),
    ] = "infer",
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write every layer as JSON, which can be used as MODEL."),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Number of costliest layers to show.")] = 10,
) -> None:
    """Count FLOP, bytes, parameters and activations of a network by layer; operators without a rule are named."""
    from experiments.report.analysis.layers_terminal import print_layer_summary, print_uncounted
    from fedge.costs.layers.layer_summary import count_network
    from fedge.costs.layers.network_record import RECORD_FORMAT, network_to_dict

    check_output("--json", json_file, starts=f'{{"format": "{RECORD_FORMAT}"')
    summary = count_network(model, input_shape, batch_size=batch, kind=kind, top=top)
    if json_file is not None:
        json_file.write_text(json.dumps(network_to_dict(summary.network)) + "\n", encoding="utf-8")
    print_layer_summary(make_console(), summary)
    if summary.network.unknown:
        print_uncounted(make_console(stderr=True), summary.network)


def register_commands(app: typer.Typer) -> None:
    """Add the command to ``fedge`` itself."""
    app.command()(layers)
