"""Numbers out of control files, which may hold units, several values, or nothing that can be read."""

import re
from typing import Optional, Sequence, Tuple

from fedge.powerd.machine import Machine

NUMBER = re.compile(r"-?\d+")


def read_int(machine: Machine, path: str) -> int:
    """The one whole number in a file; raises ``OSError`` also where the file holds something else."""
    text = machine.read(path)
    try:
        return int(text, 0)
    except ValueError:
        try:
            return int(text)  # "007" is no Python number
        except ValueError:
            raise OSError(f"{path} holds {text[:80]!r}, not a whole number") from None


def try_read_int(machine: Machine, path: str) -> Optional[int]:
    """The same, or None where there is nothing readable."""
    try:
        return read_int(machine, path)
    except OSError:
        return None


def try_read_text(machine: Machine, path: str) -> str:
    """The file's text, or nothing."""
    try:
        return machine.read(path)
    except OSError:
        return ""


def read_numbers(machine: Machine, path: str) -> Tuple[int, ...]:
    """The positive numbers in a file, ascending, each once; empty where it cannot be read."""
    return tuple(sorted({int(found) for found in NUMBER.findall(try_read_text(machine, path)) if int(found) > 0}))


def nearest_value(values: Sequence[int], wanted: int) -> int:
    """The value that lies nearest, the lower one of two; ``values`` ascend and are not empty."""
    return min(values, key=lambda value: (abs(value - wanted), value))


def highest_at_most(values: Sequence[int], wanted: int) -> int:
    """The highest value at or below the wanted one; the lowest where all are above. ``values`` ascend, not empty."""
    below = [value for value in values if value <= wanted]
    return below[-1] if below else values[0]
