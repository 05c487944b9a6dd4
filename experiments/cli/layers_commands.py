"""``fedge layers``: computation and data movement of a network by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.command_options import AsJson, InputShape, Network, StepKind
from experiments.cli.command_output import check_output, make_console, print_json, write_json


def layers(
    network: Network,
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 1,
    input_shape: InputShape = None,
    kind: StepKind = "infer",
    top: Annotated[int, typer.Option(min=0, help="Number of costliest layers to show.")] = 10,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write: every layer as JSON, which is a NETWORK again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count FLOP, bytes, parameters and activations of a network by layer.

    Operators without a rule are named. A training step costs three times as much as a forward pass.

    Example: fedge layers mobilenet_v3_large --batch-size 16 --top 5
    """
    from experiments.report.analysis.network_terminal import print_layer_summary, print_uncounted
    from fedge.costs.layers.network_record import RECORD_FORMAT, network_to_dict
    from fedge.costs.layers.network_source import count_network

    check_output("--out", out, starts=f'{{\n  "format": "{RECORD_FORMAT}"')
    summary = count_network(network, input_shape, batch_size=batch_size, kind=kind, top=top)
    write_json(out, network_to_dict(summary.network))
    if as_json:
        print_json(network_to_dict(summary.network))
    else:
        print_layer_summary(make_console(), summary)
    if summary.network.unknown:
        print_uncounted(make_console(stderr=True), summary.network)
