"""``fedge board``: the live dashboard of a run, of another dashboard, or of a real fleet."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.command_output import warn
from fedge.errors import BadInput
from fedge.phases import begin_phase
from fedge.telemetry import run_folder

LOOPBACK = "127.0.0.1"


def board(
    source: Annotated[
        str | None,
        typer.Argument(metavar="RUN_OR_ADDRESS", help="Run folder, also of a later run; folder of runs; or http://..."),
    ] = None,
    *,
    host: Annotated[
        str,
        typer.Option("--listen", metavar="ADDRESS", help="Address to listen on; other than loopback needs a token."),
    ] = LOOPBACK,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port to listen on; by default the first free one from 8400.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that readers need; created if missing.")
    ] = None,
    relay_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token of the dashboard at ADDRESS.")
    ] = None,
    serve: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Run as the service of a fleet, with the settings in this file."),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser of this machine.")] = False,
) -> None:
    """Show a run, all runs of a folder, or a real fleet as a live web page.

    Example: fedge board runs/office --open
    """
    from experiments.backends import dashboard_service as backend
    from experiments.backends.dashboard_target import parse_address, read_token
    from experiments.backends.run_list import find_run_folders

    if serve is not None:
        given = {"RUN_OR_ADDRESS": source, "--port": port, "--token-file": token_file}
        given |= {"--relay-token-file": relay_token_file, "--listen": None if host == LOOPBACK else host}
        _serve_fleet(serve, given, opened=open_it)
        return
    if relay_token_file is not None and "://" not in (source or ""):
        right = "--token-file for the page itself; this one is the token of another page, http://HOST:PORT/"
        raise BadInput("--relay-token-file", f"{relay_token_file}, with a run folder", right)
    if not source:
        raise BadInput("RUN_OR_ADDRESS", "nothing", "a run folder, an address (http://...), or --serve FILE")
    place = backend.ListenAddress(host, port, token_file)
    if "://" in source:
        url, token = parse_address(source)
        if relay_token_file is not None:
            token = read_token(relay_token_file)
        backend.show_relay(url, token=token, place=place, told=partial(announce_page, opened=open_it), note=_note)
    elif find_run_folders(Path(source)):
        backend.show_runs(Path(source).absolute(), place, partial(announce_page, opened=open_it))
    else:
        backend.show_run(_find_or_await_run(Path(source)), place, partial(announce_page, opened=open_it))


def _find_or_await_run(source: Path) -> Path:
    """Return the run's folder, and say so if it holds no run yet."""
    from experiments.backends.dashboard_target import find_run_folder

    folder = find_run_folder(source)
    if not (folder / run_folder.RUN_YAML).is_file():
        _note(f"there is no run in {folder} yet: the page waits for it")
    return folder


def _serve_fleet(serve: Path, given: Mapping[str, object], *, opened: bool) -> None:
    """Run the service with the settings of a file; other options that are ``given`` would have no effect."""
    from experiments.backends import dashboard_service as backend
    from experiments.backends.dashboard_target import read_settings

    for name, value in given.items():
        if value is not None:
            raise BadInput(name, f"{value}, with --serve", f"without it: {serve} contains these settings")
    settings = read_settings(serve)
    place = backend.ListenAddress(settings.host, settings.port, settings.token_file, settings.names)
    limits = (round(settings.store_gb * 1e9), settings.store_days * 86_400.0)
    service = backend.FleetDashboard(settings.store, settings.runs, settings.ingest, *limits)
    backend.serve_fleet(service, place, partial(announce_page, opened=opened))


def _note(text: str) -> None:
    warn(f"note: {text}")


def announce_page(line: str, opened: bool) -> None:
    """Print a line that begins with a page's address; ``opened`` also opens it in a browser."""
    begin_phase("")  # it serves from now on
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    if opened:
        webbrowser.open(line.partition(" ")[0])
