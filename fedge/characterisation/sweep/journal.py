"""The journal of a sweep: its plan, then a line per point that was finished, skipped or failed.

A point is finished when its line is on the disk, which its arrays are before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedge.characterisation.plans import plan_data
from fedge.characterisation.plans.plan import Plan
from fedge.characterisation.point import Point
from fedge.characterisation.result import Finished, Result
from fedge.characterisation.seen import Epoch, Seen
from fedge.characterisation.sweep.growing import check_fits, check_software
from fedge.characterisation.sweep.storing import arrays_of, tidy, whole, write_arrays
from fedge.errors import BadInput
from fedge.journal import JsonLines, open_locked, replay, sync_folder

VERSION = 1
FILE = "journal"
COMMAND = "fedge characterise"
RIGHT_FILE = f"the journal of `{COMMAND}`, or another --out"
MOST_TRIES = 2
"""A point that fails is tried once more, when the sweep is started again."""
KEPT = tuple(one.name for one in fields(Finished) if one.name != "arrays")
"""What a finished point's line holds: all of ``Seen`` but its arrays."""


@dataclass(slots=True)
class Past:
    """What a sweep is and what was done of it; points by their keys."""

    plan: Plan | None = None
    software: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each board: what the figures depend on, name -> version."""
    done: dict[str, Finished] = field(default_factory=dict)
    skipped: dict[str, tuple[Point, str]] = field(default_factory=dict)
    failed: dict[str, tuple[Point, str]] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    """How often a point failed."""

    def finish(self, finished: Finished) -> None:
        key = finished.point.key
        self.done[key] = finished
        self.skipped.pop(key, None)
        self.failed.pop(key, None)

    def skip(self, point: Point, reason: str) -> None:
        self.skipped[point.key] = (point, reason)
        self.failed.pop(point.key, None)

    def fail(self, point: Point, reason: str) -> None:
        self.failed[point.key] = (point, reason)
        self.tries[point.key] = self.tries.get(point.key, 0) + 1
        self.skipped.pop(point.key, None)

    def replace(self, plan: Plan) -> None:
        """Another plan: what failed may go well with it."""
        self.plan = plan
        self.tries.clear()

    def left(self, plan: Plan) -> tuple[Point, ...]:
        """What a start has to ask or measure: everything but what is finished or failed often enough."""
        return tuple(
            point for point in plan.points if point.key not in self.done and self.tries.get(point.key, 0) < MOST_TRIES
        )


class Journal(JsonLines):
    """An open journal; only one process writes it. ``past`` is what it holds."""

    def __init__(self, path: Path, file: int, past: Past) -> None:
        super().__init__(path, file)
        self.past = past

    def begin(self, plan: Plan, software: Mapping[str, Mapping[str, str]]) -> None:
        """Write what the sweep is, unless that is what the journal says already.

        Raises ``BadInput`` for a plan that differs in what is finished, or other software behind it; before the first
        point is finished any plan will do.
        """
        past = self.past
        given = {board: dict(versions) for board, versions in software.items()}
        if past.plan is not None and past.done:
            check_fits(self.path, past.plan, plan)
            check_software(self.path, past.software, given)
        together = {**past.software, **given} if past.done else given
        if past.plan is None or plan_data.as_data(past.plan) != plan_data.as_data(plan) or together != past.software:
            event = "begin" if past.plan is None else "plan"
            about = {"event": event, "version": VERSION, "software": together, "plan": plan_data.as_data(plan)}
            self._append(about)
            sync_folder(self.path.parent)
            past.replace(plan)
        past.plan, past.software = plan, together

    def forget_damaged(self) -> tuple[Point, ...]:
        """Take finished points whose arrays are gone or cut off for not measured; returns these points."""
        lost = tuple(done.point for key, done in self.past.done.items() if not whole(self.path.parent, key))
        for point in lost:
            del self.past.done[point.key]
        return lost

    def finish(self, seen: Seen) -> None:
        """Keep a point's arrays, then its line."""
        write_arrays(self.path.parent, seen)
        known = {name: getattr(seen, name) for name in KEPT}
        epochs = [asdict(epoch) for epoch in seen.epochs]
        line = _plain(known | {"epochs": epochs, "point": seen.point.as_data()})
        self._append({"event": "done", "key": seen.point.key, **line})
        self.past.finish(Finished(**known, arrays=arrays_of(self.path.parent, seen.point.key)))

    def skip(self, point: Point, reason: str) -> None:
        """The point cannot be measured here; nothing is written where the journal says so already."""
        if self.past.skipped.get(point.key) != (point, reason):
            self._append({"event": "skipped", "key": point.key, "reason": reason, "point": point.as_data()})
        self.past.skip(point, reason)

    def fail(self, point: Point, reason: str) -> None:
        """The point could not be measured after all."""
        self._append({"event": "failed", "key": point.key, "reason": reason, "point": point.as_data()})
        self.past.fail(point, reason)


