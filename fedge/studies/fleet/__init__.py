"""A fleet that plans every round but trains nothing: the cost of its choices, against an oracle, MAXN and presets.

Symbols: board i does n_i steps, t_i(m) and p_i(m) are its true seconds per step and watts in mode m, u its warm-up in
steps, s a change of mode, l_i its link, q_i its radio's joules, d_i(m) its idle power in m. Its k-th part, n_k steps in
mode m_k, takes x_k = (n_k + u [k first]) t_i(m_k) + s [m_k is new]; it waits in w_i. It takes b_i = l_i + sum_k x_k;
the round takes R = max_i b_i and costs E = sum_i [sum_k x_k p_i(m_k) + d_i(w_i) (R - b_i + l_i) + q_i].
"""

from __future__ import annotations

from fedge.studies.fleet.column_study import COLUMNS_FROM, ENGINES, check_columns, count_clients, run_column_study
from fedge.studies.fleet.fleet_costs import BoardTruth, FleetCost, map_presets_to_modes
from fedge.studies.fleet.round_comparison import SETTLED_FROM, FleetRun, RoundComparison, compare_round
from fedge.studies.fleet.step_shares import build_board_experiment, build_run_experiment, count_board_steps
from fedge.workloads import NullTask

__all__ = [
    "COLUMNS_FROM",
    "ENGINES",
    "SETTLED_FROM",
    "BoardTruth",
    "FleetCost",
    "FleetRun",
    "NullTask",
    "RoundComparison",
    "build_board_experiment",
    "build_run_experiment",
    "check_columns",
    "compare_round",
    "count_board_steps",
    "count_clients",
    "map_presets_to_modes",
    "run_column_study",
]
