"""The command ``fedge layers``: computation and data movement of a network by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


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
    input_shape: Annotated[
        str | None, typer.Option("--input", metavar="SHAPE", help="One sample's shape, as 3x224x224.")
    ] = None,
    kind: Annotated[
        Literal["train", "infer"], typer.Option(help="A forward pass, or a training step: three times both.")
    ] = "infer",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every layer as JSON, which is a MODEL again.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="So many of the costliest layers are shown.")] = 10,
) -> None:
    """FLOP, bytes, parameters and activations of a network, per layer; operators without a rule are named."""
    from experiments.cli.layers_cost import print_layers as command

    command(model, batch_size=batch, input_shape=input_shape, kind=kind, json_file=json_file, top=top)


def register_commands(app: typer.Typer) -> None:
    """Add the command to ``fedge`` itself."""
    app.command()(layers)
