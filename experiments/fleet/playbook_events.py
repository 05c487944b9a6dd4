"""What a playbook tells while it runs: small events, and the state of the fleet that they add up to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PLAY, STARTED, OK, CHANGED = "play", "started", "ok", "changed"
SKIPPED, IGNORED, FAILED, UNREACHABLE, RESCUED = "skipped", "ignored", "failed", "unreachable", "rescued"
HIDDEN = "hidden, because the task handles a secret"
LONGEST_TEXT = 400
"""Characters of a failure that are shown; the log has all of it. Chosen by us."""
RESULTS = {
    "runner_on_start": STARTED,
    "runner_on_ok": OK,
    "runner_on_skipped": SKIPPED,
    "runner_on_failed": FAILED,
    "runner_on_unreachable": UNREACHABLE,
}
"""Ansible's events of one host and one task, and the status that they mean."""
UNINFORMATIVE_MESSAGES = ("non-zero return code", "module failure", "module result deserialization failed")
"""Ansible's messages that leave it to the program's own output to say why."""
PREFIX = re.compile(r"(^|(?<=: ))((task|action) failed: )+", re.IGNORECASE)
"""What Ansible puts before a reason, also before one that a task of ours repeats."""
COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class PlaybookEvent:
    """One thing that happened: a play began (no host), or a task's status on a host.

    ``text`` says why a task failed; ``rescued`` says at the end that a host's failed task did not fail the host.
    """

    status: str
    host: str = ""
    play: str = ""
    role: str = ""
    task: str = ""
    text: str = ""

    @property
    def where(self) -> str:
        """The task, with its role where it has one."""
        return f"{self.role}: {self.task}" if self.role else self.task


@dataclass(frozen=True, slots=True)
class HostProgress:
    """One host until now; ``failure`` is the event that took it out of the playbook."""

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
    """The fleet until now: the play under way, and each host that any task was run on."""

    play: str = ""
    hosts: Mapping[str, HostProgress] = field(default_factory=dict)

    @property
    def failures_by_host(self) -> dict[str, PlaybookEvent]:
        """Why each host failed that did."""
        return {name: host.failure for name, host in self.hosts.items() if host.failure is not None}

    @property
    def change_count(self) -> int:
        return sum(host.change_count for host in self.hosts.values())

    def hosts_in_play(self) -> dict[str, HostProgress]:
        """The hosts that the play under way has reached."""
        return {name: host for name, host in self.hosts.items() if host.play == self.play}


def apply_event(state: PlaybookState, event: PlaybookEvent) -> PlaybookState:
    """The state after one more event."""
    if event.status == PLAY:
        return replace(state, play=event.play)
    before = state.hosts.get(event.host, HostProgress())
    return replace(state, hosts={**state.hosts, event.host: _update_host(before, event)})


def _update_host(host: HostProgress, event: PlaybookEvent) -> HostProgress:
    if event.status == RESCUED:
        return replace(host, failed=0, failure=None)
    if host.failure is not None and event.play != host.failure.play:
        # A host that is out stays out: this one was rescued.
        host = replace(host, failed=0, failure=None)
    host = replace(host, play=event.play or host.play, task=event.where)
    if event.status in {FAILED, UNREACHABLE}:
        return replace(host, failed=host.failed + 1, failure=event)
    if event.status == CHANGED:
        return replace(host, changes=(*host.changes, event.where))
    # A failure that was ignored is as good as none.
    return replace(host, ok=host.ok + (event.status in {OK, IGNORED}))


def parse_events(raw: Mapping[str, Any]) -> Iterator[PlaybookEvent]:
    """Our events in one of ansible-runner's; most of its kinds say nothing that is shown."""
    kind, data = raw.get("event"), raw.get("event_data") or {}
    if kind == "playbook_on_play_start":
        yield PlaybookEvent(PLAY, play=_text(data.get("name") or data.get("play")))
    elif kind == "playbook_on_stats":
        # A block's rescue undoes a failure without a word of its own; the final counts know.
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
    """Why a task failed, in one short line; of a loop, why its first bad item failed."""
    if "censored" in result or result.get("_ansible_no_log"):
        return HIDDEN
    items = [item for item in result.get("results") or [] if isinstance(item, Mapping)]
    bad = next((item for item in items if item.get("failed") or item.get("unreachable")), None)
    if bad is not None:
        return _parse_reason(bad)
    texts = (_text(result.get(key)) for key in ("msg", "stderr", "module_stderr", "stdout"))
    told = [PREFIX.sub("", text) for text in texts if text]
    empty = bool(told) and told[0].lower().startswith(UNINFORMATIVE_MESSAGES)
    return shorten(": ".join(told[:2] if empty else told[:1]))


def shorten(text: str) -> str:
    """``text`` without colours in one line, cut where it is long."""
    line = " ".join(COLOUR_CODES.sub("", text).split())
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 3]}..."


def _text(value: object) -> str:
    return "" if value is None else str(value)
