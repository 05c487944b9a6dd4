"""Access to the fleet's server as the inventory describes it: command prefix, user, paths and error messages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.fleet.inventory import InventoryHost
from fedge.errors import BadInput

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
        environment: Path of the virtual environment on the server.
        user: The SuperLink's user, under which commands run.
        port: The SuperLink's port on the server's loopback.
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
    options = list(CONNECTION)
    for flag, key in (("-p", "ansible_port"), ("-l", "ansible_user"), ("-i", "ansible_ssh_private_key_file")):
        if member.text(key):
            value = member.text(key)
            options += [flag, str(Path(value).expanduser()) if flag == "-i" else value]
    for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        options += _split_options(member, key)
    return ("ssh", *options, "--", member.text("ansible_host") or member.name)


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
