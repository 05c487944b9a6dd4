"""Normalised averaging is the paper's formula and leaves equal work alone; a late result moves today's model."""

import dataclasses
import itertools
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.experiment import StrategySpec
from fedge.worker.subnetwork_arrays import ShapeMismatch, take_leading_part
from server.aggregation.aggregator import Aggregator, Contribution, build_strategy
from server.aggregation.async_strategies import STALENESS, FedBuff, merge_results
from server.aggregation.contribution_weights import (
    LocalSgd,
    apply_change,
    compute_change,
    expand_contributions,
    expand_results,
    gradient_norm,
    normalise_contributions,
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


@given(st.integers(1, 200), st.floats(1e-4, 0.5))
def test_the_norm_with_a_proximal_pull_is_the_papers(steps, pull):
    want = (1 - (1 - pull) ** steps) / pull

    assert gradient_norm(steps, LocalSgd(0.0, pull)) == pytest.approx(want, rel=1e-9)


@given(st.integers(1, 60), st.floats(0.0, 0.95), st.floats(0.0, 0.02))
def test_the_norm_is_what_a_constant_gradient_moves_a_client(steps, momentum, pull):
    rate, mu = 0.1, pull / 0.1
    start = w = np.float64(2.0)
    speed = np.float64(0.0)
    for _ in range(steps):
        speed = momentum * speed + 1.0 + mu * (w - start)
        w = w - rate * speed

    assert gradient_norm(steps, LocalSgd(momentum, pull)) == pytest.approx((start - w) / rate, rel=1e-9)


def test_a_claim_of_many_steps_holds_nobody_up_and_of_none_changes_nothing():
    assert gradient_norm(10**12, LocalSgd(0.9)) == pytest.approx(10**13, rel=1e-6)
    idle, busy = normalise_contributions(MODEL, LEARNT, contributions([(0, 10), (5, 10)]), LocalSgd())
    assert idle.arrays["weight"].tolist() == contributions([(0, 10), (5, 10)])[0].arrays["weight"].tolist()
    assert np.isfinite(busy.arrays["weight"]).all()


@given(CLIENTS, st.sampled_from([0.0, 0.9]))
def test_fedavg_of_normalised_results_is_the_papers_formula(work, momentum):
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
def test_equal_steps_change_nothing_at_all(steps, samples):
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
def test_any_strategy_averages_partial_and_discounted_work(spec):
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


def test_a_late_change_moves_todays_model_and_statistics_stay_what_they_were():
    today = {name: value + value.dtype.type(2) for name, value in MODEL.items()}
    (one,) = contributions([(3, 10)])
    moved = apply_change(today, LEARNT, compute_change(MODEL, LEARNT, one.arrays))

    np.testing.assert_allclose(moved["weight"], one.arrays["weight"] + 2.0, rtol=1e-5)
    assert moved["running_var"] is one.arrays["running_var"]
    assert moved["batches"] is one.arrays["batches"]


SHAPES = {"conv": (4, 3, 2), "dense": (5,), "mean": (4,), "steps": ()}
BUFFERS = ("mean", "steps")


def arrays(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
    floats = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items() if name != "steps"}
    return {**floats, "steps": np.array(int(rng.integers(1, 9)), dtype=np.int64)}


def contribution(board: str, own: dict[str, np.ndarray], samples: int, discount: float = 1.0) -> Contribution:
    return Contribution(board, own, samples, 0.5, 0.5, 3, discount)


def by_hand(
    model: dict[str, np.ndarray], results: list[dict[str, np.ndarray]], weights: list[float]
) -> dict[str, np.ndarray]:
    """Every element's mean over the results that hold it; the model's own where none does."""
    merged = {}
    for name, old in model.items():
        new = old.astype(np.float64)
        for index in itertools.product(*(range(n) for n in old.shape)):
            held = [
                (float(result[name][index]), weight)
                for result, weight in zip(results, weights, strict=True)
                if all(i < n for i, n in zip(index, result[name].shape, strict=True))
            ]
            if held and np.issubdtype(old.dtype, np.floating):
                new[index] = sum(v * w for v, w in held) / sum(w for _, w in held)
        merged[name] = new
    merged["steps"] = np.array(max(int(result["steps"]) for result in results))
    return merged


@st.composite
def fleets(draw: st.DrawFn) -> tuple[dict[str, np.ndarray], list[Contribution]]:
    """A model, and results of full and narrow clients of unequal weights, some of them discounted."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    found = []
    for i in range(draw(st.integers(1, 5))):
        narrow = {name: tuple(draw(st.integers(1, n)) for n in shape) for name, shape in SHAPES.items()}
        shapes = SHAPES if draw(st.booleans()) else narrow
        discount = draw(st.sampled_from([1.0, 0.5]))
        found.append(contribution(f"b{i}", arrays(shapes, rng), draw(st.integers(1, 100)), discount))
    return arrays(SHAPES, rng), found


@given(fleets())
@settings(deadline=None, max_examples=60)
def test_an_average_of_what_is_spread_is_every_elements_mean_over_its_holders(fleet):
    model, contributions = fleet
    aggregator = Aggregator(build_strategy(StrategySpec()), 1, BUFFERS)

    new = aggregator.aggregate(1, model, expand_contributions(model, contributions))

    want = by_hand(model, [dict(c.arrays) for c in contributions], [c.weight for c in contributions])
    for name, value in new.items():
        np.testing.assert_allclose(value, want[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_full_results_are_untouched_and_so_are_elements_that_all_hold():
    rng = np.random.default_rng(1)
    model, full = arrays(SHAPES, rng), contribution("a", arrays(SHAPES, rng), 7)
    assert expand_contributions(model, [full])[0].arrays is full.arrays

    narrow = contribution("b", arrays(SHAPES | {"dense": (2,)}, rng), 3)
    wide, thin = expand_contributions(model, [full, narrow])

    np.testing.assert_array_equal(wide.arrays["conv"], full.arrays["conv"])
    np.testing.assert_array_equal(wide.arrays["dense"][:2], full.arrays["dense"][:2])
    np.testing.assert_array_equal(thin.arrays["dense"][2:], model["dense"][2:])
    assert {name: value.shape for name, value in thin.arrays.items()} == SHAPES


@pytest.mark.parametrize("name", ["FedAvg", "FedAvgM", "FedProx", "FedAdam", "FedAdagrad", "FedYogi"])
def test_strategies_that_average_take_narrow_results_as_the_equal_full_ones(name):
    """A client that holds an element counts for those that do not: as if these had said what the others said."""
    rng = np.random.default_rng(2)
    model = {"w": rng.normal(size=(4, 4)).astype(np.float32)}
    full, narrow = rng.normal(size=(4, 4)).astype(np.float32), rng.normal(size=(2, 2)).astype(np.float32)
    filled = full.copy()
    filled[:2, :2] = narrow
    options = {"proximal_mu": 0.1} if name == "FedProx" else {}
    new = []
    for own in (narrow, filled):
        aggregator = Aggregator(build_strategy(StrategySpec(name=name, options=options)), 1)
        sent, _ = aggregator.configure(1, model, 2)
        given_ = [contribution("a", {"w": full}, 10), contribution("b", {"w": own}, 30)]
        new.append(aggregator.aggregate(1, sent, expand_contributions(sent, given_))["w"])
    np.testing.assert_allclose(new[0], new[1], rtol=1e-4, atol=1e-5)


def test_late_and_partial_narrow_results_are_of_their_part_of_todays_model():
    rng = np.random.default_rng(3)
    then, today = (({"w": rng.normal(size=(3, 3))}) for _ in range(2))
    result = {"w": rng.normal(size=(2, 2))}

    joined = apply_change(today, {"w"}, compute_change(then, {"w"}, result))

    np.testing.assert_allclose(joined["w"], today["w"][:2, :2] + result["w"] - then["w"][:2, :2])
    few = dataclasses.replace(contribution("a", result, 5), steps=1)
    many = dataclasses.replace(contribution("b", {"w": then["w"] + 1.0}, 5), steps=4)
    scaled = normalise_contributions(then, {"w"}, [few, many], LocalSgd())
    assert [c.arrays["w"].shape for c in scaled] == [(2, 2), (3, 3)]
    np.testing.assert_allclose(scaled[0].arrays["w"], then["w"][:2, :2] + 2.5 * (result["w"] - then["w"][:2, :2]))


def test_fedbuff_moves_by_the_mean_change_of_those_that_hold_an_element():
    model = {"w": np.full((2, 2), 10.0, np.float32)}
    results = [
        Contribution("b", {"w": np.full((2, 2), 1.0, np.float32)}, 5, 0.1, 0.9, metrics={STALENESS: 0.0}),
        Contribution("b", {"w": np.full((1, 1), 3.0, np.float32)}, 5, 0.1, 0.9, metrics={STALENESS: 0.0}),
    ]
    new = merge_results(FedBuff(buffer_size=2), 1, model, results)
    assert new["w"].tolist() == [[12.0, 11.0], [11.0, 11.0]]


def test_what_is_no_leading_block_never_reaches_the_model():
    model = {"w": np.zeros((2, 2))}
    with pytest.raises(ShapeMismatch, match="leading block"):
        expand_results(model, [{"w": np.zeros((3, 1))}], [1.0])
    assert take_leading_part(model, {"w": np.zeros((2, 2))}) is model
