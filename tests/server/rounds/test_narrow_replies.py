"""Replies of narrow clients: their shapes are checked against what they declare before anything is aggregated."""

import dataclasses

import numpy as np
import pytest
from contracts.reports import report

from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.types import MemoryUse, RoundGoal, TrainingScale, TrainResult
from fedge.wire import ClientState, ReplyMessage
from fedge.worker.subnetwork_arrays import array_shapes
from server.rounds.client_requests import (
    FleetRequests,
    RoundTask,
    find_narrow_shapes,
    to_contribution,
    validate_reply,
)
from server.transport.client_port import IncomingReply, OutgoingRequest

MODEL = {"w": np.zeros((4, 4), np.float32), "b": np.zeros(4, np.float32)}
NARROW = {"w": (2, 4), "b": (2,)}


def shapes(width: float) -> dict[str, tuple[int, ...]]:
    if width != 0.5:
        raise BadInput("width", str(width), "0.5")
    return NARROW


def reply(own: dict[str, np.ndarray], used: TrainingScale | None) -> IncomingReply:
    memory = None if used is None else MemoryUse(TrainingScale(16), used, 900.0, 1000.0)
    told = dataclasses.replace(report("a", 5.0), memory=memory)
    return IncomingReply(ReplyMessage("a", report=told, state=ClientState()), TrainResult(own, 0.1, 0.9))


def ones(made: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: np.ones(shape, np.float32) for name, shape in made.items()}


def test_a_full_reply_is_taken_whatever_it_declares():
    for used in (None, TrainingScale(8), TrainingScale(16, 0.5)):
        one = reply({name: np.ones_like(v) for name, v in MODEL.items()}, used)
        assert validate_reply("a", one, MODEL, shapes) is one


@pytest.mark.parametrize(
    ("own", "used", "told"),
    [
        (NARROW, None, "the model has (4,)"),
        (NARROW, TrainingScale(16), "the model has (4,)"),
        (NARROW, TrainingScale(16, 0.25), "width"),
        ({"w": (2, 4), "b": (3,)}, TrainingScale(16, 0.5), "the model has (2,)"),
        ({"w": (5, 4), "b": (2,)}, TrainingScale(16, 0.5), "the model has (2, 4)"),
        ({"w": (2, 4)}, TrainingScale(16, 0.5), "got shape None"),
    ],
)
def test_other_shapes_fail_their_board_alone(own, used, told):
    found = validate_reply("a", reply(ones(own), used), MODEL, shapes)
    assert found.trained is None
    assert told in found.answer.error


def test_values_that_are_not_finite_fail_a_narrow_reply_too():
    own = ones(NARROW) | {"b": np.array([1.0, np.nan], np.float32)}
    found = validate_reply("a", reply(own, TrainingScale(16, 0.5)), MODEL, shapes)
    assert "not finite" in str(found.answer.error)


def test_where_no_narrow_client_is_allowed_a_narrow_reply_fails():
    found = validate_reply("a", reply(ones(NARROW), TrainingScale(16, 0.5)), MODEL, None)
    assert "the model has" in str(found.answer.error)


def test_only_strategies_that_average_and_tasks_that_can_allow_narrow_clients():
    class Task:
        narrow_shapes = staticmethod(shapes)

    def run(strategy: str) -> Experiment:
        return Experiment.model_validate({"fleet": [{"device": "nano"}], "strategy": {"name": strategy}})

    assert find_narrow_shapes(run("FedAvg"), Task()) is shapes
    assert find_narrow_shapes(run("Krum"), Task()) is None
    assert find_narrow_shapes(run("FedAvg"), object()) is None


def test_small_minibatches_count_as_the_part_of_a_whole_one_that_they_are():
    full = {name: np.ones_like(v) for name, v in MODEL.items()}
    steps = to_contribution("a", reply(full, None)).steps
    halves = to_contribution("a", reply(full, TrainingScale(8))).steps
    assert halves == round(steps / 2)


def test_a_client_receives_the_widest_network_that_it_may_train_and_all_of_a_width_the_same_object():
    sent = dict[str, OutgoingRequest]()

    class Port:
        def ask(self, questions, limit_s, enough=None):
            sent.update(questions)
            return {}

    fleet = [{"device": "nano", "count": 4}, {"device": "agx-orin", "width": 0.5, "count": 2}]
    fleet.append({"device": "tx2"})
    goals = dict.fromkeys(("nano-1", "agx-orin-1", "agx-orin-2"), RoundGoal("joint", 5))
    goals["tx2-1"] = RoundGoal("joint", 5, width=0.3)
    goals |= dict.fromkeys(("nano-2", "nano-3", "nano-4"), RoundGoal("joint", 5, width=0.5))
    states = dict.fromkeys(("nano-4", "agx-orin-2"), ClientState(whole_only=True))
    requests = FleetRequests(Experiment.model_validate({"fleet": fleet}), Port(), shapes)
    requests.request_training(RoundTask(1, 0.0, MODEL), goals, states)

    assert all(sent[name].arrays is MODEL for name in ("nano-1", "nano-4", "agx-orin-2", "tx2-1"))
    assert array_shapes(sent["nano-2"].arrays) == NARROW
    assert sent["nano-2"].arrays is sent["nano-3"].arrays is sent["agx-orin-1"].arrays
