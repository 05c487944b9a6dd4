"""The files of a profiling campaign: its journal, its table in the standard form, and the record of the measurement.

The journal has one JSON line per event, synced to disk before the next mode; nothing else is needed to resume.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedge.atomic_files import sync_folder, write_text
from fedge.characterisation.mode_measurement import SettledMode
from fedge.devices.tables.mode_table import write_mode_table
from fedge.errors import BadInput, refuse_unwritable
from fedge.json_reader import to_json_value
from fedge.jsonlines import RETRY_ADVICE, JsonLines, replay_lines
from fedge.knowledge.evidence_files import PEAK
from fedge.knowledge.recall import RECORDED
from fedge.modes import stack_modes
from fedge.strict_json import validate_json
from fedge.types import Label, PowerMode, ProfileTable

VERSION = 1
EXPECTED_FILE = "the journal of `fedge profile`, or another --out"
RULE_DESCRIPTION = (
    "fedge.characterisation.stability: MSER truncation, clipped outliers, standard errors below the target, no drift"
)


@dataclass(frozen=True, slots=True)
class ProfilingHeader:
    """The identity of a campaign, which is resumed only if all of it is unchanged. ``modes`` 0 means all."""

    board: str
    workload: str
    batch_size: int
    kind: str
    emulated: bool
    label: Label
    source: str
    total_power: str
    explorer: str
    modes: int
    seed: int
    rule: Mapping[str, int | float]
    software: Mapping[str, str]
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class ModeFailure:
    """A mode that could not be measured, the reason, and the seconds spent on it."""

    mode: PowerMode
    reason: str
    seconds: float = 0.0


@dataclass(slots=True)
class ProfilingHistory:
    """The progress of a campaign; modes are in chronological order."""

    header: ProfilingHeader | None = None
    planned: list[PowerMode] = field(default_factory=list)
    done: list[SettledMode] = field(default_factory=list)
    failed: list[ModeFailure] = field(default_factory=list)
    failed_in_a_row: int = 0
    """Number of failures since the last success."""
    date: str | None = None
    """Day and time of the last measured mode (ISO 8601, UTC); None on an emulated board."""

    @property
    def remaining_modes(self) -> list[PowerMode]:
        """Return the planned modes that have not been tried."""
        tried = {one.mode for one in self.done} | {one.mode for one in self.failed}
        return [mode for mode in self.planned if mode not in tried]

    @property
    def cost(self) -> tuple[float, float]:
        """The seconds and joules of all modes; failed modes contribute their seconds only."""
        seconds = sum(one.seconds for one in self.done) + sum(one.seconds for one in self.failed)
        return round(seconds, 3), round(sum(one.joules for one in self.done), 3)

    def apply_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if self.header is None:
            if kind != "begin" or event["version"] != VERSION:
                raise ValueError(event)
            known = {one.name: event[one.name] for one in fields(ProfilingHeader) if one.name != "recorded"}
            self.header = validate_json(known | {"recorded": event.get("recorded", False)}, ProfilingHeader, "begin")
        elif kind == "plan":
            self.planned += [_mode_from_list(knobs) for knobs in event["modes"]]
        elif kind == "mode":
            self.done.append(_settled_from_dict(event))
            self.date = event.get("date")
            self.failed_in_a_row = 0
        elif kind == "failed":
            failure = {**event, "mode": _mode_from_list(event["mode"])}
            given = {one.name: failure[one.name] for one in fields(ModeFailure)}
            self.failed.append(validate_json(given, ModeFailure, "failed"))
            self.failed_in_a_row += 1
        elif kind == "stopped":  # the failures for which the campaign stopped are tried again
            del self.failed[len(self.failed) - self.failed_in_a_row :]
            self.failed_in_a_row = 0
        else:
            raise ValueError(event)


def profiling_journal_path(table: Path) -> Path:
    return table.with_name(f"{table.name}.journal")


def profiling_record_path(table: Path) -> Path:
    return table.with_name(f"{table.name}.json")


class ProfilingJournal(JsonLines[ProfilingHistory]):
    """An open journal that only one process writes; ``past`` is its content."""

    def begin(self, header: ProfilingHeader) -> None:
        self._write_event({"event": "begin", "version": VERSION, **asdict(header)})
        sync_folder(self.path.parent)

    def write_plan(self, modes: list[PowerMode]) -> None:
        self._write_event({"event": "plan", "modes": [list(astuple(mode)) for mode in modes]})

    def write_result(self, settled: SettledMode, date: str | None = None) -> None:
        """Record a mode, and when a real board was measured (ISO 8601, UTC)."""
        self._write_event({"event": "mode", **_settled_to_dict(settled), **({"date": date} if date else {})})

    def write_failure(self, failure: ModeFailure) -> None:
        self._write_event({"event": "failed", **asdict(failure), "mode": list(astuple(failure.mode))})

    def write_stop(self) -> None:
        self._write_event({"event": "stopped"})

    def read_from_disk(self) -> ProfilingHistory:
        """Read the file again: after an interrupt, it may contain a line that ``past`` lacks."""
        return parse_journal(self.path, self.path.read_bytes())[0]


def open_profiling_journal(path: Path, header: ProfilingHeader) -> ProfilingJournal:
    """Create a journal, or resume the one at ``path``.

    Raises:
        BadInput: If the journal belongs to another campaign (the message names the difference), is locked by another
            process, is damaged other than at its end, or cannot be written.
    """

    def replay(path: Path, raw: bytes) -> tuple[ProfilingHistory, int]:
        past, whole = parse_journal(path, raw)
        if past.header is not None:
            _check_fits(path, past.header, header)
        return past, whole

    journal = ProfilingJournal(path, "fedge profile", replay)
    if journal.past.header is None:
        with ExitStack() as stack:
            stack.enter_context(journal)  # closed if the line cannot be written
            journal.begin(header)
            stack.pop_all()
    return journal


def last_temperature_c(path: Path) -> float | None:
    """Return the board's temperature after the last mode of a journal in degrees Celsius, or None if it is unknown."""
    raw = b""
    with suppress(OSError):
        raw = path.read_bytes()
    past, _ = parse_journal(path, raw)
    return past.done[-1].end_c if past.done else None


