"""``power-of-choice``: of candidates drawn by their samples, select those of highest loss (Cho et al., AISTATS 2022).

Symbols: m = ``call.count``, d = option ``candidates``, p_k = client k's share of all samples, F_k = its loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedge.decisions.selection.client_figures import clamp_count, estimate_samples, sort_by_name, valid_loss
from fedge.decisions.selection.selector_options import complete_options
from fedge.decisions.selection.weighted_sampling import sample_without_replacement
from fedge.types import ClientStatus, SelectionContext, SelectionResult

CANDIDATES_PER_CLIENT = 2
"""Default d / m: a larger value favours high losses more, 1 is sampling by size."""


def select_power_of_choice(
    clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
) -> SelectionResult:
    """Select the m clients of highest F_k among d candidates, drawn without replacement with probabilities p_k.

    d is at least m and at most the number of clients. F_k is the loss that the client last reported (the paper's
    variant rpow-d), so that no extra evaluation is needed; a client that never reported one counts as infinite. Of
    equal losses the candidate drawn first is selected.
    """
    named, size = sort_by_name(clients), clamp_count(call.count, clients)
    d = complete_options("power-of-choice", call.options).get("candidates", CANDIDATES_PER_CLIENT * size)
    candidates = [named[row] for row in sample_without_replacement(estimate_samples(named), max(size, int(d)), rng)]
    highest = sorted(candidates, key=_loss_or_infinity, reverse=True)[:size]
    return SelectionResult(tuple(sorted(client.board for client in highest)))


def _loss_or_infinity(client: ClientStatus) -> float:
    loss = valid_loss(client)
    return math.inf if loss is None else loss
