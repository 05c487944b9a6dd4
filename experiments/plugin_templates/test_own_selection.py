"""The contract of a selector, on random clients and in a run. Start it with
``pytest --import-mode=prepend test_own_selection.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from own_selection import select

from fedge.types import ClientStatus, SelectionContext


def make_clients(seed: int, count: int) -> list[ClientStatus]:
    """Return clients of which the server knows more or less, as in the first and in later rounds."""
    rng = np.random.default_rng(seed)
    return [
        ClientStatus(f"board-{i}", rounds=int(rng.integers(5)), loss=None if rng.random() < 0.3 else rng.random())
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("seed", range(10))
def test_it_selects_as_many_offered_clients_as_asked_each_once(seed: int, count: int) -> None:
    clients = make_clients(seed, 7)

    boards = select(clients, SelectionContext(3, count=count), np.random.default_rng(seed)).boards

    assert len(boards) == len(set(boards)) == count
    assert set(boards) <= {one.board for one in clients}


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_the_clients_does_not_matter(seed: int) -> None:
    clients, call = make_clients(seed, 7), SelectionContext(3, count=3)

    forward = select(clients, call, np.random.default_rng(seed))
    backward = select(clients[::-1], call, np.random.default_rng(seed))

    assert set(forward.boards) == set(backward.boards)


def test_a_run_with_it_finishes(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="a run needs the extra sim")
    import fedge

    run = fedge.run(
        {
            "backend": "local",
            "rounds": 3,
            "fleet": [{"device": "orin-nano", "count": 4}],
            "workload": {"task": "none"},
            "data": {"samples": 2000},
            "selection": {"name": "own_selection:select", "count": 2},
            "plugins": [__file__.replace("test_own_selection", "own_selection")],
        },
        folder=tmp_path / "run",
        quiet=True,
    )

    assert run.state == "finished"
    assert run.query("select count(*) as n from clients", arrow=True).to_pylist() == [{"n": 6}]
