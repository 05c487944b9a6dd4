"""What a page cache answers when a data set is read once per epoch, every time in another order."""

from __future__ import annotations

import math


def kept_share(cache_mb: float, dataset_mb: float, reached: float = 1.0, part: float = 1.0) -> float:
    """The share of an epoch's reads that a least-recently-used cache answers.

    ``reached`` of the data set was read at least once before; the epoch reads ``part`` of it, both from 0 to 1 and
    both chosen at random. When v of the data set is read, the cache holds min(c, reached + (1 - reached) v) of it, with
    c the part for which there is room; v of this was read in the epoch itself, and what is read next is any of the
    other 1 - v of the data set. So the next read is answered with the chance

        (min(c, reached + (1 - reached) v) - v) / (1 - v),   none from v = c on,

    whose mean over v from 0 to ``part`` is what is given here (our derivation). Of a data set that fits and was read
    whole, that is all; of one that does not fit c + (1 - c) log(1 - c): half a data set's room answers 15 %, not 50 %.
    """
    if dataset_mb <= 0:
        return 1.0
    room = max(cache_mb, 0.0) / dataset_mb
    if room >= 1.0:
        return reached
    full = max(0.0, room - reached) / (1.0 - reached) if reached < 1.0 else 0.0
    filling, end = min(full, part), min(room, part)
    answered = reached * filling + (end - filling) + (1.0 - room) * math.log((1.0 - end) / (1.0 - filling))
    return max(0.0, answered) / part


def reached_share(parts: int, part: float) -> float:
    """What was read at least once of a data set after ``parts`` epochs that read a random ``part`` of it each."""
    return 1.0 - (1.0 - min(part, 1.0)) ** parts
