"""The ``fedge`` command: each command reads its options and calls one function; heavy imports are deferred."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import typer.core

from experiments.cli import (
    characterise_commands,
    layers_commands,
    place_commands,
    power_commands,
    profile_commands,
    select_board_commands,
)
from experiments.cli.concurrent_commands import app as concurrent
from experiments.cli.fleet_commands import fleet
from experiments.cli.memory_commands import app as memory
from experiments.cli.predict_commands import app as predict
from experiments.cli.roofline_commands import app as roofline
from experiments.cli.study_commands import app as study
from experiments.cli.topology_commands import app as topology
from fedge.errors import BadInput, FedgeError

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="fedge",
    help="Federated learning on fleets of NVIDIA Jetson boards, each in a power mode that fits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
devices = typer.Typer(help="The catalogue of boards.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(concurrent, name="concurrent")
app.add_typer(devices, name="devices")
app.add_typer(fleet, name="fleet")
app.add_typer(memory, name="memory")
app.add_typer(predict, name="predict")
app.add_typer(roofline, name="roofline")
app.add_typer(study, name="study")
app.add_typer(topology, name="topology")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
RayDashboard = Annotated[bool, typer.Option("--ray-dashboard", help="Show the boards on Ray's own dashboard.")]
RayPort = Annotated[int | None, typer.Option("--ray-dashboard-port", min=1024, max=65535, help="Its port.")]


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="The experiment's YAML file.")],
    backend: Annotated[str | None, typer.Option(help="local, sim or fleet; the file's own by default.")] = None,
    seed: Annotated[int | None, typer.Option(help="Overrides the file's seed.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/<name>-<time> by default.")] = None,
    *,
    ray_dashboard: RayDashboard = False,
    ray_dashboard_port: RayPort = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment and write its run folder."""
    from experiments.cli.run_experiment import start_run as command

    given = {"backend": backend, "seed": seed}
    extra = [f"{key}={value}" for key, value in given.items() if value is not None]
    command(
        config,
        overrides=[*(override or []), *extra],
        out=out,
        as_json=as_json,
        ray_port=_resolve_ray_port(ray_dashboard, ray_dashboard_port),
    )


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that stopped.")],
    ray_dashboard: RayDashboard = False,
    ray_dashboard_port: RayPort = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run from its last checkpoint."""
    from experiments.cli.run_experiment import resume_run as command

    command(folder, as_json, _resolve_ray_port(ray_dashboard, ray_dashboard_port))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are laid side by side.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file; report.html in the first run by default.")] = None,
    tables: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write every table there, as .csv and .tex.")
    ] = None,
) -> None:
    """Write the report of one run, or of several side by side: those that differ in the seed alone, as one group."""
    from experiments.cli.report_run import write_run_report as command

    command(runs, out, tables)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    to: Annotated[str, typer.Option(metavar="NAME", help="tensorboard, mlflow, or your own module:Class.")],
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the exporter; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write into; in the run's by default.")] = None,
) -> None:
    """Export every round of a run to TensorBoard, MLflow or your own exporter."""
    from experiments.cli.export_rounds import export_run as command

    command(run, to, option or [], out)


@app.command()
def query(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, finished or not.")],
    sql: Annotated[str, typer.Argument(help="One SELECT over rounds, clients, events and samples.")],
    form: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
    out: Annotated[Path | None, typer.Option(help="A new file; the terminal by default.")] = None,
) -> None:
    """Ask a run's tables in SQL; nothing but these can be read, and nothing written."""
    from experiments.cli.query_run import run_query as command

    command(run, sql, form, out)


@app.command()
def board(
    shown: Annotated[
        str | None,
        typer.Argument(metavar="RUN_OR_ADDRESS", help="A run folder, also one to come, or another page's http://..."),
    ] = None,
    *,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine it needs a token.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="The first free one from 8400 by default.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds the token that readers need; made if it is not there.")
    ] = None,
    relay_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds the token of the page at ADDRESS.")
    ] = None,
    serve: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Be the service of a real fleet, with these settings.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser of this machine.")] = False,
) -> None:
    """Show a run, going on or finished, or a real fleet as a live web page."""
    from experiments.cli.dashboard_view import DashboardOptions
    from experiments.cli.dashboard_view import serve_dashboard as command

    command(
        DashboardOptions(
            shown,
            serve=serve,
            host=host,
            port=port,
            token_file=token_file,
            relay_token_file=relay_token_file,
            open=open_it,
        )
    )


@devices.command("list")
def devices_list(as_json: AsJson = False) -> None:
    """Every board of the catalogue."""
    from experiments.cli.devices_list import list_devices

    list_devices(_make_console(), as_json)


@devices.command("show")
def devices_show(name: Annotated[str, typer.Argument(metavar="NAME")], as_json: AsJson = False) -> None:
    """One board: knobs, presets, rails, figures and their sources."""
    from experiments.cli.devices_list import show_device

    show_device(name, _make_console(), as_json)


@devices.command("modes")
def devices_modes(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    preset: Annotated[str | None, typer.Option(help="Only this nvpmodel preset.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every mode, one per line.")] = False,
    as_json: AsJson = False,
) -> None:
    """A board's power modes."""
    from experiments.cli.devices_list import show_modes

    show_modes(name, preset=preset, every=every, console=_make_console(), json=as_json)


@app.command()
def calibrate(
    tables: Annotated[list[Path], typer.Argument(metavar="TABLE...", help="Measured tables in the normal form (CSV).")],
    device: Annotated[str | None, typer.Option(help="The board; from the table's path by default.")] = None,
    workload: Annotated[str | None, typer.Option(help="The workload; from the file's name by default.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Which batch size, where a table holds several.")] = None,
    kind: Annotated[
        Literal["train", "infer"] | None,
        typer.Option(
            help="What a minibatch is; infer gives one file per batch size. From the table's folder by default."
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder for the coefficients.")] = Path("calibrated"),
    origin: Annotated[str, typer.Option(help="Who measured; written into the files.")] = "",
    as_json: AsJson = False,
) -> None:
    """Fit the physical model of time and power to measured tables."""
    from experiments.cli import calibrate_costs as command

    results = command.calibrate_tables(
        tables, device=device, workload=workload, batch_size=batch_size, kind=kind, out=out, origin=origin
    )
    if as_json:
        typer.echo(json.dumps(command.as_data(results)))
    else:
        _make_console().print(command.as_table(results))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What is installed, which backends and data are usable here."""
    from experiments.cli.doctor import print_environment as command

    command(_make_console(), as_json)


@app.command()
def version() -> None:
    """The version of fedge."""
    from fedge import __version__

    typer.echo(__version__)


profile_commands.register_commands(app)
characterise_commands.register_commands(app)
power_commands.register_commands(app, devices)
layers_commands.register_commands(app)
place_commands.register_commands(app)
select_board_commands.register_commands(app)


def _resolve_ray_port(wanted: bool, port: int | None) -> int | None:
    """Return the port of Ray's dashboard: 0 for any free one, None without a dashboard."""
    return port or 0 if wanted or port else None


def _make_console() -> Any:
    from rich.console import Console

    return Console()


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
    except FedgeError as error:
        typer.echo(f"fedge: {error}", err=True)
        sys.exit(FAILED)
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
