"""Requests carry what a client recalls, until it has contradicted it; its kind gets it as a peer's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pytest

from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, ServingSpec, WorkloadSpec, list_boards
from fedge.knowledge.evidence_files import identify_client
from fedge.knowledge.knowledge_folder import KnowledgeEntry
from fedge.knowledge.recall import FIRST_ROUNDS, BoardEvidence, RecalledPeer, RunKnowledge, recall_measurements
from fedge.types import Measurement, MemoryObservation, PowerMode, ReferenceRows, RoundGoal
from fedge.wire import ClientState, ReplyMessage, RequestMessage, from_json, to_json
from server.rounds.client_requests import FleetRequests, RoundTask
from server.state.checkpoint import ClientHistory, FleetState
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


FLEET = (FleetEntry(device="nano", count=2), FleetEntry(device="tx2"))


def ask(
    states: Mapping[str, ClientState], *, train: bool = True, knowledge: RunKnowledge = KNOWLEDGE, **changes: object
) -> Mapping[str, RequestMessage]:
    port, experiment = Port(), Experiment(**{"fleet": FLEET, **changes})
    requests = FleetRequests(experiment, port, knowledge=knowledge)
    names = [one.name for one in list_boards(experiment)]
    if train:
        requests.request_training(RoundTask(1, 0.0, ARRAYS), dict.fromkeys(names, RoundGoal("balanced", 5)), states)
    else:
        requests.request_fronts(names, ARRAYS)
    return port.asked


def modes(measurements: Sequence[Measurement]) -> set[tuple[str | None, float]]:
    return {(one.board, one.mode.cpu_mhz - 1000.0) for one in measurements}


def test_a_client_recalls_its_own_and_its_kind_gets_it_as_a_peers():
    for asked in (ask({}), ask({}, train=False)):
        assert asked["nano-1"].recalled == (seen(1), seen(2))
        assert asked["nano-2"].recalled == asked["tx2-1"].recalled == ()
        assert modes(asked["nano-1"].shared) == {("nano-9", 9.0)}
        assert modes(asked["nano-2"].shared) == {("nano-9", 9.0), ("nano-1", 1.0), ("nano-1", 2.0)}
        assert asked["tx2-1"].shared == ()


def test_a_real_board_gets_the_rows_of_its_reference_tables_in_every_request():
    table = ReferenceRows("nano", "other-net", 16, label="measured", rows=(seen(5), seen(6)))
    known = from_json(RunKnowledge, to_json(RunKnowledge(references={"nano-2": (table,)})))
    for asked in (ask({}, knowledge=known), ask({}, train=False, knowledge=known)):
        assert asked["nano-2"].references == (table,)
        assert asked["nano-1"].references == asked["tx2-1"].references == ()


def test_a_client_is_told_whether_what_it_measures_is_kept():
    for folder in ("", "/var/lib/knowledge"):
        asked = ask({}, knowledge=RunKnowledge(folder))
        assert {one.gives_back for one in asked.values()} == {bool(folder)}


def test_a_client_starts_with_the_memory_outcomes_of_its_last_run_and_goes_on_with_its_own():
    earlier, new = (MemoryObservation(900.0, 1000.0),), (MemoryObservation(900.0, 1000.0, 950.0),)
    known = from_json(RunKnowledge, to_json(RunKnowledge(memory={"nano-2": earlier})))

    for asked in (ask({}, knowledge=known), ask({}, train=False, knowledge=known)):
        assert (asked["nano-1"].state, asked["nano-2"].state) == (ClientState(), ClientState(memory=earlier))
    assert ask({"nano-2": ClientState(memory=new)}, knowledge=known)["nano-2"].state.memory == new


def test_requests_carry_the_measured_rate_of_the_link():
    port, experiment = Port(), Experiment(fleet=FLEET)
    requests = FleetRequests(experiment, port)
    fleet = FleetState(0.0, histories={"nano-2": ClientHistory(links_mbps=(9.0, 2.0, 4.0)), "nano-1": ClientHistory()})
    names = [one.name for one in list_boards(experiment)]
    goals = dict.fromkeys(names, RoundGoal("balanced", 5))

    requests.request_training(RoundTask(1, 0.0, ARRAYS), goals, {}, fleet.histories)
    assert {name: asked.link_mbps for name, asked in port.asked.items()} == {**dict.fromkeys(names), "nano-2": 4.0}
    requests.request_evaluation(1, fleet, ARRAYS, names)
    assert {name: asked.link_mbps for name, asked in port.asked.items()} == {**dict.fromkeys(names), "nano-2": 4.0}


@pytest.mark.parametrize(("number", "told"), [(FIRST_ROUNDS, {1.0, 2.0, 3.0}), (FIRST_ROUNDS + 1, {1.0})])
def test_between_two_renewals_peers_hear_only_of_what_they_heard_before(number, told):
    port = Port()
    states = {"nano-1": ClientState((seen(1), seen(2), seen(3))), "nano-2": ClientState((seen(4),))}
    histories = {"nano-1": ClientHistory(unshared=2), "nano-2": ClientHistory(unshared=1)}
    goals = {"nano-2": RoundGoal("balanced", 5)}
    FleetRequests(Experiment(fleet=FLEET), port).request_training(
        RoundTask(number, 0.0, ARRAYS), goals, states, histories
    )

    assert modes(port.asked["nano-2"].shared) == {("nano-1", mode) for mode in told}
    assert port.asked["nano-2"].state == states["nano-2"]


def test_what_a_client_contradicted_reaches_nobody_any_more():
    asked = ask({"nano-1": ClientState((seen(3),), doubts_recalled=True)})

    assert asked["nano-1"].recalled == ()
    assert modes(asked["nano-2"].shared) == {("nano-9", 9.0), ("nano-1", 3.0)}


SERVICE = ServingSpec(cost="resnet50-imagenet", rate_hz=5, latency_s=1)
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def recall(experiment: Experiment, found: Sequence[BoardEvidence]) -> RunKnowledge:
    clients = [identify_client(experiment, board) for board in list_boards(experiment)]
    by_entry = {id(one.entry): one for one in found}
    return recall_measurements(clients, [one.entry for one in found], lambda entry: [by_entry[id(entry)]], NOW)


def evidence(
    board: str, i: int, *, date: str = "2026-05-01T00:00:00Z", conditions: Mapping[str, str] | None = None
) -> BoardEvidence:
    entry = KnowledgeEntry(
        "a",
        form="run",
        device="nano",
        workload="net",
        batch_size=8,
        label="measured",
        source="a run",
        file="entries/a.rows",
        sha256="0" * 64,
        date=date,
        rows=1,
        conditions=conditions or {},
    )
    return BoardEvidence(entry, board, (seen(i),))


def real_fleet(*entries: FleetEntry) -> dict[str, object]:
    return {"backend": "fleet", "fleet": entries, "workload": WorkloadSpec(task="net", batch_size=8)}


def test_a_real_boards_own_old_measurements_reach_it_as_a_peers_in_every_round():
    fleet = real_fleet(FleetEntry(device="nano", count=2))
    known = recall(Experiment(**fleet), [evidence("nano-1", 1, date="2025-01-01T00:00:00Z")])

    for states in ({}, {"nano-1": ClientState((seen(3),)), "nano-2": ClientState()}):
        asked = ask(states, knowledge=known, **fleet)
        assert asked["nano-1"].recalled == ()
        assert 1.0 in {mode for _, mode in modes(asked["nano-1"].shared)}
        assert 1.0 in {mode for _, mode in modes(asked["nano-2"].shared)}


def test_a_board_measured_beside_a_service_is_a_peer_of_boards_with_the_service_only():
    fleet = real_fleet(FleetEntry(device="nano", count=2), FleetEntry(device="nano", name="busy", serving=SERVICE))
    busy = {"serving": SERVICE.model_dump_json(exclude={"placement", "placed"})}
    known = recall(
        Experiment(**fleet),
        [evidence("nano-1", 1, conditions=busy), evidence("nano-9", 2), evidence("nano-9", 3, conditions=busy)],
    )
    states = {"nano-1": ClientState((seen(4),))}
    asked = ask(states, knowledge=known, **fleet)

    assert {mode for _, mode in modes(asked["nano-2"].shared)} == {2.0, 4.0}
    assert {mode for _, mode in modes(asked["busy-1"].shared)} == {1.0, 3.0}


def test_a_peer_named_like_a_client_is_refused():
    damaged = RunKnowledge(peers=(RecalledPeer("nano-2", "nano-1", (seen(9),)),))

    with pytest.raises(BadInput, match="another board's name"):
        ask({}, knowledge=damaged)
