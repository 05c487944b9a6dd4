"""``all``: every client that is there takes part in every round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.selection.knowing import by_name, seats
from fedge.types import Call, Client, Selected


def everybody(clients: Sequence[Client], call: Call, rng: np.random.Generator) -> Selected:
    """All clients; if ``call.count`` is smaller, the first in the order of their names."""
    return Selected(tuple(client.board for client in by_name(clients)[: seats(call.count, clients)]))
