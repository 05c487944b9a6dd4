"""The journal of a profiling campaign: JSON lines, each synced to disk before the next mode; resumed if its header
fits.

Nothing but the journal is needed to resume.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedge.atomic_files import sync_folder
from fedge.characterisation.profiling.mode_measurement import SettledMode
from fedge.characterisation.profiling.stability import StabilityVerdict
from fedge.errors import BadInput
from fedge.jsonlines import JsonLines, open_locked, replay_lines
from fedge.types import PowerMode

VERSION = 1
EXPECTED_FILE = "the journal of `fedge profile`, or another --out"


@dataclass(frozen=True, slots=True)
class ProfilingHeader:
    """The identity of a campaign, which is resumed only if all of it is unchanged. ``modes`` 0 means all."""

    board: str
    workload: str
    batch_size: int
    kind: str
    emulated: bool
    label: str
    source: str
    total_power: str
    explorer: str
    modes: int
    seed: int
    rule: Mapping[str, float]
    software: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModeFailure:
    """A mode that could not be measured, the reason, and the seconds spent on it."""

    mode: PowerMode
    reason: str
    seconds: float = 0.0


@dataclass(slots=True)
class ProfilingHistory:
    """The progress of a campaign in chronological order.

    Attributes:
        planned: Modes planned so far.
        done: Measured modes.
        failed: Modes that failed.
        failed_in_a_row: Number of failures since the last success.
    """

    planned: list[PowerMode] = field(default_factory=list)
    done: list[SettledMode] = field(default_factory=list)
    failed: list[ModeFailure] = field(default_factory=list)
    failed_in_a_row: int = 0

    @property
    def remaining_modes(self) -> list[PowerMode]:
        """Return the planned modes that have not been tried."""
        tried = {one.mode for one in self.done} | {one.mode for one in self.failed}
        return [mode for mode in self.planned if mode not in tried]

    def add_plan(self, modes: list[PowerMode]) -> None:
        self.planned += modes

    def add_result(self, settled: SettledMode) -> None:
        self.done.append(settled)
        self.failed_in_a_row = 0

    def add_failure(self, failure: ModeFailure) -> None:
        self.failed.append(failure)
        self.failed_in_a_row += 1

    def forget_last_failures(self) -> None:
        """Forget the last consecutive failures, for which the campaign stopped, so that these modes are tried again."""
        del self.failed[len(self.failed) - self.failed_in_a_row :]
        self.failed_in_a_row = 0


def profiling_journal_path(table: Path) -> Path:
    """Return the path of a table's journal."""
    return table.with_name(f"{table.name}.journal")


class ProfilingJournal(JsonLines):
    """An open journal that only one process writes; ``past`` is its content."""

    def __init__(self, path: Path, file: int, past: ProfilingHistory) -> None:
        super().__init__(path, file)
        self.past = past

    def write_plan(self, modes: list[PowerMode]) -> None:
        """Record the modes that come next."""
        self._append({"event": "plan", "modes": [_mode_to_list(mode) for mode in modes]})
        self.past.add_plan(modes)

    def write_result(self, settled: SettledMode) -> None:
        self._append({"event": "mode", **_settled_to_dict(settled)})
        self.past.add_result(settled)

    def write_failure(self, failure: ModeFailure) -> None:
        self._append({"event": "failed", **asdict(failure), "mode": _mode_to_list(failure.mode)})
        self.past.add_failure(failure)

    def write_stop(self) -> None:
        """Record that the campaign stops because of its last failures."""
        self._append({"event": "stopped"})

    def read_from_disk(self) -> ProfilingHistory:
        """Read the file again: after an interrupt, it may contain a line that ``past`` lacks."""
        return parse_journal(self.path, self.path.read_bytes())[1]


