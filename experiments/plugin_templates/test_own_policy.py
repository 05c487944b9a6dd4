"""The contract of a policy, on random predictions and in a run. Start it with
``pytest --import-mode=prepend test_own_policy.py``.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from own_policy import choose_mode

from fedge.devices.catalogue import find
from fedge.pareto import build_front
from fedge.types import Decision, Modes, Predictions, RoundGoal

SPEC = find("orin-nano")
GOAL = RoundGoal("own_policy:choose_mode", steps=100, deadline_s=60.0)


def make_predictions(seed: int, count: int) -> Predictions:
    """Return random predictions of some modes of the board, MAXN among them."""
    rng = np.random.default_rng(seed)
    tables = (SPEC.cores, SPEC.cpu_mhz, SPEC.gpu_mhz, SPEC.mem_mhz)
    knobs = np.array([[rng.choice(table) for table in tables] for _ in range(count - 1)] + [SPEC.maxn.knobs], float)
    return Predictions(Modes(knobs), *rng.uniform(0.1, 10.0, (2, count)), *rng.uniform(0.0, 0.3, (2, count)))


def decide(predictions: Predictions) -> Decision:
    front = build_front(predictions, GOAL.steps, idle_w=0.05, link_s=1.0, maxn=SPEC.maxn)
    return choose_mode(predictions, front, GOAL, SPEC)


@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("seed", range(10))
def test_it_chooses_a_candidate_and_says_why(seed: int, count: int) -> None:
    predictions = make_predictions(seed, count)

    decision = decide(predictions)

    assert decision.mode in list(predictions.modes)
    assert decision.why


@pytest.mark.parametrize("seed", range(10))
def test_it_is_deterministic_and_changes_nothing(seed: int) -> None:
    predictions = make_predictions(seed, 30)
    before = copy.deepcopy(predictions)

    assert decide(predictions) == decide(predictions)
    np.testing.assert_array_equal(predictions.step_s, before.step_s)
    np.testing.assert_array_equal(predictions.power_w, before.power_w)


def test_a_run_with_it_finishes(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="a run needs the extra sim")
    import fedge

    run = fedge.run(
        {
            "backend": "local",
            "rounds": 2,
            "fleet": ["orin-nano", "nano"],
            "workload": {"task": "none"},
            "data": {"samples": 2000},
            "policy": "own_policy:choose_mode",
            "plugins": [__file__.replace("test_own_policy", "own_policy")],
        },
        folder=tmp_path / "run",
        quiet=True,
    )

    assert run.state == "finished"
    assert run.query("select count(*) as n from clients where status = 'done'", arrow=True).to_pylist() == [{"n": 4}]
