"""Independent random generators per board, round and purpose, derived from one seed; the same on every backend."""

from __future__ import annotations

import zlib

import numpy as np


def _entropy(seed: int, labels: tuple[str | int, ...]) -> list[int]:
    return [seed, *(zlib.crc32(str(label).encode()) for label in labels)]


def make_generator(seed: int, *labels: str | int) -> np.random.Generator:
    """Return a generator that depends on seed and labels only, e.g. ``make_generator(1, "nano-1", 3, "noise")``."""
    return np.random.default_rng(_entropy(seed, labels))


def derive_seed(seed: int, *labels: str | int) -> int:
    """Return a 31-bit integer seed that depends on the seed and the labels only, for libraries that need an integer."""
    return int(np.random.SeedSequence(_entropy(seed, labels)).generate_state(1)[0] & 0x7FFFFFFF)
