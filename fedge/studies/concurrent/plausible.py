"""A pair without the modes of which one of its tables has a row that no board can have meant."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from fedge.concurrency.pair import Key, Pair, keys_of, restricted
from fedge.evaluation.implausible import plausible_rows
from fedge.evaluation.knowledge import board_of, maxn_of
from fedge.types import ProfileTable


def plausible(pair: Pair, tables: Iterable[ProfileTable]) -> Pair:
    """The pair of these ``tables`` in the modes that are plausible in all of them (``fedge.evaluation.implausible``).

    So neither the optimum nor a choice is such a row. Raises ``BadInput`` when no mode is left.
    """
    odd = frozenset[Key]().union(*map(_implausible, tables))
    return restricted(pair, np.array([key not in odd for key in keys_of(pair.modes)]))


@functools.lru_cache(maxsize=64)  # a table belongs to several pairs
def _implausible(table: ProfileTable) -> frozenset[Key]:
    rows = plausible_rows(table, maxn_of(table, board_of(table.device)))
    return frozenset(key for key, fine in zip(keys_of(table.modes), rows, strict=True) if not fine)
