"""``fedge board``: the live dashboard of a run, of another dashboard, or of a real fleet."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedge.errors import BadInput

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """Command-line options."""

    source: str | None
    serve: Path | None = None
    host: str = LOOPBACK
    port: int | None = None
    token_file: Path | None = None
    relay_token_file: Path | None = None
    open: bool = False


def board(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_OR_ADDRESS", help="Run folder, which may not exist yet, or http://... of another dashboard."
        ),
    ] = None,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; other than loopback needs a token.")] = LOOPBACK,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port; by default the first free one from 8400.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that readers need; created if missing.")
    ] = None,
    relay_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token of the dashboard at ADDRESS.")
    ] = None,
    serve: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run as the service of a real fleet, with these settings.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser of this machine.")] = False,
) -> None:
    """Show a run, unfinished or finished, or a real fleet as a live web page."""
    serve_dashboard(
        DashboardOptions(
            source,
            serve=serve,
            host=host,
            port=port,
            token_file=token_file,
            relay_token_file=relay_token_file,
            open=open_it,
        )
    )


def serve_dashboard(options: DashboardOptions) -> None:
    """Serve the dashboard until Ctrl-C and print its address."""
    from experiments.backends import dashboard_service as backend
    from experiments.backends.dashboard_target import find_run_folder, parse_address, read_settings, read_token

    _check_options(options)
    if options.serve is not None:
        settings = read_settings(options.serve)
        place = backend.ListenAddress(settings.host, settings.port, settings.token_file, settings.names)
        limits = (round(settings.store_gb * 1e9), settings.store_days * 86_400.0)
        service = backend.FleetDashboard(settings.store, settings.runs, settings.ingest, *limits)
        backend.serve_fleet(service, place, _announce_url(options.open))
        return
    place = backend.ListenAddress(options.host, options.port, options.token_file)
    source = options.source or ""
    if not source:
        raise BadInput("RUN_OR_ADDRESS", "nothing", "a run folder, an address (http://...), or --serve FILE")
    if "://" in source:
        url, token = parse_address(source)
        if options.relay_token_file is not None:
            token = read_token(options.relay_token_file)
        backend.show_relay(url, token=token, place=place, told=_announce_url(options.open), note=_note)
    else:
        backend.show_run(find_run_folder(Path(source)), place, _announce_url(options.open))


def _check_options(options: DashboardOptions) -> None:
    """Raise ``BadInput`` for options that would have no effect."""
    given = {"RUN_OR_ADDRESS": options.source, "--port": options.port, "--token-file": options.token_file}
    given |= {
        "--relay-token-file": options.relay_token_file,
        "--host": None if options.host == LOOPBACK else options.host,
    }
    odd = [name for name, value in given.items() if value is not None]
    if options.serve is not None and odd:
        raise BadInput(odd[0], f"{given[odd[0]]}, with --serve", f"without it: {options.serve} contains these settings")
    if options.relay_token_file is not None and "://" not in (options.source or ""):
        right = "--token-file for the page itself; this one is the token of another page, http://HOST:PORT/"
        raise BadInput("--relay-token-file", f"{options.relay_token_file}, with a run folder", right)


def _note(text: str) -> None:
    sys.stderr.write(f"note: {text}\n")
    sys.stderr.flush()


def _announce_url(opened: bool) -> Callable[[str], None]:
    def announce(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        if opened:
            webbrowser.open(url)

    return announce
