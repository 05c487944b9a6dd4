"""``fedge roofline``: a network on a board's time and energy rooflines, or ``bench``, which measures them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from experiments.cli.command_options import InputShape, build_options
from experiments.cli.command_output import check_output, make_console
from fedge.atomic_files import write_text

if TYPE_CHECKING:
    from fedge.analysis.roofline.roofline_analysis import RooflineOptions

NETWORK, BENCH = "MODEL", "bench"
SWEEP_START = '{"device"'
"""First characters of a written sweep."""


class DefaultCommandGroup(typer.core.TyperGroup):
    """Command group whose first command is meant when the first word names none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``roofline resnet50 ...`` as ``roofline MODEL resnet50 ...``."""
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=DefaultCommandGroup,
    help="Time and energy rooflines: `fedge roofline MODEL --device BOARD`, see `fedge roofline MODEL --help`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(NETWORK)
def network(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A classifier of torchvision (resnet50), a workload (resnet50-imagenet), module:function, or a file: "
            ".onnx, or a .json of `fedge layers`.",
        ),
    ],
    *,
    device: Annotated[str, typer.Option(help="The board (fedge devices list), or the .yaml file of your own.")],
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="The mode to show: a preset's name, or as 12/2201.6/1300.5/3199; by default the chosen one.",
        ),
    ] = None,
    input_shape: InputShape = None,
    batch_size: Annotated[int, typer.Option("--batch", min=1, max=2**16, help="Samples per batch.")] = 1,
    max_slowdown: Annotated[
        float, typer.Option(help="Largest time of the chosen mode, as a multiple of MAXN's.")
    ] = 1.05,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Fit to the inference tables in this folder instead of the shipped profiles."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the rooflines of the modes.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the analysis as JSON.")
    ] = None,
) -> None:
    """Place a network on a board's time and energy rooflines, and choose the mode of least energy within a slowdown."""
    parameters = dict(locals())
    from fedge.analysis.roofline.roofline_analysis import RooflineOptions

    options = build_options(RooflineOptions, parameters, others=("html", "json_file"))
    print_roofline(options, html, json_file)


def print_roofline(options: RooflineOptions, html: Path | None, json_file: Path | None) -> None:
    """Analyse a network, print the result and optionally write it."""
    from experiments.report.analysis.roofline_terminal import print_analysis
    from fedge.analysis.roofline.roofline_analysis import ROOFLINE_FORMAT, analyse_roofline, roofline_analysis_to_dict

    check_output("--html", html, "<!doctype html")
    check_output("--json", json_file, f'{{"format": "{ROOFLINE_FORMAT}"')
    analysis = analyse_roofline(options)
    print_analysis(make_console(), analysis)
    if json_file is not None:
        write_text(json_file, json.dumps(roofline_analysis_to_dict(analysis), allow_nan=False) + "\n")
    if html is not None:
        from experiments.report.analysis.roofline_page import write_roofline_page

        write_roofline_page(analysis, html)


@app.command(BENCH)
def bench(
    *,
    device: Annotated[
        str, typer.Option(help="cpu or cuda of this machine, or the name of a board to emulate.")
    ] = "cpu",
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Mode of an emulated board: a preset's name, or as 12/2201.6/1300.5/3199; MAXN by default.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Approximate duration of the measurement.")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of an emulated board's noise.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write points and constants as JSON.")] = None,
) -> None:
    """Measure a roofline's constants: kernels from few to many FLOP per byte."""
    from experiments.report.analysis.roofline_terminal import print_sweep
    from fedge.analysis.roofline.microbenchmark import measure_roofline

    check_output("--out", out, SWEEP_START)
    sweep = measure_roofline(device, seconds, mode, seed)
    print_sweep(make_console(), sweep)
    if out is not None:
        write_text(out, json.dumps(asdict(sweep), allow_nan=False) + "\n")
