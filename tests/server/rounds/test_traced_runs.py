"""Runs of emulated boards: the samples in the store have the joules of every client row, in each kind of run."""

import logging
from collections.abc import Mapping
from functools import partial

import pytest

pytest.importorskip("torch", reason="a client trains")

from contracts.traced_rounds import hold_the_rows_joules

from fedge.client.emulated import answer_request
from fedge.experiment import (
    AvailabilitySpec,
    BatterySpec,
    DataSpec,
    Experiment,
    FleetEntry,
    LateReplySpec,
    SelectionSpec,
    StrategySpec,
    WorkloadSpec,
    list_boards,
)
from fedge.telemetry.store import MemoryTables, RunTables
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundTrace, SampleRow
from server.run import build_coordinator
from server.state.client_traces import TRACE_EVENT
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

logging.getLogger("flwr").setLevel(logging.ERROR)
FLAT = BatterySpec(capacity_wh=0.05, charging_w=2.0, floor=0.0)
FLEET = (
    FleetEntry(device="nano", count=2),
    FleetEntry(device="agx-orin-64gb"),
    FleetEntry(device="xavier-nx", name="away", availability=AvailabilitySpec(on_s=40.0, off_s=20.0)),
    FleetEntry(device="xavier-nx", name="flat", battery=FLAT),
    FleetEntry(device="nano", name="hot", ambient_c=60.0),
)


def experiment(**changes: object) -> Experiment:
    work, data = WorkloadSpec(local_epochs=0.5, cost="resnet18-imagenet"), DataSpec(partition="iid")
    return Experiment(**{"fleet": FLEET, "rounds": 2, "workload": work, "data": data} | changes)


def respond(asked: Experiment, questions: Mapping[str, OutgoingRequest]) -> dict[str, IncomingReply]:
    index = {board.name: board.index for board in list_boards(asked)}
    return {
        name: IncomingReply(*answer_request(asked, index[name], question.ask, question.arrays))
        for name, question in questions.items()
    }


def port_of(asked: Experiment) -> LocalPort:
    return LocalPort(partial(respond, asked))


def played(asked: Experiment) -> MemoryTables:
    tables = MemoryTables()
    build_coordinator(asked, port_of(asked), tables).run()
    return tables


KINDS = {
    "accept": {},
    "drop": {"late": LateReplySpec(action="drop", grace=0.0)},
    "discount": {"late": LateReplySpec(action="discount", grace=0.0)},
    "partial": {"late": LateReplySpec(action="partial", grace=0.0)},
    "cancelled": {"selection": SelectionSpec(name="random", count=2, over_commit=2.0)},
    "asynchronous": {"strategy": StrategySpec(name="FedBuff", options={"buffer_size": 3})},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_of_every_kind_of_run_have_the_joules_of_its_rows(kind):
    rows = played(experiment(**KINDS[kind])).rows
    clients = [row for row in rows if isinstance(row, ClientRow)]

    assert len(clients) >= 6
    hold_the_rows_joules(
        [row for row in clients if row.energy_j > 0], [row for row in rows if isinstance(row, RoundTrace)], same=1e-8
    )
    assert not [row for row in rows if isinstance(row, EventRow) and row.kind == TRACE_EVENT]


@pytest.mark.slow
def test_the_store_holds_the_same_joules_and_a_trace_follows_its_clock(tmp_path):
    asked, tables = experiment(rounds=2), RunTables(tmp_path)
    build_coordinator(asked, port_of(asked), tables).run()
    tables.close()
    samples = read_rows(tmp_path, SampleRow)

    for row in read_rows(tmp_path, ClientRow):
        own = [s for s in samples if (s.round, s.board) == (row.round, row.board)]
        assert sum(s.power_w * s.span_s for s in own) == pytest.approx(row.energy_j, rel=1e-8)
        assert not own or own[0].at_s == pytest.approx(row.start_s)
        if row.status == "done":
            told_c = next(s.temperature_c for s in reversed(own) if s.temperature_c is not None)
            assert told_c == pytest.approx(row.temperature_c, abs=0.5)