def open_journal(folder: Path) -> Journal:
    """The journal in ``folder``, which is made if it is not there, for this process alone.

    Raises ``BadInput`` for a folder that holds something else or cannot be written, one that another process writes
    into, and a journal that is damaged elsewhere than at its end.
    """
    _check_folder(folder)
    path = folder / FILE
    file = open_locked(path, COMMAND)
    try:
        past, whole = read(path, path.read_bytes())
        os.ftruncate(file, whole)
        tidy(folder)
    except BaseException:
        os.close(file)
        raise
    return Journal(path, file, past)


def read(path: Path, raw: bytes) -> tuple[Past, int]:
    """What was done, and how many bytes of ``raw`` are whole lines."""
    past = Past()

    def take(number: int, event: Any) -> None:
        if number == 1 and event["event"] != "begin":
            raise ValueError(event)
        _replay(event, past, path.parent)

    return past, replay(path, raw, take, RIGHT_FILE)


def read_folder(folder: Path) -> Result:
    """See ``fedge.characterisation.result.read_result``."""
    path = folder / FILE
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(str(folder), "a folder without a journal", f"one that `{COMMAND}` wrote") from error
    past, _ = read(path, raw)
    if past.plan is None:
        raise BadInput(str(path), "an empty journal", f"one that `{COMMAND}` wrote")
    keys = [point.key for point in past.plan.points]
    return Result(
        plan=past.plan,
        folder=folder,
        points=tuple(past.done[key] for key in keys if key in past.done),
        skipped=tuple(past.skipped[key] for key in keys if key in past.skipped),
        failed=tuple(past.failed[key] for key in keys if key in past.failed),
    )


# Lines ----------------------------------------------------------------------------------------------------------------


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadInput("--out", f"{folder}, which is a file", "a new folder, or that of this sweep")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise BadInput("--out", str(folder), f"a folder that can be written ({error.strerror})") from error
    if others and FILE not in others:
        raise BadInput("--out", f"{folder}, which holds something else", "a new folder, or that of this sweep")


def _replay(event: Mapping[str, Any], past: Past, folder: Path) -> None:
    kind = event["event"]
    if kind in {"begin", "plan"}:
        if event["version"] != VERSION:
            raise ValueError(event)
        past.replace(plan_data.from_data(event["plan"]))
        past.software = dict(event["software"])
    elif kind == "done":
        past.finish(_finished(event, folder))
    elif kind == "skipped":
        past.skip(Point.from_data(event["point"]), event["reason"])
    elif kind == "failed":
        past.fail(Point.from_data(event["point"]), event["reason"])
    else:
        raise ValueError(event)


def _finished(event: Mapping[str, Any], folder: Path) -> Finished:
    """What a line says, its arrays in ``folder``."""
    point = Point.from_data(event["point"])
    made = {
        "point": point,
        "epochs": tuple(Epoch(**epoch) for epoch in event["epochs"]),
        "notes": tuple(event["notes"]),
    }
    return Finished(**{name: event[name] for name in KEPT} | made, arrays=arrays_of(folder, point.key))


def _plain(value: Any) -> Any:
    """Numpy's scalars as Python's own, which JSON knows."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value
