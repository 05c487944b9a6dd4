"""A terminal line that shows how many hosts have replied and which ones are still pending."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from experiments.fleet.inventory import format_names
from experiments.fleet.playbook_progress import format_elapsed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NAMES_SHOWN = 4


def format_waiting(asked: Sequence[str], done: frozenset[str], elapsed_s: float) -> str:
    """Format the waiting line, e.g. ``2 of 5 hosts have answered (0:04); waiting for nano-1, tx2-1 and 1 more``.

    Args:
        asked: Names of all queried hosts, in the order in which they are shown.
        done: Names of the hosts that have replied or have been given up.
        elapsed_s: Wall time since the query started, in seconds.
    """
    awaited = [name for name in asked if name not in done]
    line = f"{len(asked) - len(awaited)} of {len(asked)} hosts have answered ({format_elapsed(elapsed_s)})"
    return f"{line}; waiting for {format_names(awaited, NAMES_SHOWN)}" if awaited else line


class AnswerProgress:
    """Context manager that shows the line while its block runs; silent if the console is not a terminal.

    Args:
        console: Console to write to.
        asked: Names of all queried hosts.
        done: Returns the hosts that have replied or have been given up; called at every refresh.
        now_s: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        console: Console,
        asked: Sequence[str],
        done: Callable[[], frozenset[str]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._asked, self._done, self._now_s = console, asked, done, now_s
        self._started_s = now_s()
        self._live: Any = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, get_renderable=self._text, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _text(self) -> Text:
        from rich.text import Text

        line = format_waiting(self._asked, self._done(), self._now_s() - self._started_s)
        return Text(line, no_wrap=True, overflow="ellipsis")
