"""``fedge topology``: channel-pruned variants of a network that fit a board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import DefaultCommandGroup, build_options, command_group
from experiments.cli.command_output import check_output, make_console, print_json, write_json, write_output
from fedge.errors import RunFailed

if TYPE_CHECKING:
    from fedge.analysis.topology.topology_result import TopologyOptions
    from fedge.analysis.topology.variant_files import TrainingCheck


app = command_group(
    "Channel-pruned variants of a network that fit a board's memory and time, and that train.\n\n"
    "`fedge topology NETWORK --board tx2` is short for `fedge topology find NETWORK --board tx2`.",
    DefaultCommandGroup,
)


@app.command("find")
def find(
    network: cli.Network,
    *,
    board: cli.Board,
    batch_size: Annotated[int, typer.Option(help="Samples per step.")] = 32,
    max_memory_mb: Annotated[
        float | None, typer.Option(help="Limit of training's memory; by default what the board leaves for it.")
    ] = None,
    max_step_s: Annotated[float | None, typer.Option(help="Limit of a step's time, in seconds, at MAXN.")] = None,
    input_shape: cli.InputShape = None,
    ranking: Annotated[
        str, typer.Option("--ranking", help="Ranking of the channels: l1 or l2 (norm of their weights), or random.")
    ] = "l1",
    round_to: Annotated[int, typer.Option(help="Keep a multiple of this many channels in every layer.")] = 1,
    variants: Annotated[int, typer.Option(help="Number of variants that fit to list, the largest first.")] = 4,
    confidence: Annotated[float, typer.Option(help="Probability with which a limit is met.")] = 0.84,
    seed: cli.Seed = 0,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write: a subfolder per variant, with its weights.")
    ] = None,
    out: cli.OutFile = None,
    html: cli.ChartPage = None,
    check_training: Annotated[
        bool, typer.Option("--check-training", help="Train the largest variant for some steps on this machine.")
    ] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Find the largest channel-pruned variants of a network that a board can train.

    Example: fedge topology find resnet50 --board tx2 --max-memory-mb 3000
    """
    parameters = dict(locals())
    from fedge.analysis.topology.topology_result import TopologyOptions

    others = ("folder", "out", "html", "check_training", "as_json")
    options = build_options(TopologyOptions, parameters, others=others)
    print_variants(options, folder=folder, out=out, html=html, check_training=check_training, as_json=as_json)


def print_variants(
    options: TopologyOptions,
    *,
    folder: Path | None,
    out: Path | None,
    html: Path | None,
    check_training: bool,
    as_json: bool = False,
) -> None:
    """Find, print and write the variants that fit.

    Raises:
        BadInput: If the input is invalid or nothing fits.
        RunFailed: If the training check fails.
    """
    from experiments.report.analysis import topology_report
    from fedge.analysis.topology.topology_result import TOPOLOGY_FORMAT, find_variants, topology_result_to_dict
    from fedge.client.memory_scaling import estimate_usable_mb

    check_output("--out", out, starts=f'{{\n  "format": "{TOPOLOGY_FORMAT}"')
    check_output("--html", html, starts="<!doctype html>")
    check = _check_in_process if check_training else None
    result = find_variants(options, estimate_usable_mb, folder=folder, check_training=check)
    training = result.training
    write_json(out, topology_result_to_dict(result))
    if html is not None:
        write_output("--html", html, lambda path: topology_report.write_topology_page(result, training, path))
    if as_json:
        print_json(topology_result_to_dict(result))
    else:
        topology_report.print_topology(make_console(), result, result.folders, training)
    if training is not None and not training.is_loss_falling:
        raise RunFailed(f"the loss of {result.variants[0].variant.name} did not fall: {training.losses}")


def _check_in_process(folder: Path) -> TrainingCheck:
    """Train a variant in a process of its own, so that the measured memory is that of training alone."""
    from fedge.analysis.topology.variant_files import check_variant_training
    from fedge.child_processes import run_in_child

    return run_in_child(check_variant_training, folder)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="VARIANT", help="A variant's folder, or the variant.json in it.")],
    every: Annotated[bool, typer.Option("--all", help="Show everything: every layer.")] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Show what a variant keeps of its network, layer by layer.

    Example: fedge topology show small/resnet50-0.53
    """
    from experiments.report.analysis import topology_report
    from fedge.analysis.topology.variant_files import read_variant, variant_to_dict

    variant = read_variant(file)
    if as_json:
        print_json(variant_to_dict(variant))
    else:
        topology_report.print_variant(make_console(), variant, every_layer=every)
