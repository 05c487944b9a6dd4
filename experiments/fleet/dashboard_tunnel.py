"""An ssh tunnel to the dashboard on the fleet's server, which listens on loopback there."""

from __future__ import annotations

import http.client
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from experiments.fleet.inventory import InventoryHost
from experiments.fleet.server_connection import CONNECTION, SSH_FAILED, ServerConnection, explain_failure
from fedge.child_processes import end_process
from fedge.errors import BadInput, RunFailed

LOOPBACK, PAGE_PORT = "127.0.0.1", 8400
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, never bound
OPENS_WITHIN_S = 30.0
"""Default limit for opening the tunnel. Generous: ssh itself fails earlier if the server does not respond."""
ASK_S = 10.0
END_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class DashboardAddress:
    """Address on which the board service listens, as seen from the server."""

    host: str = LOOPBACK
    port: int = PAGE_PORT


def find_dashboard_address(server: InventoryHost) -> DashboardAddress:
    """Return the dashboard's address from the inventory.

    Raises:
        BadInput: If the server has no dashboard.
    """
    settings = server.variables.get("board_page_settings")
    own = settings if isinstance(settings, dict) else {}
    if server.text("board_page_enabled", "true").lower() in {"false", "no", "0"}:
        raise BadInput(f"board_page_enabled of {server.name}", "false", "true, and `fedge fleet provision`, for a page")
    port = str(own.get("port") or server.text("board_page_port") or PAGE_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise BadInput(f"board_page_port of {server.name}", repr(port), "a port from 1 to 65535, such as 8400")
    host = str(own.get("host") or "")
    return DashboardAddress(LOOPBACK if host in ANY_ADDRESS else host, int(port))


def tunnel_command(server: ServerConnection, page: DashboardAddress, port: int) -> list[str]:
    """Build the ssh command that forwards ``port`` of the local loopback to the dashboard and does nothing else."""
    host = f"[{page.host}]" if ":" in page.host else page.host
    destination = server.command_prefix[1 + len(CONNECTION) :]
    # A connection of its own: a shared (multiplexed) one would keep the port open after this command.
    alone = ("-N", "-o", "ExitOnForwardFailure=yes", "-o", "ControlPath=none")
    return ["ssh", *CONNECTION, *alone, "-L", f"{LOOPBACK}:{port}:{host}:{page.port}", *destination]


@contextmanager
def open_tunnel(server: ServerConnection, page: DashboardAddress, port: int) -> Iterator[Callable[[], None]]:
    """Forward the local loopback ``port`` inside the block; yield a function that blocks until the tunnel ends.

    Raises:
        RunFailed: If ssh ends early or the dashboard does not respond through the tunnel.
    """
    with tempfile.TemporaryFile() as errors:
        # A session of its own: Ctrl-C goes to this program only, which then ends ssh.
        words = tunnel_command(server, page, port)
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )

        def lost(code: int) -> RunFailed:
            errors.seek(0)
            return RunFailed(
                explain_failure(server, code if code > 0 else SSH_FAILED, errors.read().decode("utf-8", "replace"))
            )

        def wait() -> None:
            raise lost(process.wait())

        try:
            _wait_for_page(process, port, server, lost)
            yield wait
        finally:
            end_process(process, END_LIMIT_S)


def probe_page(host: str, port: int) -> bool | None:
    """Return whether an HTTP page responds, or None if nothing accepts the connection (yet)."""
    link = http.client.HTTPConnection(host, port, timeout=ASK_S)
    try:
        link.connect()
    except OSError:
        return None
    try:
        link.request("GET", "/")
        return link.getresponse().status < http.client.INTERNAL_SERVER_ERROR
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()


def no_page_error(server: ServerConnection) -> RunFailed:
    """Build the error for a server on which nothing listens at the dashboard's address."""
    return RunFailed(f"{server.name}: no page answers there; `fedge fleet status` says whether fedge-board is up")


def _wait_for_page(
    process: subprocess.Popen[bytes], port: int, server: ServerConnection, lost: Callable[[int], RunFailed]
) -> None:
    """Wait until the dashboard responds through the tunnel."""
    end_s = time.monotonic() + OPENS_WITHIN_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise lost(process.returncode)
        found = probe_page(LOOPBACK, port)
        if found:
            return
        if found is False:
            raise no_page_error(server)
        time.sleep(0.1)
    raise RunFailed(f"{server.name}: ssh has not opened a tunnel within {OPENS_WITHIN_S:.0f} s")