def parse_journal(path: Path, raw: bytes) -> tuple[ProfilingHistory, int]:
    """Parse a journal whose content is ``raw``; ``path`` is named in messages.

    Returns:
        The history, whose header is None in an empty journal, and the number of bytes in complete lines.

    Raises:
        BadInput: A complete line is invalid.
    """
    past = ProfilingHistory()
    return past, replay_lines(path, raw, past.apply_event, EXPECTED_FILE)


def _check_fits(path: Path, before: ProfilingHeader, now: ProfilingHeader) -> None:
    for one in fields(ProfilingHeader):
        there, wanted = getattr(before, one.name), getattr(now, one.name)
        if there != wanted:
            right = f"{wanted!r} was asked for now: ask for the same, give another --out, or remove the journal"
            raise BadInput(f"{path}: {one.name}", repr(there), right)


def _mode_from_list(knobs: list[float]) -> PowerMode:
    names = [one.name for one in fields(PowerMode)]
    return validate_json(dict(zip(names, knobs, strict=True)), PowerMode, "mode")


def _settled_to_dict(settled: SettledMode) -> dict[str, Any]:
    """Return the content of a line; an unknown standard error becomes null."""
    verdict = to_json_value(asdict(settled.verdict))
    return asdict(settled) | {"mode": list(astuple(settled.mode)), "verdict": verdict}


def _settled_from_dict(event: Mapping[str, Any]) -> SettledMode:
    verdict: dict[str, Any] = {name: math.inf if value is None else value for name, value in event["verdict"].items()}
    given = {one.name: event[one.name] for one in fields(SettledMode) if one.name in event}
    given["mode"] = _mode_from_list(event["mode"])
    return validate_json(given | {"verdict": verdict}, SettledMode, "mode")


def save_campaign(path: Path, header: ProfilingHeader, past: ProfilingHistory, *, finished: bool) -> None:
    """Write table and record atomically, with the modes in the order of measurement; nothing if there are none.

    Raises:
        BadInput: If a path cannot be written.
    """
    if not past.done:
        return
    record = profiling_record_path(path)
    with refuse_unwritable(record, RETRY_ADVICE):
        write_text(record, json.dumps(campaign_to_dict(header, past, finished=finished), indent=1) + "\n")
    table = ProfileTable(
        device=header.board,
        workload=header.workload,
        batch_size=header.batch_size,
        modes=stack_modes(one.mode for one in past.done),
        step_s=np.array([one.verdict.step_s for one in past.done]),
        power_w=np.array([one.verdict.power_w for one in past.done]),
        sha256="",
        path=str(path),
        label=header.label,
    )
    write_mode_table(path, table)


def campaign_to_dict(header: ProfilingHeader, past: ProfilingHistory, *, finished: bool) -> dict[str, Any]:
    """Return the record: all facts about the measurements that the table's columns do not hold."""
    seconds, joules = past.cost
    peaks_mb = [one.peak_mb for one in past.done if one.peak_mb is not None]
    return {
        **{name: getattr(header, name) for name in ("label", "emulated", "board", "workload", "batch_size", "kind")},
        **({RECORDED: True} if header.recorded else {}),
        "source": header.source,
        "total_power": header.total_power,
        "method": {"rule": RULE_DESCRIPTION, **header.rule},
        "explorer": header.explorer,
        "seed": header.seed,
        "modes_wanted": header.modes or "all",
        "software": dict(header.software),
        **({"date": past.date} if past.date else {}),
        **({PEAK: max(peaks_mb)} if peaks_mb else {}),
        "finished": finished,
        "seconds": seconds,
        "joules": joules,
        "modes": [_mode_to_record(one) for one in past.done],
        "failed": [{**asdict(one.mode), "reason": one.reason, "seconds": one.seconds} for one in past.failed],
    }


def _mode_to_record(one: SettledMode) -> dict[str, Any]:
    verdict = one.verdict
    return {
        **asdict(one.mode),
        "settled": verdict.settled,
        "throttled": one.throttled,
        "note": one.note,
        "time_se_log": to_json_value(verdict.time_se_log),
        "power_se_log": to_json_value(verdict.power_se_log),
        "steps": verdict.steps,
        "chunks_dropped": verdict.dropped,
        "outliers": verdict.outliers,
        **{name: getattr(one, name) for name in ("attempts", "peak_c", "seconds", "joules")},
    }
