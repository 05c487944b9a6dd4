"""Requests carry what a client recalls, until it has contradicted it; its kind gets it as a peer's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedge.experiment import Experiment, FleetEntry
from fedge.knowledge.recall import RecalledPeer, RunKnowledge
from fedge.types import Measurement, PowerMode, RoundGoal
from fedge.wire import ClientState, ReplyMessage, RequestMessage
from server.rounds.client_requests import FleetRequests, RoundTask
from server.transport.client_port import IncomingReply, OutgoingRequest


def seen(i: int) -> Measurement:
    return Measurement(PowerMode(4, 1000.0 + i, 900.0, 1600.0), 10, 1.0, 5.0)


KNOWLEDGE = RunKnowledge("k", own={"nano-1": (seen(1), seen(2))}, peers=(RecalledPeer("nano-9", "nano-1", (seen(9),)),))
ARRAYS = {"w": np.zeros(2, np.float32)}


@dataclass
class Port:
    """Keeps the requests, and answers none."""

    asked: dict[str, RequestMessage] = field(default_factory=dict)

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: object = None
    ) -> Mapping[str, IncomingReply]:
        self.asked = {board: question.ask for board, question in questions.items()}
        return {board: IncomingReply(ReplyMessage(board, error="nothing")) for board in questions}


def ask(states: Mapping[str, ClientState], *, train: bool = True, **changes: object) -> Mapping[str, RequestMessage]:
    port = Port()
    experiment = Experiment(fleet=(FleetEntry(device="nano", count=2), FleetEntry(device="tx2")), **changes)
    requests, names = FleetRequests(experiment, port, knowledge=KNOWLEDGE), ("nano-1", "nano-2", "tx2-1")
    if train:
        requests.request_training(RoundTask(1, 0.0, ARRAYS), dict.fromkeys(names, RoundGoal("balanced", 5)), states)
    else:
        requests.request_fronts(names, ARRAYS)
    return port.asked


def modes(measurements: Sequence[Measurement]) -> set[tuple[str | None, float]]:
    return {(one.board, one.mode.cpu_mhz - 1000.0) for one in measurements}


def test_a_client_recalls_its_own_and_its_kind_gets_it_as_a_peers() -> None:
    for asked in (ask({}), ask({}, train=False)):
        assert asked["nano-1"].recalled == (seen(1), seen(2))
        assert asked["nano-2"].recalled == asked["tx2-1"].recalled == ()
        assert modes(asked["nano-1"].shared) == {("nano-9", 9.0)}
        assert modes(asked["nano-2"].shared) == {("nano-9", 9.0), ("nano-1", 1.0), ("nano-1", 2.0)}
        assert asked["tx2-1"].shared == ()


def test_what_a_client_contradicted_reaches_nobody_any_more() -> None:
    asked = ask({"nano-1": ClientState((seen(3),), doubts_recalled=True)})

    assert asked["nano-1"].recalled == ()
    assert modes(asked["nano-2"].shared) == {("nano-9", 9.0), ("nano-1", 3.0)}


def test_without_sharing_a_client_still_recalls_its_own() -> None:
    asked = ask({}, share_samples=False)

    assert asked["nano-1"].recalled == (seen(1), seen(2))
    assert all(one.shared == () for one in asked.values())
