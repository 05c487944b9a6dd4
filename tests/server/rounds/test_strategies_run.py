"""Every strategy of Flower that averages arrays plays rounds through the coordinator with options of its own."""

import gc
import logging
from collections.abc import Mapping

import numpy as np
import pytest
from contracts.array_task import ArrayTask
from contracts.reports import answer, front

from experiments.backends.strategy_check import CLIPPING_MODS, UNSUPPORTED_STRATEGIES, check_strategy
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, ModSpec, PolicySpec, StrategySpec
from fedge.flower.client_mods import apply_mods
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import RoundRow
from fedge.types import TrainResult
from fedge.wire import ReplyMessage
from server.aggregation.aggregator import STRATEGIES
from server.rounds.coordinator import Coordinator
from server.transport.client_port import IncomingReply, OutgoingRequest

logging.getLogger("flwr").setLevel(logging.ERROR)
BOARDS = 7
PRIVATE = {"noise_multiplier": 0.01, "num_sampled_clients": BOARDS}
OPTIONS: dict[str, dict[str, float]] = {
    "FedAvg": {},
    "FedAvgM": {"server_learning_rate": 1.0, "server_momentum": 0.5},
    "FedProx": {"proximal_mu": 0.1},
    "FedAdam": {"eta": 0.1, "tau": 0.01},
    "FedYogi": {"eta": 0.1, "tau": 0.01},
    "FedAdagrad": {"eta": 0.1, "tau": 0.01},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.2},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
    "Bulyan": {"num_malicious_nodes": 1},
    "QFedAvg": {"client_learning_rate": 0.1, "q": 0.2},
    "DifferentialPrivacyServerSideFixedClipping": {**PRIVATE, "clipping_norm": 10.0},
    "DifferentialPrivacyServerSideAdaptiveClipping": {**PRIVATE, "initial_clipping_norm": 10.0},
    "DifferentialPrivacyClientSideFixedClipping": {**PRIVATE, "clipping_norm": 1.0},
    "DifferentialPrivacyClientSideAdaptiveClipping": {**PRIVATE, "initial_clipping_norm": 1.0},
}
SYNCHRONOUS = sorted(set(STRATEGIES) - set(UNSUPPORTED_STRATEGIES) - {"FedAsync", "FedBuff"})


@pytest.fixture(autouse=True)
def _short_collections() -> None:
    """QFedAvg and Bulyan ask for a full collection with every model: none looks at what other tests have loaded."""
    gc.freeze()


TASK = ArrayTask(
    lambda _: {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)},
    lambda arrays: float(np.mean([np.abs(1.0 - value).mean() for value in arrays.values()])),
)
"""Its model wants to be one everywhere."""


class Halfway:
    """Boards that go half the way towards one, each a little differently; keeps how hard they were told to pull."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.pulls: set[float] = set()

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: object = None
    ) -> Mapping[str, IncomingReply]:
        return {board: self._reply(board, question) for board, question in questions.items()}

    def _reply(self, board: str, question: OutgoingRequest) -> IncomingReply:
        if question.ask.kind == "front":
            return IncomingReply(ReplyMessage(board, front=front(), samples=100))
        self.pulls.add(question.ask.proximal_mu)
        share = 0.5 + 0.01 * int(board.rpartition("-")[2])
        arrays = {name: (value + share * (1.0 - value)).astype(np.float32) for name, value in question.arrays.items()}
        trained = answer(board, 5.0), TrainResult(arrays, 0.5, 0.5)
        return IncomingReply(*apply_mods(self._experiment, question.ask, question.arrays, trained))


def experiment(name: str, options: Mapping[str, float]) -> Experiment:
    wraps = StrategySpec() if name.startswith("DifferentialPrivacy") else None
    strategy = StrategySpec(name=name, options=dict(options), wraps=wraps)
    fleet = (FleetEntry(device="nano", count=BOARDS),)
    mods = (ModSpec(name=CLIPPING_MODS[name]),) if name in CLIPPING_MODS else ()
    return Experiment(fleet=fleet, rounds=3, strategy=strategy, policy=PolicySpec(name="maxn"), mods=mods)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_strategy_moves_the_model_towards_what_the_boards_learnt(name):
    run = experiment(name, OPTIONS[name])
    tables, port = MemoryTables(), Halfway(run)
    check_strategy(run)
    progress = Coordinator(run, port, TASK, tables).run()

    losses = [row.loss for row in tables.rows if isinstance(row, RoundRow)]
    assert len(losses) == 3
    assert losses[2] < losses[0] < 1.0
    assert all(np.isfinite(value).all() for value in progress.arrays.values())
    assert port.pulls == {OPTIONS[name].get("proximal_mu", 0.0)}


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("FedTrimmedAvg", {"beta": 0.6}, "what FedTrimmedAvg takes"),
        ("FedAvgM", {"server_momentum": "much"}, r"options\.server_momentum: got 'much'; a finite number"),
        ("FedProx", {"proximal_mu": "abc"}, r"options\.proximal_mu: got 'abc'; a finite number"),
        ("QFedAvg", {}, "client_learning_rate"),
        ("Bulyan", {"malicious": 1}, "known: .*num_malicious_nodes"),
        ("DifferentialPrivacyServerSideFixedClipping", {**PRIVATE, "clipping_norm": -1.0}, "clipping"),
    ],
)
def test_options_that_it_cannot_work_with_are_said_before_the_run(name, options, complaint):
    with pytest.raises(BadInput, match=complaint):
        check_strategy(experiment(name, options))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_STRATEGIES))
def test_strategies_for_other_clients_are_refused_with_what_would_be_right(name):
    with pytest.raises(BadInput, match=rf"strategy.name: got '{name}'; "):
        check_strategy(experiment(name, {}))


def test_every_strategy_of_flower_is_either_played_here_or_refused():
    assert set(OPTIONS) == set(SYNCHRONOUS)
