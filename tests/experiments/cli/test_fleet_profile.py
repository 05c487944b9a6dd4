"""``fedge fleet profile``: the playbook on hosts that are this machine, each an emulated board of its own."""

import getpass
import importlib.util
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from contracts.boards import write_table
from contracts.desk import desk
from contracts.free_tasks import TABLE

from experiments.backends.run_knowledge import import_path, recall_for_run
from experiments.cli import fleet_profile
from experiments.cli.fleet_profile import name_campaign, profile_fleet, profile_table, read_row
from experiments.fleet.inventory import InventoryHost
from experiments.fleet.playbook_runner import PlaybookCall
from experiments.fleet.selected_fleet import PLAYBOOKS, FleetOptions
from fedge.client.run_claim import CLAIM_FILE, write_claim
from fedge.devices.tables.mode_table import read_mode_table
from fedge.experiment import Experiment, WorkloadSpec
from fedge.knowledge.evidence_files import describe_file
from fedge.knowledge.recall import read_run_knowledge

RECORD = {"board": "my-board", "kind": "train", "modes": [{}], "modes_wanted": 4, "seconds": 9.0, "joules": 30.0}


def write_fetched(out: Path, *, finished: bool) -> None:
    table = write_table(out / "nano-1" / "net.csv")
    table.with_name("net.csv.json").write_text(json.dumps({**RECORD, "finished": finished}), encoding="utf-8")


@pytest.mark.parametrize("finished", [True, False])
def test_a_fetched_table_moves_to_the_path_that_names_its_board_kind(tmp_path, finished):
    write_fetched(tmp_path, finished=finished)

    row = read_row(tmp_path, "nano-1", "net", None)

    assert row.table == tmp_path / "nano-1" / "my-board" / "train" / "net.csv"
    assert read_mode_table(row.table).device == "my-board"
    text = profile_table([row]).csv
    assert "1 of 4" in text
    assert ("the same command goes on" in text) != finished


def test_a_board_that_failed_is_a_row_with_its_reason_and_what_it_had_measured(tmp_path):
    write_fetched(tmp_path, finished=False)
    rows = [read_row(tmp_path, "nano-1", "net", "too hot"), read_row(tmp_path, "gone", "net", "no answer")]

    text = profile_table(rows).csv

    assert [row.failure for row in rows] == ["too hot", "no answer"]
    assert rows[0].table is not None
    assert "failed: no answer" in text


def test_a_fetched_table_is_the_knowledge_of_its_board(tmp_path):
    write_fetched(tmp_path, finished=True)
    row = read_row(tmp_path, "nano-1", "net", None)

    entry = describe_file(row.table)
    assert (entry.boards, entry.device, entry.conditions) == (("nano-1",), "my-board", {})
    assert sorted(path.name for path in (tmp_path / "nano-1").rglob("*") if path.is_file()) == [
        "net.csv",
        "net.csv.json",
    ]


PATHS = ({"board": "/home/me", "kind": "train"}, {"board": "nano", "kind": ".."}, {"board": "nano", "kind": "a/b"})


@pytest.mark.parametrize("record", [None, "{", "{}", *map(json.dumps, (*PATHS, {"board": "nano", "kind": "train"}))])
def test_a_table_without_its_record_is_a_failed_row(tmp_path, record):
    table = write_table(tmp_path / "nano-1" / "net.csv")
    if record is not None:
        table.with_name("net.csv.json").write_text(record, encoding="utf-8")

    row = read_row(tmp_path, "nano-1", "net", None)

    assert row.table is None
    assert "failed: a table without its record" in profile_table([row]).csv


@pytest.mark.parametrize(("boards", "code"), [(("nano-1",), 0), (("nano-1", "lost"), 1)])
def test_a_board_without_a_table_makes_the_command_fail(tmp_path, monkeypatch, boards, code):
    write_fetched(tmp_path, finished=True)
    write_table(tmp_path / "lost" / "net.csv")
    call = PlaybookCall(tmp_path, "profile.yml", tmp_path)
    fleet = SimpleNamespace(boards=boards, build_call=lambda _: call)
    monkeypatch.setattr(fleet_profile, "share_tables", lambda *_: None)
    outcome = SimpleNamespace(code=0, state=SimpleNamespace(failures_by_host={}))
    monkeypatch.setattr(fleet_profile.selected_fleet, "read_fleet", lambda _: fleet)
    monkeypatch.setattr(fleet_profile, "follow_playbook", lambda *_: outcome)

    assert profile_fleet(FleetOptions(tmp_path, tmp_path), {"workload": "net"}, tmp_path)[0] == code


def test_other_options_or_another_task_begin_a_profile_anew_but_not_another_budget(tmp_path):
    asked, task = {"workload": "mine.py", "modes": "6", "batch-size": None, "budget-s": None}, tmp_path / "mine.py"
    task.write_text("1", encoding="utf-8")
    first = name_campaign(asked, str(task))

    assert name_campaign({**asked, "budget-s": 60.0, "wait": True}, str(task)) == first
    assert first not in {name_campaign({**asked, "batch-size": 8}, str(task)), name_campaign(asked)}
    task.write_text("2", encoding="utf-8")
    assert name_campaign(asked, str(task)) != first


