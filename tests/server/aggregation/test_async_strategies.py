"""FedAsync mixes, FedBuff steps along weighed changes; both as in their papers, whatever the arrays are."""

import numpy as np
import pytest

from fedge.errors import BadInput, FedgeError
from fedge.experiment import StrategySpec
from server.aggregation.aggregator import Aggregator, Contribution, build_strategy
from server.aggregation.async_strategies import (
    STALENESS,
    AsyncStrategy,
    FedAsync,
    FedBuff,
    merge_results,
    prepare_upload,
)

MODEL = {
    "weight": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32),
    "scale": np.array(1.5, np.float32),
    "variance": np.array([4.0, 4.0], np.float32),
    "batches": np.array(7, np.int64),
}
BUFFERS = {"variance", "batches"}


def trained(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "weight": rng.normal(size=(2, 2)).astype(np.float32),
        "scale": np.array(rng.normal(), np.float32),
        "variance": rng.uniform(1.0, 3.0, size=2).astype(np.float32),
        "batches": np.array(7 + seed, np.int64),
    }


def upload(arrays: dict[str, np.ndarray], staleness: int) -> Contribution:
    return Contribution("b", arrays, 10, 0.5, 0.5, metrics={STALENESS: staleness})


def results(strategy: AsyncStrategy, staleness: list[int], base: dict[str, np.ndarray] = MODEL) -> list[Contribution]:
    kept = [prepare_upload(strategy, base, trained(seed), BUFFERS) for seed, _ in enumerate(staleness)]
    return [upload(arrays, late) for arrays, late in zip(kept, staleness, strict=True)]


def test_fedasync_mixes_every_result_in_by_its_staleness():
    strategy = FedAsync(mixing=0.6, staleness_exponent=0.5)
    new = merge_results(strategy, 1, MODEL, results(strategy, [3]), BUFFERS)

    share = 0.6 * (1 + 3) ** -0.5
    for name in ("weight", "scale", "variance"):
        np.testing.assert_allclose(new[name], (1 - share) * MODEL[name] + share * trained(0)[name], rtol=1e-6)


def test_fedbuff_adds_the_mean_of_the_changes_each_weighed_by_its_staleness():
    strategy = FedBuff(buffer_size=3, staleness_exponent=0.5, server_learning_rate=0.8)
    older = {name: (value + 1).astype(value.dtype) for name, value in MODEL.items()}
    new = merge_results(strategy, 4, MODEL, results(strategy, [0, 3, 8], older), BUFFERS)

    weights = [1.0, 0.5, 1.0 / 3.0]
    for name in ("weight", "scale"):
        steps = [w * (trained(seed)[name] - older[name]) for seed, w in enumerate(weights)]
        np.testing.assert_allclose(new[name], MODEL[name] + 0.8 * sum(steps) / 3, rtol=1e-5)


def test_fedbuff_averages_batch_norms_statistics_and_never_moves_them_beyond_the_results():
    strategy = FedBuff(buffer_size=2, server_learning_rate=50.0)
    new = merge_results(strategy, 1, MODEL, results(strategy, [0, 3]), BUFFERS)

    np.testing.assert_allclose(
        new["variance"], (trained(0)["variance"] + 0.5 * trained(1)["variance"]) / 1.5, rtol=1e-6
    )
    assert new["batches"] == 8


def test_no_result_gives_no_model():
    with pytest.raises(FedgeError, match="no model for 0 results"):
        merge_results(FedBuff(), 1, MODEL, [])


def test_a_checkpoint_does_not_hold_the_model_twice():
    strategy = FedBuff(buffer_size=1)
    merge_results(strategy, 1, MODEL, results(strategy, [0]), BUFFERS)

    assert sum(array.nbytes for array in Aggregator(strategy, 1).export_state().values()) < 100


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("FedBuff", {"buffer_size": 0}, "buffer_size has to be a whole number from 1 on, not 0"),
        ("FedBuff", {"buffer_size": 2.5}, "buffer_size has to be a whole number"),
        ("FedBuff", {"buffer_size": True}, "buffer_size has to be a whole number"),
        ("FedBuff", {"concurrency": 0}, "concurrency has to be a whole number"),
        ("FedBuff", {"server_learning_rate": 0.0}, "server_learning_rate has to be above 0"),
        ("FedBuff", {"staleness_exponent": -1.0}, "staleness_exponent has to be at least 0"),
        ("FedAsync", {"mixing": 1.5}, "mixing has to be above 0 and at most 1, not 1.5"),
        ("FedAsync", {"mixing": "much"}, "mixing has to be"),
        ("FedAsync", {"proximal_mu": float("nan")}, "proximal_mu has to be at least 0"),
        ("FedAsync", {"buffer_size": 2}, "known: mixing"),
    ],
)
def test_an_option_out_of_range_is_named(name, options, complaint):
    with pytest.raises(BadInput, match=complaint):
        build_strategy(StrategySpec(name=name, options=options))
