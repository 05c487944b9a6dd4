"""``fedge fleet`` as it is typed."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from contracts.board_requests import board_request
from typer.testing import CliRunner, Result

from experiments.cli import fleet_playbook
from experiments.cli.command_output import Outputs
from experiments.cli.main import app
from experiments.fleet import selected_fleet
from experiments.fleet.key_folder import create_keys, make_board, read_signer
from experiments.fleet.playbook_runner import PlaybookCall, PlaybookOutcome, PlaybookState
from experiments.fleet.revocation import record_certificate
from experiments.fleet.selected_fleet import FleetOptions
from fedge.errors import BadInput


def fedge(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["fleet", *(str(argument) for argument in arguments)])


def test_keys_are_made_once_told_and_renewed(tmp_path):
    out = tmp_path / "keys"
    made = fedge("keys", "--folder", out, "--host", "fleet.lan", "--host", "192.168.1.10")
    again = fedge("keys", "--folder", out, "--host", "fleet.lan")
    renewed = fedge("keys", "--folder", out, "--renew", "--days", 90)

    assert made.exit_code == renewed.exit_code == 0
    assert made.stdout.endswith("for fleet.lan, 192.168.1.10\n")
    assert isinstance(again.exception, BadInput)


def test_a_check_tells_what_ends_soon_by_its_exit_code(tmp_path):
    fedge("keys", "--folder", tmp_path / "long", "--host", "a")
    fedge("keys", "--folder", tmp_path / "short", "--host", "a", "--days", 5)
    fine, soon = (
        fedge("keys", "--folder", tmp_path / "long", "--check"),
        fedge("keys", "--folder", tmp_path / "short", "--check"),
    )

    assert (fine.exit_code, soon.exit_code) == (0, 1)
    assert fine.stderr == ""
    assert "server.crt ends on" in soon.stderr


def test_a_check_with_something_to_change_is_refused(tmp_path):
    assert isinstance(fedge("keys", "--folder", tmp_path, "--check", "--host", "a").exception, BadInput)


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["proxy"], "upstream fedge_superlink"),
        (["proxy", "--telemetry", "/run/fedge-board/ingest.sock"], "server unix:/run/fedge-board/ingest.sock;"),
        (["firewall", "--account", "www-data"], "skuid"),
    ],
)
def test_a_configuration_is_printed_or_written_and_written_again(tmp_path, command, word):
    out = tmp_path / "file"
    printed = fedge(*command)
    written = [fedge(*command, "--out", out) for _ in range(2)]

    assert word in printed.stdout
    assert [result.exit_code for result in written] == [0, 0]
    assert out.read_text(encoding="utf-8") == printed.stdout
    assert list(tmp_path.iterdir()) == [out]


COMMANDS = (
    *("keys", "provision", "up", "status", "board", "run", "logs", "upgrade", "revoke", "down"),
    *("proxy", "firewall"),
)
BOARDS = """
- name: The boards
  hosts: boards
  gather_facts: false
  tasks:
    - name: Bring it
      ansible.builtin.copy: {content: x, dest: "{{ playbook_dir }}/{{ inventory_hostname }}", mode: "0600"}
"""
COLLECT = """
- name: Logs
  hosts: boards
  gather_facts: false
  tasks:
    - name: Make a folder
      ansible.builtin.file: {path: "{{ collect_to }}/{{ inventory_hostname }}", state: directory, mode: "0700"}
    - name: Write
      ansible.builtin.copy:
        content: "since {{ collect_since | default('ever') }}"
        dest: "{{ collect_to }}/{{ inventory_hostname }}/a.log"
        mode: "0600"
