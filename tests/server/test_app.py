"""The ServerApp asks in the run's name on real boards, and says farewell however the run ends."""

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetEntry
from server import app


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


@pytest.mark.parametrize("backend", ["sim", "fleet"])
def test_a_run_that_fails_says_farewell_too_and_only_real_boards_are_claimed(backend, tmp_path, monkeypatch):
    Noted.made, Noted.farewells = [], 0

    def fails(*_: object, **__: object) -> None:
        raise RunFailed("no board is left")

    monkeypatch.setattr(app, "GridPort", Noted)
    monkeypatch.setattr(app, "run_experiment", fails)
    with pytest.raises(RunFailed, match="no board is left"):
        app.main(object(), context(backend, tmp_path))

    *_, least, claiming = Noted.made[0]
    assert Noted.farewells == 1
    assert least == (1 if backend == "fleet" else 2)
    assert (claiming is None) == (backend == "sim")
    if backend == "fleet":
        assert claiming.timeout_s == 100.0
        assert claiming.run.startswith(f"experiment ({tmp_path}, ")
