"""Narrow results back in place: each element's mean over its holders, by brute force; checked before aggregation."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.experiment import StrategySpec
from fedge.worker.subnetwork_arrays import ShapeMismatch
from server.aggregation.aggregator import Aggregator, Contribution, build_strategy
from server.aggregation.async_strategies import AsyncResult, FedAsync, FedBuff, merge_results
from server.aggregation.contribution_weights import LocalSgd, apply_change, compute_change, normalise_contributions
from server.aggregation.narrow_results import expand_contributions, expand_results, take_leading_part

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
def test_an_average_of_what_is_spread_is_every_elements_mean_over_its_holders(
    fleet: tuple[dict[str, np.ndarray], list[Contribution]],
) -> None:
    model, contributions = fleet
    aggregator = Aggregator(build_strategy(StrategySpec()), 1, BUFFERS)

    new = aggregator.aggregate(1, model, expand_contributions(model, contributions))

    want = by_hand(model, [dict(c.arrays) for c in contributions], [c.weight for c in contributions])
    for name, value in new.items():
        np.testing.assert_allclose(value, want[name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_full_results_are_untouched_and_so_are_elements_that_all_hold() -> None:
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
def test_strategies_that_average_take_narrow_results_as_the_equal_full_ones(name: str) -> None:
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


def test_late_and_partial_narrow_results_are_of_their_part_of_todays_model() -> None:
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


def test_fedasync_leaves_what_a_narrow_result_does_not_hold() -> None:
    model, result = {"w": np.zeros((2, 2), np.float32)}, AsyncResult({"w": np.ones((1, 2), np.float32)}, 0, 5, 0.1, 0.9)
    new = merge_results(FedAsync(mixing=0.5), 1, model, [result])
    assert new["w"].tolist() == [[0.5, 0.5], [0.0, 0.0]]


def test_fedbuff_moves_by_the_mean_change_of_those_that_hold_an_element() -> None:
    model = {"w": np.full((2, 2), 10.0, np.float32)}
    results = [
        AsyncResult({"w": np.full((2, 2), 1.0, np.float32)}, 0, 5, 0.1, 0.9),
        AsyncResult({"w": np.full((1, 1), 3.0, np.float32)}, 0, 5, 0.1, 0.9),
    ]
    new = merge_results(FedBuff(buffer_size=2), 1, model, results)
    assert new["w"].tolist() == [[12.0, 11.0], [11.0, 11.0]]


def test_what_is_no_leading_block_never_reaches_the_model() -> None:
    model = {"w": np.zeros((2, 2))}
    with pytest.raises(ShapeMismatch, match="leading block"):
        expand_results(model, [{"w": np.zeros((3, 1))}], [1.0])
    assert take_leading_part(model, {"w": np.zeros((2, 2))}) is model
