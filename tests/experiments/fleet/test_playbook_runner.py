"""Playbooks played for real, by ansible-runner, on hosts that are this machine."""

from __future__ import annotations

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

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from experiments.fleet import playbook_runner
from experiments.fleet.playbook_runner import (
    CHANGED,
    FAILED,
    HIDDEN,
    IGNORED,
    OK,
    RESCUED,
    SKIPPED,
    STARTED,
    UNREACHABLE,
    PlaybookCall,
    PlaybookEvent,
    PlaybookOutcome,
    PlaybookState,
    apply_event,
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


def test_every_host_s_results_are_told_and_the_bad_ones_say_why(folder: Path) -> None:
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


def test_a_secret_is_neither_told_nor_logged_nor_left_behind(folder: Path) -> None:
    outcome, told, log = played(folder)

    assert outcome.state.failures_by_host["secret"].text == HIDDEN
    assert "hunter2" not in log
    assert not [event for event in told if "hunter2" in repr(event)]
    assert left_behind() == []


def test_the_log_is_its_owner_s_alone_and_never_another_s(folder: Path) -> None:
    played(folder, limit="fine")
    log = folder.parent / "out" / "ansible.log"

    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    with pytest.raises(playbook_runner.RunFailed, match="cannot write the log"):
        played(folder, limit="fine")


def test_a_limit_and_variables_reach_ansible(folder: Path) -> None:
    outcome, _, log = played(folder, limit="fine", variables={"given": 'a "quoted" word'})

    assert outcome.code == 0
    assert set(outcome.state.hosts) == {"fine"}
    assert 'a \\"quoted\\" word' in log


def test_a_check_changes_nothing(folder: Path) -> None:
    (folder / "touch.yml").write_text(
        "- hosts: fine\n  gather_facts: false\n  tasks:\n"
        "    - name: Make\n      ansible.builtin.copy: {content: x, dest: '{{ playbook_dir }}/made'}\n",
        encoding="utf-8",
    )
    outcome, _, _ = played(folder, "touch.yml", check=True)

    assert outcome.state.change_count == 1
    assert not (folder / "made").exists()


def test_a_playbook_that_ansible_cannot_read_is_told_in_its_words(folder: Path) -> None:
    (folder / "site.yml").write_text("- hosts: {{", encoding="utf-8")
    outcome, told, _ = played(folder)

    assert outcome.code != 0
    assert not told
    assert "YAML" in outcome.words


def test_an_interrupt_ends_every_process_of_the_playbook(folder: Path) -> None:
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


def test_unknown_hosts_are_refused_whatever_ansible_runner_prefers(tmp_path: Path) -> None:
    env = playbook_runner.ansible_environment({}, tmp_path)

    assert env["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    assert "ANSIBLE_CONFIG" not in env


def test_a_missing_playbook_is_named(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"without up\.yml"):
        played(folder, "up.yml")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ansible_runner", None)
    with pytest.raises(BadInput, match=r"pip install 'fedge\[fleet\]'"):
        playbook_runner._import_runner()


def raw(kind: str, host: str = "nano-1", **data: Any) -> dict[str, Any]:
    return {"event": kind, "event_data": {"host": host, "play": "Boards", "task": "Do it", **data}}


def one(kind: str, **data: Any) -> PlaybookEvent:
    (event,) = playbook_runner.parse_events(raw(kind, **data))
    return event


def folded(*told: PlaybookEvent) -> PlaybookState:
    state = PlaybookState()
    for event in told:
        state = apply_event(state, event)
    return state


def test_a_result_becomes_its_status_with_role_and_task() -> None:
    assert one("runner_on_ok", res={"changed": False}, role="powerd").where == "powerd: Do it"
    assert one("runner_on_ok", res={"changed": True}).status == CHANGED
    assert one("runner_on_skipped", res={}).status == SKIPPED
    assert one("runner_on_failed", res={"msg": "no"}, ignore_errors=True).status == IGNORED


def test_a_failure_says_why_in_one_line() -> None:
    assert one("runner_on_failed", res={"msg": "Task failed: Action failed: no\nroom"}).text == "no room"
    assert one("runner_on_failed", res={"msg": "no answer: Task failed: no route"}).text == "no answer: no route"
    assert one("runner_on_failed", res={"msg": "non-zero return code", "stderr": "boom"}).text.endswith("code: boom")
    assert one("runner_on_failed", res={"results": [{}, {"failed": True, "msg": "second"}]}).text == "second"


def test_a_long_failure_is_cut() -> None:
    assert len(one("runner_on_failed", res={"msg": "x" * 9999}).text) == playbook_runner.LONGEST_TEXT


def test_a_task_with_a_secret_shows_nothing_of_its_failure() -> None:
    assert one("runner_on_failed", res={"censored": "hidden", "msg": "hunter2"}).text == HIDDEN
    assert (
        one("runner_on_failed", res={"results": [{"failed": True, "_ansible_no_log": True, "msg": "hunter2"}]}).text
        == HIDDEN
    )


def test_what_says_nothing_to_a_person_is_no_event() -> None:
    assert not list(playbook_runner.parse_events({"event": "verbose", "stdout": "text"}))
    assert not list(playbook_runner.parse_events(raw("playbook_on_task_start")))


def test_a_failure_that_was_rescued_is_none_when_the_counts_come() -> None:
    counts = {"processed": {"nano-1": 1, "tx2-1": 1}, "failures": {"tx2-1": 1}, "dark": {}}
    failed = [PlaybookEvent(FAILED, host, "Boards", task="Do it", text="no") for host in ("nano-1", "tx2-1")]
    state = folded(*failed, *playbook_runner.parse_events({"event": "playbook_on_stats", "event_data": counts}))

    assert set(state.failures_by_host) == {"tx2-1"}
    assert state.hosts["nano-1"].failed == 0


def test_a_host_that_goes_on_in_the_next_play_was_rescued() -> None:
    assert not folded(PlaybookEvent(FAILED, "nano-1", "First"), PlaybookEvent(OK, "nano-1", "Second")).failures_by_host


def test_a_host_that_failed_stays_so_while_its_play_tidies_up() -> None:
    assert set(
        folded(PlaybookEvent(FAILED, "nano-1", "First"), PlaybookEvent(OK, "nano-1", "First")).failures_by_host
    ) == {"nano-1"}


statuses = st.sampled_from([OK, CHANGED, SKIPPED, IGNORED, FAILED, RESCUED])


@given(
    st.lists(
        st.builds(
            PlaybookEvent, status=statuses, host=st.sampled_from("ab"), play=st.sampled_from("pq"), task=st.just("t")
        )
    )
)
def test_counts_are_those_of_the_events(told: list[PlaybookEvent]) -> None:
    state = folded(*told)

    assert state.change_count == sum(event.status == CHANGED for event in told)
    assert sum(host.ok for host in state.hosts.values()) == sum(event.status in {OK, IGNORED} for event in told)
    assert set(state.hosts) == {event.host for event in told}
    assert all(state.hosts[name].failed for name in state.failures_by_host)
