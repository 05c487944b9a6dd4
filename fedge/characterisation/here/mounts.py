"""On which file system and block device a path lies, from the kernel's table of mounts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
"""File systems whose files are the page cache itself: they cannot be dropped from it."""
NO_DEVICE = "0"
"""The major number of file systems without a block device of their own: network, overlay, btrfs."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted, its type, what is mounted there, and the numbers of its block device."""

    point: str
    kind: str
    device: str
    disk: str | None
    """Such as "8:1"; None where the file system has no block device of its own."""

    @property
    def in_memory(self) -> bool:
        """Whether its files are nowhere but in memory."""
        return self.kind in IN_MEMORY

    def __str__(self) -> str:
        return f"{self.kind} on {self.device}{f' ({self.disk})' if self.disk else ''}"


def mount_of(path: Path, proc: Path = Path("/proc")) -> Mount:
    """The mount that ``path`` lies on, or would lie on where it does not exist; raises ``OSError``."""
    real = os.path.realpath(path)
    found = [mount for mount in mounts((proc / "self/mountinfo").read_text("utf-8")) if _below(real, mount.point)]
    if not found:
        raise OSError(f"no mount holds {real}")
    longest = max(len(mount.point) for mount in found)
    return [mount for mount in found if len(mount.point) == longest][-1]  # the last one lies over those before it


def mounts(text: str) -> tuple[Mount, ...]:
    """The lines of ``/proc/PID/mountinfo``; one that is none of those is left out."""
    return tuple(mount for line in text.splitlines() if (mount := _mount(line)) is not None)


def _mount(line: str) -> Mount | None:
    own, separator, beside = line.partition(" - ")
    fields, more = own.split(" "), beside.split(" ")
    if not separator or len(fields) < 5 or len(more) < 2:
        return None
    disk = None if fields[2].split(":")[0] == NO_DEVICE else fields[2]
    return Mount(_plain(fields[4]), more[0], _plain(more[1]), disk)


def _plain(text: str) -> str:
    """Spaces and the like stand in the table as octal numbers."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _below(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(folder.rstrip("/") + "/")
