"""``round-robin``: those that were not asked for longest, so that everybody takes part equally often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.selection.knowing import seats
from fedge.types import Call, Client, Selected


def in_turns(clients: Sequence[Client], call: Call, rng: np.random.Generator) -> Selected:
    """The ``call.count`` clients of the earliest last round, never asked before asked.

    Of those asked in the same round the one asked more rarely goes first, then by name: so nobody is ever more than one
    round ahead while everybody is there.
    """
    waiting = sorted(clients, key=lambda client: (client.last_round or 0, client.rounds, client.board))
    return Selected(tuple(sorted(client.board for client in waiting[: seats(call.count, clients)])))
