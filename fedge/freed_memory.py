"""Memory that was freed in this process and that the C library keeps: given back to the system now and then."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

EVERY = 128
"""Answers of a process between two releases; one takes milliseconds."""


def release_freed_memory() -> None:
    """Return the free parts of the heap to the system, where the C library can (glibc).

    glibc keeps them for later: after a large array was freed, arrays of up to 32 MB come from the heap, and whatever
    lies above a hole keeps it. Rounds of 3 boards left 24 of 320 MB so after 260 rounds, and writing parts of the store
    23 of 99 MB after 1,200, while what was in use stayed (mallinfo2): benchmarks/soak.py grew by 2.4 % in 1,000 rounds.
    """
    trim = _find_trim()
    if trim is not None:
        trim(0)


@cache
def _find_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return None
