"""The journal of a campaign: JSON lines, each on the disk before the next mode begins; continued if its header fits.

Nothing but the journal is needed to go on.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedge.errors import BadInput
from fedge.journal import JsonLines, open_locked, replay, sync_folder
from fedge.profiling.measuring import Settled
from fedge.profiling.stability import Verdict
from fedge.types import PowerMode

VERSION = 1
RIGHT_FILE = "the journal of `fedge profile`, or another --out"


@dataclass(frozen=True, slots=True)
class Header:
    """What a campaign is; one goes on only where all of it is the same. ``modes`` 0 means all."""

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
class Failure:
    """A mode that could not be measured, why, and how long that took."""

    mode: PowerMode
    reason: str
    seconds: float = 0.0


@dataclass(slots=True)
class Past:
    """What a campaign has done so far, in its order."""

    planned: list[PowerMode] = field(default_factory=list)
    done: list[Settled] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    failed_in_a_row: int = 0

    @property
    def left(self) -> list[PowerMode]:
        """The planned modes that were not tried yet."""
        tried = {one.mode for one in self.done} | {one.mode for one in self.failed}
        return [mode for mode in self.planned if mode not in tried]

    def plan(self, modes: list[PowerMode]) -> None:
        self.planned += modes

    def finish(self, settled: Settled) -> None:
        self.done.append(settled)
        self.failed_in_a_row = 0

    def fail(self, failure: Failure) -> None:
        self.failed.append(failure)
        self.failed_in_a_row += 1

    def stop(self) -> None:
        """The campaign stopped for its last failures: when it goes on, these modes are tried again."""
        del self.failed[len(self.failed) - self.failed_in_a_row :]
        self.failed_in_a_row = 0


def path_of(table: Path) -> Path:
    """Where the journal of a table lies."""
    return table.with_name(f"{table.name}.journal")


class Journal(JsonLines):
    """An open journal; only one process writes it. ``past`` is what it holds."""

    def __init__(self, path: Path, file: int, past: Past) -> None:
        super().__init__(path, file)
        self.past = past

    def plan(self, modes: list[PowerMode]) -> None:
        """These modes come next."""
        self._append({"event": "plan", "modes": [_knobs(mode) for mode in modes]})
        self.past.plan(modes)

    def finish(self, settled: Settled) -> None:
        self._append({"event": "mode", **_settled_as_data(settled)})
        self.past.finish(settled)

    def fail(self, failure: Failure) -> None:
        self._append({"event": "failed", **asdict(failure), "mode": _knobs(failure.mode)})
        self.past.fail(failure)

    def stop(self) -> None:
        """The campaign stops for its last failures."""
        self._append({"event": "stopped"})

    def on_disk(self) -> Past:
        """What the file holds: after an interrupt, a line may be there that ``past`` does not know yet."""
        return read(self.path, self.path.read_bytes())[1]


def open_journal(path: Path, header: Header) -> Journal:
    """Begin a journal, or go on with the one at ``path``.

    Raises ``BadInput`` for a journal of something else (which names the difference), one that another process writes,
    one that is damaged elsewhere than at its end, and a path that cannot be written.
    """
    file = open_locked(path, "fedge profile")
    try:
        raw = path.read_bytes()
        found, past, whole = read(path, raw)
        if found is not None:
            _check_fits(path, found, header)
        os.ftruncate(file, whole)
        journal = Journal(path, file, past)
        if found is None:
            journal._append({"event": "begin", "version": VERSION, **asdict(header)})  # noqa: SLF001 -- its own maker
            sync_folder(path.parent)
    except BaseException:
        os.close(file)
        raise
    return journal


def last_temperature_c(path: Path) -> float | None:
    """How warm the board was after the last mode of the journal at ``path``; None when nobody knows."""
    raw = b""
    with suppress(OSError):
        raw = path.read_bytes()
    _, past, _ = read(path, raw)
    return past.done[-1].end_c if past.done else None


def read(path: Path, raw: bytes) -> tuple[Header | None, Past, int]:
    """The header (None in an empty journal), what was done, and how many bytes of ``raw`` are whole lines."""
    past = Past()
    header: Header | None = None

    def take(number: int, event: Any) -> None:
        nonlocal header
        if number == 1:
            header = _header(event)
        else:
            _replay(event, past)

    whole = replay(path, raw, take, RIGHT_FILE)
    return header, past, whole


def _header(event: dict[str, Any]) -> Header:
    if event["event"] != "begin" or event["version"] != VERSION:
        raise ValueError(event)
    return Header(**{name.name: event[name.name] for name in fields(Header)})


def _check_fits(path: Path, found: Header, asked: Header) -> None:
    for one in fields(Header):
        there, wanted = getattr(found, one.name), getattr(asked, one.name)
        if there != wanted:
            right = f"{wanted!r} was asked for now: ask for the same, give another --out, or remove the journal"
            raise BadInput(f"{path}: {one.name}", repr(there), right)


def _replay(event: dict[str, Any], past: Past) -> None:
    if event["event"] == "plan":
        past.plan([_mode(knobs) for knobs in event["modes"]])
    elif event["event"] == "mode":
        past.finish(_settled(event))
    elif event["event"] == "failed":
        past.fail(Failure(_mode(event["mode"]), event["reason"], event["seconds"]))
    elif event["event"] == "stopped":
        past.stop()
    else:
        raise ValueError(event)


def _knobs(mode: PowerMode) -> list[float]:
    return [mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz]


def _mode(knobs: list[float]) -> PowerMode:
    cores, cpu_mhz, gpu_mhz, mem_mhz = knobs
    return PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)


def _settled_as_data(settled: Settled) -> dict[str, Any]:
    """A line's content; a standard error that is not known is null."""
    data = asdict(settled) | {"mode": _knobs(settled.mode)}
    for name in ("time_se_log", "power_se_log"):
        if math.isinf(data["verdict"][name]):
            data["verdict"][name] = None
    return data


def _settled(event: dict[str, Any]) -> Settled:
    verdict = dict(event["verdict"])
    for name in ("time_se_log", "power_se_log"):
        verdict[name] = math.inf if verdict[name] is None else verdict[name]
    given = {one.name: event[one.name] for one in fields(Settled)}
    return Settled(**{**given, "mode": _mode(event["mode"]), "verdict": Verdict(**verdict)})
