"""Optuna's proposals depend on the file and the results alone, and its absence is told in one line."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest

from experiments.sweeps.point_plan import ExperimentVariant, plan_sweep
from experiments.sweeps.sweep_driver import check_optuna, propose_variants
from fedge.errors import BadInput

SAMPLER = {
    "kind": "optuna",
    "trials": 14,
    "batch": 4,
    "minimise": "energy_j",
    "space": {
        "policy.time_weight": {"low": 0.0, "high": 1.0},
        "rounds": {"low": 1, "high": 9, "step": 2},
        "workload.learning_rate": {"low": 0.001, "high": 0.1, "log": True},
        "strategy": {"choices": ["FedAvg", {"name": "FedProx", "options": {"proximal_mu": 0.1}}]},
    },
}


def score_by_weight(variant: ExperimentVariant) -> float:
    return abs((variant.experiment.policy.time_weight or 0.0) - 0.3)


def collect(path: Any, score: Callable[[ExperimentVariant], float | None]) -> list[tuple[ExperimentVariant, ...]]:
    pytest.importorskip("optuna")
    return list(propose_variants(plan_sweep(path), score))


def test_batches_have_the_size_of_the_file_and_values_of_its_space(write_sweep) -> None:
    batches = collect(write_sweep(sampler=SAMPLER), score_by_weight)

    assert [len(batch) for batch in batches] == [4, 4, 4, 2]
    experiments = [one.experiment for batch in batches for one in batch]
    assert {one.rounds for one in experiments} <= {1, 3, 5, 7, 9}
    assert {one.strategy.name for one in experiments} == {"FedAvg", "FedProx"}
    assert all(0.001 <= one.workload.learning_rate <= 0.1 for one in experiments)
    assert all(one.strategy.options == {"proximal_mu": 0.1} for one in experiments if one.strategy.name == "FedProx")


def test_equal_results_give_equal_proposals_and_others_do_not(write_sweep) -> None:
    path = write_sweep(sampler=SAMPLER)

    assert collect(path, score_by_weight) == collect(path, score_by_weight)
    # The first ten trials are drawn at random; from then on results count.
    assert collect(path, score_by_weight)[-1] != collect(path, lambda one: -score_by_weight(one))[-1]


def test_a_variant_that_failed_is_no_obstacle(write_sweep) -> None:
    assert len(collect(write_sweep(sampler=SAMPLER), lambda _: None)) == 4


def test_without_optuna_the_extra_is_named_in_one_line(write_sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ModuleNotFoundError("No module named 'optuna'", name="optuna")
        return found(name, *rest, **more)

    plan = plan_sweep(write_sweep(sampler=SAMPLER))
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        BadInput, match=r"sampler.kind: got 'optuna', which is not installed .*; pip install 'fedge\[opt"
    ):
        check_optuna(plan)
    check_optuna(plan_sweep(write_sweep(grid={"rounds": [1]})))
