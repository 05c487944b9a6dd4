"""Storage of a sweep: its plan, the measurement of every point, the reasons for skipped and failed points, and tables.

A sweep's folder holds a journal (one JSON line per event) and, per point, Parquet files with the minibatch times and
the sensor trace.

Tables of modes are what predictors, calibration and emulated boards read. There is one per board, kind, workload and
loader setting, since a table's minibatch is measured from end to end, including its stall. They are in
``tables/<board>_<setting>/<device>/<kind>/<workload>.csv``, a path from which readers take the names. Next to each
table is its record, as with tables of ``fedge profile``.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from fedge.atomic_files import replace_file, sync_folder
from fedge.characterisation.plan_reader import ResolvedPlan
from fedge.characterisation.point_measurement import (
    EpochSummary,
    MinibatchTimes,
    PointMeasurement,
    SensorTrace,
    select_counted_epochs,
)
from fedge.characterisation.sweep_plan import (
    MODE_KNOBS,
    CharacterisationPlan,
    MeasurementSchedule,
    SweepPoint,
    describe_point,
    format_mode,
    get_knob_value,
    kind_of_board,
    plan_as_data,
    plan_from_data,
)
from fedge.devices.tables.mode_table import write_mode_table
from fedge.errors import BadInput
from fedge.groups import group_by
from fedge.jsonlines import RETRY_ADVICE, JsonLines, replay_lines
from fedge.modes import stack_modes
from fedge.types import PowerMode, ProfileTable, weakest_label


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep, finished or not; points are in the order of the plan, those without results each with the reason."""

    plan: CharacterisationPlan
    folder: Path
    points: tuple[PointMeasurement, ...]
    skipped: tuple[tuple[SweepPoint, str], ...]
    failed: tuple[tuple[SweepPoint, str], ...]


A = TypeVar("A", MinibatchTimes, SensorTrace)
MINIBATCHES, STRIPS = "minibatches", "strips"
ARRAY_RECORDS: dict[str, type[MinibatchTimes | SensorTrace]] = {MINIBATCHES: MinibatchTimes, STRIPS: SensorTrace}
UNFINISHED_FILES = ".*.part"
"""Pattern of the temporary files of ``fedge.atomic_files``."""


def write_arrays(folder: Path, seen: PointMeasurement) -> None:
    """Write a point's arrays to Parquet files; raises ``BadInput`` if one cannot be written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {
        "point": json.dumps(seen.point.as_data()),
        "label": seen.label,
        "power_label": seen.power_label or "",
        "source": seen.source,
    }
    for part, records in ((MINIBATCHES, seen.read_minibatches()), (STRIPS, seen.read_sensor_trace())):
        columns = {one.name: getattr(records, one.name) for one in fields(records)}
        table = pa.table({name: pa.array(np.ascontiguousarray(values)) for name, values in columns.items()})
        with replace_synced(_array_path(folder, part, seen.point.key)) as file:
            pq.write_table(table.replace_schema_metadata(about), file)


def has_complete_arrays(folder: Path, key: str) -> bool:
    """Return whether a point's files have all columns, by the metadata at their ends alone."""
    return all(_has_columns(_array_path(folder, part, key), record) for part, record in ARRAY_RECORDS.items())


