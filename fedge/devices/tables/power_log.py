"""Import of logs of tegrastats and jtop, which hold power only, with a file that says which mode ran when."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

import numpy as np

from fedge.devices.sensing import rails_in_formula
from fedge.devices.sensing.tegrastats_sensor import parse_rails_mw
from fedge.devices.tables.csv_sheet import CsvSheet, SheetRow, float_or_nan, parse_number, parse_sheet
from fedge.devices.tables.mode_table import ImportedRow, ImportedRows, ImportKey, count_named
from fedge.errors import BadInput
from fedge.groups import group_by
from fedge.types import Floats

# Times: seconds since 1970, or dates with a time of day; dates without a zone count as UTC ----------------------------


EARLIEST_S = 1e8
"""Numbers from here on (1973) are seconds since 1970; smaller ones are seconds since the first line of a log. A
default: no log lasts three years, and none was written before 1973.
"""
TIME_FORMATS = "seconds since 1970, YYYY-MM-DD HH:MM:SS or MM-DD-YYYY HH:MM:SS"
_DAY = r"(?:(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)|(?P<m2>\d\d)-(?P<d2>\d\d)-(?P<y2>\d{4}))"
_DATE = re.compile(rf"{_DAY}[ T](?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d{{1,9}})?(?P<zone>Z|[+-]\d\d:?\d\d)?", re.ASCII)
_NUMBER = re.compile(r"\d{9,10}(?:\.\d+)?(?![\d.])", re.ASCII)


def parse_time_s(text: str) -> float | None:
    """Parse a date or a number.

    Returns:
        Seconds since 1970 for a date (UTC if it has no zone), a number as it is, or None for neither.
    """
    stripped = text.strip()
    if (found := _DATE.fullmatch(stripped)) is not None:
        return _date_to_s(found)
    try:
        value = float(stripped)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def parse_leading_time(line: str) -> tuple[float, bool] | None:
    """Parse the time at the start of a log line.

    Returns:
        The time, and whether it has whole seconds only; None if the line does not start with a time.
    """
    start = line.lstrip(" \t[")
    if (found := _DATE.match(start)) is not None:
        at_s = _date_to_s(found)
        return None if at_s is None else (at_s, found["part"] is None)
    if (plain := _NUMBER.match(start)) is not None:
        return float(plain[0]), "." not in plain[0]
    return None


def _date_to_s(found: re.Match[str]) -> float | None:
    year, month, day = (found[name] or found[f"{name}2"] for name in "ymd")
    zone = (found["zone"] or "+00:00").replace("Z", "+00:00")
    try:
        at = datetime.fromisoformat(f"{year}-{month}-{day}T{found['clock']}{zone}")
    except ValueError:
        return None
    return at.timestamp() + float(f"0{found['part'] or ''}")


def format_time(at_s: float) -> str:
    """Format a time for a message: as a date, or in seconds if it is small."""
    if not EARLIEST_S <= at_s < 1e11:
        return f"{at_s:g} s"
    return datetime.fromtimestamp(at_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")


# Steps file: when steps ran in which power mode -----------------------------------------------------------------------


STEPS_COLUMNS = ("start_s", "end_s", "cores", "cpu_khz", "gpu_hz", "mem_hz")
"""Required columns; ``batch_size`` and ``steps`` (steps in the row, 1 by default) are optional."""


@dataclass(frozen=True, slots=True)
class StepRun:
    """Consecutive steps in one mode."""

    start_s: float
    end_s: float
    steps: int
    knobs: ImportKey

    @property
    def step_ms(self) -> float:
        """Time per step, in milliseconds."""
        return 1e3 * (self.end_s - self.start_s) / self.steps


@dataclass(frozen=True, slots=True)
class StepsFile:
    """A steps file: its path and its rows, at least one."""

    where: str
    runs: tuple[StepRun, ...]


def read_steps_file(where: str, text: str, batch_size: int | None = None) -> StepsFile:
    """Parse a steps file.

    ``batch_size`` is that of a file without this column, and selects the rows of a file with it.

    Raises:
        BadInput: A cell is invalid (names line and column), or no row has the batch size.
    """
    sheet = parse_sheet(where, text, STEPS_COLUMNS)
    sized = "batch_size" in sheet.columns
    if not sized and batch_size is None:
        raise BadInput(where, "no column batch_size", "the column, or --batch-size")
    counted = "steps" in sheet.columns
    runs = [_parse_run(f"{where}: line {row.line}", row, None if sized else batch_size, counted) for row in sheet.rows]
    if not runs:
        raise BadInput(where, "no rows", "at least one row of minibatches")
    return StepsFile(where, _select_batch_size(where, runs, batch_size))


def _select_batch_size(where: str, runs: Sequence[StepRun], batch_size: int | None) -> tuple[StepRun, ...]:
    if batch_size is None:
        return tuple(runs)
    known = sorted({run.knobs.batch_size for run in runs})
    if batch_size not in known:
        raise BadInput(f"{where}: batch size", str(batch_size), f"known: {', '.join(map(str, known))}")
    return tuple(run for run in runs if run.knobs.batch_size == batch_size)


def _parse_run(where: str, row: SheetRow, batch_size: int | None, counted: bool) -> StepRun:
    start_s, end_s = (_parse_time_s(where, name, row.cells[name]) for name in ("start_s", "end_s"))
    if not end_s > start_s:
        raise BadInput(f"{where}, end_s", row.cells["end_s"], f"a time after start_s, {row.cells['start_s']}")
    cpu_khz, gpu_hz, mem_hz = (parse_number(where, name, row.cells[name]) for name in ("cpu_khz", "gpu_hz", "mem_hz"))
    cores = int(parse_number(where, "cores", row.cells["cores"], whole=True))
    size = batch_size or int(parse_number(where, "batch_size", row.cells["batch_size"], whole=True))
    steps = int(parse_number(where, "steps", row.cells["steps"], whole=True)) if counted else 1
    knobs = ImportKey(cores, cpu_khz=cpu_khz, gpu_hz=gpu_hz, mem_hz=mem_hz, batch_size=size)
    return StepRun(start_s, end_s, steps, knobs)


def _parse_time_s(where: str, column: str, text: str) -> float:
    at_s = parse_time_s(text)
    if at_s is None:
        raise BadInput(
            f"{where}, {column}", repr(text[:40]), f"a time: {TIME_FORMATS}, or seconds since the log's first line"
        )
    return at_s


# Total power over time, with step time and power of every mode that ran meanwhile -------------------------------------


MIN_SAMPLES = 3
"""Power samples below which a mode gets a note: the mean of one or two samples hides an outlier."""


@dataclass(frozen=True, slots=True, eq=False)
class PowerLog:
    """A power log in the order of time.

    Attributes:
        at_s: Times on the log's clock, shape (n,).
        power_w: The module's power in watts, shape (n,).
    """

    at_s: Floats
    power_w: Floats
    notes: tuple[str, ...]


def build_power_log(
    where: str, samples: Sequence[tuple[float, Mapping[str, float]]], rails: Sequence[str], notes: Sequence[str]
) -> PowerLog:
    """Build a log of total power; samples that lack a rail are left out with a note.

    ``samples`` are times in seconds, and milliwatts by rail.

    Raises:
        BadInput: No sample has all the rails.
    """
    whole = [(at_s, sum(mw[rail] for rail in rails) / 1e3) for at_s, mw in samples if all(rail in mw for rail in rails)]
    if not whole:
        found = sorted({rail for _, mw in samples for rail in mw})
        right = f"the board's rails, {' + '.join(rails)} (found: {', '.join(found) or 'none'}); is it this board's log?"
        raise BadInput(where, "no sample of the module's power", right)
    missing = len(samples) - len(whole)
    some = (f"{missing} of {len(samples)} samples lack a rail of {' + '.join(rails)}: left out",) if missing else ()
    ordered = np.array(sorted(whole), dtype=np.float64)
    return PowerLog(ordered[:, 0], ordered[:, 1], (*notes, *some))


def import_runs(where: str, log: PowerLog, steps: StepsFile) -> ImportedRows:
    """Build one row per mode and batch size: the median step time of its runs, and the mean power during them.

    If the log has dates, times of runs below ``EARLIEST_S`` count from its first sample. A mode without a power sample
    is left out with a note.

    Raises:
        BadInput: No mode has a power sample.
    """
    runs = steps.runs
    shifted = min(run.start_s for run in runs) < EARLIEST_S <= log.at_s[0]
    offset_s = float(log.at_s[0]) if shifted else 0.0
    notes = [*log.notes, *(["the steps' times were counted from the log's first sample"] if shifted else [])]
    rows, silent, shaky = [], [], []
    for knobs, its_runs in group_by(runs, lambda run: run.knobs).items():
        watts = _select_samples_w(log, its_runs, offset_s)
        if not len(watts):
            silent.append(_format_key(knobs))
            continue
        if len(watts) < MIN_SAMPLES:
            shaky.append(_format_key(knobs))
        rows.append(ImportedRow(knobs, median(run.step_ms for run in its_runs), float(watts.mean())))
    if not rows:
        raise _build_overlap_error(where, log, runs, offset_s)
    notes += [f"{count_named(silent, 'mode')} without a power sample: left out"] if silent else []
    notes += [f"{count_named(shaky, 'mode')} with fewer than {MIN_SAMPLES} power samples: run longer"] if shaky else []
    return ImportedRows(f"{where} with {steps.where}", rows, notes)


def _select_samples_w(log: PowerLog, runs: Sequence[StepRun], offset_s: float) -> Floats:
    """Return the power samples in watts during any of the runs, each once."""
    during = np.zeros(len(log.at_s), dtype=bool)
    for run in runs:
        first, after = np.searchsorted(log.at_s, (run.start_s + offset_s, run.end_s + offset_s), side="left")
        during[first:after] = True
    watts: Floats = log.power_w[during]
    return watts


def _format_key(knobs: ImportKey) -> str:
    return f"{knobs.cores}c/{knobs.cpu_khz / 1e3:g}/{knobs.gpu_hz / 1e6:g}/{knobs.mem_hz / 1e6:g} MHz"


def _build_overlap_error(where: str, log: PowerLog, runs: Sequence[StepRun], offset_s: float) -> BadInput:
    first_s, last_s = min(run.start_s for run in runs) + offset_s, max(run.end_s for run in runs) + offset_s
    got = f"power samples from {format_time(float(log.at_s[0]))} to {format_time(float(log.at_s[-1]))}"
    right = (
        f"samples during the steps, {format_time(first_s)} to {format_time(last_s)}; both files need one clock "
        f"and time zone"
    )
    return BadInput(where, got, right)


# tegrastats logs of JetPack 4, 5 and 6: power per rail, one line per sample -------------------------------------------


INPUT_RAILS = ("VDD_IN", "POM_5V_IN")
"""Rails that measure a module's whole input, used as total power for boards that are not in the catalogue."""
_TIMESTAMP_COMMAND = 'tegrastats --interval 100 | while read -r l; do echo "$(date +%s.%N) $l"; done'


