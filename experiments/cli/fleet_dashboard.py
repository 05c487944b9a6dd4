"""``fedge fleet board``: the dashboard of the fleet's server on this machine, through ssh, until Ctrl-C."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import suppress

from experiments.backends.sim_backend import find_free_port
from experiments.fleet import selected_fleet
from experiments.fleet.dashboard_tunnel import find_dashboard_address, no_page_error, open_tunnel, probe_page
from experiments.fleet.process_cleanup import handle_signals
from experiments.fleet.selected_fleet import FleetOptions
from experiments.fleet.server_connection import build_connection
from fedge.phases import begin_phase


def open_fleet_dashboard(options: FleetOptions, port: int | None, opened: bool) -> None:
    """Print the dashboard's address and keep the tunnel open until Ctrl-C.

    Without ``port``, a free one is used; ``opened`` also opens a browser.

    Raises:
        RunFailed: If the dashboard cannot be reached.
    """
    member = selected_fleet.read_fleet(options).inventory.server
    server, page = build_connection(member), find_dashboard_address(member)
    if server.command_prefix[0] == "sh":
        # If this machine is the server, no tunnel is needed.
        if not probe_page(page.host, page.port):
            raise no_page_error(server)
        _announce(f"http://{page.host}:{page.port}/", opened)
        return
    local_port = port or find_free_port()
    with suppress(KeyboardInterrupt), handle_signals(), open_tunnel(server, page, local_port) as wait:
        _announce(f"http://127.0.0.1:{local_port}/ is the page of {server.name}, until Ctrl-C", opened)
        wait()


def _announce(line: str, opened: bool) -> None:
    begin_phase("")  # it waits from now on
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    if opened:
        webbrowser.open(line.partition(" ")[0])
