"""Networks learn from a random profile once, choose what they predict, and verify nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from contracts.strategy import StrategyContract, ground_of, made_up_pair

from fedge.predictors import network_training
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import network_search
from fedge.serving.strategies.network_search import PROFILES, NetworkSearch
from fedge.serving.trial_search import measure_from_table, run_search

BOTH = ServingProblem("concurrent", 25.0, 1.0, 30.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks trained in a moment: what is tested here does not need good ones."""
    monkeypatch.setattr(network_search, "MINIBATCHES", 1)
    monkeypatch.setattr(network_training, "EPOCHS", 10)


class TestNetworks(StrategyContract):
    name = "nn"
    verifies = False
    seeds = range(1)


def test_the_profile_is_dealt_evenly_to_the_batch_sizes_and_asked_for_in_every_search() -> None:
    pair = made_up_pair(0, "concurrent", batch_sizes=(1, 4, 16, 32))
    strategy = NetworkSearch(ground_of(pair))
    first, second = (run_search(strategy.search(problem), measure_from_table(pair)) for problem in (BOTH, BOTH))

    assert first.tried == second.tried
    assert len(first.tried) == PROFILES
    assert set(Counter(trial.batch for trial in first.tried).values()) <= {62, 63}


def test_the_same_readings_are_learnt_from_once_and_others_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, other, fits = made_up_pair(0, "train"), made_up_pair(1, "train"), []
    learn = network_search._predict_pair
    monkeypatch.setattr(network_search, "_predict_pair", lambda *given: fits.append(1) or learn(*given))
    strategy = NetworkSearch(ground_of(pair))
    for watts in (10.0, 20.0, 30.0):
        run_search(strategy.search(ServingProblem("train", watts)), measure_from_table(pair))
    assert len(fits) == 1

    run_search(strategy.search(ServingProblem("train", 20.0)), measure_from_table(other))
    assert len(fits) == 2


def test_with_reuse_a_later_search_asks_for_nothing() -> None:
    pair = made_up_pair(0, "concurrent")
    strategy = NetworkSearch(ground_of(pair, reuse=True))
    run_search(strategy.search(BOTH), measure_from_table(pair))

    assert run_search(strategy.search(BOTH), measure_from_table(pair)).tried == ()


def test_readings_that_are_no_numbers_are_left_out() -> None:
    pair = made_up_pair(0, "concurrent")
    pair.train_w[:50] = np.nan
    pair.infer_s[1] = np.nan

    choice = run_search(NetworkSearch(ground_of(pair)).search(BOTH), measure_from_table(pair)).choice

    assert choice is not None
    assert choice.batch != 1
