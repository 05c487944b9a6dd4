"""A fleet that learns nothing and plans everything: what its choices cost, against an oracle, MAXN and presets.

Symbols: board i does n_i minibatches, t_i(m) and p_i(m) are its true seconds per minibatch and watts in mode m, u the
minibatches' worth of its warm-up, s a change of mode, l_i its link, q_i its radio's joules, d_i(m) its watts idling in
m. Its k-th part, n_k minibatches in mode m_k, takes x_k = (n_k + u [k first]) t_i(m_k) + s [m_k is new]; it waits in
w_i. It takes b_i = l_i + sum_k x_k; the round takes R = max_i b_i and costs E = sum_i [sum_k x_k p_i(m_k)
+ d_i(w_i) (R - b_i + l_i) + q_i].
"""

from __future__ import annotations

from fedge.studies.fleet.costs import Spent, Truth
from fedge.studies.fleet.judging import Judged, judge
from fedge.studies.fleet.nothing import Nothing
from fedge.studies.fleet.presets import presets_of
from fedge.studies.fleet.row import SETTLED_FROM, FleetRun
from fedge.studies.fleet.shares import as_asked, as_played_by, steps_of_boards

__all__ = [
    "SETTLED_FROM",
    "FleetRun",
    "Judged",
    "Nothing",
    "Spent",
    "Truth",
    "as_asked",
    "as_played_by",
    "judge",
    "presets_of",
    "steps_of_boards",
]
