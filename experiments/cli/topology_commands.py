"""The ``fedge topology`` command: smaller variants of a network that fit a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

FIND = "find"


class _DefaultFindGroup(TyperGroup):
    """Command group that reads ``fedge topology resnet50`` as ``fedge topology find resnet50``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = [FIND, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DefaultFindGroup,
    help="Channel-pruned variants of a network that fit a board's memory and time, and that train.\n\n"
    "fedge topology MODEL --device tx2 is short for fedge topology find MODEL --device tx2.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(FIND)
def find(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A classifier of torchvision (resnet50), a workload, or module:function of your own."
        ),
    ],
    *,
    device: Annotated[str, typer.Option(help="The board, as `fedge devices list` names it.")],
    batch: Annotated[int, typer.Option(help="Samples of a training minibatch.")] = 32,
    max_memory_mb: Annotated[
        float | None, typer.Option(help="Megabytes that training may use; what a board has for it by default.")
    ] = None,
    max_step_s: Annotated[
        float | None, typer.Option(help="Seconds that a minibatch may take in the board's top power mode.")
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option("--input", metavar="SHAPE", help="One sample's shape, as 3x224x224.")
    ] = None,
    method: Annotated[str, typer.Option(help="What ranks the channels: l1, l2 (their weights) or random.")] = "l1",
    round_to: Annotated[int, typer.Option(help="Keep a multiple of this many channels in every layer.")] = 1,
    variants: Annotated[int, typer.Option(help="So many variants that fit are listed, the largest first.")] = 4,
    confidence: Annotated[float, typer.Option(help="How surely each limit is to hold.")] = 0.84,
    seed: Annotated[int, typer.Option(help="Fixes --method random.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the variants there, one folder each, weights and all.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write pictures.")] = None,
    check_training: Annotated[
        bool, typer.Option("--check-training", help="Train the largest variant for some steps on this machine.")
    ] = False,
) -> None:
    """Find the largest channel-pruned variants of a network that a board can train."""
    from experiments.cli.topology_variants import find_variants as command
    from fedge.analysis.topology.topology_result import TopologyOptions

    asked = TopologyOptions(
        model=model,
        device=device,
        batch_size=batch,
        max_memory_mb=max_memory_mb,
        max_step_s=max_step_s,
        input_shape=input_shape,
        method=method,
        round_to=round_to,
        variants=variants,
        confidence=confidence,
        seed=seed,
    )
    command(asked, out=out, json_file=json_file, html=html, check_training=check_training)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A variant's folder, or the variant.json in it.")],
    every: Annotated[bool, typer.Option("--all", help="Every layer, not only some of them.")] = False,
    form: Annotated[Literal["table", "json"], typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """What a variant keeps of its network, layer by layer."""
    from experiments.cli.topology_variants import print_variant as command

    command(file, every, form == "json")
