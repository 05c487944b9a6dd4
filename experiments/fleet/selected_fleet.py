"""The fleet that a command refers to: inventory, playbooks and the hosts within the limit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from experiments.fleet import inventory
from experiments.fleet.inventory import Inventory
from experiments.fleet.inventory_rules import find_example_hosts, find_problems
from experiments.fleet.playbook_runner import PlaybookCall
from fedge.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
INSTALLED_PLAYBOOKS = ROOT / "fedge_playbooks"
PLAYBOOKS = INSTALLED_PLAYBOOKS if INSTALLED_PLAYBOOKS.is_dir() else ROOT / "ansible"
"""The playbooks of the installed package or of the checkout."""
INVENTORY_VARIABLE = "FEDGE_INVENTORY"


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Files of a fleet.

    Attributes:
        limit: Ansible host pattern, or None for all hosts.
    """

    inventory: Path
    playbooks: Path
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class SelectedFleet:
    """A fleet with its inventory.

    Attributes:
        hosts: Names of the hosts within the limit.
    """

    options: FleetOptions
    inventory: Inventory
    hosts: frozenset[str]

    @property
    def boards(self) -> tuple[str, ...]:
        """The boards within the limit."""
        return tuple(name for name in self.inventory.board_names if name in self.hosts)

    def build_call(self, playbook: str) -> PlaybookCall:
        """Return a call of a playbook on this fleet."""
        return PlaybookCall(self.options.playbooks, playbook, self.options.inventory.resolve(), self.options.limit)


def build_options(path: Path | None, playbooks: Path | None, limit: str | None = None) -> FleetOptions:
    """Fill in defaults for missing options."""
    folder = (playbooks or PLAYBOOKS).resolve()
    if not folder.is_dir():
        raise BadInput("--playbooks", f"{folder}, where nothing is", "a folder like ansible/ of fedge's checkout")
    named = os.environ.get(INVENTORY_VARIABLE)
    # An installed package is no place for a user's file.
    usual = Path() if folder == INSTALLED_PLAYBOOKS else folder
    return FleetOptions(path or (Path(named) if named else usual / "inventory.yml"), folder, limit)


def read_fleet(options: FleetOptions) -> SelectedFleet:
    """Read the inventory.

    Raises:
        BadInput: If the inventory, the limit or a host's address is invalid.
    """
    fleet = _read_inventory(options)
    raise_problems(find_example_hosts(fleet.inventory), fleet)
    return fleet


def read_checked_fleet(options: FleetOptions) -> SelectedFleet:
    """Read the inventory and check the files that it names.

    Raises:
        BadInput: With all problems found.
    """
    fleet = _read_inventory(options)
    selected = replace(
        fleet.inventory, boards=tuple(board for board in fleet.inventory.boards if board.name in fleet.hosts)
    )
    raise_problems(find_problems(selected, options.playbooks, datetime.now(UTC)), fleet)
    return fleet


def _read_inventory(options: FleetOptions) -> SelectedFleet:
    whole = inventory.read_inventory(options.inventory, options.playbooks)
    if options.limit is None:
        return SelectedFleet(options, whole, frozenset({whole.server.name, *whole.board_names}))
    return SelectedFleet(options, whole, frozenset(inventory.match_hosts(whole, options.playbooks, options.limit)))


def raise_problems(problems: Sequence[BadInput], fleet: SelectedFleet) -> None:
    """Raise ``BadInput`` with all problems of an inventory, before any host is contacted."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise BadInput(str(fleet.options.inventory), f"{len(problems)} problems", f"fix them first:{listed}")
