"""Groups of items that have a key in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key, in the order of their first occurrences."""
    return group_pairs((key(item), item) for item in items)


def group_pairs(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Group the second parts of pairs by the first, in the order of their first occurrences."""
    groups: dict[K, list[T]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups
