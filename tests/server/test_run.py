"""A run that goes on has to be able to tell its whole story."""

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry
from fedge.telemetry.store import RunTables
from server.run import is_run_over, read_claim_name, run_experiment
from server.state import checkpoint
from server.transport.client_port import LocalPort


@pytest.fixture
def played_folder(tmp_path: Path) -> Path:
    """Of a run of three rounds whose rows are gone."""
    RunTables(tmp_path).close()
    checkpoint.save(
        tmp_path / "checkpoints", checkpoint.RunState(3, checkpoint.FleetState(9.0), {"w": np.zeros(2, np.float32)})
    )
    return tmp_path


def run_on(folder: Path) -> None:
    run_experiment(Experiment(fleet=(FleetEntry(device="nano"),)), LocalPort(lambda _: {}), folder)


def test_a_run_whose_rows_are_gone_does_not_go_on(played_folder):
    with pytest.raises(BadInput, match=r"store/rounds: got no row of round 1; the rows of the 3 rounds played"):
        run_on(played_folder)

    shutil.rmtree(played_folder / "store")
    with pytest.raises(BadInput, match=r"store: got no rows, though the run has done rounds; .* put it back"):
        run_on(played_folder)


def test_a_failed_run_lets_its_own_process_resume_it(played_folder):
    with pytest.raises(BadInput):
        run_on(played_folder)

    RunTables(played_folder).close()


def test_a_run_claims_its_boards_by_one_name_that_no_other_run_has(tmp_path):
    experiment = Experiment(name="digits", fleet=(FleetEntry(device="nano"),))
    folders = [tmp_path / each / "run" for each in ("here", "there")]
    for folder in folders:
        folder.mkdir(parents=True)
    first, again, other = (read_claim_name(experiment, folder) for folder in (folders[0], folders[0], folders[1]))

    assert first == again != other
    assert first.startswith(f"digits ({folders[0]}, ")


def test_a_run_is_over_once_no_process_writes_it(tmp_path):
    claim = read_claim_name(Experiment(fleet=(FleetEntry(device="nano"),)), tmp_path)
    tables = RunTables(tmp_path)
    during = is_run_over(claim)
    tables.close()

    assert (during, is_run_over(claim)) == (False, True)


def test_without_locks_nobody_knows_whether_a_run_is_over(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    claim = read_claim_name(Experiment(fleet=(FleetEntry(device="nano"),)), tmp_path)
    monkeypatch.setattr("fcntl.flock", refuse)
    RunTables(tmp_path).close()

    assert not is_run_over(claim)


@pytest.mark.parametrize("claim", ["digits", "digits (/no/such/folder, 0123abcd)"])
def test_of_a_run_that_is_not_found_nobody_knows_whether_it_is_over(claim):
    assert not is_run_over(claim)


def test_a_run_is_over_once_another_run_has_its_folder(tmp_path):
    read_claim_name(Experiment(fleet=(FleetEntry(device="nano"),)), tmp_path)
    tables = RunTables(tmp_path)

    assert is_run_over(f"digits ({tmp_path}, 00000000)")
    tables.close()
