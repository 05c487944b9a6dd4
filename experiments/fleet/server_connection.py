"""Access to the fleet's server: command prefix, paths, error messages, and an ssh tunnel to its dashboard."""

from __future__ import annotations

import http.client
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.fleet.inventory import Inventory, InventoryHost
from fedge.child_processes import end_process
from fedge.errors import BadInput, RunFailed

LINK_USER, LINK_HOME = "fedge-link", "/var/lib/fedge-link"
ENVIRONMENT = "/usr/lib/fedge-server/venv"
"""Default path of the server's virtual environment; the inventory's ``superlink_environment`` overrides it."""
CONNECTION_VARIABLES = (
    *("ansible_connection", "ansible_host", "ansible_port", "ansible_user", "ansible_ssh_private_key_file"),
    *("ansible_ssh_common_args", "ansible_ssh_extra_args"),
    *("superlink_runs", "superlink_environment", "superlink_user", "superlink_port"),
)
"""Inventory variables needed to connect to the server and to locate things on it."""
SSH_FAILED = 255
TRACEBACK = "Traceback (most recent call last)"
CONNECTION = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    # Detects a server that is gone within a minute.
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
)
CURES = (
    (
        r"password is required|not allowed|not in the sudoers",
        "let your account there run commands as {user} without a password (sudoers: NOPASSWD)",
    ),
    (r"sudo\b.*not found", "install sudo there"),
    (r"no space left|quota", "make room on it: `df -h` there says where"),
)
"""Remedies by a pattern of the server's error message; the first match counts."""


@dataclass(frozen=True, slots=True)
class ServerConnection:
    """How to run commands on the fleet's server.

    Attributes:
        command_prefix: Argument list that precedes one shell command.
        user: The SuperLink's user, under which commands run.
    """

    name: str
    command_prefix: tuple[str, ...]
    runs: str = f"{LINK_HOME}/runs"
    environment: str = ENVIRONMENT
    user: str = LINK_USER
    port: int = 8000

    def command(self, *words: str, variables: Mapping[str, str] | None = None) -> list[str]:
        """Build the argument list that runs ``words``, quoted for the remote shell, as the SuperLink's user on the
        server.
        """
        env = {"PATH": f"{self.environment}/bin:/usr/bin:/bin", "HOME": LINK_HOME, **(variables or {})}
        pairs = [f"{key}={value}" for key, value in env.items()]
        return [*self.command_prefix, shlex.join(["sudo", "-n", "-u", self.user, "env", *pairs, *words])]

    @property
    def python(self) -> tuple[str, ...]:
        """Argument list of the server's Python in isolated mode, to be followed by a program text."""
        return (f"{self.environment}/bin/python", "-I", "-c")


def build_connection(member: InventoryHost) -> ServerConnection:
    """Build the connection from the server's inventory variables.

    Raises:
        BadInput: If a needed variable holds a template expression or vault, which only Ansible can evaluate, or is
            malformed.
    """
    for key in CONNECTION_VARIABLES:
        if "{{" in member.text(key):
            right = f"plain text: `fedge fleet run` uses it without Ansible ({member.text(key)})"
            raise BadInput(f"{key} of {member.name}", "an expression or a vault", right)
    return ServerConnection(
        name=member.name,
        command_prefix=build_command_prefix(member),
        runs=member.text("superlink_runs") or f"{LINK_HOME}/runs",
        environment=member.text("superlink_environment") or ENVIRONMENT,
        user=member.text("superlink_user") or LINK_USER,
        port=_parse_port(member),
    )


def _parse_port(member: InventoryHost) -> int:
    text = member.text("superlink_port") or "8000"
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise BadInput(f"superlink_port of {member.name}", repr(text), "a port from 1 to 65535, such as 8000")
    return int(text)


def build_command_prefix(member: InventoryHost) -> tuple[str, ...]:
    """Build the argument list that runs one shell command on a host: ssh, or ``sh -c`` if the host is this machine."""
    if member.text("ansible_connection") == "local":
        return ("sh", "-c")
    return ("ssh", *CONNECTION, *_list_options(member), "--", member.text("ansible_host") or member.name)


def list_logins(found: Inventory) -> dict[str, str]:
    """Return the login of every host by its name, see ``format_login``."""
    return {member.name: format_login(member) for member in (found.server, *found.boards)}


def format_login(member: InventoryHost) -> str:
    """Return what a person gives to ``ssh`` or ``ssh-copy-id`` for a host, such as ``-p 2222 me@192.168.1.41``.

    Values that only Ansible can evaluate are left out, and so are all options if one is malformed.
    """
    plain = {key: value for key, value in member.variables.items() if "{{" not in member.text(key)}
    user, address = plain.pop("ansible_user", None), plain.get("ansible_host") or member.name
    try:
        options = _list_options(InventoryHost(member.name, plain))
    except BadInput:
        options = []
    return shlex.join([*options, f"{user}@{address}" if user else str(address)])


def _list_options(member: InventoryHost) -> list[str]:
    """Return the options of ssh that the inventory asks for."""
    options = []
    for flag, key in (("-p", "ansible_port"), ("-l", "ansible_user"), ("-i", "ansible_ssh_private_key_file")):
        if member.text(key):
            value = member.text(key)
            options += [flag, str(Path(value).expanduser()) if flag == "-i" else value]
    for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        options += _split_options(member, key)
    return options


def _split_options(member: InventoryHost, key: str) -> list[str]:
    try:
        return shlex.split(member.text(key))
    except ValueError as error:
        right = f"options of ssh as a shell reads them ({str(error).lower()})"
        raise BadInput(f"{key} of {member.name}", repr(member.text(key)), right) from error


def explain_failure(server: ServerConnection, code: int, stderr: str) -> str:
    """Explain why a command failed on the server, with a remedy; exit code 255 is ssh's own failure."""
    lines = stderr.strip().splitlines()
    # Of a traceback, only the last line (the reason) is shown.
    reason = " ".join((lines[-1] if TRACEBACK in stderr else stderr).split()) or f"exit code {code} and not a word"
    if code == SSH_FAILED:
        by_hand = shlex.join(["ssh", *(word for word in server.command_prefix[1 + len(CONNECTION) :] if word != "--")])
        return f"{server.name}: {reason}; try `{by_hand}` by hand: it has to work without any question"
    fitting = (cure for pattern, cure in CURES if re.search(pattern, reason, re.IGNORECASE))
    cure = next(fitting, "`fedge fleet provision` puts everything there that is needed")
    return f"{server.name}: {reason}; {cure.format(user=server.user)}"


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

        def explain_loss(code: int) -> RunFailed:
            errors.seek(0)
            return RunFailed(
                explain_failure(server, code if code > 0 else SSH_FAILED, errors.read().decode("utf-8", "replace"))
            )

        def wait() -> None:
            raise explain_loss(process.wait())

        try:
            _wait_for_page(process, port, server, explain_loss)
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
    process: subprocess.Popen[bytes], port: int, server: ServerConnection, explain_loss: Callable[[int], RunFailed]
) -> None:
    """Wait until the dashboard responds through the tunnel."""
    end_s = time.monotonic() + OPENS_WITHIN_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise explain_loss(process.returncode)
        found = probe_page(LOOPBACK, port)
        if found:
            return
        if found is False:
            raise no_page_error(server)
        time.sleep(0.1)
    raise RunFailed(f"{server.name}: ssh has not opened a tunnel within {OPENS_WITHIN_S:.0f} s")