def test_a_server_that_takes_no_tables_is_named_and_loses_nothing(tmp_path, monkeypatch, capsys):
    write_fetched(tmp_path, finished=True)
    row = read_row(tmp_path, "nano-1", "net", None)
    server = InventoryHost("hub", {"ansible_connection": "local", "superlink_runs": "/proc/no-runs"})
    monkeypatch.setenv("PATH", "")

    fleet_profile.share_tables(SimpleNamespace(inventory=SimpleNamespace(server=server)), [row])

    assert "not in the knowledge of the fleet's runs" in capsys.readouterr().err
    assert row.table.is_file()


def fleet_options(tmp_path: Path, boards: dict[str, dict[str, object]]) -> FleetOptions:
    """A fleet whose hosts are this machine, unless they say otherwise."""
    pytest.importorskip("ansible_runner", reason="the extra `fleet` is not installed")
    everywhere = {
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "profile_account": getpass.getuser(),
        "profile_command": [str(Path(sys.executable).with_name("fedge"))],
    }
    fleet = {
        "all": {"vars": everywhere},
        "server": {"hosts": {"srv": {"ansible_connection": "local"}}},
        "boards": {"hosts": {name: {"ansible_connection": "local", **board} for name, board in boards.items()}},
    }
    path = tmp_path / "inventory.yml"
    path.write_text(yaml.safe_dump(fleet), encoding="utf-8")
    return FleetOptions(path, PLAYBOOKS)


@pytest.fixture
def options(tmp_path: Path) -> FleetOptions:
    kinds = {"one": "orin-nano", "two": "xavier-nx", "strange": "no-such-board"}
    boards = {
        name: {"profile_board": f"emulated:{kind}", "profile_folder": str(tmp_path / name)}
        for name, kind in kinds.items()
    }
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_connection": "ssh"}
    return fleet_options(tmp_path, {**boards, "gone": gone})


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("desk")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the worker trains with torch")
def test_a_task_of_ones_own_is_profiled_on_a_board_and_a_run_of_it_starts_from_that(tmp_path):
    task, settings = tmp_path / "mine.py", tmp_path / "node.yaml"
    task.write_text(TABLE, encoding="utf-8")
    with desk("xavier-nx", tmp_path) as board:
        data = board.settings.state_dir / "data"
        data.mkdir(parents=True)
        own = board.settings.model_copy(update={"data_folder": str(data)})
        settings.write_text(own.model_dump_json(), encoding="utf-8")
        claimed_s = 12.0
        write_claim(own.state_dir / CLAIM_FILE, "another run", claimed_s, time.time())
        asked = {"workload": str(task), "settings": str(settings), "modes": 2, "max-mode-s": 2, "wait": True}
        options = fleet_options(tmp_path, {"board-1": {"profile_folder": str(tmp_path / "one")}})
        code, (row,) = profile_fleet(options, asked, tmp_path / "tables")

    assert (code, row.failure) == (0, None)
    assert row.table == tmp_path / "tables" / "board-1" / "xavier-nx" / "train" / "mine.csv"
    import_path(row.table, tmp_path / "k")
    experiment = Experiment.model_validate(
        {
            "backend": "fleet",
            "knowledge": str(tmp_path / "k"),
            "fleet": [{"device": "xavier-nx", "name": "board"}],
            "workload": {"task": str(task)},
        }
    )
    task.write_text(TABLE + "# another task of this name\n", encoding="utf-8")
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text(TABLE, encoding="utf-8")
    recalled = [(experiment, 0), (experiment.model_copy(update={"workload": WorkloadSpec(task=str(other))}), 2)]
    for number, (wanted, modes) in enumerate(recalled):
        recall_for_run(wanted, tmp_path / f"run-{number}", name="a", now=datetime.now(UTC))
        assert len(read_run_knowledge(tmp_path / f"run-{number}").own.get("board-1", ())) == modes


@pytest.mark.fleet
@pytest.mark.slow
def test_boards_are_profiled_within_a_budget_and_go_on_the_next_time(options, tmp_path):
    asked = {"workload": "resnet18-imagenet", "modes": 6, "explorer": "random"}
    out = tmp_path / "tables"

    (code, first), (again, second) = (profile_fleet(options, {**asked, "budget-s": s}, out) for s in (30, None))

    assert code == again == 1  # two boards cannot be profiled
    for rows in (first, second):
        by_name = {row.board: row for row in rows}
        assert "got 'no-such-board'" in by_name["strange"].failure
        assert "cannot be reached" in by_name["gone"].failure
        assert by_name["strange"].table is by_name["gone"].table is None
    done = [{row.board: row.record["finished"] for row in rows if row.record is not None} for rows in (first, second)]
    assert done == [{"one": False, "two": False}, {"one": True, "two": True}]
    for name, kind in (("one", "orin-nano"), ("two", "xavier-nx")):
        row = by_name[name]
        assert row.failure is None
        table = read_mode_table(row.table)
        assert (table.device, len(table.modes)) == (kind, 6)
        assert table.label != "measured"
