"""Runs of emulated boards: the samples in the store have the joules of every client row, in each kind of run."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a client trains")

from contracts.traced_rounds import hold_the_rows_joules

from fedge.experiment import (
    AvailabilitySpec,
    BatterySpec,
    DataSpec,
    Experiment,
    FleetEntry,
    LateSpec,
    SelectionSpec,
    StrategySpec,
    WorkloadSpec,
    boards,
)
from fedge.fleetsim.client import answer
from fedge.telemetry.reading import read_rows
from fedge.telemetry.rows import ClientRow, EventRow, SampleRow, Traced
from fedge.telemetry.store import MemoryTables, RunTables
from server.port import LocalPort, Question, Reply
from server.runs import coordinator_of
from server.tracing import TRACE

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


def respond(asked: Experiment, index: int, question: Question) -> Reply:
    return Reply(*answer(asked, index, question.ask, question.arrays))


def port_of(asked: Experiment) -> LocalPort:
    return LocalPort({board.name: partial(respond, asked, board.index) for board in boards(asked)})


def played(asked: Experiment) -> MemoryTables:
    tables = MemoryTables()
    coordinator_of(asked, port_of(asked), tables).run()
    return tables


KINDS = {
    "accept": {},
    "drop": {"late": LateSpec(action="drop", grace=0.0)},
    "discount": {"late": LateSpec(action="discount", grace=0.0)},
    "partial": {"late": LateSpec(action="partial", grace=0.0)},
    "cancelled": {"selection": SelectionSpec(name="random", count=2, over_commit=2.0)},
    "asynchronous": {"strategy": StrategySpec(name="FedBuff", options={"buffer_size": 3})},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_of_every_kind_of_run_have_the_joules_of_its_rows(kind: str) -> None:
    rows = played(experiment(**KINDS[kind])).rows
    clients = [row for row in rows if isinstance(row, ClientRow)]

    assert len(clients) >= 6
    hold_the_rows_joules(
        [row for row in clients if row.energy_j > 0], [row for row in rows if isinstance(row, Traced)], same=1e-8
    )
    assert not [row for row in rows if isinstance(row, EventRow) and row.kind == TRACE]


@pytest.mark.slow
def test_the_store_holds_the_same_joules_and_a_trace_follows_its_clock(tmp_path: Path) -> None:
    asked, tables = experiment(rounds=2), RunTables(tmp_path)
    coordinator_of(asked, port_of(asked), tables).run()
    tables.close()
    samples = read_rows(tmp_path, SampleRow)

    for row in read_rows(tmp_path, ClientRow):
        own = [s for s in samples if (s.round, s.board) == (row.round, row.board)]
        assert sum(s.power_w * s.span_s for s in own) == pytest.approx(row.energy_j, rel=1e-8)
        assert not own or own[0].at_s == pytest.approx(row.start_s)
        if row.status == "done":
            told_c = next(s.temperature_c for s in reversed(own) if s.temperature_c is not None)
            assert told_c == pytest.approx(row.temperature_c, abs=0.5)
