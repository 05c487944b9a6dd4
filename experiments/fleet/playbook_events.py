"""Events of a running playbook, and the fleet's progress that they add up to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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
