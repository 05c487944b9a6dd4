"""Keeps the state that the board was found in: on disk before the first change, restored after the last."""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Set

from fedge.powerd.board_control import BoardControl
from fedge.powerd.mode_records import Mode, PowerdRefusal

logger = logging.getLogger(__name__)

FILE = "found.json"
FORMAT = 2
LONGEST = 1 << 20


class SavedState(NamedTuple):
    """A saved state: the id of the boot in which it was taken, and the board's snapshot."""

    boot: str
    state: Dict[str, Any]


class CorruptState(Exception):
    """A saved state that cannot be used; the text names the file that it was renamed to."""


def load_state(folder: Path) -> Optional[SavedState]:
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


def save_state(folder: Path, saved: SavedState) -> None:
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


def remove_state(folder: Path) -> None:
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


class StateKeeper:
    """Stores and restores the state found.

    Changes made by others are not tracked; only the state found is restored.

    Attributes:
        found: Snapshot of the state found.
        changed: Whether a change of ours may be in effect; the saved file exists exactly then.
    """

    def __init__(self, board: BoardControl, folder: Path, boot: str) -> None:
        self._board, self._folder, self._boot = board, folder, boot
        self.found: Dict[str, Any] = {}
        self.changed = False
        self._beside: Set[str] = set()
        """Other things changed beside the knobs: "fan", "nvpmodel"."""
        self._mode_found: Optional[Mode] = None
        self._partly = False
        """Whether the board was rebooted while changed, so that only its nvpmodel mode is known of the state found."""

    def start(self) -> List[str]:
        """Recover from a daemon that died, then record the state found.

        Returns:
            Descriptions of what could not be restored.

        Raises:
            OSError: The saved state cannot be accessed.
            PowerdRefusal: The board cannot be read.
        """
        wrong = self._recover()
        self._mode_found = self._board.mode()
        return wrong

    def _recover(self) -> List[str]:
        try:
            left = load_state(self._folder)
        except CorruptState as error:
            logger.warning(
                "%s; the board's present state is taken as the one found: if a daemon died while it was changed, "
                "set the board's usual mode by nvpmodel, or reboot it, and start the daemon again",
                error,
            )
            left = None
        if left is not None and self._boot and left.boot == self._boot:
            return self._restore_after_crash(left.state)
        if left is not None and left.state.get("nvpmodel") is not None:
            return self._restore_after_reboot(left.state["nvpmodel"])
        if left is not None:
            remove_state(self._folder)
        self.found = self._take_snapshot()
        return []

    def _restore_after_crash(self, state: Dict[str, Any]) -> List[str]:
        self.found, self.changed = state, True
        wrong = self.put_back()
        if wrong:
            logger.error("a daemon before this one died; not all it changed could be put back: %s", "; ".join(wrong))
            logger.error("to go on from the present state: stop the daemon, remove %s, start it", FILE)
        else:
            logger.warning("a daemon before this one died; the state that it had found is set again")
        return wrong

    def _restore_after_reboot(self, wished: Any) -> List[str]:
        """Restore the nvpmodel mode, the only setting that the board keeps over a reboot.

        The floor does not apply, since it limits requests and not the state found. The rest of the state found is
        recorded once that mode is set.
        """
        self.found, self.changed, self._partly = {"nvpmodel": wished}, True, True
        wrong = self.put_back()
        if wrong:
            logger.error("the board was rebooted while changed; mode %s is not set: %s", wished, "; ".join(wrong))
        else:
            logger.warning("the board was rebooted while changed; its nvpmodel mode is %s", wished)
        return wrong

    def store_before_change(self, beside: Optional[Dict[str, Any]] = None) -> None:
        """Save the state found, unless it is saved already.

        Args:
            beside: Current values of what is changed beside the knobs ({"fan": 100}, {"nvpmodel": 0}). They are added
                to the state found if it lacks them: the fan changes by itself until it is set, and nvpmodel may report
                nothing.

        Raises:
            PowerdRefusal: Of kind failed, if the state cannot be saved; nothing may be changed then.
        """
        lacking = {name: value for name, value in (beside or {}).items() if self.found.get(name) is None}
        if lacking or not self.changed:
            try:
                self._store(dict(self.found, **lacking))
            except OSError as error:
                text = f"the state found cannot be stored in {self._folder} ({error}); nothing was changed"
                raise PowerdRefusal("failed", f"{text}; make room there") from error
        self._beside |= set(beside or {})
        self.changed = True

    def _store(self, found: Dict[str, Any]) -> None:
        """Save a state; a partly known one is stored as of an earlier boot."""
        save_state(self._folder, SavedState("" if self._partly else self._boot, found))
        self.found = found

    def forget_if_unchanged(self, mode: Optional[Mode]) -> None:
        """Discard the saved state if the board is as it was found.

        The mode is compared first, since a snapshot takes long.

        Args:
            mode: The mode just set; None if the change failed.

        Raises:
            OSError: The saved state cannot be deleted.
            PowerdRefusal: The board cannot be read.
        """
        if self.changed and mode in (None, self._mode_found) and self._is_as_found():
            self._forget()

    def _is_as_found(self) -> bool:
        if "fan" in self._beside:
            return False
        preset_too = "nvpmodel" in self._beside
        return _select_lasting(self._take_snapshot(preset_too), preset_too) == _select_lasting(self.found, preset_too)

    def put_back(self, keep_fan: bool = False) -> List[str]:
        """Restore the state found.

        Args:
            keep_fan: Whether to leave the fan as it is, to be restored later.

        Returns:
            Descriptions of what could not be restored; the saved state is kept then.
        """
        try:
            self.store_before_change()
            fan = self.found.get("fan")
            wrong = list(self._board.put_back(dict(self.found, fan=None) if keep_fan else self.found))
            if wrong:
                return wrong
            if self._partly:
                self._complete_state()
            if keep_fan and fan is not None:
                self._store(dict(self.found, fan=fan))
            else:
                self._forget()
        except PowerdRefusal as refused:
            return [refused.text]
        except OSError as error:
            return [str(error)]
        return []

    def _complete_state(self) -> None:
        self.found, self._mode_found = self._take_snapshot(), self._board.mode()
        self._partly = False

    def _forget(self) -> None:
        remove_state(self._folder)
        self.changed = False
        self._beside.clear()
        self.found.pop("fan", None)

    def _take_snapshot(self, with_preset: bool = True) -> Dict[str, Any]:
        """Return a snapshot as it will read from the file: JSON has neither tuples nor integer keys."""
        return dict(json.loads(json.dumps(self._board.snapshot(with_preset))))


def _select_lasting(snapshot: Dict[str, Any], preset_too: bool) -> Dict[str, Any]:
    """Return the parts of a snapshot that only the daemon changes: an unlocked memory's rate changes by itself.

    With the BPMP the requested rate is read from the same file, and so is the same number.
    """
    kept = {name: value for name, value in snapshot.items() if name != "nvpmodel" or preset_too}
    emc = kept.get("emc")
    if isinstance(emc, dict) and not emc.get("locked"):
        moving = ("rate_hz", "asked_hz") if emc.get("asked_hz") == emc.get("rate_hz") else ("rate_hz",)
        kept["emc"] = {name: value for name, value in emc.items() if name not in moving}
    return kept
