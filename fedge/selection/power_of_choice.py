"""``power-of-choice``: of some candidates drawn by their samples, those of highest loss (Cho et al., AISTATS 2022).

Symbols: m = ``call.count``, d = option ``candidates``, p_k = client k's share of all samples, F_k = its loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedge.selection.drawing import drawn
from fedge.selection.knowing import by_name, loss_of, samples_of, seats
from fedge.selection.options import numbers_of
from fedge.types import Call, Client, Selected

CANDIDATES_PER_SEAT = 2
"""d = 2 m unless given; chosen by us."""


def power_of_choice(clients: Sequence[Client], call: Call, rng: np.random.Generator) -> Selected:
    """The m of highest F_k among d candidates, which are drawn without replacement with probabilities p_k.

    d is at least m and at most every client. F_k is the loss that the client reported last (the paper's variant
    rpow-d), so nobody is asked for a loss; one that never reported counts as infinite. Of equal losses the
    candidate that was drawn first is taken.
    """
    named, size = by_name(clients), seats(call.count, clients)
    d = numbers_of("power-of-choice", call.options).get("candidates", CANDIDATES_PER_SEAT * size)
    candidates = [named[row] for row in drawn(samples_of(named), max(size, int(d)), rng)]
    highest = sorted(candidates, key=_loss, reverse=True)[:size]
    return Selected(tuple(sorted(client.board for client in highest)))


def _loss(client: Client) -> float:
    loss = loss_of(client)
    return math.inf if loss is None else loss
