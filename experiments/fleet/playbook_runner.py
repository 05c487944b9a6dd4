"""Runs the fleet's playbooks through ansible-runner, and folds its events into the fleet's progress."""

from __future__ import annotations

import importlib
import os
import re
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from experiments.backends.run_processes import RUN_MARK
from experiments.fleet.process_cleanup import end_playbook_on_error
from fedge.child_processes import handle_signals
from fedge.errors import BadInput, RunFailed
from fedge.extras import build_install_command

PLAY, STARTED, OK, CHANGED = "play", "started", "ok", "changed"
SKIPPED, IGNORED, FAILED, UNREACHABLE, RESCUED = "skipped", "ignored", "failed", "unreachable", "rescued"
HIDDEN = "hidden, because the task handles a secret"
LONGEST_TEXT = 400
"""Default length of a shown failure message, in characters: a few terminal lines; the log has the full text."""
RESULTS = {
    "runner_on_start": STARTED,
    "runner_on_ok": OK,
    "runner_on_skipped": SKIPPED,
    "runner_on_failed": FAILED,
    "runner_on_unreachable": UNREACHABLE,
}
"""Status by Ansible event type, for events of one task on one host."""
UNINFORMATIVE_MESSAGES = ("non-zero return code", "module failure", "module result deserialization failed")
"""Ansible messages without a reason of their own; the program's output is shown instead."""
PREFIX = re.compile(r"(^|(?<=: ))((task|action) failed: )+", re.IGNORECASE)
"""Prefix that Ansible puts in front of a reason, possibly repeated where one of our tasks quotes another."""
COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class PlaybookEvent:
    """The start of a play (no host) or the status of a task on a host.

    Attributes:
        status: ``play``, ``started`` or the task's result, see ``RESULTS``; ``rescued`` cancels an earlier failure.
        host: Host name; empty for the start of a play.
        text: Reason of a failure.
    """

    status: str
    host: str = ""
    play: str = ""
    role: str = ""
    task: str = ""
    text: str = ""

    @property
    def where(self) -> str:
        """Return the task's name, prefixed with its role if it has one."""
        return f"{self.role}: {self.task}" if self.role else self.task


@dataclass(frozen=True, slots=True)
class HostProgress:
    """Progress of one host.

    Attributes:
        changes: Tasks that changed the host.
        failure: The event that removed the host from the playbook, if any.
    """

    play: str = ""
    task: str = ""
    ok: int = 0
    changes: tuple[str, ...] = ()
    failed: int = 0
    failure: PlaybookEvent | None = None

    @property
    def change_count(self) -> int:
        return len(self.changes)


@dataclass(frozen=True, slots=True)
class PlaybookState:
    """Progress of the fleet: the current play, and each host on which a task has run."""

    play: str = ""
    hosts: Mapping[str, HostProgress] = field(default_factory=dict)

    @property
    def failures_by_host(self) -> dict[str, PlaybookEvent]:
        """Return the failure of each failed host, by host name."""
        return {name: host.failure for name, host in self.hosts.items() if host.failure is not None}

    @property
    def change_count(self) -> int:
        return sum(host.change_count for host in self.hosts.values())

    def hosts_in_play(self) -> dict[str, HostProgress]:
        """Return the hosts that have reached the current play."""
        return {name: host for name, host in self.hosts.items() if host.play == self.play}


def apply_event(state: PlaybookState, event: PlaybookEvent) -> PlaybookState:
    """Return the state after one more event."""
    if event.status == PLAY:
        return replace(state, play=event.play)
    before = state.hosts.get(event.host, HostProgress())
    return replace(state, hosts={**state.hosts, event.host: _update_host(before, event)})


