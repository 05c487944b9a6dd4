"""The command ``fedge roofline``: a network on a board's rooflines, or ``bench``, which measures them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

NETWORK, BENCH = "MODEL", "bench"


class _DefaultModelGroup(typer.core.TyperGroup):
    """Command group whose first word is a network unless it names a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``roofline resnet50 ...`` as ``roofline MODEL resnet50 ...``."""
        own = {BENCH, NETWORK, "--help"}
        if args and args[0] not in own:
            args = [NETWORK, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DefaultModelGroup,
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
    device: Annotated[str, typer.Option(help="The board (fedge devices list), or your own board's .yaml.")],
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE", help="Show this mode: a preset's name, or as 12/2201.6/1300.5/3199; else the chosen."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=2**16, help="Samples per batch.")] = 1,
    max_slowdown: Annotated[float, typer.Option(help="How much slower than MAXN the chosen mode may be.")] = 1.05,
    tables: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Fit to the tables of inference there, not to what ships.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the rooflines, over the modes.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")] = None,
) -> None:
    """A network on a board's time and energy rooflines, and the mode of least energy within a slowdown."""
    from experiments.cli.roofline_network import print_roofline as command
    from fedge.analysis.roofline.roofline_analysis import RooflineOptions

    command(
        RooflineOptions(model, device=device, mode=mode, batch_size=batch, max_slowdown=max_slowdown, tables=tables),
        html,
        json_file,
    )


@app.command(BENCH)
def bench(
    *,
    device: Annotated[str, typer.Option(help="cpu or cuda, here; or the name of a board, which is emulated.")] = "cpu",
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE", help="Of an emulated board, a preset's name or as 12/2201.6/1300.5/3199; MAXN by default."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure, about.")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, help="Fixes an emulated board's noise.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write points and constants as JSON.")] = None,
) -> None:
    """Measure a roofline's constants: kernels from few to many FLOP per byte."""
    from experiments.cli.roofline_bench import run_bench as command

    command(device, seconds=seconds, mode=mode, seed=seed, out=out)
