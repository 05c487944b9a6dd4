"""``random``: uniform without replacement, as in FedAvg (McMahan et al., AISTATS 2017, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.selection.drawing import drawn
from fedge.selection.knowing import by_name, seats
from fedge.types import Call, Client, Selected


def uniform(clients: Sequence[Client], call: Call, rng: np.random.Generator) -> Selected:
    """``call.count`` clients, every set of so many as likely as any other."""
    named = by_name(clients)
    rows = drawn(np.ones(len(named)), seats(call.count, clients), rng)
    return Selected(tuple(sorted(named[row].board for row in rows)))
