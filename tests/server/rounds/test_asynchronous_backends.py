"""An asynchronous run that was stopped in between writes the same rows and model."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from fedge.client.emulated import answer_request
from fedge.experiment import DataSpec, Experiment, FleetEntry, StrategySpec, WorkloadSpec, list_boards
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow, SampleRow
from server.run import run_experiment
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

pytestmark = pytest.mark.slow


def rows(folder: Path) -> list:
    return [row for kind in (RoundRow, ClientRow, EventRow, SampleRow) for row in read_rows(folder, kind)]


class _Stopped(Exception):
    pass


@pytest.mark.parametrize("name", ["FedBuff", pytest.param("FedAsync", marks=pytest.mark.long)])
def test_a_run_of_emulated_boards_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, name):
    strategy = StrategySpec(name=name, options={"concurrency": 3} | ({"buffer_size": 2} if name == "FedBuff" else {}))
    experiment = Experiment(
        fleet=(FleetEntry(device="nano", count=2), FleetEntry(device="agx-orin-64gb", count=2)),
        rounds=5,
        workload=WorkloadSpec(local_epochs=0.5),
        data=DataSpec(partition="iid"),
        strategy=strategy,
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    run_experiment(experiment, _port(experiment), whole)
    for stop in (1, 2, 4):
        with pytest.raises(_Stopped):
            run_experiment(experiment, _port(experiment), parts, partial(_stop_at, stop))
    run_experiment(experiment, _port(experiment), parts)

    assert rows(parts) == rows(whole)
    assert (parts / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def _stop_at(version: int, made: int) -> None:
    if made == version:
        raise _Stopped


def _port(experiment: Experiment) -> LocalPort:
    index = {board.name: board.index for board in list_boards(experiment)}

    def respond(questions: Mapping[str, OutgoingRequest]) -> dict[str, IncomingReply]:
        return {
            name: IncomingReply(*answer_request(experiment, index[name], question.ask, question.arrays))
            for name, question in questions.items()
        }

    return LocalPort(respond)