"""
FEDGE = """#!{python}
import pathlib, sys
run = pathlib.Path(sys.argv[-1])
run.mkdir()
(run / "experiment").write_text(pathlib.Path(sys.argv[2]).read_text())
sys.exit({code})
"""


@pytest.fixture
def playbooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of small playbooks with a fleet of two boards that are this machine, and nothing wrong with it."""
    pytest.importorskip("ansible_runner", reason="the extra `fleet` is not installed")
    create_keys(tmp_path / "keys", ["fleet.lan"], datetime.now(UTC), 365)
    folder = tmp_path / "ansible"
    folder.mkdir()
    for name in ("site.yml", "up.yml", "down.yml", "upgrade.yml", "remove.yml", "revoke.yml"):
        (folder / name).write_text(BOARDS, encoding="utf-8")
    (folder / "collect.yml").write_text(COLLECT, encoding="utf-8")
    write_inventory(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FEDGE_INVENTORY", raising=False)
    return folder


def write_inventory(folder: Path, **server: Any) -> None:
    keys = folder.parent / "keys"
    ours = {"superlink_certificate": "server.crt", "superlink_key": "server.key", "superlink_ca_certificate": "ca.crt"}
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    theirs = {"supernode_superlink": "fleet.lan:9443", "supernode_ca_certificate": str(keys / "ca.crt")}
    fleet = {
        "all": {"vars": local},
        "server": {"hosts": {"hub": {**{key: str(keys / name) for key, name in ours.items()}, **server}}},
        "boards": {"vars": theirs, "hosts": {"nano-1": {}, "tx2-1": {}}},
    }
    (folder / "inventory.yml").write_text(yaml.safe_dump(fleet), encoding="utf-8")


def test_help_lists_every_command_with_a_whole_sentence():
    text = fedge("--help").stdout

    assert "..." not in text.partition("Commands:")[2]
    assert all(f"  {command} " in text for command in COMMANDS)


def test_the_command_line_starts_without_ansible_rich_and_flower():
    heavy = ("ansible_runner", "rich", "flwr")
    code = f"import sys, experiments.cli.main; print(*[m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


@pytest.mark.fleet
@pytest.mark.slow
def test_provision_says_what_would_change_then_changes_it_then_nothing(playbooks):
    check, first, second = (fedge("provision", *more, "--playbooks", playbooks) for more in (["--dry-run"], [], []))

    assert "2 boards done, 2 tasks would change something" in check.stdout
    assert "    Bring it" in check.stdout
    assert "2 boards done, changed 2 tasks" in first.stdout
    assert "2 boards done, nothing had to change" in second.stdout
    assert "all of Ansible's output: " in second.stdout
    assert [result.exit_code for result in (check, first, second)] == [0, 0, 0]
    assert len(list((playbooks.parent / "state" / "fedge").iterdir())) == 3


@pytest.mark.fleet
@pytest.mark.slow
def test_provision_names_all_that_is_wrong_before_it_touches_a_board(playbooks):
    write_inventory(playbooks, superlink_key="/secure/server.key", superlink_ca_certificate="/not/there")
    refused = fedge("provision", "--playbooks", playbooks).exception

    assert isinstance(refused, BadInput)
    assert "2 problems" in str(refused)
    assert not (playbooks / "nano-1").exists()


@pytest.mark.fleet
@pytest.mark.slow
def test_a_failed_board_makes_exit_code_1_and_is_told_with_what_to_do(playbooks):
    (playbooks / "nano-1").mkdir()
    result = fedge("up", "--playbooks", playbooks)

    assert result.exit_code == 1
    assert "1 board done, changed 1 task" in result.stdout
    assert "nano-1 FAILED at 'Bring it'" in result.stdout
    assert "what to do: " in result.stdout


@pytest.mark.fleet
@pytest.mark.slow
def test_a_limit_leaves_the_other_boards_alone(playbooks):
    result = fedge("down", "--playbooks", playbooks, "--limit", "tx2-1")

    assert result.exit_code == 0
    assert [(playbooks / name).exists() for name in ("nano-1", "tx2-1")] == [False, True]


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "playbook"),
    [(["up"], "up"), (["down"], "down"), (["upgrade"], "upgrade"), (["down", "--remove", "--yes"], "remove")],
)
def test_each_command_plays_its_playbook(playbooks, monkeypatch, command, playbook):
    played: list[PlaybookCall] = []

    def play(call: PlaybookCall, _log: Path, _tell: object) -> PlaybookOutcome:
        played.append(call)
        return PlaybookOutcome(0, PlaybookState(), "")

    monkeypatch.setattr(fleet_playbook, "execute_playbook", play)
    result = fedge(*command, "--playbooks", playbooks)

    assert result.exit_code == 0
    assert [call.playbook for call in played] == [f"{playbook}.yml"]
    assert played[0].inventory == playbooks / "inventory.yml"


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.parametrize("named", [None, "elsewhere/revoked.crl"])
def test_a_board_is_revoked_on_the_list_and_on_the_server(playbooks, monkeypatch, named):
    keys, played = playbooks.parent / "keys", []
    known = yaml.safe_load((playbooks / "inventory.yml").read_text(encoding="utf-8"))
    known["boards"]["vars"]["telemetry_ca_key"] = str(keys / "ca.key")
    listed = keys / "ca.crl"
    if named is not None:  # as the server's role finds it, from the playbooks' folder
        known["server"]["hosts"]["hub"]["superlink_revocations"] = named
        listed = playbooks / named
        listed.parent.mkdir()
    (playbooks / "inventory.yml").write_text(yaml.safe_dump(known), encoding="utf-8")

    def play(call: PlaybookCall, _log: Path, _tell: object) -> PlaybookOutcome:
        played.append((call.playbook, call.variables))
        return PlaybookOutcome(0, PlaybookState(), "")

    monkeypatch.setattr(fleet_playbook, "execute_playbook", play)
    ca = read_signer(keys / "ca.crt", keys / "ca.key")
    record_certificate(keys, make_board(ca, board_request("nano-1"), "nano-1", datetime.now(UTC), days=1))
    done, unknown = (fedge("revoke", name, "--playbooks", playbooks) for name in ("nano-1", "tx2-1"))

    assert done.exit_code == 0
    assert f"nano-1: 1 certificate revoked, listed in {listed}" in done.stdout
    assert listed.is_file()
    assert "remove nano-1 from" in done.stdout
    assert isinstance(unknown.exception, BadInput)  # but its key is taken away
    assert played == [("revoke.yml", {"revoke_board": name}) for name in ("nano-1", "tx2-1")]


