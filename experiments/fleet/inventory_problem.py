"""Inventory checks that need no host: the record of a problem and the context that all rules read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from experiments.fleet.inventory import Inventory


@dataclass(frozen=True, slots=True)
class InventoryProblem:
    """An error in the inventory that would surface later.

    Attributes:
        where: File and variable.
        right: A value that would be valid.
    """

    where: str
    got: str
    right: str

    def __str__(self) -> str:
        return f"{self.where}: got {self.got}; {self.right}"


@dataclass(frozen=True, slots=True)
class InventoryContext:
    """Input of the inventory rules.

    Attributes:
        folder: The folder of the playbooks; relative paths start there.
        now: Current time, time zone aware.
    """

    inventory: Inventory
    folder: Path
    now: datetime

    def resolve_file(self, text: str) -> Path:
        """Return the path of the file that a playbook would open for ``text``."""
        return self.folder / Path(text).expanduser()

    def list_board_values(self, key: str) -> tuple[str, ...]:
        """Return the distinct values that boards have for a variable."""
        return tuple(dict.fromkeys(board.text(key) for board in self.inventory.boards if board.text(key)))


InventoryRule = Callable[[InventoryContext], Iterator[InventoryProblem]]


def is_local_file(text: str) -> bool:
    """Return whether a value names a local file: not empty, not a URL, no template expression."""
    return bool(text) and "://" not in text and "{{" not in text
