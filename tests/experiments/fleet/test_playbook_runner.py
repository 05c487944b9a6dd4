"""Playbooks played for real, by ansible-runner, on hosts that are this machine."""

import os
import signal
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("ansible_runner", reason="the extra `fleet` is not installed")

from experiments.fleet import playbook_runner
from experiments.fleet.playbook_runner import (
    CHANGED,
    FAILED,
    HIDDEN,
    OK,
    SKIPPED,
    STARTED,
    UNREACHABLE,
    PlaybookCall,
    PlaybookEvent,
    PlaybookOutcome,
    PlaybookState,
    execute_playbook,
)
from fedge.errors import BadInput

pytestmark = [pytest.mark.fleet, pytest.mark.slow]
INVENTORY = f"""
all: {{vars: {{ansible_python_interpreter: {sys.executable}}}}}
server: {{hosts: {{srv: {{ansible_connection: local}}}}}}
boards:
  hosts:
    fine: {{ansible_connection: local}}
    bad: {{ansible_connection: local}}
    secret: {{ansible_connection: local}}
    gone: {{ansible_host: 127.0.0.1, ansible_port: 1}}
"""
PLAYBOOK = """
- name: Boards
  hosts: boards
  gather_facts: false
  tasks:
    - name: Change
      ansible.builtin.command: "true"
    - name: Look
      ansible.builtin.command: "true"
      changed_when: false
    - name: Hide
      ansible.builtin.shell: echo hunter2 >&2; exit 1
      no_log: true
      when: inventory_hostname == 'secret'
    - name: Break
      ansible.builtin.shell: echo boom >&2; exit 1
      when: inventory_hostname == 'bad'
    - name: Given
      ansible.builtin.debug:
        msg: "{{ given | default('nothing') }}"
"""
SLEEP = """
- name: Sleep
  hosts: fine
  gather_facts: false
  tasks:
    - name: Begin
      ansible.builtin.shell: echo $$ > pid; exec sleep 600
      args: {chdir: "{{ playbook_dir }}"}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made, temporary = tmp_path / "playbooks", tmp_path / "t"
    made.mkdir()
    temporary.mkdir()
    # A folder of our own: other playbooks may run on this machine meanwhile.
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (made / "inventory.yml").write_text(INVENTORY, encoding="utf-8")
    (made / "site.yml").write_text(PLAYBOOK, encoding="utf-8")
    (made / "sleep.yml").write_text(SLEEP, encoding="utf-8")
    (made / "ansible.cfg").write_text("[defaults]\nforks = 2\n", encoding="utf-8")
    return made


def played(
    folder: Path, playbook: str = "site.yml", **more: object
) -> tuple[PlaybookOutcome, list[PlaybookEvent], str]:
    told: list[PlaybookEvent] = []
    log = folder.parent / "out" / "ansible.log"

    def tell(_state: PlaybookState, event: PlaybookEvent) -> None:
        told.append(event)

    outcome = execute_playbook(PlaybookCall(folder, playbook, folder / "inventory.yml", **more), log, tell)
    return outcome, told, log.read_text(encoding="utf-8")


def left_behind() -> list[str]:
    return [path.name for path in Path(tempfile.gettempdir()).glob("fedge-fleet-*")]


def test_every_host_s_results_are_told_and_the_bad_ones_say_why(folder):
    outcome, told, log = played(folder)
    results = {(event.host, event.task): event for event in told if event.status != STARTED}

    assert outcome.code != 0
    assert set(outcome.state.failures_by_host) == {"bad", "secret", "gone"}
    assert results["fine", "Change"].status == CHANGED
    assert results["fine", "Look"].status == OK
    assert results["fine", "Break"].status == SKIPPED
    assert results["bad", "Break"].status == FAILED
    assert results["bad", "Break"].text.endswith("boom")
    assert results["gone", "Change"].status == UNREACHABLE
    assert "TASK [Break]" in log


def test_a_secret_is_neither_told_nor_logged_nor_left_behind(folder):
    outcome, told, log = played(folder)

    assert outcome.state.failures_by_host["secret"].text == HIDDEN
    assert "hunter2" not in log
    assert not [event for event in told if "hunter2" in repr(event)]
    assert left_behind() == []


def test_the_log_is_its_owner_s_alone_and_never_another_s(folder):
    played(folder, limit="fine")
    log = folder.parent / "out" / "ansible.log"

    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    with pytest.raises(playbook_runner.RunFailed, match="cannot write the log"):
        played(folder, limit="fine")


def test_a_limit_and_variables_reach_ansible(folder):
    outcome, _, log = played(folder, limit="fine", variables={"given": 'a "quoted" word'})

    assert outcome.code == 0
    assert set(outcome.state.hosts) == {"fine"}
    assert 'a \\"quoted\\" word' in log


def test_a_check_changes_nothing(folder):
    (folder / "touch.yml").write_text(
        "- hosts: fine\n  gather_facts: false\n  tasks:\n"
        "    - name: Make\n      ansible.builtin.copy: {content: x, dest: '{{ playbook_dir }}/made'}\n",
        encoding="utf-8",
    )
    outcome, _, _ = played(folder, "touch.yml", check=True)

    assert outcome.state.change_count == 1
    assert not (folder / "made").exists()


def test_a_playbook_that_ansible_cannot_read_is_told_in_its_words(folder):
    (folder / "site.yml").write_text("- hosts: {{", encoding="utf-8")
    outcome, told, _ = played(folder)

    assert outcome.code != 0
    assert not told
    assert "YAML" in outcome.words


def test_an_interrupt_ends_every_process_of_the_playbook(folder):
    stopped = threading.Event()

    def interrupt() -> None:
        end_s = time.monotonic() + 60
        while not (folder / "pid").is_file() and time.monotonic() < end_s and not stopped.is_set():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            played(folder, "sleep.yml")
    finally:
        stopped.set()
        thread.join()
    sleeper = Path("/proc") / (folder / "pid").read_text(encoding="utf-8").strip()
    assert not sleeper.exists() or "zombie" in (sleeper / "status").read_text(encoding="utf-8")
    assert not left_behind()


def test_unknown_hosts_are_refused_whatever_ansible_runner_prefers(tmp_path):
    env = playbook_runner.ansible_environment({}, tmp_path)

    assert env["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    assert "ANSIBLE_CONFIG" not in env


def test_a_missing_playbook_is_named(folder):
    with pytest.raises(BadInput, match=r"without up\.yml"):
        played(folder, "up.yml")


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ansible_runner", None)
    with pytest.raises(BadInput, match=r"pip install 'fedge\[fleet\]'"):
        playbook_runner._import_runner()
