"""Keeps the state that the board was found in: stored before the first change, put back when the changes are over."""

import json
import logging
from pathlib import Path
from typing import AbstractSet, Any, Dict, List, Optional, Set

from fedge.powerd import saved
from fedge.powerd.board import Board
from fedge.powerd.mode import Mode, Refused

logger = logging.getLogger(__name__)


class Keeper:
    """``changed`` says that something of ours may be set; the saved file exists exactly then.

    What others change is not looked for: only the state found is ours to answer for.
    """

    def __init__(self, board: Board, folder: Path, boot: str) -> None:
        self._board, self._folder, self._boot = board, folder, boot
        self.found: Dict[str, Any] = {}
        self.changed = False
        self._more: Set[str] = set()
        """What else was changed beside the knobs: "fan", "nvpmodel"."""
        self._mode_found: Optional[Mode] = None

    def start(self) -> List[str]:
        """Make up for a daemon that died, then take the state found; what could not be put back, as texts.

        Raises ``OSError`` and ``Refused``.
        """
        wrong = self._make_up()
        self._mode_found = self._board.mode()
        return wrong

    def _make_up(self) -> List[str]:
        try:
            left = saved.read(self._folder)
        except saved.Corrupt as error:
            logger.warning("%s; the board's present state is taken as the one found", error)
            left = None
        if left is not None and self._boot and left.boot == self._boot:
            return self._after_crash(left.state)
        if left is not None:
            self._after_reboot(left.state)
        self.found = self._snapshot()
        return []

    def _after_crash(self, state: Dict[str, Any]) -> List[str]:
        self.found, self.changed = state, True
        wrong = self.put_back()
        if wrong:
            logger.error("a daemon before this one died; not all it changed could be put back: %s", "; ".join(wrong))
            logger.error("to go on from the present state: stop the daemon, remove %s, start it", saved.FILE)
        else:
            logger.warning("a daemon before this one died; the state that it had found is set again")
        return wrong

    def _after_reboot(self, state: Dict[str, Any]) -> None:
        """A reboot sets everything anew but the nvpmodel mode, which the board remembers."""
        wished = state.get("nvpmodel")
        try:
            now = self._board.preset()
            if wished is not None and (now is None or now.id != wished):
                self._board.set_preset(wished)
                logger.warning("the board was rebooted while changed; its nvpmodel mode %s is set again", wished)
        except Refused as refused:
            logger.warning("the board was rebooted while changed; its mode %s is not set: %s", wished, refused.text)
        self._forget()

    def before_change(self, *more: str) -> None:
        """Store the state found, unless it is; raises ``Refused`` when that is not possible, and nothing is changed.

        ``more`` names what is changed beside the knobs ("fan", "nvpmodel").
        """
        self._more |= set(more)
        if self.changed:
            return
        try:
            saved.write(self._folder, saved.Saved(self._boot, self.found))
        except OSError as error:
            text = f"the state found cannot be stored in {self._folder} ({error}); nothing was changed; make room there"
            raise Refused("failed", text) from error
        self.changed = True

    def settle(self, mode: Optional[Mode]) -> None:
        """After a change to ``mode`` (None: it failed): a board that is as it was found owes nothing.

        The mode is looked at first, since a snapshot takes long.
        """
        if self.changed and mode in (None, self._mode_found) and self._as_found():
            self._forget()

    def _as_found(self) -> bool:
        now = self._snapshot(with_preset="nvpmodel" in self._more)
        return _lasting(now, self._more) == _lasting(self.found, self._more)

    def put_back(self) -> List[str]:
        """Set the state found again; what could not be, as texts, and then the stored state stays."""
        try:
            self.before_change()
            wrong = list(self._board.put_back(self.found))
            if not wrong:
                self._forget()
        except Refused as refused:
            return [refused.text]
        except OSError as error:
            return [str(error)]
        return wrong

    def _forget(self) -> None:
        saved.remove(self._folder)
        self.changed = False
        self._more.clear()

    def _snapshot(self, with_preset: bool = True) -> Dict[str, Any]:
        """As it will read from the file: JSON knows neither tuples nor whole numbers as keys."""
        return dict(json.loads(json.dumps(self._board.snapshot(with_preset))))


def _lasting(snapshot: Dict[str, Any], more: AbstractSet[str]) -> Dict[str, Any]:
    """What stays as it is until the daemon sets it: the fan and an unlocked memory's rate move by themselves."""
    kept = {name: value for name, value in snapshot.items() if name in more or name not in ("fan", "nvpmodel")}
    emc = kept.get("emc")
    if isinstance(emc, dict) and not emc.get("locked"):
        kept["emc"] = {name: value for name, value in emc.items() if name != "rate_hz"}
    return kept