@pytest.mark.parametrize(("well", "code"), [(True, 0), (False, 1)])
def test_status_is_an_exit_code_too(playbooks, monkeypatch, well, code):
    asked: list[tuple[FleetOptions, Path | None]] = []

    def answer(options: FleetOptions, outputs: Outputs) -> bool:
        asked.append((options, outputs.out))
        return well

    monkeypatch.setattr("experiments.cli.fleet_status.report_status", answer)
    result = fedge("status", "--playbooks", playbooks, "--out", "s.json", "--limit", "nano-1")

    assert result.exit_code == code
    assert [(options.limit, out) for options, out in asked] == [("nano-1", Path("s.json"))]


@pytest.mark.fleet
@pytest.mark.slow
def test_logs_say_what_came(playbooks):
    out = playbooks.parent / "collected"
    result = fedge("logs", "--playbooks", playbooks, "--folder", out, "--since", "2 hours ago")

    assert f"nano-1: 1 file, 17 bytes, in {out / 'nano-1'}" in result.stdout
    assert (out / "tx2-1" / "a.log").read_text(encoding="utf-8") == "since 2 hours ago"


@pytest.mark.fleet
@pytest.mark.slow
def test_removal_needs_a_yes(playbooks):
    refused = fedge("down", "--remove", "--playbooks", playbooks)
    untouched = not (playbooks / "nano-1").exists()
    done = fedge("down", "--remove", "--yes", "--playbooks", playbooks)

    assert isinstance(refused.exception, BadInput)
    assert untouched
    assert done.exit_code == 0
    assert (playbooks / "nano-1").exists()


