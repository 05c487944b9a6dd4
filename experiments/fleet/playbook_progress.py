"""Terminal views of a playbook: a live table or plain lines, the hosts that have replied, and a closing summary."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from experiments.fleet.inventory import format_names
from experiments.fleet.playbook_runner import FAILED, PLAY, UNREACHABLE, HostProgress, PlaybookEvent, PlaybookState
from experiments.report.quantities import duration
from experiments.report.tables import print_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

NAMES_SHOWN = 4
MAX_CHANGES_SHOWN = 20
"""Default number of pending changes per host listed by a check, so that a fresh board fits on one screen."""
CURES: tuple[tuple[str, str], ...] = (
    (
        r"host key verification failed|host key is known",
        "its host key is not in known_hosts: log in once with `ssh {login}` and compare the key with the board's own",
    ),
    (
        r"permission denied \((publickey|password)",
        "bring your ssh key to it: `ssh-copy-id {login}`, and check ansible_user",
    ),
    (
        r"sudo password|a password is required|missing become password",
        "let its ansible_user run sudo without a password (sudoers: NOPASSWD)",
    ),
    (
        r"could not resolve|name or service not known",
        "give it an ansible_host in the inventory that this machine can reach",
    ),
    (r"no space left", "make room on it: `df -h` there says where (`ssh {login}`)"),
    (r"connect to host|unreachable|timed out|no route|refused", "see that it is on and in the network: `ssh {login}`"),
)
"""Remedies by a pattern of the failure's text; the first match counts."""


