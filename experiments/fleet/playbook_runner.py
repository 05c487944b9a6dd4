"""Runs the fleet's playbooks through ansible-runner, whose private files are removed afterwards."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from experiments.backends.run_processes import RUN_MARK
from experiments.fleet.playbook_events import (
    COLOUR_CODES,
    PlaybookEvent,
    PlaybookState,
    apply_event,
    parse_events,
    shorten,
)
from experiments.fleet.process_cleanup import end_playbook_on_error, handle_signals
from fedge.errors import BadInput, RunFailed
from fedge.extras import build_install_command

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
