"""Which fleet a command means: its inventory, read and looked at once, its playbooks, the hosts within the limit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from experiments.fleet import inventory
from experiments.fleet.inventory import Inventory
from experiments.fleet.plan import Problem
from experiments.fleet.playbooks import Call
from experiments.fleet.problems import example_hosts, problems
from fedge.errors import BadInput

PLAYBOOKS = Path(__file__).resolve().parents[2] / "ansible"
"""The checkout's own."""
INVENTORY_VARIABLE = "FEDGE_INVENTORY"


@dataclass(frozen=True, slots=True)
class Options:
    """Where a fleet's files are; ``limit`` is Ansible's pattern where only some of its hosts are meant."""

    inventory: Path
    playbooks: Path
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet whose inventory was read; ``hosts`` are those within the limit, all without one."""

    options: Options
    inventory: Inventory
    hosts: frozenset[str]

    @property
    def boards(self) -> tuple[str, ...]:
        """The boards within the limit."""
        return tuple(name for name in self.inventory.board_names if name in self.hosts)

    def call(self, playbook: str) -> Call:
        """A playbook on this fleet."""
        return Call(self.options.playbooks, playbook, self.options.inventory.resolve(), self.options.limit)


def options_of(path: Path | None, playbooks: Path | None, limit: str | None = None) -> Options:
    """The options as given, with what stands for those that are not."""
    folder = (playbooks or PLAYBOOKS).resolve()
    if not folder.is_dir():
        right = "the folder ansible/ of fedge's checkout, which is not part of an installed package"
        raise BadInput("--playbooks", f"{folder}, where nothing is", right)
    named = os.environ.get(INVENTORY_VARIABLE)
    return Options(path or (Path(named) if named else folder / "inventory.yml"), folder, limit)


def read(options: Options) -> Fleet:
    """Read the inventory; raises ``BadInput`` where it, the limit or a host's address is wrong."""
    fleet = _read(options)
    refuse(example_hosts(fleet.inventory), fleet)
    return fleet


def read_whole(options: Options) -> Fleet:
    """Read the inventory and all that it names; raises ``BadInput`` with everything that could not work."""
    fleet = _read(options)
    meant = replace(
        fleet.inventory, boards=tuple(board for board in fleet.inventory.boards if board.name in fleet.hosts)
    )
    refuse(problems(meant, options.playbooks, datetime.now(UTC)), fleet)
    return fleet


def _read(options: Options) -> Fleet:
    found = inventory.read(options.inventory, options.playbooks)
    if options.limit is None:
        return Fleet(options, found, frozenset({found.server.name, *found.board_names}))
    return Fleet(options, found, frozenset(inventory.within(found, options.playbooks, options.limit)))


def refuse(told: Sequence[Problem], fleet: Fleet) -> None:
    """Raise ``BadInput`` with all that is wrong with an inventory, before any host is touched."""
    if len(told) == 1:
        raise BadInput(told[0].where, told[0].got, told[0].right)
    if told:
        listed = "".join(f"\n  {problem}" for problem in told)
        raise BadInput(
            str(fleet.options.inventory), f"{len(told)} things that cannot work", f"mend them first:{listed}"
        )