class _LiveView:
    """Shows ``_render`` on a terminal while its block runs; a ``transient`` view disappears at the end."""

    def __init__(self, console: Console, now_s: Callable[[], float], *, transient: bool = False) -> None:
        self._console, self._now_s, self._transient = console, now_s, transient
        self._started_s = now_s()
        self._live: Any = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(
                console=self._console, get_renderable=self._render, refresh_per_second=4, transient=self._transient
            )
            self._live.start()
        return self

    def __exit__(self, kind: object, *_rest: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed_s(self) -> float:
        """Wall time since the view was made, in seconds."""
        return self._now_s() - self._started_s

    def _render(self) -> Table | Text:
        raise NotImplementedError


class AnswerProgress(_LiveView):
    """A line with the hosts that have replied and those still pending; silent if the console is not a terminal.

    ``done`` returns the hosts that have replied or have been given up; it is called at every refresh.
    """

    def __init__(self, console: Console, hosts: Sequence[str], done: Callable[[], frozenset[str]]) -> None:
        super().__init__(console, time.monotonic, transient=True)
        self._hosts, self._done = hosts, done

    def _render(self) -> Text:
        from rich.text import Text

        return Text(format_waiting(self._hosts, self._done(), self.elapsed_s), no_wrap=True, overflow="ellipsis")


def format_waiting(hosts: Sequence[str], done: frozenset[str], elapsed_s: float) -> str:
    """Format the waiting line, e.g. ``2 of 5 hosts have answered (0:04); waiting for nano-1, tx2-1 and 1 more``.

    Hosts that have been given up count as ``done``.
    """
    awaited = [name for name in hosts if name not in done]
    line = f"{len(hosts) - len(awaited)} of {len(hosts)} hosts have answered ({duration(int(elapsed_s), 1)})"
    return f"{line}; waiting for {format_names(awaited, NAMES_SHOWN)}" if awaited else line


class PlaybookProgress(_LiveView):
    """Show a playbook: a live table with one row per host on a terminal, otherwise lines per play and failure."""

    def __init__(self, title: str, console: Console, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, now_s)
        self._title = title
        self._state = PlaybookState()
        self._reasons: dict[str, str] = {}
        """Last printed reason by host."""

    def __exit__(self, kind: object, *rest: object) -> None:
        super().__exit__(kind, *rest)
        if self._live is None and kind is None:
            print_lines(self._console, format_play(self._state))

    def update(self, state: PlaybookState, event: PlaybookEvent) -> None:
        """Show one event, given the state after it."""
        before, self._state = self._state, state
        if self._live is not None:
            return
        if event.status == PLAY:
            print_lines(self._console, format_play(before))
        elif event.status in {FAILED, UNREACHABLE} and not self._is_repeated(event):
            print_lines(self._console, [format_failure(event)])

    def _is_repeated(self, event: PlaybookEvent) -> bool:
        """Return whether a failure repeats the reason already shown for its host, as rescue blocks do."""
        before, self._reasons[event.host] = self._reasons.get(event.host), event.text
        return bool(before) and str(before) in event.text

    def _render(self) -> Table:
        return build_progress_table(self._title, self._state, self.elapsed_s)


def build_progress_table(title: str, state: PlaybookState, elapsed_s: float) -> Table:
    """Build a table with one row per host: current task and counts."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=f"{title}   {state.play}   {duration(int(elapsed_s), 1)}", title_justify="left", expand=True)
    shown.add_column("host", no_wrap=True)
    shown.add_column("task", ratio=1, no_wrap=True, overflow="ellipsis")
    for count in ("ok", "changed", "failed"):
        shown.add_column(count, justify="right")
    for name, host in state.hosts.items():
        doing = Text(format_failure(host.failure), style="red") if host.failure else Text(host.task)
        shown.add_row(Text(name), doing, str(host.ok), str(host.change_count), str(host.failed))
    return shown


def format_play(state: PlaybookState) -> list[str]:
    """Return one line per host of the play that ends; failed hosts had a line of their own already."""
    done = {name: host for name, host in state.hosts_in_play().items() if host.failure is None}
    return [f"{state.play}: {name}: {_format_counts(host)}" for name, host in done.items()]


def _format_counts(host: HostProgress) -> str:
    return f"{host.ok} ok, {host.change_count} changed until now"


def format_failure(event: PlaybookEvent) -> str:
    what = "cannot be reached" if event.status == UNREACHABLE else "FAILED"
    return f"{event.host} {what} at {event.where!r}: {event.text}"


def summarize_playbook(
    state: PlaybookState, *, check: bool, boards: frozenset[str], logins: Mapping[str, str]
) -> list[str]:
    """Summarise a finished playbook in lines of text: hosts done, number of changes, each failure with a remedy.

    Args:
        state: The final state.
        check: Whether the playbook ran in check mode, in which changes are pending rather than made.
        boards: Names of the boards; any other host is the server.
        logins: What a person gives to ssh, by host, for the remedies.
    """
    failed = state.failures_by_host
    done = [name for name in state.hosts if name not in failed]
    lines = [
        f"{_describe_hosts(done, boards)} done, {_describe_changes(state.change_count, check=check, whole=not failed)}"
    ]
    if check:
        lines += [line for name in done for line in _list_pending_changes(name, state.hosts[name])]
    for event in failed.values():
        lines += [format_failure(event), f"  what to do: {suggest_cure(event, logins)}"]
    missed = sorted(boards - set(state.hosts))
    if failed and missed:
        lines.append(f"not begun because of that: {', '.join(missed)}")
    return lines


def _describe_hosts(names: list[str], boards: frozenset[str]) -> str:
    """Describe hosts briefly: boards by number, the server by name."""
    count = sum(name in boards for name in names)
    others = [name for name in names if name not in boards]
    return " and ".join((*others, f"{count} {'board' if count == 1 else 'boards'}"))


def _describe_changes(count: int, *, check: bool, whole: bool) -> str:
    if not count and not whole:
        return "nothing changed"
    if not count:
        return "nothing would change" if check else "nothing had to change"
    tasks = f"{count} {'task' if count == 1 else 'tasks'}"
    return f"{tasks} would change something" if check else f"changed {tasks}"


def _list_pending_changes(name: str, host: HostProgress) -> Iterator[str]:
    if host.changes:
        yield f"  {name}:"
        yield from (f"    {task}" for task in host.changes[:MAX_CHANGES_SHOWN])
    if len(host.changes) > MAX_CHANGES_SHOWN:
        yield f"    and {len(host.changes) - MAX_CHANGES_SHOWN} more"


def suggest_cure(event: PlaybookEvent, logins: Mapping[str, str]) -> str:
    """Return the remedy for a failed or unreachable host, given what a person gives to ssh by host."""
    text = event.text.lower()
    fitting = (advice for pattern, advice in CURES if re.search(pattern, text))
    advice = next(fitting, "mend what it says, then run the same command again; --limit {host} is for this host alone")
    return advice.format(host=event.host, login=logins.get(event.host, event.host))
