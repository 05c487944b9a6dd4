"""``fedge topology``: channel-pruned variants of a network that fit a board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.cli.command_options import ChartPage, InputShape, build_options
from experiments.cli.command_output import check_output, print_json, write_output
from experiments.cli.roofline_commands import DefaultCommandGroup
from fedge.atomic_files import write_text
from fedge.errors import RunFailed

if TYPE_CHECKING:
    from fedge.analysis.topology.topology_result import TopologyOptions
    from fedge.analysis.topology.variant_files import TrainingCheck


app = typer.Typer(
    cls=DefaultCommandGroup,
    help="Channel-pruned variants of a network that fit a board's memory and time, and that train.\n\n"
    "fedge topology MODEL --device tx2 is short for fedge topology find MODEL --device tx2.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("find")
def find(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A classifier of torchvision (resnet50), a workload, or module:function of your own."
        ),
    ],
    *,
    device: Annotated[str, typer.Option(help="The board, as `fedge devices list` names it.")],
    batch_size: Annotated[int, typer.Option("--batch", help="Samples per training step.")] = 32,
    max_memory_mb: Annotated[
        float | None, typer.Option(help="Limit of training's memory; by default what the board leaves for it.")
    ] = None,
    max_step_s: Annotated[float | None, typer.Option(help="Limit of a training step's time at MAXN.")] = None,
    input_shape: InputShape = None,
    method: Annotated[
        str, typer.Option(help="Ranking of the channels: l1 or l2 (norm of their weights), or random.")
    ] = "l1",
    round_to: Annotated[int, typer.Option(help="Keep a multiple of this many channels in every layer.")] = 1,
    variants: Annotated[int, typer.Option(help="Number of variants that fit to list, the largest first.")] = 4,
    confidence: Annotated[float, typer.Option(help="Probability with which each limit is met.")] = 0.84,
    seed: Annotated[int, typer.Option(help="Seed of --method random.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each variant with its weights into a folder there.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
    html: ChartPage = None,
    check_training: Annotated[
        bool, typer.Option("--check-training", help="Train the largest variant for some steps on this machine.")
    ] = False,
) -> None:
    """Find the largest channel-pruned variants of a network that a board can train."""
    parameters = dict(locals())
    from fedge.analysis.topology.topology_result import TopologyOptions

    options = build_options(TopologyOptions, parameters, others=("out", "json_file", "html", "check_training"))
    print_variants(options, out=out, json_file=json_file, html=html, check_training=check_training)


def print_variants(
    options: TopologyOptions, *, out: Path | None, json_file: Path | None, html: Path | None, check_training: bool
) -> None:
    """Find, print and write the variants that fit.

    Raises:
        BadInput: If the input is invalid or nothing fits.
        RunFailed: If the training check fails.
    """
    from experiments.report.analysis import topology_report
    from fedge.analysis.topology.topology_result import TOPOLOGY_FORMAT, find_variants, topology_result_to_dict
    from fedge.client.memory_scaling import estimate_usable_mb

    check_output("--json", json_file, starts=f'{{"format": "{TOPOLOGY_FORMAT}"')
    check_output("--html", html, starts="<!doctype html>")
    check = _check_in_process if check_training else None
    result = find_variants(options, estimate_usable_mb, out=out, check_training=check)
    training = result.training
    if json_file is not None:
        text = json.dumps(topology_result_to_dict(result)) + "\n"
        write_output("--json", json_file, lambda path: write_text(path, text))
    if html is not None:
        write_output("--html", html, lambda path: topology_report.write_topology_page(result, training, path))
    topology_report.print_topology(result, result.folders, training)
    if training is not None and not training.is_loss_falling:
        raise RunFailed(f"the loss of {result.variants[0].variant.name} did not fall: {training.losses}")


def _check_in_process(folder: Path) -> TrainingCheck:
    """Train a variant in a process of its own, so that the measured memory is that of training alone."""
    from fedge.analysis.topology.variant_files import check_variant_training
    from fedge.child_processes import run_in_child

    return run_in_child(check_variant_training, folder)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A variant's folder, or the variant.json in it.")],
    every: Annotated[bool, typer.Option("--all", help="Show every layer.")] = False,
    form: Annotated[Literal["table", "json"], typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Show what a variant keeps of its network, layer by layer."""
    from experiments.report.analysis import topology_report
    from fedge.analysis.topology.variant_files import read_variant, variant_to_dict

    variant = read_variant(file)
    if form == "json":
        print_json(variant_to_dict(variant))
    else:
        topology_report.print_variant(variant, every_layer=every)
