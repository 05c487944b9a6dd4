"""``fedge fleet board``: the page of the fleet's server on this machine, through ssh, until Ctrl-C."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import suppress

from experiments.commands import fleet_choice
from experiments.commands.fleet_choice import Options
from experiments.fleet.endings import as_ctrl_c
from experiments.fleet.ssh import server_of
from experiments.fleet.tunnel import answers, free_port, no_page, page_of, tunnel


def board(options: Options, port: int | None, opened: bool) -> None:
    """Show the address of the page, and keep the way to it open; raises ``RunFailed`` where none is reached."""
    member = fleet_choice.read(options).inventory.server
    server, page = server_of(member), page_of(member)
    if server.way[0] == "sh":
        # The server is this machine: there is nothing to keep open.
        if not answers(page.host, page.port):
            raise no_page(server)
        _say(f"http://{page.host}:{page.port}/", opened)
        return
    here = port or free_port()
    with suppress(KeyboardInterrupt), as_ctrl_c(), tunnel(server, page, here) as wait:
        _say(f"http://127.0.0.1:{here}/ is the page of {server.name}, until Ctrl-C", opened)
        wait()


def _say(line: str, opened: bool) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    if opened:
        webbrowser.open(line.partition(" ")[0])
