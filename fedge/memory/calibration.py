"""The coefficients that a step's need is computed from: fitted to all measured networks, kept as YAML, read once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import yaml

from fedge.errors import BadInput
from fedge.memory.model import MemoryModel, TimeModel, ceiling_of, fit_memory, fit_time, own_weight
from fedge.memory.study import Steps, gather
from fedge.memory.table import StepTable
from fedge.memory.terms import MEMORY_TERMS, TIME_TERMS
from fedge.types import Floats

FILE = "tx2.yaml"
LARGEST_OFF = 0.5
"""Log errors are cut at this for the spreads: beyond lie steps of a board that was swapping."""
FEWEST = 3
"""Networks: to learn from two and be judged on the third."""
NUMBERS = ("floor_mb", "ceiling_mb", "memory_sd_log", "launch_ms", "step_sd_log")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Both models of a board, the spreads of log memory and log time on networks left out, and where they are from."""

    board: str
    memory: MemoryModel
    time: TimeModel
    memory_sd_log: float
    step_sd_log: float
    source: str


def fit(tables: Sequence[StepTable], board: str, source: str) -> Calibration:
    """The calibration of all steps of ``tables``; the spreads are those of each network left out in turn.

    Raises ``BadInput`` for fewer than ``FEWEST`` networks.
    """
    if len(tables) < FEWEST:
        got = "1 network" if len(tables) == 1 else f"{len(tables)} networks"
        raise BadInput("--data", got, f"at least {FEWEST}: the spread comes from leaving one out")
    steps = gather(tables)
    memory, time = _memory(steps), _time(steps)
    spreads = np.sqrt(np.mean([_spreads(steps, table.network) for table in tables], axis=0))
    return Calibration(board, memory, time, float(spreads[0]), float(spreads[1]), source)


def _memory(steps: Steps) -> MemoryModel:
    there = steps[np.isfinite(steps.measured["memory"])]
    memory_mb = there.measured["memory"]
    return fit_memory(there.terms["memory"], memory_mb, there.network, ceiling_of(memory_mb))


def _time(steps: Steps) -> TimeModel:
    there = steps[np.isfinite(steps.measured["latency"])]
    return fit_time(there.terms["time"], there.measured["latency"], there.layers, there.network)


def _spreads(steps: Steps, network: str) -> Floats:
    """Mean squared log errors of memory and of time on ``network``, learnt from the others."""
    own = steps.network == network
    others, judged = steps[~own], steps[own]
    memory, time = _memory(others), _time(others)
    shows = own_weight(judged.measured["memory"], memory.floor_mb, memory.ceiling_mb)
    need_mb, step_ms = memory.need_mb(judged.terms["memory"]), time.step_ms(judged.terms["time"], judged.layers)
    timed = np.isfinite(judged.measured["latency"])
    off_memory = np.log(judged.measured["memory"][shows] / need_mb[shows])
    off_time = np.log(judged.measured["latency"][timed] / step_ms[timed])
    return np.array([np.mean(np.clip(off, -LARGEST_OFF, LARGEST_OFF) ** 2) for off in (off_memory, off_time)])


# As a file ------------------------------------------------------------------------------------------------------------


def as_data(calibration: Calibration) -> dict[str, Any]:
    """For YAML, with the terms by name and six significant digits."""
    memory, time = calibration.memory, calibration.time
    values = (memory.floor_mb, memory.ceiling_mb, calibration.memory_sd_log, time.launch_ms, calibration.step_sd_log)
    return {
        "board": calibration.board,
        "source": calibration.source,
        **{name: _short(value) for name, value in zip(NUMBERS, values, strict=True)},
        "memory_mb": {name: _short(c) for name, c in zip(MEMORY_TERMS, memory.coefficients, strict=True)},
        "step_ms": {name: _short(c) for name, c in zip(TIME_TERMS, time.coefficients, strict=True)},
    }


def from_data(data: object, where: str) -> Calibration:
    """What ``as_data`` made; raises ``BadInput`` for anything else."""
    right = "a calibration as `fedge memory fit` writes it"
    if not isinstance(data, Mapping):
        raise BadInput(where, type(data).__name__, right)
    if not all(isinstance(data.get(name), str) for name in ("board", "source")):
        raise BadInput(where, "no board or no source", right)
    numbers = [_number(data, name, where, right) for name in NUMBERS]
    floor_mb, ceiling_mb, memory_sd_log, launch_ms, step_sd_log = numbers
    memory, time = (
        _coefficients(data.get(name), terms, f"{where}: {name}", right)
        for name, terms in (("memory_mb", MEMORY_TERMS), ("step_ms", TIME_TERMS))
    )
    models = MemoryModel(memory, floor_mb, ceiling_mb), TimeModel(time, launch_ms)
    return Calibration(data["board"], *models, memory_sd_log, step_sd_log, data["source"])


def _coefficients(data: object, terms: Sequence[str], where: str, right: str) -> Floats:
    if not isinstance(data, Mapping) or set(data) != set(terms):
        raise BadInput(where, "other terms", f"{', '.join(terms)}: {right}")
    return np.array([_number(data, name, where, right, least=0.0) for name in terms])


def _number(data: Mapping[str, Any], name: str, where: str, right: str, least: float = 1e-9) -> float:
    value = data.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < math.inf:
        raise BadInput(f"{where}: {name}", repr(value), right)
    return float(value)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


@lru_cache
def stock() -> Calibration:
    """The calibration that fedge ships, of the TX2."""
    text = (resources.files("fedge.memory") / "calibrated" / FILE).read_text(encoding="utf-8")
    return from_data(yaml.safe_load(text), FILE)