@contextmanager
def replace_synced(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end, or raise ``BadInput`` and leave the previous file."""
    try:
        with replace_file(path) as part:
            yield part
        sync_folder(path.parent)
    except OSError as error:
        raise to_write_error(path, error) from error


def to_write_error(path: Path, error: OSError) -> BadInput:
    """Return the error for a file that cannot be written, with advice that depends on whether the disk is full."""
    right = RETRY_ADVICE if error.errno in {errno.ENOSPC, errno.EDQUOT} else "a folder that you may write to"
    return BadInput(str(path), f"a file that cannot be written ({error.strerror or error})", right)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of an interrupted writer; no other process may be writing."""
    for place in (folder, folder / MINIBATCHES, folder / STRIPS):
        for path in place.glob(UNFINISHED_FILES):
            path.unlink(missing_ok=True)


def _array_path(folder: Path, part: str, key: str) -> Path:
    return folder / part / f"{key}.parquet"


def _has_columns(path: Path, record: type[MinibatchTimes | SensorTrace]) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            found = set(pq.read_metadata(file).schema.names)
    except (OSError, pa.ArrowException):
        return False
    return found >= {one.name for one in fields(record)}


def _read_parquet(path: Path, record: type[A]) -> A:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [one.name for one in fields(record)]
    again = "the sweep's `fedge characterise` measures this point again"
    right = f"remove it, and {again}"
    try:
        with path.open("rb") as file:
            if pq.read_metadata(file).num_rows > MAX_ROWS:
                raise BadInput(str(path), "more rows than a point has", right)
            table = pq.read_table(file, columns=names)
        table.validate(full=True)
        return record(**{name: table.column(name).to_numpy() for name in names})
    except FileNotFoundError as error:
        raise BadInput(str(path), "no such file", again) from error
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(str(path), f"a file that cannot be read ({reason})", right) from error


MAX_ROWS = 10**8
"""Largest number of minibatches or samples of a point: a day at a kilohertz."""
VERSION = 1
JOURNAL_FILE = "journal"
COMMAND = "fedge characterise"
EXPECTED_FILE = f"the journal of `{COMMAND}`, or another --folder"
MAX_ATTEMPTS = 2
"""A failed point is retried once, when the sweep is started again."""
SAVED_FIELDS = ("point", "epochs", "label", "power_label", "source", "seconds", "notes", "parameters")
"""Fields of a finished point's journal line: all of ``PointMeasurement`` except its arrays."""


@dataclass(slots=True)
class SweepProgress:
    """The state of a sweep as replayed from its journal; points are looked up by their keys."""

    folder: Path
    plan: CharacterisationPlan | None = None
    software: dict[str, dict[str, str]] = field(default_factory=dict)
    """Versions that the measurements depend on: board -> name -> version."""
    done: dict[str, PointMeasurement] = field(default_factory=dict)
    skipped: dict[str, tuple[SweepPoint, str]] = field(default_factory=dict)
    failed: dict[str, tuple[SweepPoint, str]] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    """Number of failures per point."""

    def apply_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if self.plan is None and kind != "begin":
            raise ValueError(event)
        if kind in {"begin", "plan"} and event["version"] == VERSION:
            self.plan, self.software = plan_from_data(event["plan"]), dict(event["software"])
            self.attempts.clear()  # failed points may succeed with another plan
            return
        point = SweepPoint.from_data(event["point"])
        key = point.key
        if kind == "done":
            self.done[key] = _finished_from_event(event, point, self.folder)
        elif kind == "skipped":
            self.skipped[key] = (point, event["reason"])
        elif kind == "failed":
            self.failed[key] = (point, event["reason"])
            self.attempts[key] = self.attempts.get(key, 0) + 1
        else:
            raise ValueError(event)
        if kind != "skipped":
            self.skipped.pop(key, None)
        if kind != "failed":
            self.failed.pop(key, None)

    def remaining_points(self, plan: CharacterisationPlan) -> tuple[SweepPoint, ...]:
        """Return the points that are neither finished nor failed ``MAX_ATTEMPTS`` times, in the order of the plan."""
        return tuple(
            point
            for point in plan.points
            if point.key not in self.done and self.attempts.get(point.key, 0) < MAX_ATTEMPTS
        )


class SweepJournal(JsonLines[SweepProgress]):
    """An open journal, written by one process only."""

    def begin(self, plan: CharacterisationPlan, software: Mapping[str, Mapping[str, str]]) -> None:
        """Write plan and software versions (board -> name -> version), unless the journal already holds the same.

        Raises:
            BadInput: Points are finished already, and the plan does more than extend theirs, or the software differs.
        """
        past = self.past
        given = {board: dict(versions) for board, versions in software.items()}
        if past.plan is not None and past.done:
            check_plan_extends(self.path, past.plan, plan)
            _check_same_software(self.path, past.software, given)
        together = {**past.software, **given} if past.done else given
        if past.plan is None or plan_as_data(past.plan) != plan_as_data(plan) or together != past.software:
            event = "begin" if past.plan is None else "plan"
            about = {"event": event, "version": VERSION, "software": together, "plan": plan_as_data(plan)}
            self._append(about)
            sync_folder(self.path.parent)
            past.attempts.clear()
        past.plan, past.software = plan, together

    def forget_damaged(self) -> tuple[SweepPoint, ...]:
        """Treat finished points whose arrays are missing or truncated as not measured, and return them."""
        lost = tuple(
            done.point for key, done in self.past.done.items() if not has_complete_arrays(self.path.parent, key)
        )
        for point in lost:
            del self.past.done[point.key]
        return lost

    def finish(self, seen: PointMeasurement) -> None:
        """Write a point's arrays, then its journal line, so that a line always has its arrays."""
        write_arrays(self.path.parent, seen)
        known = {name: getattr(seen, name) for name in SAVED_FIELDS}
        known |= {"point": seen.point.as_data(), "epochs": [asdict(epoch) for epoch in seen.epochs]}
        # NumPy's scalars become Python's own.
        plain = json.loads(json.dumps(known, default=lambda value: value.item()))
        self._write_point("done", seen.point, plain)

    def skip(self, point: SweepPoint, reason: str) -> None:
        """Record that the board cannot measure the point; an identical entry is not repeated."""
        if self.past.skipped.get(point.key) != (point, reason):
            self._write_point("skipped", point, {"reason": reason})

    def fail(self, point: SweepPoint, reason: str) -> None:
        self._write_point("failed", point, {"reason": reason})

    def _write_point(self, kind: str, point: SweepPoint, values: Mapping[str, Any]) -> None:
        self._write_event({"event": kind, "key": point.key, **values, "point": point.as_data()})


def open_journal(folder: Path) -> SweepJournal:
    """Open the journal in ``folder`` for this process alone, creating folder and journal if they do not exist.

    A truncated last line, and temporary files of an interrupted writer, are removed. Closing releases the lock.

    Raises:
        BadInput: The folder holds something else, cannot be written, or is locked by another process; or the journal is
            damaged elsewhere than at its end.
    """

    def replay(path: Path, raw: bytes) -> tuple[SweepProgress, int]:
        remove_unfinished(folder)
        return parse_journal(path, raw)

    _check_folder(folder)
    return SweepJournal(folder / JOURNAL_FILE, COMMAND, replay)


def parse_journal(path: Path, raw: bytes) -> tuple[SweepProgress, int]:
    """Replay a journal whose content is ``raw``; the points' arrays are in the folder of ``path``.

    Returns:
        The state of the sweep, and how many bytes of ``raw`` are complete lines.

    Raises:
        BadInput: A line other than the last one is damaged.
    """
    past = SweepProgress(path.parent)
    return past, replay_lines(path, raw, past.apply_event, EXPECTED_FILE)


def read_result(folder: Path) -> SweepResult:
    """Read the sweep in ``folder``: its plan and all points that were measured, skipped or failed so far.

    Raises:
        BadInput: The folder holds no sweep, or its journal is damaged.
    """
    path = folder / JOURNAL_FILE
    try:
        raw = path.read_bytes()
    except OSError as error:
        got = "a folder without a journal" if folder.is_dir() else "no such folder"
        raise BadInput(str(folder), got, f"one that `{COMMAND}` wrote") from error
    past, _ = parse_journal(path, raw)
    if past.plan is None:
        raise BadInput(str(path), "an empty journal", f"one that `{COMMAND}` wrote")
    keys = [point.key for point in past.plan.points]
    return SweepResult(
        plan=past.plan,
        folder=folder,
        points=tuple(past.done[key] for key in keys if key in past.done),
        skipped=tuple(past.skipped[key] for key in keys if key in past.skipped),
        failed=tuple(past.failed[key] for key in keys if key in past.failed),
    )


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadInput("--folder", f"{folder}, which is a file", "a new folder, or that of this sweep")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise BadInput("--folder", str(folder), f"a folder that can be written ({error.strerror})") from error
    if others and JOURNAL_FILE not in others:
        raise BadInput("--folder", f"{folder}, which holds something else", "a new folder, or that of this sweep")


def _finished_from_event(event: Mapping[str, Any], point: SweepPoint, folder: Path) -> PointMeasurement:
    made = {
        "point": point,
        "epochs": tuple(EpochSummary(**epoch) for epoch in event["epochs"]),
        "notes": tuple(event["notes"]),
    }

    return PointMeasurement(
        **{name: event[name] for name in SAVED_FIELDS} | made,
        read_minibatches=lambda: _read_parquet(_array_path(folder, MINIBATCHES, point.key), MinibatchTimes),
        read_sensor_trace=lambda: _read_parquet(_array_path(folder, STRIPS, point.key), SensorTrace),
    )


def check_plan_extends(path: Path, before: CharacterisationPlan, now: CharacterisationPlan) -> None:
    """Raise ``BadInput`` with the first difference by which a plan does more than add to that of a journal."""
    for where, got, wanted in _list_differences(before, now):
        right = f"{wanted} was asked for now: ask for the same, give another --folder, or remove the folder"
        raise BadInput(f"{path}: {where}", got, right)


def _list_differences(before: CharacterisationPlan, now: CharacterisationPlan) -> Iterator[tuple[str, str, str]]:
    """Yield each difference other than an addition: field, value in the journal, value now."""
    old, new = plan_as_data(before), plan_as_data(now)
    for name in ("name", "seed", "course", "workloads", "storages"):
        yield from _compare_values(name, old[name], new[name])
    keys = {point.key for point in now.points}
    for point in before.points:
        if point.key not in keys:
            yield "points", f"a point that the plan no longer has ({describe_point(point)})", "a plan without it"


def _compare_values(where: str, before: Any, now: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(before, dict):
        for name, value in before.items():
            if name in now:
                yield from _compare_values(f"{where}.{name}", value, now[name])
            else:
                yield f"{where}.{name}", "one that the plan no longer has", "none of that name"
    elif before != now and not (where == "course.repeats" and now > before):
        yield where, repr(before), repr(now)


def _check_same_software(path: Path, before: Mapping[str, dict[str, str]], now: Mapping[str, dict[str, str]]) -> None:
    """Check that each board's versions are those of the points already measured: board -> name -> version."""
    for board, versions in now.items():
        known = before.get(board, versions)
        for name in sorted({*known, *versions}):
            got, wanted = known.get(name, "nothing"), versions.get(name, "nothing")
            if got != wanted:
                right = f"{wanted} is here now: go on with what was there, or give another --folder"
                raise BadInput(f"{path}: {board}: {name}", got, right)


TABLES_FOLDER = "tables"
MEAN_RULE = (
    "time: of every epoch that counts the mean minibatch from end to end, without the epoch's first, which starts the "
    "loader; the median of the epochs. power: the joules of these epochs over their seconds."
)
LOADER_KNOBS = ("workers", "prefetch", "pinned", "storage", "cache", "runtime", "dvfs")
NO_MODE = "no power mode: the board's clocks were left as they were"
NO_POWER = "nobody metered the power"


@dataclass(frozen=True, slots=True)
class SweepTableRow:
    """A row of a table: seconds per minibatch from end to end, and mean power of the module over the counted epochs."""

    finished: PointMeasurement
    mode: PowerMode
    step_s: float
    power_w: float
    epochs: int

    @property
    def point(self) -> SweepPoint:
        return self.finished.point


def write_tables(result: SweepResult) -> list[Path]:
    """Write the tables of a sweep and return their paths.

    Points without a mode or without power are left out; the record next to each table lists them, and
    ``split_points`` lists all of them.

    Raises:
        BadInput: The folder cannot be written.
    """
    from fedge.characterisation.profiling_journal import profiling_record_path

    rows, omitted = split_points(result)
    groups = group_by(rows, lambda row: _table_path(result.folder, row.point))
    for path, own in groups.items():
        with replace_synced(profiling_record_path(path)) as file:
            file.write_text(json.dumps(_build_record(path, own, omitted, result.folder), indent=1) + "\n", "utf-8")
        write_mode_table(path, *_build_tables(path, own))
    return list(groups)


def split_points(result: SweepResult) -> tuple[list[SweepTableRow], tuple[tuple[SweepPoint, str], ...]]:
    """Return the rows of the points that have one, and the other points with the reason."""
    found = [(one.point, to_table_row(one, result.plan.course)) for one in result.points]
    omitted = ((point, why) for point, why in found if isinstance(why, str))
    return [row for _, row in found if not isinstance(row, str)], (*omitted, *result.skipped, *result.failed)


def to_table_row(finished: PointMeasurement, course: MeasurementSchedule) -> SweepTableRow | str:
    """Return a point's row, or the reason why it has none."""
    mode, epochs = finished.point.mode, select_counted_epochs(finished.epochs, course)
    if mode is None:
        return NO_MODE
    metered = [one for one in epochs if one.energy_j is not None]
    if finished.power_label is None or not metered:
        return NO_POWER
    joules, seconds = sum(one.energy_j or 0.0 for one in metered), sum(one.e2e_s for one in metered)
    step_s = mean_step_s(finished.read_minibatches(), epochs)
    return SweepTableRow(finished, mode, step_s=step_s, power_w=joules / seconds, epochs=len(epochs))


def mean_step_s(minibatches: MinibatchTimes, epochs: Sequence[EpochSummary]) -> float:
    """Return the seconds per minibatch from end to end, as ``MEAN_RULE`` defines.

    Within an epoch this is a mean, not a median: workers deliver batches in bursts, so that most do not stall.
    """
    means = []
    for epoch in epochs:
        step_s = minibatches.step_s[minibatches.epoch == epoch.epoch]
        means.append(float(step_s[1:].mean() if len(step_s) > 1 else step_s.mean()))
    return float(np.median(means))


def loader_folder_name(point: SweepPoint) -> str:
    """Return the loader setting as a name that is valid for a folder."""
    parts = [f"workers-{point.workers}"]
    if point.workers:
        parts.append(f"prefetch-{point.prefetch}")
    parts += [point.storage, point.cache]
    parts += [word for word, given in (("pinned", point.pinned), ("dvfs", point.dvfs)) if given]
    if point.runtime != "bare":
        parts.append(point.runtime)
    return re.sub(r"[^A-Za-z0-9._+-]", "-", "_".join(parts))


def _table_path(folder: Path, point: SweepPoint) -> Path:
    name, setting = re.sub(r"[^A-Za-z0-9._+-]", "-", point.workload), f"{point.board}_{loader_folder_name(point)}"
    return folder / TABLES_FOLDER / setting / kind_of_board(point.board) / point.kind / f"{name}.csv"


def _build_tables(path: Path, rows: Sequence[SweepTableRow]) -> list[ProfileTable]:
    """Return one table per batch size, ascending; all of them make one file."""
    made = []
    for size in sorted({row.point.batch_size for row in rows}):
        own = sorted((row for row in rows if row.point.batch_size == size), key=lambda row: row.mode)
        point, labels = own[0].point, [(row.finished.label, row.finished.power_label) for row in own]
        made.append(
            ProfileTable(
                kind_of_board(point.board),
                workload=point.workload,
                batch_size=size,
                modes=stack_modes(row.mode for row in own),
                step_s=np.array([row.step_s for row in own]),
                power_w=np.array([row.power_w for row in own]),
                sha256="",
                path=str(path),
                label=weakest_label(label for pair in labels for label in pair if label),
            )
        )
    return made


def _build_record(
    path: Path, rows: Sequence[SweepTableRow], omitted: Sequence[tuple[SweepPoint, str]], folder: Path
) -> dict[str, Any]:
    point = rows[0].point
    return {
        "label": weakest_label(row.finished.label for row in rows),
        "board": kind_of_board(point.board),
        "its_name": point.board,
        "workload": point.workload,
        "batch_sizes": sorted({row.point.batch_size for row in rows}),
        "kind": point.kind,
        "source": rows[0].finished.source,
        "power_label": rows[0].finished.power_label,
        "method": {"rule": MEAN_RULE},
        "loader": {name: getattr(point, name) for name in LOADER_KNOBS},
        "finished": True,
        "modes": [
            asdict(row.mode)
            | {"batch_size": row.point.batch_size, "point": row.point.key, "repeat": row.point.repeat}
            | {name: getattr(row, name) for name in ("epochs", "step_s", "power_w")}
            for row in sorted(rows, key=lambda row: (row.point.batch_size, row.mode))
        ],
        "left_out": [
            {"point": other.key, "reason": why} for other, why in omitted if _table_path(folder, other) == path
        ],
    }  # fmt: skip


PLAN_FILE, EPOCHS_FILE, FINDINGS_FILE = "plan.yaml", "epochs.csv", "findings.json"


def write_plan(folder: Path, resolved: ResolvedPlan) -> Path:
    """Write ``plan.yaml`` for people to read; a resumed sweep relies on its journal."""
    plan = resolved.plan
    modes = {board: {text: _mode_text(mode) for text, mode in own.items()} for board, own in resolved.modes.items()}
    points = [{"key": point.key, **point.as_data(), "mode": _mode_text(point.mode)} for point in plan.points]
    data = {**plan_as_data(plan), "modes": modes, "points": points}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    header = f"# The plan {plan.name!r} as resolved, with the points in the order of measurement.\n"
    return _write_text(folder / PLAN_FILE, header + text)


def write_epochs(result: SweepResult) -> Path:
    """Write ``epochs.csv`` with one row per epoch; columns without a sensor are empty."""
    text, knobs = io.StringIO(), [one.name for one in fields(SweepPoint) if one.name != "mode"]
    own = [one.name for one in fields(EpochSummary)]
    columns = ["key", *knobs, *MODE_KNOBS, *own, "discarded", "label", "power_label"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for finished in result.points:
        about = {name: get_knob_value(finished.point, name) for name in (*knobs, *MODE_KNOBS)}
        about |= {"key": finished.point.key, "label": finished.label, "power_label": finished.power_label}
        for epoch in finished.epochs:
            writer.writerow({**about, **asdict(epoch), "discarded": epoch.epoch < result.plan.course.discard})
    return _write_text(result.folder / EPOCHS_FILE, text.getvalue())


def _write_text(path: Path, text: str) -> Path:
    with replace_synced(path) as file:
        file.write_text(text, encoding="utf-8", newline="")
    return path


def _mode_text(mode: PowerMode | None) -> str:
    return "as found" if mode is None else format_mode(mode)
