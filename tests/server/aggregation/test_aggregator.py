"""Flower's strategies aggregate what the clients gave, whatever order it came in, and go on after a checkpoint."""

import logging

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from fedge.errors import FedgeError
from fedge.experiment import StrategySpec
from server.aggregation.aggregator import (
    Aggregator,
    ArrayMismatch,
    Contribution,
    build_strategy,
    check_arrays,
)

logging.getLogger("flwr").setLevel(logging.ERROR)
MODEL = {
    "weight": np.ones((3, 2), np.float32),
    "scale": np.array(1.5, np.float32),
    "batches": np.array(3, np.int64),
}
STATEFUL = [
    StrategySpec(name="FedAdam"),
    StrategySpec(name="FedYogi"),
    StrategySpec(name="FedAvgM", options={"server_momentum": 0.9}),
]


def contributions(seed: int) -> list[Contribution]:
    rng = np.random.default_rng(seed)
    return [
        Contribution(
            board,
            {
                "weight": rng.normal(size=(3, 2)).astype(np.float32),
                "scale": np.array(rng.normal(), np.float32),
                "batches": np.array(10 + i, np.int64),
            },
            samples=50 + 10 * i,
            loss=0.5,
            accuracy=0.5,
        )
        for i, board in enumerate(["a", "b", "c", "d"])
    ]


def aggregator(spec: StrategySpec) -> Aggregator:
    return Aggregator(build_strategy(spec), seed=1)


@pytest.mark.parametrize("name", ["FedAvg", "FedAdam", "FedMedian", "Krum", "FedTrimmedAvg", "FedProx"])
def test_the_order_of_replies_does_not_change_a_bit(name):
    options = {"proximal_mu": 0.1} if name == "FedProx" else {}
    results = []
    for order in (1, -1):
        strategy = aggregator(StrategySpec(name=name, options=options))
        strategy.configure(1, MODEL, 4)
        results.append(strategy.aggregate(1, MODEL, contributions(1)[::order]))

    assert results[0]["weight"].tobytes() == results[1]["weight"].tobytes()


@pytest.mark.parametrize("spec", STATEFUL, ids=lambda spec: spec.name)
def test_a_strategy_with_a_memory_goes_on_after_a_checkpoint_as_if_nothing_had_happened(spec):
    whole, first, second = aggregator(spec), aggregator(spec), aggregator(spec)
    arrays = MODEL
    for number in (1, 2, 3):
        arrays = whole.configure(number, arrays, 4)[0]
        arrays = whole.aggregate(number, arrays, contributions(number))
    halfway = MODEL
    for number in (1, 2):
        halfway = first.configure(number, halfway, 4)[0]
        halfway = first.aggregate(number, halfway, contributions(number))
    second.restore_state(first.export_state())
    halfway = second.configure(3, halfway, 4)[0]
    resumed = second.aggregate(3, halfway, contributions(3))

    assert resumed["weight"].tobytes() == arrays["weight"].tobytes()


class CountingStrategy(FedAvg):
    """Changes two numbers of its own."""

    def __init__(self, step: float = 1.0) -> None:
        super().__init__(min_train_nodes=1, min_available_nodes=1)
        self.step, self.rounds, self.ended = step, 0, False

    def aggregate_train(self, server_round, replies):
        self.rounds, self.ended = self.rounds + 1, True
        return super().aggregate_train(server_round, replies)


def test_a_checkpoint_has_the_numbers_that_a_strategy_changed_and_none_of_its_settings():
    first, changed = CountingStrategy(), CountingStrategy(step=0.5)
    memory = Aggregator(first, 1)
    memory.aggregate(1, MODEL, contributions(1))
    Aggregator(changed, 1).restore_state(memory.export_state())

    assert (changed.rounds, changed.ended, changed.step) == (1, True, 0.5)


@pytest.mark.parametrize("name", ["FedProx", "FedAsync"])
def test_the_clients_are_told_how_hard_to_pull(name):
    _, numbers = aggregator(StrategySpec(name=name, options={"proximal_mu": 0.25})).configure(1, MODEL, 2)

    assert numbers["proximal-mu"] == 0.25


def test_a_privacy_wrapper_takes_the_strategy_inside_and_its_noise_is_seeded():
    spec = StrategySpec(
        name="DifferentialPrivacyServerSideFixedClipping",
        options={"noise_multiplier": 0.1, "clipping_norm": 1.0, "num_sampled_clients": 4},
        wraps=StrategySpec(),
    )
    results = []
    for _ in range(2):
        private = aggregator(spec)
        private.configure(1, MODEL, 4)
        results.append(private.aggregate(1, MODEL, contributions(1))["weight"].tobytes())

    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"weight": np.ones((1, 2), np.float32)}, r"'weight': got shape \(1, 2\); the model has \(3, 2\)"),
        ({"more": np.ones(1)}, r"'more': got shape \(1,\); the model has None"),
        ({"weight": np.full((3, 2), np.nan, np.float32)}, "not finite"),
    ],
)
def test_arrays_that_do_not_fit_the_model_are_refused(arrays, complaint):
    with pytest.raises(ArrayMismatch, match=complaint):
        check_arrays(MODEL, Contribution("a", MODEL | arrays, 1, 0.0, 0.0))


@pytest.mark.parametrize("spec", STATEFUL, ids=lambda spec: spec.name)
def test_batch_norms_statistics_are_averaged_whatever_the_strategy_does_to_the_weights(spec):
    model = {"weight": np.ones(2, np.float32), "running_var": np.ones(2, np.float32)}
    strategy = Aggregator(build_strategy(spec), 1, buffers={"running_var"})
    for number in (1, 2, 3, 4):
        given = [
            Contribution(
                board, {"weight": model["weight"], "running_var": np.full(2, v, np.float32)}, samples, 0.1, 0.9
            )
            for board, v, samples in (("a", 0.002, 10), ("b", 0.004, 30))
        ]
        sent, _ = strategy.configure(number, model, 2)
        model = dict(strategy.aggregate(number, sent, given))

        np.testing.assert_allclose(model["running_var"], 0.0035, rtol=1e-5)


def test_a_strategy_that_gives_no_model_says_so():
    strategy = aggregator(StrategySpec())
    strategy.configure(1, MODEL, 1)

    with pytest.raises(FedgeError, match="gave no model for 0 results"):
        strategy.aggregate(1, MODEL, [])