def _update_host(host: HostProgress, event: PlaybookEvent) -> HostProgress:
    if event.status == RESCUED:
        return replace(host, failed=0, failure=None)
    if host.failure is not None and event.play != host.failure.play:
        # A failed host stays failed unless its failure was rescued.
        host = replace(host, failed=0, failure=None)
    host = replace(host, play=event.play or host.play, task=event.where)
    if event.status in {FAILED, UNREACHABLE}:
        return replace(host, failed=host.failed + 1, failure=event)
    if event.status == CHANGED:
        return replace(host, changes=(*host.changes, event.where))
    # An ignored failure counts as success.
    return replace(host, ok=host.ok + (event.status in {OK, IGNORED}))


def parse_events(raw: Mapping[str, Any]) -> Iterator[PlaybookEvent]:
    """Convert an event of ansible-runner; most of its event types yield nothing."""
    kind, data = raw.get("event"), raw.get("event_data") or {}
    if kind == "playbook_on_play_start":
        yield PlaybookEvent(PLAY, play=_text(data.get("name") or data.get("play")))
    elif kind == "playbook_on_stats":
        # Ansible emits no event when a block's rescue undoes a failure; only the final statistics show it.
        lost = {*(data.get("failures") or {}), *(data.get("dark") or {})}
        yield from (PlaybookEvent(RESCUED, host) for host in sorted(set(data.get("processed") or {}) - lost))
    elif kind in RESULTS:
        status = _parse_status(RESULTS[kind], data)
        text = _parse_reason(data.get("res") or {}) if status in {FAILED, UNREACHABLE} else ""
        words = {key: _text(data.get(key)) for key in ("host", "play", "role", "task")}
        yield PlaybookEvent(status, text=text, **words)


def _parse_status(status: str, data: Mapping[str, Any]) -> str:
    if status == FAILED and data.get("ignore_errors"):
        return IGNORED
    if status == OK and (data.get("res") or {}).get("changed"):
        return CHANGED
    return status


def _parse_reason(result: Mapping[str, Any]) -> str:
    """Return a task's failure reason in one short line; for a loop, that of its first failed item."""
    if "censored" in result or result.get("_ansible_no_log"):
        return HIDDEN
    items = [item for item in result.get("results") or [] if isinstance(item, Mapping)]
    bad = next((item for item in items if item.get("failed") or item.get("unreachable")), None)
    if bad is not None:
        return _parse_reason(bad)
    texts = (_text(result.get(key)) for key in ("msg", "stderr", "module_stderr", "stdout"))
    messages = [PREFIX.sub("", text) for text in texts if text]
    empty = bool(messages) and messages[0].lower().startswith(UNINFORMATIVE_MESSAGES)
    return shorten(": ".join(messages[:2] if empty else messages[:1]))


def shorten(text: str) -> str:
    """Return ``text`` in one line, without ANSI colours, truncated to ``LONGEST_TEXT``."""
    line = " ".join(COLOUR_CODES.sub("", text).split())
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 3]}..."


def _text(value: object) -> str:
    return "" if value is None else str(value)


INSTALL_COMMAND = build_install_command("fleet")
POLL_S = 0.2
"""Polling interval of ansible-runner, in seconds: a default that trades response time for CPU load."""
KEPT_LINES = 12


@dataclass(frozen=True, slots=True)
class PlaybookCall:
    """One playbook run.

    Attributes:
        limit: Ansible host pattern, or None for all hosts.
        check: Whether to report changes without making them.
    """

    folder: Path
    playbook: str
    inventory: Path
    limit: str | None = None
    check: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlaybookOutcome:
    """Result of a playbook run.

    Attributes:
        words: End of the output that belongs to no task.
    """

    code: int
    state: PlaybookState
    words: str