def import_tegrastats_log(where: str, text: str, steps: StepsFile, total_power: str | None = None) -> ImportedRows:
    """Import the modes of a steps file with the power that tegrastats logged meanwhile.

    Every line must start with a time: JetPack 5 and 6 print one, JetPack 4 does not. ``total_power`` is a formula such
    as ``"VDD_GPU_SOC + VDD_CPU_CV"``; None takes the input rail.

    Raises:
        BadInput: Lines have no time, or the log has no rails or those of another board.
    """
    lines = [(line, rails) for line in text.splitlines() if (rails := parse_rails_mw(line))]
    if not lines:
        right = "lines with power per rail; newer tegrastats prints it to root only (sudo)"
        raise BadInput(where, "no power in any line", right)
    samples = list(zip(_parse_times_s(where, [line for line, _ in lines]), [rails for _, rails in lines], strict=True))
    notes = []
    if total_power is None:
        total_power = _find_input_rail(where, lines[0][1])
        notes.append(f"the board is not in the catalogue: {total_power} is taken for the module's total")
    notes.append(f"power is {total_power}, from {len(samples)} samples")
    return import_runs(where, build_power_log(where, samples, rails_in_formula(total_power), notes), steps)


def _parse_times_s(where: str, lines: Sequence[str]) -> list[float]:
    """Return the time of each line; lines with whole seconds are spread evenly over their second."""
    stamps = [parse_leading_time(line) for line in lines]
    times = [stamp for stamp in stamps if stamp is not None]
    if len(times) < len(lines):
        right = f"a time before every line, e.g. {_TIMESTAMP_COMMAND} > FILE"
        raise BadInput(where, f"{len(lines) - len(times)} of {len(lines)} lines without a time", right)
    shared = Counter(at_s for at_s, whole in times if whole)
    before: Counter[float] = Counter()
    spread = []
    for at_s, whole in times:
        spread.append(at_s + (before[at_s] + 0.5) / shared[at_s] if whole else at_s)
        before[at_s] += 1
    return spread


