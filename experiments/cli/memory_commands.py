"""The ``fedge memory`` commands: evaluate, predict and fit the needs of a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Memory and time of a training step, from the geometry of a network's layers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Measured steps: NETWORK.csv and NETWORK.layers.json of each.")
]


@app.command("eval")
def evaluate(
    *,
    data: Data,
    method: Annotated[str, typer.Option(help="perf4sight, fedge, or both, separated by commas.")] = "perf4sight,fedge",
    leave_network_out: Annotated[
        bool, typer.Option("--leave-network-out", help="Also predict each network from the others alone.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Fixes everything random.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write every error as JSON.")] = None,
) -> None:
    """Errors of memory and time on pruning levels that were not learnt from, and on networks left out."""
    from experiments.cli.memory_eval import evaluate_memory as command

    command(data, method=method, left_out=leave_network_out, seed=seed, json_file=json_file)


@app.command()
def predict(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A classifier of torchvision (resnet50), a workload (resnet18-imagenet), module:function, or a file: "
            ".onnx, or .json of `fedge layers`.",
        ),
    ],
    *,
    device: Annotated[str, typer.Option(help="The board.")] = "tx2",
    batch: Annotated[int, typer.Option(min=1, max=2**16, help="Samples per minibatch.")] = 32,
    input_shape: Annotated[
        str | None, typer.Option("--input", metavar="SHAPE", help="One sample's shape, as 3x224x224.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Peak memory and time of a training step, and the largest batch that fits."""
    from experiments.cli.memory_predict import print_memory as command

    command(model, device=device, batch_size=batch, input_shape=input_shape, as_json=as_json)


@app.command()
def fit(
    *,
    data: Data,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The coefficients to write (YAML).")],
    board: Annotated[str, typer.Option(help="The board that the steps were measured on.")] = "tx2",
    source: Annotated[str, typer.Option(help="Where the steps are from; shown with every prediction.")] = (
        "SGD steps of pruned convolutional networks measured on a TX2"
    ),
) -> None:
    """Fit the coefficients that predictions are computed from to measured steps."""
    from experiments.cli.memory_eval import fit_memory as command

    command(data, out, board, source)
