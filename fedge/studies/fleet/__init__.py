"""A fleet that learns nothing and plans everything: what its choices cost, against an oracle, MAXN and presets.

Symbols: board i does n_i minibatches, t_i(m) and p_i(m) are its true seconds per minibatch and watts in mode m, u the
minibatches' worth of its warm-up, s a change of mode, l_i its link, q_i its radio's joules, d_i(m) its watts idling in
m. Its k-th part, n_k minibatches in mode m_k, takes x_k = (n_k + u [k first]) t_i(m_k) + s [m_k is new]; it waits in
w_i. It takes b_i = l_i + sum_k x_k; the round takes R = max_i b_i and costs E = sum_i [sum_k x_k p_i(m_k)
+ d_i(w_i) (R - b_i + l_i) + q_i].
"""

from __future__ import annotations

from fedge.studies.fleet.fleet_baselines import map_presets_to_modes
from fedge.studies.fleet.fleet_costs import BoardTruth, FleetCost
from fedge.studies.fleet.fleet_study_row import SETTLED_FROM, FleetRun
from fedge.studies.fleet.null_task import NullTask
from fedge.studies.fleet.round_comparison import RoundComparison, compare_round
from fedge.studies.fleet.step_shares import build_board_experiment, build_run_experiment, count_board_steps

__all__ = [
    "SETTLED_FROM",
    "BoardTruth",
    "FleetCost",
    "FleetRun",
    "NullTask",
    "RoundComparison",
    "build_board_experiment",
    "build_run_experiment",
    "compare_round",
    "count_board_steps",
    "map_presets_to_modes",
]
