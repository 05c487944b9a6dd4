"""How often Python looks for garbage that refers to itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

GC_THRESHOLD = 50_000
"""New objects after which Python looks: imports and rounds leave little, and every full search among the 300 000
objects of torch and fedge takes 0.1 s. With Python's 700, searches took 0.6 of 5.6 s of a run's start, and 1.4 of 24 s
of a run of 100 clients and 8 rounds.
"""


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Look for garbage only after ``GC_THRESHOLD`` new objects inside the block."""
    before = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
