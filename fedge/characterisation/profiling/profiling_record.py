"""The output of a campaign: a table in the standard form and a JSON file that describes how it was measured."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedge.atomic_files import write_text
from fedge.characterisation.profiling.mode_measurement import SettledMode
from fedge.characterisation.profiling.profiling_journal import ProfilingHeader, ProfilingHistory
from fedge.devices.tables.mode_table import write_mode_table
from fedge.errors import BadInput
from fedge.modes import stack_modes
from fedge.types import ProfileTable

RULE_DESCRIPTION = (
    "fedge.characterisation.profiling.stability: MSER truncation, clipped "
    "outliers, standard errors below the target, no drift"
)


def profiling_record_path(table: Path) -> Path:
    """Return the path of a table's record."""
    return table.with_name(f"{table.name}.json")


def save_campaign(path: Path, header: ProfilingHeader, past: ProfilingHistory, *, finished: bool) -> None:
    """Write table and record atomically; nothing if no mode was measured.

    The record is written first, so that an emulated board's table never exists without its label.

    Raises:
        BadInput: If a path cannot be written.
    """
    if not past.done:
        return
    record = profiling_record_path(path)
    try:
        write_text(record, json.dumps(campaign_to_dict(header, past, finished=finished), indent=1) + "\n")
    except OSError as error:
        right = "make room, then give the same command again"
        raise BadInput(str(record), f"a file that cannot be written ({error.strerror})", right) from error
    write_mode_table(path, build_campaign_table(path, header, past))


def build_campaign_table(path: Path, header: ProfilingHeader, past: ProfilingHistory) -> ProfileTable:
    """Return the measured modes in the order of measurement as a table.

    Args:
        path: The file the table is meant for; only named in the result, neither read nor written.
        header: Names the board and workload and gives the batch size.
        past: The campaign so far; failed modes are left out.

    Returns:
        The table, with seconds per step and watts; its ``sha256`` is empty, as there may be no file yet.
    """
    return ProfileTable(
        device=header.board,
        workload=header.workload,
        batch_size=header.batch_size,
        modes=stack_modes(one.mode for one in past.done),
        step_s=np.array([one.verdict.step_s for one in past.done]),
        power_w=np.array([one.verdict.power_w for one in past.done]),
        sha256="",
        path=str(path),
    )


def campaign_to_dict(header: ProfilingHeader, past: ProfilingHistory, *, finished: bool) -> dict[str, Any]:
    """Return the record: all facts about the measurements that the table's columns do not hold."""
    seconds, joules = sum_campaign_cost(past)
    return {
        "label": "emulated" if header.emulated else "measured",
        "board": header.board,
        "workload": header.workload,
        "batch_size": header.batch_size,
        "kind": header.kind,
        "source": header.source,
        "truth_label": header.label,
        "total_power": header.total_power,
        "method": {"rule": RULE_DESCRIPTION, **header.rule},
        "explorer": header.explorer,
        "seed": header.seed,
        "modes_wanted": header.modes or "all",
        "software": dict(header.software),
        "finished": finished,
        "seconds": seconds,
        "joules": joules,
        "modes": [_settled_to_dict(one) for one in past.done],
        "failed": [{**asdict(one.mode), "reason": one.reason, "seconds": one.seconds} for one in past.failed],
    }


def sum_campaign_cost(past: ProfilingHistory) -> tuple[float, float]:
    """Return the seconds and joules of all modes; failed modes contribute their seconds only."""
    seconds = sum(one.seconds for one in past.done) + sum(one.seconds for one in past.failed)
    return round(seconds, 3), round(sum(one.joules for one in past.done), 3)


def _settled_to_dict(one: SettledMode) -> dict[str, Any]:
    verdict = one.verdict
    return {
        **asdict(one.mode),
        "settled": verdict.settled,
        "throttled": one.throttled,
        "note": one.note,
        "time_se_log": _finite_or_none(verdict.time_se_log),
        "power_se_log": _finite_or_none(verdict.power_se_log),
        "steps": verdict.steps,
        "chunks_dropped": verdict.dropped,
        "outliers": verdict.outliers,
        "attempts": one.attempts,
        "peak_c": one.peak_c,
        "seconds": one.seconds,
        "joules": one.joules,
    }


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
