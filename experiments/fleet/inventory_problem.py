"""What is looked at before any host is touched: the inventory with the files that it names, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from experiments.fleet.inventory import Inventory


@dataclass(frozen=True, slots=True)
class InventoryProblem:
    """Something in the inventory that would fail later; ``right`` says what would be right."""

    where: str
    got: str
    right: str

    def __str__(self) -> str:
        return f"{self.where}: got {self.got}; {self.right}"


@dataclass(frozen=True, slots=True)
class InventoryContext:
    """What is looked at: the inventory, the playbooks' folder (relative paths start there), and the time."""

    inventory: Inventory
    folder: Path
    now: datetime

    def resolve_file(self, text: str) -> Path:
        """The file that a playbook takes for ``text``."""
        return self.folder / Path(text).expanduser()

    def list_board_values(self, key: str) -> tuple[str, ...]:
        """Every value that boards have for a variable, each once."""
        return tuple(dict.fromkeys(board.text(key) for board in self.inventory.boards if board.text(key)))


InventoryRule = Callable[[InventoryContext], Iterator[InventoryProblem]]


def is_local_file(text: str) -> bool:
    """Whether a value names a file that can be looked for: not "", not an address of the web, nothing to fill in."""
    return bool(text) and "://" not in text and "{{" not in text
