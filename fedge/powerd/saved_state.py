"""The state found, saved on disk before the first change, so that it survives a crash or a reboot."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

FILE = "found.json"
FORMAT = 2
LONGEST = 1 << 20


class SavedState(NamedTuple):
    """A saved state.

    Attributes:
        boot: Id of the boot in which it was taken.
        state: The board's snapshot.
    """

    boot: str
    state: Dict[str, Any]


class CorruptState(Exception):
    """A saved state that cannot be used; the text names the file that it was renamed to."""


def read(folder: Path) -> Optional[SavedState]:
    """Return the saved state; None if there is none.

    Raises:
        CorruptState: The file cannot be used and was renamed.
    """
    path = folder / FILE
    try:
        with path.open("rb") as file:
            return _parse(file.read(LONGEST + 1))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptState(f"{path} is no saved state ({error}); it is kept as {set_aside(folder)}") from error


def _parse(text: bytes) -> SavedState:
    found = json.loads(text.decode("utf-8"))
    fields = found if isinstance(found, dict) else {}
    boot, state = fields.get("boot"), fields.get("state")
    if fields.get("format") != FORMAT or not isinstance(boot, str) or not isinstance(state, dict):
        raise ValueError(f"it is not of format {FORMAT}")
    saved = SavedState(boot, state)
    if fields.get("sha256") != _checksum(saved):
        raise ValueError("its checksum is wrong: the disk or somebody has changed it")
    return saved


def _checksum(saved: SavedState) -> str:
    text = json.dumps([saved.boot, saved.state], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def set_aside(folder: Path) -> Path:
    """Rename the saved state and return its new path; raises ``OSError``."""
    aside = folder / (FILE + ".corrupt")
    (folder / FILE).replace(aside)
    return aside


def write(folder: Path, saved: SavedState) -> None:
    """Write the state atomically: at any moment the old or the complete new file exists; raises ``OSError``."""
    path, new = folder / FILE, folder / (FILE + ".new")
    target = os.open(str(new), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(target, "wb") as file:
        fields = {"format": FORMAT, "boot": saved.boot, "state": saved.state, "sha256": _checksum(saved)}
        file.write(json.dumps(fields).encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    _sync_folder(folder)


def remove(folder: Path) -> None:
    """Delete the saved state after it was restored; raises ``OSError``."""
    try:
        (folder / FILE).unlink()
    except FileNotFoundError:
        return
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    handle = os.open(str(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
