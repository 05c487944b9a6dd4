"""A fleet that plans every round but trains nothing: the cost of its choices, against an oracle, MAXN and presets.

Symbols: board i does n_i steps, t_i(m) and p_i(m) are its true seconds per step and watts in mode m, u its warm-up in
steps, s a change of mode, l_i its link, q_i its radio's joules, d_i(m) its idle power in m. Its k-th part, n_k steps in
mode m_k, takes x_k = (n_k + u [k first]) t_i(m_k) + s [m_k is new]; it waits in w_i. It takes b_i = l_i + sum_k x_k;
the round takes R = max_i b_i and costs E = sum_i [sum_k x_k p_i(m_k) + d_i(w_i) (R - b_i + l_i) + q_i].
"""
