"""Normalised averaging is the paper's formula and leaves equal work alone; a late result moves today's model."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.experiment import StrategySpec
from server.aggregation.aggregator import Aggregator, Contribution, build_strategy
from server.aggregation.contribution_weights import (
    LocalSgd,
    apply_change,
    compute_change,
    gradient_norm,
    normalise_contributions,
    staleness_discount,
)

logging.getLogger("flwr").setLevel(logging.ERROR)
MODEL = {
    "weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2),
    "scale": np.array(1.5, np.float32),
    "running_var": np.full(2, 0.5, np.float32),
    "batches": np.array(3, np.int64),
}
LEARNT = frozenset({"weight", "scale"})
CLIENTS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 500)), min_size=2, max_size=5)


def contributions(work: list[tuple[int, int]], seed: int = 1) -> list[Contribution]:
    """One per (steps, samples)."""
    rng = np.random.default_rng(seed)
    return [
        Contribution(
            f"b{i}",
            {
                "weight": MODEL["weight"] + rng.normal(size=(3, 2)).astype(np.float32),
                "scale": np.array(rng.normal(), np.float32),
                "running_var": rng.uniform(0.1, 1.0, 2).astype(np.float32),
                "batches": np.array(3 + steps, np.int64),
            },
            samples,
            0.5,
            0.5,
            steps,
        )
        for i, (steps, samples) in enumerate(work)
    ]


def norm_by_the_paper(steps: int, momentum: float) -> float:
    """Wang et al. 2020, section 4: the norm of a_i for SGD with momentum."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@given(st.integers(1, 200), st.floats(0.0, 0.95))
def test_the_norm_with_momentum_is_the_papers(steps: int, momentum: float) -> None:
    assert gradient_norm(steps, LocalSgd(momentum)) == pytest.approx(norm_by_the_paper(steps, momentum), rel=1e-9)


@given(st.integers(1, 200), st.floats(1e-4, 0.5))
def test_the_norm_with_a_proximal_pull_is_the_papers(steps: int, pull: float) -> None:
    want = (1 - (1 - pull) ** steps) / pull

    assert gradient_norm(steps, LocalSgd(0.0, pull)) == pytest.approx(want, rel=1e-9)


@given(st.integers(1, 60), st.floats(0.0, 0.95), st.floats(0.0, 0.02))
def test_the_norm_is_what_a_constant_gradient_moves_a_client(steps: int, momentum: float, pull: float) -> None:
    rate, mu = 0.1, pull / 0.1
    start = w = np.float64(2.0)
    speed = np.float64(0.0)
    for _ in range(steps):
        speed = momentum * speed + 1.0 + mu * (w - start)
        w = w - rate * speed

    assert gradient_norm(steps, LocalSgd(momentum, pull)) == pytest.approx((start - w) / rate, rel=1e-9)


@given(CLIENTS, st.sampled_from([0.0, 0.9]))
def test_fedavg_of_normalised_results_is_the_papers_formula(work: list[tuple[int, int]], momentum: float) -> None:
    given_ = contributions(work)
    fedavg = Aggregator(build_strategy(StrategySpec()), 1, buffers={"running_var"})
    fedavg.configure(1, MODEL, len(given_))
    new = fedavg.aggregate(1, MODEL, normalise_contributions(MODEL, LEARNT, given_, LocalSgd(momentum)))

    shares = np.array([samples for _, samples in work]) / sum(samples for _, samples in work)
    norms = np.array([norm_by_the_paper(steps, momentum) for steps, _ in work])
    for name in LEARNT:
        moves = sum(
            p / a * (c.arrays[name].astype(np.float64) - MODEL[name])
            for p, a, c in zip(shares, norms, given_, strict=True)
        )
        np.testing.assert_allclose(new[name], MODEL[name] + (shares @ norms) * moves, rtol=2e-5, atol=2e-5)
    variance = sum(p * c.arrays["running_var"] for p, c in zip(shares, given_, strict=True))
    np.testing.assert_allclose(new["running_var"], variance, rtol=1e-5)
    assert new["batches"] == 3 + max(steps for steps, _ in work)


@given(st.integers(1, 40), st.lists(st.integers(1, 500), min_size=1, max_size=5))
def test_equal_steps_change_nothing_at_all(steps: int, samples: list[int]) -> None:
    given_ = contributions([(steps, n) for n in samples])
    got = normalise_contributions(MODEL, LEARNT, given_, LocalSgd(0.9, 0.01))

    assert all(new is old for new, old in zip(got, given_, strict=True))


@pytest.mark.parametrize(
    "spec",
    [
        StrategySpec(name="QFedAvg", options={"client_learning_rate": 0.05}),
        StrategySpec(name="FedAdam"),
        StrategySpec(name="Krum"),
        StrategySpec(
            name="DifferentialPrivacyServerSideFixedClipping",
            options={"noise_multiplier": 0.1, "clipping_norm": 1.0, "num_sampled_clients": 3},
            wraps=StrategySpec(),
        ),
    ],
    ids=lambda spec: spec.name,
)
def test_any_strategy_averages_partial_and_discounted_work(spec: StrategySpec) -> None:
    given_ = contributions([(10, 50), (4, 60), (7, 70)])
    given_[1] = dataclasses.replace(given_[1], discount=0.5)
    strategy = Aggregator(build_strategy(spec), 1, buffers={"running_var"})
    sent, _ = strategy.configure(1, MODEL, len(given_))
    new = strategy.aggregate(1, sent, normalise_contributions(sent, LEARNT, given_, LocalSgd(0.9)))

    assert all(np.isfinite(value).all() for value in new.values())
    assert not np.array_equal(new["weight"], MODEL["weight"])
    assert {name: (value.shape, value.dtype) for name, value in new.items()} == {
        name: (value.shape, value.dtype) for name, value in MODEL.items()
    }


def test_a_result_re_based_onto_its_own_model_is_itself() -> None:
    (one,) = contributions([(3, 10)])
    back = apply_change(MODEL, LEARNT, compute_change(MODEL, LEARNT, one.arrays))

    for name, value in one.arrays.items():
        np.testing.assert_allclose(back[name], value, rtol=1e-6)
        assert (back[name].shape, back[name].dtype) == (value.shape, value.dtype)


def test_a_late_change_moves_todays_model_and_statistics_stay_what_they_were() -> None:
    today = {name: value + value.dtype.type(2) for name, value in MODEL.items()}
    (one,) = contributions([(3, 10)])
    moved = apply_change(today, LEARNT, compute_change(MODEL, LEARNT, one.arrays))

    np.testing.assert_allclose(moved["weight"], one.arrays["weight"] + 2.0, rtol=1e-5)
    assert moved["running_var"] is one.arrays["running_var"]
    assert moved["batches"] is one.arrays["batches"]


def test_a_discounted_result_weighs_less_in_the_mean() -> None:
    given_ = contributions([(5, 10), (5, 10)])
    given_[1] = dataclasses.replace(given_[1], discount=staleness_discount(3, 0.5))
    fedavg = Aggregator(build_strategy(StrategySpec()), 1)
    fedavg.configure(1, MODEL, 2)
    new = fedavg.aggregate(1, MODEL, given_)

    want = (given_[0].arrays["weight"] + 0.5 * given_[1].arrays["weight"]) / 1.5
    np.testing.assert_allclose(new["weight"], want, rtol=1e-5, atol=1e-6)