def _find_input_rail(where: str, rails: Mapping[str, float]) -> str:
    for rail in INPUT_RAILS:
        if rail in rails:
            return rail
    right = "--out BOARD/train/WORKLOAD.csv with a board of the catalogue, which says how its rails make the total"
    raise BadInput(where, f"rails {', '.join(rails)}, none of which is the module's input", right)


# CSV logs of jetson-stats (one row per sample): the rails if they are logged, else jtop's own total -------------------


TOTALS = ("power tot", "power cur")
"""Columns of jtop's total, from version 4 on and before. It is the input rail if the board has one, else the sum of all
rails.
"""


def import_jtop_log(where: str, text: str, steps: StepsFile, total_power: str | None = None) -> ImportedRows:
    """Import the modes of a steps file with the power that jtop logged meanwhile.

    The columns are those of ``jtop().stats``: ``time``, and ``Power <RAIL>`` and ``Power TOT`` from version 4 on or
    ``power cur`` before, all in milliwatts. If ``total_power`` is None or one of its rails is not logged, jtop's own
    total is used, with a note.

    Raises:
        BadInput: The log has no power or no times.
    """
    sheet = parse_sheet(where, text, ("time",))
    columns = _choose_power_columns(sheet, total_power)
    samples, unread = [], []
    for row in sheet.rows:
        at_s = parse_time_s(row.cells["time"])
        milliwatts = {name: mw for name in columns if math.isfinite(mw := float_or_nan(row.cells[name]))}
        if at_s is None or len(milliwatts) < len(columns):
            unread.append(f"line {row.line}")
            continue
        samples.append((at_s, milliwatts))
    if not samples:
        raise BadInput(where, "no row with a time and a power", f"a time ({TIME_FORMATS}) and milliwatts in every row")
    notes = [f"{count_named(unread, 'row')} without a time or a power: left out"] if unread else []
    notes.append(_describe_total(columns, total_power, len(samples)))
    return import_runs(where, build_power_log(where, samples, columns, notes), steps)


def _choose_power_columns(sheet: CsvSheet, total_power: str | None) -> tuple[str, ...]:
    """Return the columns whose sum is the module's power; raise ``BadInput`` if there are none."""
    rails = tuple(f"power {rail.casefold()}" for rail in rails_in_formula(total_power)) if total_power else ()
    if rails and all(rail in sheet.columns for rail in rails):
        return rails
    for total in TOTALS:
        if total in sheet.columns:
            return (total,)
    found = ", ".join(name for name in sheet.columns if name.startswith("power ")) or "none"
    right = f"the columns 'Power TOT' or 'power cur', or the board's rails (power columns found: {found})"
    raise BadInput(sheet.where, "no column of the module's power", right)


def _describe_total(columns: Sequence[str], total_power: str | None, samples: int) -> str:
    if columns[0] in TOTALS:
        why = f"no column of {total_power}" if total_power else "the board is not in the catalogue"
        return f"power is {columns[0]!r}, jtop's own total ({why}), from {samples} samples"
    return f"power is {total_power}, from {samples} samples"
