"""Numbers from control files, which may contain units, several values, or nothing readable."""

import re
from typing import Optional, Sequence, Tuple

from fedge.powerd.machine import Machine

NUMBER = re.compile(r"-?\d+")


def read_int(machine: Machine, path: str) -> int:
    """Return the integer in a file.

    Raises:
        OSError: The file cannot be read or does not contain a single integer.
    """
    text = machine.read(path)
    try:
        return int(text, 0)
    except ValueError:
        try:
            return int(text)  # "007" is no Python number
        except ValueError:
            raise OSError(f"{path} holds {text[:80]!r}, not a whole number") from None


def try_read_int(machine: Machine, path: str) -> Optional[int]:
    """Return the integer in a file; None if there is none."""
    try:
        return read_int(machine, path)
    except OSError:
        return None


def try_read_text(machine: Machine, path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return machine.read(path)
    except OSError:
        return ""


def read_numbers(machine: Machine, path: str) -> Tuple[int, ...]:
    """Return the distinct positive numbers in a file, ascending; empty if it cannot be read."""
    return tuple(sorted({int(found) for found in NUMBER.findall(try_read_text(machine, path)) if int(found) > 0}))


def nearest_value(values: Sequence[int], wanted: int) -> int:
    """Return the value closest to ``wanted``, the lower of two; ``values`` are ascending and not empty."""
    return min(values, key=lambda value: (abs(value - wanted), value))


def highest_at_most(values: Sequence[int], wanted: int) -> int:
    """Return the highest value at or below ``wanted``, else the lowest; ``values`` are ascending and not empty."""
    below = [value for value in values if value <= wanted]
    return below[-1] if below else values[0]
