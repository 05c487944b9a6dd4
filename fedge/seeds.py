"""One experiment seed, and a generator of its own for every board, round and purpose, the same on every backend."""

from __future__ import annotations

import zlib

import numpy as np


def _entropy(seed: int, labels: tuple[str | int, ...]) -> list[int]:
    return [seed, *(zlib.crc32(str(label).encode()) for label in labels)]


def make_generator(seed: int, *labels: str | int) -> np.random.Generator:
    """A generator that depends on the seed and the labels only, e.g. ``generator(1, "nano-1", 3, "noise")``."""
    return np.random.default_rng(_entropy(seed, labels))


def derive_seed(seed: int, *labels: str | int) -> int:
    """A 31-bit seed of its own for a library that wants an integer."""
    return int(np.random.SeedSequence(_entropy(seed, labels)).generate_state(1)[0] & 0x7FFFFFFF)