def open_profiling_journal(path: Path, header: ProfilingHeader) -> ProfilingJournal:
    """Create a journal, or resume the one at ``path``.

    Raises:
        BadInput: If the journal belongs to another campaign (the message names the difference), is locked by another
            process, is damaged other than at its end, or cannot be written.
    """
    file = open_locked(path, "fedge profile")
    try:
        raw = path.read_bytes()
        found, past, whole = parse_journal(path, raw)
        if found is not None:
            _check_fits(path, found, header)
        os.ftruncate(file, whole)
        journal = ProfilingJournal(path, file, past)
        if found is None:
            journal._append({"event": "begin", "version": VERSION, **asdict(header)})  # noqa: SLF001 -- its own maker
            sync_folder(path.parent)
    except BaseException:
        os.close(file)
        raise
    return journal


def last_temperature_c(path: Path) -> float | None:
    """Return the board's temperature after the last mode of a journal in degrees Celsius, or None if it is unknown."""
    raw = b""
    with suppress(OSError):
        raw = path.read_bytes()
    _, past, _ = parse_journal(path, raw)
    return past.done[-1].end_c if past.done else None


def parse_journal(path: Path, raw: bytes) -> tuple[ProfilingHeader | None, ProfilingHistory, int]:
    """Parse a journal.

    Args:
        path: Name of the file for error messages.
        raw: The file's content.

    Returns:
        The header (None in an empty journal), the history, and the number of bytes in complete lines.

    Raises:
        BadInput: If a complete line is invalid.
    """
    past = ProfilingHistory()
    header: ProfilingHeader | None = None

    def take(number: int, event: Any) -> None:
        nonlocal header
        if number == 1:
            header = _parse_header(event)
        else:
            _replay_event(event, past)

    whole = replay_lines(path, raw, take, EXPECTED_FILE)
    return header, past, whole


def _parse_header(event: dict[str, Any]) -> ProfilingHeader:
    if event["event"] != "begin" or event["version"] != VERSION:
        raise ValueError(event)
    return ProfilingHeader(**{name.name: event[name.name] for name in fields(ProfilingHeader)})


def _check_fits(path: Path, before: ProfilingHeader, now: ProfilingHeader) -> None:
    for one in fields(ProfilingHeader):
        there, wanted = getattr(before, one.name), getattr(now, one.name)
        if there != wanted:
            right = f"{wanted!r} was asked for now: ask for the same, give another --out, or remove the journal"
            raise BadInput(f"{path}: {one.name}", repr(there), right)


def _replay_event(event: dict[str, Any], past: ProfilingHistory) -> None:
    if event["event"] == "plan":
        past.add_plan([_mode_from_list(knobs) for knobs in event["modes"]])
    elif event["event"] == "mode":
        past.add_result(_settled_from_dict(event))
    elif event["event"] == "failed":
        past.add_failure(ModeFailure(_mode_from_list(event["mode"]), event["reason"], event["seconds"]))
    elif event["event"] == "stopped":
        past.forget_last_failures()
    else:
        raise ValueError(event)


def _mode_to_list(mode: PowerMode) -> list[float]:
    return [mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz]


def _mode_from_list(knobs: list[float]) -> PowerMode:
    cores, cpu_mhz, gpu_mhz, mem_mhz = knobs
    return PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)


def _settled_to_dict(settled: SettledMode) -> dict[str, Any]:
    """Return the content of a line; an unknown standard error becomes null."""
    data = asdict(settled) | {"mode": _mode_to_list(settled.mode)}
    for name in ("time_se_log", "power_se_log"):
        if math.isinf(data["verdict"][name]):
            data["verdict"][name] = None
    return data


def _settled_from_dict(event: dict[str, Any]) -> SettledMode:
    verdict = dict(event["verdict"])
    for name in ("time_se_log", "power_se_log"):
        verdict[name] = math.inf if verdict[name] is None else verdict[name]
    given = {one.name: event[one.name] for one in fields(SettledMode)}
    return SettledMode(**{**given, "mode": _mode_from_list(event["mode"]), "verdict": StabilityVerdict(**verdict)})
