"""The Ansible inventory of the fleet: server, boards, variables, host patterns, and the records of its checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.fleet.playbook_runner import ansible_environment, find_program
from fedge.errors import BadInput

SERVER, BOARDS = "server", "boards"
SEALED = "{{ in a vault }}"
READ_WITHIN_S = 120.0
"""Default limit for reading an inventory, in seconds. Generous: a vault or a dynamic inventory plug-in may be slow."""
NAMES_SHOWN = 5
UNMATCHED = re.compile(r"Could not match supplied host pattern, ignoring:\s+(\S+)")


@dataclass(frozen=True, slots=True)
class InventoryHost:
    """A host of the inventory with its raw variables; template expressions ``{{ ... }}`` are not evaluated.

    Attributes:
        variables: Values by variable name, group variables included.
    """

    name: str
    variables: Mapping[str, Any]

    def text(self, key: str, default: str = "") -> str:
        """Return a variable as text; one that only Ansible can decrypt or evaluate starts with ``{{``."""
        value = self.variables.get(key, default)
        if isinstance(value, dict) and "__ansible_vault" in value:
            return SEALED
        return default if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Inventory:
    """One server, and at least one board, in Ansible's order."""

    path: Path
    server: InventoryHost
    boards: tuple[InventoryHost, ...]

    @property
    def board_names(self) -> tuple[str, ...]:
        return tuple(board.name for board in self.boards)


def read_inventory(path: Path, folder: Path) -> Inventory:
    """Read an inventory with ``ansible-inventory`` under the ``ansible.cfg`` of the playbooks' folder.

    Raises:
        BadInput: If the file does not exist, Ansible rejects it, or it does not define exactly one server and at least
            one board.
    """
    if not path.exists():
        example = folder / "inventory.example.yml"
        raise BadInput("--inventory", f"{path}, where nothing is", f"a copy of {example} with your own boards in it")
    done = _run_ansible_inventory(path, folder)
    if done.returncode != 0:
        raise BadInput(str(path), "an inventory that Ansible refuses", find_first_error(done.stderr))
    return parse_inventory(json.loads(done.stdout), path)


def match_hosts(found: Inventory, folder: Path, limit: str) -> tuple[str, ...]:
    """Return the names of the server and boards that match an Ansible host pattern such as ``nano-*,!nano-3``.

    Raises:
        BadInput: If the pattern, or a part of it, matches no host.
    """
    done = _run_ansible_inventory(found.path, folder, "--limit", limit)
    if done.returncode != 0:
        raise BadInput("--limit", repr(limit), find_first_error(done.stderr))
    listed = json.loads(done.stdout)
    meant = tuple(dict.fromkeys((*_list_hosts(listed, SERVER), *_list_hosts(listed, BOARDS))))
    unmatched = UNMATCHED.findall(done.stderr)
    if unmatched or not meant:
        strange = ", ".join(unmatched) or limit
        known = format_names([found.server.name, *found.board_names], NAMES_SHOWN)
        raise BadInput("--limit", f"{strange!r}, which is nothing in {found.path}", f"hosts or groups of it: {known}")
    return meant


def _run_ansible_inventory(path: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``ansible-inventory --list``; its output may contain secrets and must not be logged."""
    command = [find_program("ansible-inventory"), "--inventory", str(path.resolve()), "--list", *options]
    try:
        # In the playbooks' folder, as the playbooks themselves run.
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **ansible_environment(os.environ, folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READ_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        got = f"an inventory that Ansible has not read within {READ_WITHIN_S:g} s"
        raise BadInput(str(path), got, f"one that `ansible-inventory -i {path} --list` can read") from error


def find_first_error(stderr: str) -> str:
    """Return Ansible's first error message without its prefix."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "[ERROR]" in line or line.startswith("ERROR")]
    message = (errors or lines or ["it does not say why"])[0]
    return re.sub(r"^(\[ERROR\]|ERROR!?):?\s*", "", message)


def parse_inventory(listed: Mapping[str, Any], path: Path) -> Inventory:
    """Build the inventory from the JSON of ``ansible-inventory --list``.

    Raises:
        BadInput: Without exactly one server, or without boards.
    """
    variables = listed.get("_meta", {}).get("hostvars", {})
    servers, boards = (_list_hosts(listed, group) for group in (SERVER, BOARDS))
    if len(servers) != 1:
        got = f"{len(servers)} hosts ({', '.join(servers)})" if servers else "nothing"
        raise BadInput(f"{path}: group {SERVER!r}", got, "exactly one host, the one that boards dial")
    if not boards:
        right = "the boards, one host each, by their names in experiments"
        raise BadInput(f"{path}: group {BOARDS!r}", "nothing", right)
    server, *rest = (InventoryHost(name, variables.get(name, {})) for name in (*servers, *boards))
    return Inventory(path, server, tuple(rest))


def _list_hosts(listed: Mapping[str, Any], group: str) -> list[str]:
    """Return the distinct hosts of a group and of its child groups."""
    entry = listed.get(group, {})
    inside = [name for child in entry.get("children", ()) for name in _list_hosts(listed, child)]
    return list(dict.fromkeys((*entry.get("hosts", ()), *inside)))


def format_names(names: list[str], most: int) -> str:
    """Join names with commas; beyond ``most`` names, the rest is counted ("and 3 more")."""
    return (
        ", ".join(names) if len(names) <= most else f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    )
