"""Brings the page cache to the state that a point wants before its first epoch, and says how far that went."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from fedge.characterisation.point import Cache
from fedge.errors import BoardError
from fedge.powerd.client import SOCKET, Client, PowerdError
from fedge.worker import page_cache

LEFT_OVER = 0.05
"""A drop that leaves more of the data set's pages in the cache is worth a note."""
WARM = 0.95
"""And so is filling it, when less is in it then; both chosen by us."""
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
PAGES = "1"
"""What is written to drop clean pages, and nothing else."""


def bring(
    files: Sequence[str],
    cache: Cache,
    *,
    drop_all: Callable[[], str | None] | None = None,
    told: Callable[[int], None] = page_cache.nobody,
) -> tuple[str, ...]:
    """Drop the files' pages, or read them all; notes on what was not reached.

    The files alone are dropped first, which needs no right. Where pages stay (another process has them mapped, or the
    file system does not take the advice), all of the page cache is: ``drop_all`` says why it could not be. Raises
    ``BoardError`` for a file that cannot be read.
    """
    try:
        if cache == "warm":
            page_cache.fill(files, told)
            return _note(page_cache.resident_share(files), least=WARM)
        page_cache.drop(files, told)
        left = page_cache.resident_share(files)
        why = None
        if left is None or left > LEFT_OVER:
            why = (drop_all or drop_whole)()
            left = page_cache.resident_share(files)
    except OSError as error:
        raise BoardError(f"the images cannot be read: {error}") from error
    return _note(left, most=LEFT_OVER, why=why)


def _note(share: float | None, least: float = 0.0, most: float = 1.0, why: str | None = None) -> tuple[str, ...]:
    beside = f" ({why})" if why else ""
    if share is None:
        return (f"the page cache's share of the images cannot be seen: they belong to another user{beside}",)
    if share > most:
        return (f"the page cache could not be dropped: {100 * share:.0f} % of the images stayed in it{beside}",)
    if share < least:
        return (f"the page cache holds {100 * share:.0f} % of the images only, though all were read",)
    return ()


def drop_whole(socket: str = SOCKET, control: Path = DROP_CACHES) -> str | None:
    """Drop all of the page cache: as root, else through the power daemon; why it could not be, None where it was."""
    os.sync()
    with contextlib.suppress(OSError):
        control.write_text(PAGES)
        return None
    if not Path(socket).exists():
        return "all of the cache can be dropped by root alone, or through the power daemon, which is not here"
    try:
        with closing(Client(socket)) as power:
            power.drop_caches()
    except PowerdError as error:
        return f"the power daemon does not drop it: {error}"
    return None
