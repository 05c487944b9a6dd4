"""Power logs: total power over time, and step time and power of every mode that ran meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from fedge.devices.tables.importers import ImportedRow, ImportedRows, ImportKey, format_count
from fedge.devices.tables.importers.steps_file import StepRun, StepsFile
from fedge.devices.tables.importers.timestamps import EARLIEST_S, format_time
from fedge.errors import BadInput
from fedge.types import Floats

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
    by_mode: dict[ImportKey, list[StepRun]] = {}
    for run in runs:
        by_mode.setdefault(run.knobs, []).append(run)
    rows, silent, shaky = [], [], []
    for knobs, its_runs in by_mode.items():
        watts = _select_samples_w(log, its_runs, offset_s)
        if not len(watts):
            silent.append(_format_key(knobs))
            continue
        if len(watts) < MIN_SAMPLES:
            shaky.append(_format_key(knobs))
        rows.append(ImportedRow(knobs, median(run.step_ms for run in its_runs), float(watts.mean())))
    if not rows:
        raise _build_overlap_error(where, log, runs, offset_s)
    notes += [f"{format_count(silent, 'mode')} without a power sample: left out"] if silent else []
    notes += [f"{format_count(shaky, 'mode')} with fewer than {MIN_SAMPLES} power samples: run longer"] if shaky else []
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
