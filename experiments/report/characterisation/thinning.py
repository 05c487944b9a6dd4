"""Long series made short without losing what stands out: of every stretch the least and the greatest of each series."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats


def extremes(series: Sequence[Floats], most: int) -> NDArray[np.int64]:
    """Rows to draw, rising, ``most`` of them at the most: both ends, and the extremes of equally long stretches.

    The series have one length n; a row that is not a number is no extreme. With n <= ``most`` every row stays. The
    least and the greatest value of every series are always among the rows. Raises ``ValueError`` where ``most`` is too
    few for that: two per series, and the ends.
    """
    n = len(series[0])
    if n <= most:
        return np.arange(n)
    stretches = (most - 2) // (2 * len(series))
    if stretches < 1:
        raise ValueError(f"{most} rows cannot hold the extremes of {len(series)} series; {2 * len(series) + 2} can")
    kept = {0, n - 1}
    edges = np.linspace(0, n, stretches + 1).astype(int)
    for one in series:
        for begin, end in pairwise(edges):
            part = one[begin:end]
            if len(part) and not np.isnan(part).all():
                kept |= {begin + int(np.nanargmin(part)), begin + int(np.nanargmax(part))}
    return np.array(sorted(kept), dtype=np.int64)
