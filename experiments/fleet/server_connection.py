"""The fleet's server as the inventory describes it: how a command gets there, as whom, and why one did not."""

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
"""Where the server's fedge is unless the inventory's superlink_environment says otherwise."""
CONNECTION_VARIABLES = (
    *("ansible_connection", "ansible_host", "ansible_port", "ansible_user", "ansible_ssh_private_key_file"),
    *("ansible_ssh_common_args", "ansible_ssh_extra_args"),
    *("superlink_runs", "superlink_environment", "superlink_user", "superlink_port"),
)
"""What of the inventory is needed to get to the server and around on it."""
SSH_FAILED = 255
TRACEBACK = "Traceback (most recent call last)"
CONNECTION = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    # A server that is gone is noticed within a minute.
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
"""What to do about a command that the server refused, by what it said; the first that fits."""


@dataclass(frozen=True, slots=True)
class ServerConnection:
    """The fleet's server: how commands get there (a prefix of argv), and where things are on it."""

    name: str
    command_prefix: tuple[str, ...]
    runs: str = f"{LINK_HOME}/runs"
    environment: str = ENVIRONMENT
    user: str = LINK_USER
    port: int = 8000

    def command(self, *words: str, variables: Mapping[str, str] | None = None) -> list[str]:
        """``words`` as the SuperLink's user on the server, quoted for the shell that ssh starts there."""
        env = {"PATH": f"{self.environment}/bin:/usr/bin:/bin", "HOME": LINK_HOME, **(variables or {})}
        pairs = [f"{key}={value}" for key, value in env.items()]
        return [*self.command_prefix, shlex.join(["sudo", "-n", "-u", self.user, "env", *pairs, *words])]

    @property
    def python(self) -> tuple[str, ...]:
        """Its Python, blind to the folder that it is started in."""
        return (f"{self.environment}/bin/python", "-I", "-c")


def build_connection(member: InventoryHost) -> ServerConnection:
    """The server as the inventory describes it to Ansible; raises ``BadInput`` for what only Ansible could fill in."""
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
    """The argv that runs one more word, a shell command, on the host: ssh, or a shell where it is this machine."""
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
    """Why a command did not work on the server, with what to do about it."""
    lines = stderr.strip().splitlines()
    # Of a program of ours that failed there, only the reason is for a person.
    said = " ".join((lines[-1] if TRACEBACK in stderr else stderr).split()) or f"exit code {code} and not a word"
    if code == SSH_FAILED:
        by_hand = shlex.join(["ssh", *(word for word in server.command_prefix[1 + len(CONNECTION) :] if word != "--")])
        return f"{server.name}: {said}; try `{by_hand}` by hand: it has to work without any question"
    fitting = (cure for pattern, cure in CURES if re.search(pattern, said, re.IGNORECASE))
    cure = next(fitting, "`fedge fleet provision` puts everything there that is needed")
    return f"{server.name}: {said}; {cure.format(user=server.user)}"
