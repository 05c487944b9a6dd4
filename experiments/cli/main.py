"""The ``fedge`` command: its commands, and the exit codes of errors; commands import heavy libraries when called."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
import typer.core

from experiments.cli import (
    calibrate_costs,
    characterise_commands,
    layers_commands,
    place_commands,
    power_commands,
    profile_commands,
    select_board_commands,
)
from experiments.cli.command_options import AsJson
from experiments.cli.command_output import make_console, print_json
from experiments.cli.concurrent_commands import app as concurrent
from experiments.cli.dashboard_view import board
from experiments.cli.devices_list import app as devices
from experiments.cli.fleet_commands import fleet
from experiments.cli.knowledge_commands import app as knowledge
from experiments.cli.memory_commands import app as memory
from experiments.cli.predict_commands import app as predict
from experiments.cli.query_run import query
from experiments.cli.replay_run import replay
from experiments.cli.report_run import report
from experiments.cli.roofline_commands import app as roofline
from experiments.cli.run_experiment import resume, run
from experiments.cli.run_status import status
from experiments.cli.study_commands import app as study
from experiments.cli.sweep_commands import sweep
from experiments.cli.topology_commands import app as topology
from fedge.errors import BadInput, FedgeError
from fedge.extras import LIBRARIES, MissingPackage, describe_missing

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="fedge",
    help="Federated learning on fleets of NVIDIA Jetson boards, each in a power mode that fits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.add_typer(concurrent, name="concurrent")
app.add_typer(devices, name="devices")
app.add_typer(fleet, name="fleet")
app.add_typer(knowledge, name="knowledge")
app.add_typer(memory, name="memory")
app.add_typer(predict, name="predict")
app.add_typer(roofline, name="roofline")
app.add_typer(study, name="study")
app.add_typer(topology, name="topology")

app.command()(run)
app.command()(resume)
app.command()(status)
app.command()(sweep)
app.command()(report)
app.command()(replay)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    to: Annotated[str, typer.Option(metavar="NAME", help="tensorboard, mlflow, or your own module:Class.")],
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the exporter; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write into; by default in the run's.")] = None,
) -> None:
    """Export every round of a run to TensorBoard, MLflow or your own exporter."""
    from experiments.backends.stored_run_export import export_run

    count = export_run(run, to, option or [], out)
    typer.echo(f"{count} {'round' if count == 1 else 'rounds'} exported to {to}")


app.command()(query)
app.command()(board)
calibrate_costs.register_commands(app)


@app.command()
def doctor(
    as_json: AsJson = False,
) -> None:
    """Check which packages, backends and data can be used on this machine."""
    from experiments.backends.environment_check import check_environment

    findings = check_environment()
    if as_json:
        print_json(findings)
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"fedge on Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for column in ("what", "usable", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.what, "yes" if finding.usable else "no", escape(finding.found), escape(finding.remedy))
    make_console().print(table)


@app.command()
def version() -> None:
    """Print the version of fedge."""
    from fedge import __version__

    typer.echo(__version__)


profile_commands.register_commands(app)
characterise_commands.register_commands(app)
power_commands.register_commands(app, devices)
layers_commands.register_commands(app)
place_commands.register_commands(app)
select_board_commands.register_commands(app)


def _find_command_name(words: Sequence[str]) -> str:
    """Return the command in a command line without its arguments, such as ``fedge fleet status``."""
    command, names = typer.main.get_command(app), ["fedge"]
    for word in words:
        found = getattr(command, "commands", {}).get(word)
        if found is None:
            break
        command = found
        names.append(word)
    return " ".join(names)


def main() -> None:
    """Run the console script; invalid input is reported in one line with exit code 2, a failed run with exit code 1."""
    # Before numpy and torch are imported: multi-threaded sums round differently and slow down small ones.
    for library in ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    # Otherwise Typer escapes the brackets of plain help texts with backslashes for rich's markup.
    typer.core.HAS_RICH = False
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        app(prog_name="fedge")
    except BadInput as error:
        typer.echo(f"fedge: {error}", err=True)
        sys.exit(BAD_INPUT)
    except MissingPackage as error:
        typer.echo(str(error), err=True)
        sys.exit(BAD_INPUT)
    except FedgeError as error:
        typer.echo(f"fedge: {error}", err=True)
        sys.exit(FAILED)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in LIBRARIES:
            raise
        typer.echo(describe_missing(_find_command_name(sys.argv[1:]), module), err=True)
        sys.exit(BAD_INPUT)
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"fedge: {error.filename}: {error.strerror}; a path that can be read or written", err=True)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        typer.echo("fedge: interrupted", err=True)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