def test_the_inventory_is_named_by_an_option_a_variable_or_the_playbooks(tmp_path, monkeypatch):
    def found(inventory: Path | None) -> Path:
        return selected_fleet.build_options(inventory, tmp_path, None).inventory

    monkeypatch.delenv("FEDGE_INVENTORY", raising=False)
    beside = found(None)
    monkeypatch.setenv("FEDGE_INVENTORY", "mine.yml")

    assert beside == tmp_path / "inventory.yml"
    assert found(None) == Path("mine.yml")
    assert found(Path("other.yml")) == Path("other.yml")


def test_playbooks_that_are_not_there_are_named(tmp_path):
    with pytest.raises(BadInput, match="checkout"):
        selected_fleet.build_options(None, tmp_path / "none", None)


class TestRun:
    """On a server that is this machine, with stand-ins for sudo and for fedge there."""

    @pytest.fixture
    def there(self, playbooks: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = playbooks.parent / "there"
        self.serve(folder)
        write_inventory(
            playbooks,
            superlink_environment=str(folder / "venv"),
            superlink_runs=str(folder / "runs"),
            superlink_port=8123,
        )
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        monkeypatch.chdir(playbooks.parent)
        return folder

    def serve(self, folder: Path, code: int = 0) -> None:
        programs = {
            "venv/bin/fedge": FEDGE.format(python=sys.executable, code=code),
            "venv/bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
            "bin/sudo": '#!/bin/sh\nshift 3\nexec "$@"\n',
        }
        for name, text in programs.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)

    def write(self, folder: Path, **more: Any) -> Path:
        record = {
            "name": "try",
            "rounds": 1,
            "fleet": [{"device": "nano"}, {"device": "tx2"}],
            "workload": {"task": "synthetic-cnn"},
            **more,
        }
        (folder / "exp.yaml").write_text(yaml.safe_dump(record), encoding="utf-8")
        return folder / "exp.yaml"

    @pytest.mark.fleet
    @pytest.mark.slow
    def test_the_run_s_folder_comes_here_with_the_experiment_as_it_was_played(self, playbooks, there):
        config = self.write(playbooks.parent)
        result = fedge("run", config, "--set", "rounds=3", "--folder", "mine", "--playbooks", playbooks)
        played = yaml.safe_load((playbooks.parent / "mine" / "experiment").read_text(encoding="utf-8"))

        assert result.exit_code == 0, result.output
        assert (played["backend"], played["rounds"]) == ("fleet", 3)
        assert played["superlink"]["address"] == "127.0.0.1:8123"
        assert played["superlink"]["root_certificates"] == "/etc/fedge/tls/ca.crt"
        assert f"run folder: {playbooks.parent / 'mine'}" in result.stdout

    @pytest.mark.fleet
    @pytest.mark.slow
    def test_the_exit_code_is_the_run_s(self, playbooks, there):
        self.serve(there, code=1)
        result = fedge("run", self.write(playbooks.parent), "--folder", "mine", "--playbooks", playbooks)

        assert result.exit_code == 1
        assert (playbooks.parent / "mine").is_dir()

    @pytest.mark.fleet
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("more", "word"),
        [
            ({"fleet": [{"device": "nano", "count": 2}]}, "nano-2, not in the inventory"),
            ({"policy": "no-such-policy"}, "policy"),
            ({"workload": {"task": "no-such-task"}}, "no-such-task"),
            ({"rounds": "many"}, "rounds"),
        ],
    )
    def test_what_is_wrong_is_said_here_before_anything_is_sent(self, playbooks, there, more, word):
        refused = fedge("run", self.write(playbooks.parent, **more), "--playbooks", playbooks).exception

        assert isinstance(refused, BadInput)
        assert word in str(refused)
        assert not (there / "runs").exists()
