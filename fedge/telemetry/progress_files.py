"""Progress of boards as one small file per board: written by whatever works, read by whatever displays it."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedge.json_reader import MalformedJson
from fedge.strict_json import BOARD, decode_json, validate_json
from fedge.telemetry.live_records import LONGEST_ERROR, LONGEST_NAME, ActivityState, BoardName, BoardProgress

SUFFIX = ".json"
MAX_FILE_BYTES = 8192
"""Upper limit of a progress file in bytes; a larger one is ignored."""
FOLDERS = 16
"""Number of folders whose last readings a process caches."""

FileStamp = tuple[int, int, int]
"""A file's inode, size and modification time in ns: a change means a new report."""
_CachedReport = tuple[FileStamp, BoardProgress | None]
_cache: OrderedDict[Path, dict[str, _CachedReport]] = OrderedDict()
_turn = threading.Lock()


def write_progress(folder: Path, progress: BoardProgress) -> None:
    """Replace a board's progress file atomically.

    Raises:
        OSError: The file cannot be written.
        MalformedJson: The board's name is not a valid file name.
    """
    board = validate_json(progress.board, BoardName, "board")
    data = json.dumps(dataclasses.asdict(progress), separators=(",", ":"), allow_nan=False)
    # Without ``atomic_files``: emulated rounds take milliseconds, and no report is worth waiting for the disk.
    part = folder / f".{board}.{os.getpid()}.{threading.get_native_id()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(data, encoding="utf-8")
        part.replace(folder / f"{board}{SUFFIX}")
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_progress(folder: Path) -> dict[str, BoardProgress]:
    """Read the last report of every board, by name; invalid files are skipped.

    Only files that changed since the last call are read.
    """
    with _turn:
        before = _cache.pop(folder, {})
        now = {name: _read_if_changed(before.get(name), path, stamp) for name, path, stamp in _list_files(folder)}
        _cache[folder] = now
        while len(_cache) > FOLDERS:
            _cache.popitem(last=False)
    return {board: progress for board, (_, progress) in now.items() if progress is not None}


def _list_files(folder: Path) -> Iterator[tuple[str, str, FileStamp]]:
    """Yield board, path and stamp of every progress file, in the order of the boards."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        board = entry.name.removesuffix(SUFFIX)
        if entry.name.endswith(SUFFIX) and BOARD.fullmatch(board):
            try:
                status = entry.stat()
            except OSError:  # gone meanwhile
                continue
            yield board, entry.path, (status.st_ino, status.st_size, status.st_mtime_ns)


def _read_if_changed(before: _CachedReport | None, path: str, stamp: FileStamp) -> _CachedReport:
    if before is not None and before[0] == stamp:
        return before
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  of a thousand files a Path takes as long as reading
            progress = decode_json(file.read(MAX_FILE_BYTES), BoardProgress, "progress")
    except (OSError, MalformedJson):
        return stamp, None
    return stamp, progress if f"{progress.board}{SUFFIX}" == os.path.basename(path) else None  # noqa: PTH119  as above


# Reports while a board works, rarely enough to cost nothing; a failing report never stops the work --------------------


REPORT_PERIOD_S = 0.5
"""Seconds between reports: pages are not refreshed faster."""

logger = logging.getLogger(__name__)


class ProgressReporter:
    """Tracks a board's progress and writes it to a folder at most every ``every_s`` seconds.

    Attributes:
        told_s: Unix time of the last report.
    """

    def __init__(
        self,
        folder: Path | None,
        begun: BoardProgress,
        wall_s: Callable[[], float],
        every_s: float = REPORT_PERIOD_S,
        *,
        states_at_once: bool = True,
        last_s: float = float("-inf"),
    ) -> None:
        """Start with a first progress.

        Without a folder nothing is written. ``wall_s`` returns Unix time in seconds, and ``last_s`` is the Unix time of
        the board's last report. ``states_at_once`` reports changes of state immediately: not for rounds that may last
        milliseconds, of which one shorter than ``every_s`` is reported at its end only.
        """
        self._folder, self._now, self._wall_s = folder, begun, wall_s
        self._every_s, self._states_at_once = every_s, states_at_once
        self._reported: ActivityState | None = None
        self._begun_s = float("-inf") if states_at_once or folder is None else wall_s()
        self.told_s = last_s

    def report(self, state: ActivityState | None = None, **changes: Any) -> None:
        """Update the progress and report it if it is due; ``changes`` are fields of ``BoardProgress``."""
        if self._folder is None:
            return
        at_s = self._wall_s()
        self._now = replace(self._now, state=state or self._now.state, at_s=at_s, **changes)
        last_s = self.told_s if state in {"done", "failed"} else max(self.told_s, self._begun_s)
        due = not 0 <= at_s - last_s < self._every_s
        if due or (self._states_at_once and self._now.state != self._reported):
            self._write(self._folder)

    def add_steps(self, steps: int) -> None:
        """Count further steps as done."""
        self.report(steps_done=self._now.steps_done + steps)

    def finish(self, state: ActivityState, **changes: Any) -> None:
        """Report the end of the round.

        It is always written if an earlier report of the round was, so that nothing stale remains.
        """
        self.report(state, **changes)
        if self._folder is not None and self._reported not in {None, state}:
            self._write(self._folder)

    def _write(self, folder: Path) -> None:
        self._reported, self.told_s = self._now.state, self._now.at_s
        try:
            write_progress(folder, _make_printable(self._now))
        except (OSError, ValueError, MalformedJson) as error:
            logger.debug("progress cannot be told: %s", error)


def _make_printable(progress: BoardProgress) -> BoardProgress:
    """Return the progress with texts shortened and on one line."""
    limits = {"device": LONGEST_NAME, "run": LONGEST_NAME, "mode": LONGEST_NAME, "error": LONGEST_ERROR}
    texts = {name: getattr(progress, name)[:longest] for name, longest in limits.items()}
    printable: dict[str, Any] = {
        name: "".join(c if c.isprintable() else " " for c in text) for name, text in texts.items()
    }
    return replace(progress, **printable)


SILENT_REPORTER = ProgressReporter(None, BoardProgress("", 0.0, "fetching"), time.time)
"""Writes nothing."""
