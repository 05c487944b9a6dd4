"""What an asynchronous strategy cannot be combined with is said before the run, with the field that mends it."""

from __future__ import annotations

import pytest

from experiments.backends.strategy_check import check_strategy
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, LateReplySpec, PolicySpec, SelectionSpec, StrategySpec

FEDBUFF = StrategySpec(name="FedBuff", options={"buffer_size": 2})


def experiment(**changes: object) -> Experiment:
    return Experiment(fleet=(FleetEntry(device="nano", count=2),), **{"strategy": FEDBUFF} | changes)  # type: ignore[arg-type]


def test_an_asynchronous_strategy_goes_with_the_defaults():
    check_strategy(experiment())
    check_strategy(experiment(strategy=StrategySpec(name="FedAsync")))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"late": LateReplySpec(action="drop")}, r"late.action: got 'drop'; accept"),
        ({"late": LateReplySpec(action="partial")}, r"late.action: got 'partial'"),
        ({"selection": SelectionSpec(over_commit=1.5)}, r"selection.over_commit: got 1.5; 1"),
        ({"selection": SelectionSpec(name="pyramidfl-like")}, r"selection.name: got .pyramidfl-like.; another"),
        ({"selection": SelectionSpec(name="random", count=4)}, r"selection.count: got 4; strategy.options.concurrency"),
        ({"policy": PolicySpec(fleet_power_w=30.0)}, r"policy.fleet_power_w: got 30; no such limit"),
        ({"policy": PolicySpec(budget_j=30.0)}, r"policy.budget_j: got 30; no such limit"),
    ],
)
def test_what_it_cannot_be_combined_with(changes, complaint):
    with pytest.raises(BadInput, match=complaint):
        check_strategy(experiment(**changes))


def test_a_privacy_wrapper_does_not_take_it():
    options = {"noise_multiplier": 0.1, "clipping_norm": 1.0, "num_sampled_clients": 2}
    wrapper = StrategySpec(name="DifferentialPrivacyServerSideFixedClipping", options=options, wraps=FEDBUFF)

    with pytest.raises(BadInput, match=r"strategy.wraps.name: got 'FedBuff'; a strategy of synchronous rounds"):
        check_strategy(experiment(strategy=wrapper))


def test_noise_for_more_clients_than_a_round_has_is_refused():
    options = {"noise_multiplier": 0.1, "clipping_norm": 1.0, "num_sampled_clients": 2}
    wrapper = StrategySpec(
        name="DifferentialPrivacyServerSideFixedClipping", options=options, wraps=StrategySpec(name="FedAvg")
    )

    check_strategy(experiment(strategy=wrapper))
    with pytest.raises(BadInput, match=r"strategy.options.num_sampled_clients: got 2; at most 1, the clients"):
        check_strategy(experiment(strategy=wrapper, selection=SelectionSpec(count=1)))


def test_the_same_settings_are_fine_for_synchronous_rounds():
    check_strategy(
        experiment(strategy=StrategySpec(), late=LateReplySpec(action="drop"), selection=SelectionSpec(count=1))
    )
