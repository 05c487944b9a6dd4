"""The ServerApp claims real boards, which it releases however the run ends, and has nodes emulate the others."""

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetEntry
from server import app
from server.transport.emulating_port import EmulatingNodes


class Noted:
    """A port that notes how it was made and whether it said farewell."""

    made: list[tuple[object, ...]]
    farewells: int

    def __init__(self, *given: object, **named: object) -> None:
        Noted.made.append((*given, *named.values()))

    def release_boards(self) -> None:
        Noted.farewells += 1


def context(backend: str, folder: Path) -> Context:
    experiment = Experiment(backend=backend, fleet=(FleetEntry(device="nano", count=2),), reply_timeout_s=100.0)
    config = {"experiment": experiment.model_dump_json(), "folder": str(folder)}
    return Context(1, 1, {}, RecordDict(), config)


def test_a_run_on_real_boards_claims_them_and_says_farewell_also_if_it_fails(tmp_path, monkeypatch):
    Noted.made, Noted.farewells = [], 0

    def fails(*_: object, **__: object) -> None:
        raise RunFailed("no board is left")

    monkeypatch.setattr(app, "GridPort", Noted)
    monkeypatch.setattr(app, "run_experiment", fails)
    with pytest.raises(RunFailed, match="no board is left"):
        app.main(object(), context("fleet", tmp_path))

    *_, claiming, _connect_timeout_s = Noted.made[0]
    assert Noted.farewells == 1
    assert claiming.timeout_s == 100.0
    assert claiming.run.startswith(f"experiment ({tmp_path}, ")


def test_a_run_in_simulation_asks_nodes_that_emulate_the_boards(tmp_path, monkeypatch):
    ports: list[object] = []
    monkeypatch.setattr(app, "run_experiment", lambda _experiment, port, _folder: ports.append(port))
    app.main(object(), context("sim", tmp_path))
    assert [type(port) for port in ports] == [EmulatingNodes]
