"""``select_pyramidfl``: Oort's selection, whose faster clients train until the slowest one ends. Like PyramidFL only.

Symbols: t_i = client i's link and work for its whole share at MAXN, c_i = the part of the work that grows with its
steps, T = the largest t_i of the selected clients.

PyramidFL also drops 0.1 + 0.5 k / N of the tensors of the client of utility rank k, which is left out: under equal
``compression`` all clients send the same bytes.

References:
    Li et al., "PyramidFL: A fine-grained client selection framework for efficient federated learning", MobiCom 2022;
    options as in the authors' program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from fedge.decisions.selection.client_figures import estimate_duration_s, valid_front
from fedge.decisions.selection.oort import select_by_utility
from fedge.decisions.selection.selector_options import complete_options
from fedge.types import ClientStatus, SelectionContext, SelectionResult


def select_pyramidfl(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """Select as ``select_oort`` does with other options, and give the faster clients more steps.

    A client's speed is that of its whole share: with more steps, the duration of its last round says nothing about it.
    """
    numbers = {**complete_options("oort", {}), **complete_options("pyramidfl-like", call.options)}
    timed = [client if valid_front(client) is None else dataclasses.replace(client, busy_s=None) for client in clients]
    found = select_by_utility(timed, call, numbers, rng)
    return dataclasses.replace(found, shares=compute_shares(timed, found.boards, numbers["more_steps"]))


def compute_shares(clients: Sequence[ClientStatus], boards: Collection[str], more_steps: float) -> dict[str, float]:
    """Return 1 + min(``more_steps``, (T - t_i) / c_i) of each board with a front that has time for more steps."""
    chosen = [client for client in clients if client.board in boards]
    seconds = {client.board: estimate_duration_s(client) for client in chosen}
    end_s = max((s for s in seconds.values() if s is not None), default=0.0)
    shares = dict[str, float]()
    for client in chosen:
        front, own_s = valid_front(client), seconds[client.board]
        if front is None or own_s is None or own_s >= end_s:
            continue
        per_share_s = (1.0 - front.fixed_share) * front.maxn.work_s
        shares[client.board] = 1.0 + min(more_steps, (end_s - own_s) / max(per_share_s, 1e-9))
    return shares