def execute_playbook(
    call: PlaybookCall, log: Path, tell: Callable[[PlaybookState, PlaybookEvent], None]
) -> PlaybookOutcome:
    """Run a playbook to its end.

    No shell is used, passwords are never prompted for, and hosts with an unknown key are refused. Any exception, Ctrl-C
    included, ends the playbook and its processes.

    Args:
        call: The playbook and its options.
        log: New file for all of Ansible's output, readable by its owner only.
        tell: Called with each event and the state after it.

    Raises:
        BadInput: If Ansible is not installed or the playbook does not exist.
    """
    runner = _import_runner()
    if not (call.folder / call.playbook).is_file():
        raise BadInput("--playbooks", f"{call.folder}, without {call.playbook}", "the folder ansible/ of the checkout")
    mark = uuid.uuid4().hex
    with open_new_log(log) as out, tempfile.TemporaryDirectory(prefix="fedge-fleet-") as private:
        listener = _EventListener(out, tell)
        with handle_signals(), end_playbook_on_error(mark):
            ended = runner.run(
                private_data_dir=private,
                project_dir=str(call.folder),
                playbook=call.playbook,
                inventory=[str(call.inventory)],
                limit=call.limit,
                extravars=dict(call.variables),
                cmdline="--check" if call.check else None,
                envvars={**ansible_environment(os.environ, call.folder), RUN_MARK: mark},
                settings={"pexpect_timeout": POLL_S},
                event_handler=listener.handle_event,
                # Otherwise ansible-runner installs signal handlers and never restores the earlier ones.
                cancel_callback=lambda: False,
                quiet=True,
            )
    return PlaybookOutcome(int(ended.rc), listener.state, shorten("\n".join(listener.words[-KEPT_LINES:])))


class _EventListener:
    """Callback of ansible-runner: writes the log and folds the events into a state."""

    def __init__(self, log: TextIO, tell: Callable[[PlaybookState, PlaybookEvent], None]) -> None:
        self._log, self._tell = log, tell
        self.state = PlaybookState()
        self.words: list[str] = []

    def handle_event(self, raw: Mapping[str, Any]) -> bool:
        """Process one event; returning False keeps ansible-runner from storing it as well."""
        output = COLOUR_CODES.sub("", str(raw.get("stdout") or "")).replace("\r\n", "\n")
        if output:
            self._log.write(f"{output}\n")
            self._log.flush()
        if raw.get("event") in {"verbose", "error", "warning"}:
            self.words += [line for line in output.splitlines() if line.strip()]
        for event in parse_events(raw):
            self.state = apply_event(self.state, event)
            self._tell(self.state, event)
        return False


def ansible_environment(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment for Ansible: the base, this environment's programs and the playbooks' settings."""
    env = {
        "PATH": os.pathsep.join((sysconfig.get_path("scripts"), base.get("PATH", os.defpath))),
        "ANSIBLE_NOCOLOR": "1",
        # ansible-runner would switch it off; an inventory's own ansible_host_key_checking still counts.
        "ANSIBLE_HOST_KEY_CHECKING": base.get("ANSIBLE_HOST_KEY_CHECKING", "True"),
        # An unknown host is refused, where ssh would wait for a person's yes.
        "ANSIBLE_SSH_EXTRA_ARGS": base.get("ANSIBLE_SSH_EXTRA_ARGS", "-o StrictHostKeyChecking=yes"),
        # Otherwise a malformed inventory file would count as an empty fleet.
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
    }
    config = folder / "ansible.cfg"
    return env | ({"ANSIBLE_CONFIG": str(config)} if config.is_file() else {})


def find_program(name: str) -> str:
    """Return the path of an Ansible program installed beside this Python.

    Raises:
        BadInput: If it is not installed.
    """
    if sys.platform == "win32":
        raise BadInput(name, "Windows, where Ansible does not run", "Linux, macOS, or WSL on this machine")
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.is_file():
        raise BadInput(name, f"no such program beside {sys.executable}", f"`{INSTALL_COMMAND}` installs it")
    return str(path)


def _import_runner() -> Any:
    find_program("ansible-playbook")
    try:
        return importlib.import_module("ansible_runner")
    except ImportError as error:
        raise BadInput("ansible-runner", "nothing: it is not installed", f"`{INSTALL_COMMAND}` installs it") from error


def open_new_log(path: Path) -> TextIO:
    """Create a file that only its owner may read."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=False)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"cannot write the log {path} ({error.strerror})") from error
