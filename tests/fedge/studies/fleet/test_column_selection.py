"""Selection from columns, against the selector of a run without losses."""

from __future__ import annotations

import numpy as np

from fedge.decisions.selection.oort import select_oort
from fedge.decisions.selection.selector_options import complete_options
from fedge.studies.fleet.client_columns import select_oort_rows
from fedge.types import ClientStatus, SelectionContext

CLIENTS, COUNT, ROUND, DRAWS = 12, 4, 30, 1500


def test_oort_takes_each_client_as_often_as_the_selector_of_a_run() -> None:
    seconds = np.linspace(10.0, 40.0, CLIENTS)
    last_round = np.array([0, 0, 0, *range(20, 29)])
    clients = [
        ClientStatus(f"b{i:02}", samples=10, loss=0.0 if last_round[i] else None, busy_s=float(seconds[i]),
                     last_round=int(last_round[i]) or None)
        for i in range(CLIENTS)
    ]  # fmt: skip
    rng, other = np.random.default_rng(1), np.random.default_rng(2)
    options, counts = complete_options("oort", {}), np.zeros((2, CLIENTS))
    for _ in range(DRAWS):
        rows = select_oort_rows(seconds, last_round, rng, number=ROUND, count=COUNT, options=options)
        assert len(set(rows.tolist())) == COUNT
        counts[0][rows] += 1
        chosen = select_oort(clients, SelectionContext(ROUND, COUNT), other).boards
        counts[1][[int(name[1:]) for name in chosen]] += 1

    assert np.abs(counts[0] - counts[1]).max() < 0.08 * DRAWS
