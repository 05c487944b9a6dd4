"""A profile of a pair of jobs: which trials it begins with, and what was seen of them as columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.concurrency.trial import Seen, Trial
from fedge.types import Floats


def dealt(modes: int, batches: int, count: int, rng: np.random.Generator) -> list[Trial]:
    """``count`` trials (fewer when there are no more), their modes drawn and dealt to the batch sizes in turn.

    No mode comes a second time before every one came once. ``batches`` is 0 where nothing is inferred.
    """
    order = rng.permutation(modes).tolist()
    if batches == 0:
        return [Trial(row) for row in order[:count]]
    places = range(min(count, modes * batches))
    return [Trial(order[at % modes], (at % modes + at // modes) % batches) for at in places]


def columns(seen: Sequence[Seen]) -> Floats:
    """Columns train_s, train_w, infer_s, infer_w: shape (n, 4)."""
    values = [(one.train_s, one.train_w, one.infer_s, one.infer_w) for one in seen]
    return np.array(values, dtype=np.float64).reshape(len(values), 4)
