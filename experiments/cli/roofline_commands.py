"""``fedge roofline``: a network on a board's time and energy rooflines, or ``bench``, which measures them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import DefaultCommandGroup, build_options, command_group
from experiments.cli.command_output import check_output, make_console, print_json, write_json
from fedge.errors import UnknownName

if TYPE_CHECKING:
    from fedge.analysis.roofline.roofline_analysis import RooflineOptions

NETWORK, BENCH = "NETWORK", "bench"
SWEEP_START = '{\n  "device"'
"""First characters of a written sweep."""


app = command_group(
    "Time and energy rooflines.\n\n"
    "`fedge roofline resnet50 --board agx-orin` is short for `fedge roofline NETWORK resnet50 --board agx-orin`.",
    DefaultCommandGroup,
)


@app.command(NETWORK)
def network(
    network: cli.Network,
    *,
    board: cli.Board,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Power mode: a preset's name, or as 12/2201.6/1300.5/3199. By default the chosen one.",
        ),
    ] = None,
    input_shape: cli.InputShape = None,
    batch_size: Annotated[int, typer.Option(min=1, max=2**16, help="Samples per step.")] = 1,
    max_slowdown: Annotated[
        float, typer.Option(help="Largest time of the chosen mode, as a multiple of MAXN's.")
    ] = 1.05,
    profiles: Annotated[
        Path | None,
        typer.Option(
            "--profiles", metavar="DIR", help="Fit to the inference tables in this folder instead of shipped profiles."
        ),
    ] = None,
    html: cli.ChartPage = None,
    out: cli.OutFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Place a network on a board's time and energy rooflines, and choose the mode of least energy within a slowdown.

    Example: fedge roofline resnet50 --board agx-orin --batch-size 16
    """
    parameters = dict(locals())
    from fedge.analysis.roofline.roofline_analysis import RooflineOptions

    options = build_options(RooflineOptions, parameters, others=("html", "out", "as_json"))
    print_roofline(options, html, out, as_json=as_json)


def print_roofline(options: RooflineOptions, html: Path | None, out: Path | None, *, as_json: bool = False) -> None:
    """Analyse a network, print the result and optionally write it."""
    from experiments.report.analysis.roofline_report import print_analysis
    from fedge.analysis.roofline.roofline_analysis import ROOFLINE_FORMAT, analyse_roofline, roofline_analysis_to_dict

    check_output("--html", html, "<!doctype html")
    check_output("--out", out, f'{{\n  "format": "{ROOFLINE_FORMAT}"')
    analysis = analyse_roofline(options)
    if as_json:
        print_json(roofline_analysis_to_dict(analysis))
    else:
        print_analysis(make_console(), analysis)
    write_json(out, roofline_analysis_to_dict(analysis))
    if html is not None:
        from experiments.report.analysis.roofline_report import write_roofline_page

        write_roofline_page(analysis, html)


@app.command(BENCH)
def bench(
    *,
    device: Annotated[str, typer.Option(help="Device of this machine: cpu or cuda.")] = "cpu",
    board: Annotated[str | None, typer.Option(help="The board; emulated, instead of this machine.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Power mode (of an emulated board): a preset's name, or as 12/2201.6/1300.5/3199. By default MAXN.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Duration in seconds (approximate).")] = 20.0,
    seed: cli.Seed = 0,
    out: cli.OutFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Measure a roofline's constants: kernels from few to many FLOP per byte.

    Example: fedge roofline bench --board agx-orin
    """
    from experiments.report.analysis.roofline_report import print_sweep
    from fedge.analysis.roofline.microbenchmark import REAL_DEVICES, measure_roofline

    check_output("--out", out, SWEEP_START)
    if device not in REAL_DEVICES:
        raise UnknownName("--device", device, REAL_DEVICES)
    sweep = measure_roofline(board or device, seconds, mode, seed)
    if as_json:
        print_json(sweep)
    else:
        print_sweep(make_console(), sweep)
    write_json(out, asdict(sweep))
