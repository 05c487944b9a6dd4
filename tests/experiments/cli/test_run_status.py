"""`fedge status` says how far a run is, what went wrong, and names commands that work."""

import json
import shutil
from pathlib import Path

import pytest
from contracts.launching import SMALL, Launcher
from contracts.store_rows import client_row

from experiments.backends import launcher
from experiments.cli import main
from experiments.cli.run_status import _list_problems, list_failures, read_run_status
from fedge.atomic_files import FileLock, is_locked
from fedge.errors import BadInput
from fedge.telemetry.store_records import ClientRow, EventRow


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Launcher:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.yaml").write_text(SMALL, encoding="utf-8")
    return Launcher(monkeypatch, capsys)


def test_it_follows_a_run_from_its_start_to_its_end(fedge, tmp_path):
    assert fedge("run", "exp.yaml", "--folder", "run")[0] == main.DONE
    run = tmp_path / "run"

    finished = read_run_status(run)
    assert (finished.state, finished.rounds) == ("finished", finished.planned)
    assert finished.summary["energy_j"] > 0
    assert "fedge replay" in dict(finished.next_steps)["ask what another policy would have cost"]
    assert "knowledge import" in dict(finished.next_steps)["start the next run from what this one measured"]

    (run / "model.safetensors").unlink()
    stopped = read_run_status(run)
    assert stopped.state == "stopped"
    assert dict(stopped.next_steps) == {"go on with it": f"fedge resume {run}"}

    lock = FileLock(run / launcher.LOCK_FILE, "a run")
    assert read_run_status(run).state == "running"
    lock.release()
    shutil.rmtree(run / "store")
    with pytest.raises(BadInput, match=r"store: got no rows, though the run has done rounds; .* put it back"):
        read_run_status(run)
    shutil.rmtree(run / "checkpoints")
    assert read_run_status(run).state == "not started"


def test_the_command_prints_text_or_the_record(fedge):
    assert fedge("run", "exp.yaml", "--folder", "run")[0] == main.DONE

    code, out, _ = fedge("status", "run")
    assert code == main.DONE
    assert "finished" in out
    assert "emulated boards: 2 estimated" in out
    assert "fedge report run" in out
    code, out, _ = fedge("status", "run", "--json")
    assert json.loads(out)["state"] == "finished"
    code, _, err = fedge("status", "nowhere")
    assert code == main.BAD_INPUT
    assert "no such folder" in err


def test_unmet_goals_are_worded_as_at_the_end_of_the_run_and_a_remedy_follows():
    counts = {"infeasible": 1, "late": 2, "late_lost": 0, "failed": 0, "rounds": 3, "clients": 2, "asked": 6}

    problem, remedy = _list_problems({**counts, "asynchronous": False, "ended": ""}, [], [])

    assert problem == "1 goal that no known mode could meet, 2 replies late (of 3 rounds x 2 boards)"
    assert "longer deadline" in remedy


def failed(board: str, error: str) -> ClientRow:
    return client_row(1, board, status="failed", error=error)


def before_the_first_round(board: str, message: str) -> EventRow:
    return EventRow(0.0, round=0, board=board, kind="failed", message=message)


def test_each_reason_of_failures_is_named_with_its_boards_the_most_frequent_first():
    rows = [failed("tx2-1", "disk full\nmore"), *(failed(f"nano-{i}", "never connected") for i in (1, 1, 2, 3, 4, 5))]

    assert list(list_failures(rows, [before_the_first_round("tx2-1", "no front")])) == [
        "6 x failed: never connected (nano-1, nano-2, nano-3 and 2 more)",
        "1 x failed: disk full (tx2-1)",
    ]


def test_a_board_that_failed_before_the_first_round_is_named_and_what_is_not_listed_is_counted():
    events = [before_the_first_round(f"nano-{i}", f"nano-{i} works for run x") for i in range(5)]

    assert list(list_failures([], events))[2:] == [
        "1 x failed: nano-2 works for run x (nano-2)",
        "2 more reasons of failures are among the report's events",
    ]


def test_a_lock_is_seen_and_not_taken(tmp_path):
    path = tmp_path / "lock"

    assert not is_locked(path)
    lock = FileLock(path, "a run")
    assert is_locked(path)
    lock.release()
    assert not is_locked(path)
    FileLock(path, "a run").release()
