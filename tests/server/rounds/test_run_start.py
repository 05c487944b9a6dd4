"""The start of a run: boards that other runs hold are waited for, but not for ever."""

import pytest
from contracts.timed_grid import TimedGrid
from flwr.app import ConfigRecord, RecordDict

from fedge.clock import SimulatedClock
from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetEntry
from fedge.telemetry.store import MemoryTables
from fedge.wire import ReplyMessage, RequestMessage, to_json
from fedge.workloads import NullTask
from server.rounds.client_requests import FleetRequests
from server.rounds.run_start import start_run
from server.transport.claim_terms import ClaimTerms
from server.transport.grid_port import GridPort

BROKEN, HELD = "broken-1", "held-1"


class HalfBrokenGrid(TimedGrid):
    """One board fails at once."""

    def _content(self, board: str, ask: RequestMessage) -> RecordDict:
        if board == BROKEN and ask.kind == "front":
            failed = ReplyMessage(board, error="worker: no torch")
            return RecordDict({"fedge": ConfigRecord({"answer": to_json(failed)})})
        return super()._content(board, ask)


def test_a_board_that_fails_at_once_does_not_make_the_wait_for_others_endless():
    clock, tables = SimulatedClock(), MemoryTables()
    grid = HalfBrokenGrid(clock, [BROKEN, HELD], {})
    grid.holders = {HELD: 200.0}
    port = GridPort(grid, [BROKEN, HELD], clock, ClaimTerms("me"))
    fleet = (FleetEntry(device="nano", name="broken"), FleetEntry(device="nano", name="held"))
    requests = FleetRequests(Experiment(backend="fleet", fleet=fleet), port)
    with pytest.raises(RunFailed, match="broken-1: worker: no torch; held-1 works for run"):
        start_run(requests, NullTask(), tables, [BROKEN, HELD], overdue=port)

    assert clock.now_s() < 1200.0
    assert [row.kind for row in tables.rows].count("waiting") == 1
