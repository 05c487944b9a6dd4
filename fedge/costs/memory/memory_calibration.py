"""Calibration of the memory and time models: fitted to all measured networks, stored as YAML, loaded once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import yaml

from fedge.costs.cost_profile import load_yaml
from fedge.costs.memory.memory_study import MeasuredSteps, gather_steps
from fedge.costs.memory.step_model import (
    MemoryModel,
    TimeModel,
    estimate_ceiling_mb,
    find_unbounded_steps,
    fit_memory_model,
    fit_time_model,
)
from fedge.costs.memory.step_table import StepTable
from fedge.costs.memory.step_terms import MEMORY_TERMS, TIME_TERMS
from fedge.errors import BadInput
from fedge.types import Floats

STOCK_FILE = "tx2.yaml"
MAX_LOG_ERROR = 0.5
"""Log errors are clipped to this in the spreads: larger ones come from steps during which the board was swapping."""
MIN_NETWORKS = 3
"""Smallest number of networks: two to fit, and a third to evaluate on."""
CALIBRATION_HEADER = (
    "# What a training step needs: coefficients of the terms of fedge/costs/memory/step_terms.py, written by\n"
    "# `fedge memory fit`. Spreads are of the logarithm, each network left out in turn.\n"
)
NUMBER_FIELDS = ("floor_mb", "ceiling_mb", "memory_sd_log", "launch_ms", "step_sd_log")


@dataclass(frozen=True, slots=True)
class MemoryCalibration:
    """Both models of a board, with the spreads of log memory and log time on networks that were left out of the fit."""

    board: str
    memory: MemoryModel
    time: TimeModel
    memory_sd_log: float
    step_sd_log: float
    source: str


def fit_memory_calibration(tables: Sequence[StepTable], board: str, source: str) -> MemoryCalibration:
    """Fit both models to all steps, one table per network; the spreads come from leaving out each network in turn.

    Raises:
        BadInput: There are fewer than ``MIN_NETWORKS`` networks.
    """
    if len(tables) < MIN_NETWORKS:
        got = "1 network" if len(tables) == 1 else f"{len(tables)} networks"
        raise BadInput("--data", got, f"at least {MIN_NETWORKS}: the spread comes from leaving one out")
    steps = gather_steps(tables)
    memory, time = _fit_memory(steps), _fit_time(steps)
    spreads = np.sqrt(np.mean([_squared_left_out_errors(steps, table.network) for table in tables], axis=0))
    return MemoryCalibration(
        board, memory=memory, time=time, memory_sd_log=float(spreads[0]), step_sd_log=float(spreads[1]), source=source
    )


def _fit_memory(steps: MeasuredSteps) -> MemoryModel:
    there = steps[np.isfinite(steps.measured["memory"])]
    memory_mb = there.measured["memory"]
    return fit_memory_model(there.terms["memory"], memory_mb, there.network, estimate_ceiling_mb(memory_mb))


def _fit_time(steps: MeasuredSteps) -> TimeModel:
    there = steps[np.isfinite(steps.measured["latency"])]
    return fit_time_model(there.terms["time"], there.measured["latency"], there.layers, there.network)


def _squared_left_out_errors(steps: MeasuredSteps, network: str) -> Floats:
    """Return the mean squared log errors of memory and time on a network, fitted to the others."""
    own = steps.network == network
    others, judged = steps[~own], steps[own]
    memory, time = _fit_memory(others), _fit_time(others)
    shows = find_unbounded_steps(judged.measured["memory"], memory.floor_mb, memory.ceiling_mb)
    need_mb, step_ms = memory.need_mb(judged.terms["memory"]), time.step_ms(judged.terms["time"], judged.layers)
    timed = np.isfinite(judged.measured["latency"])
    off_memory = np.log(judged.measured["memory"][shows] / need_mb[shows])
    off_time = np.log(judged.measured["latency"][timed] / step_ms[timed])
    return np.array([np.mean(np.clip(off, -MAX_LOG_ERROR, MAX_LOG_ERROR) ** 2) for off in (off_memory, off_time)])


# As a file ------------------------------------------------------------------------------------------------------------


def memory_calibration_to_yaml(calibration: MemoryCalibration) -> str:
    """Return the text of a calibration's file."""
    return CALIBRATION_HEADER + yaml.safe_dump(memory_calibration_to_dict(calibration), sort_keys=False, width=120)


def memory_calibration_to_dict(calibration: MemoryCalibration) -> dict[str, Any]:
    """Convert a calibration to plain data for YAML, with named terms and six significant digits."""
    memory, time = calibration.memory, calibration.time
    values = (memory.floor_mb, memory.ceiling_mb, calibration.memory_sd_log, time.launch_ms, calibration.step_sd_log)
    return {
        "board": calibration.board,
        "source": calibration.source,
        **{name: _round_digits(value) for name, value in zip(NUMBER_FIELDS, values, strict=True)},
        "memory_mb": {name: _round_digits(c) for name, c in zip(MEMORY_TERMS, memory.coefficients, strict=True)},
        "step_ms": {name: _round_digits(c) for name, c in zip(TIME_TERMS, time.coefficients, strict=True)},
    }


def memory_calibration_from_dict(data: object, where: str) -> MemoryCalibration:
    """Convert the data of ``memory_calibration_to_dict`` back to a calibration.

    Raises:
        BadInput: A field is missing or invalid.
    """
    right = "a calibration as `fedge memory fit` writes it"
    if not isinstance(data, Mapping):
        raise BadInput(where, type(data).__name__, right)
    if not all(isinstance(data.get(name), str) for name in ("board", "source")):
        raise BadInput(where, "no board or no source", right)
    numbers = [_parse_number(data, name, where, right) for name in NUMBER_FIELDS]
    floor_mb, ceiling_mb, memory_sd_log, launch_ms, step_sd_log = numbers
    memory, time = (
        _parse_coefficients(data.get(name), terms, f"{where}: {name}", right)
        for name, terms in (("memory_mb", MEMORY_TERMS), ("step_ms", TIME_TERMS))
    )
    models = MemoryModel(memory, floor_mb, ceiling_mb), TimeModel(time, launch_ms)
    return MemoryCalibration(data["board"], *models, memory_sd_log, step_sd_log, data["source"])


def _parse_coefficients(data: object, terms: Sequence[str], where: str, right: str) -> Floats:
    if not isinstance(data, Mapping) or set(data) != set(terms):
        raise BadInput(where, "other terms", f"{', '.join(terms)}: {right}")
    return np.array([_parse_number(data, name, where, right, least=0.0) for name in terms])


def _parse_number(data: Mapping[str, Any], name: str, where: str, right: str, least: float = 1e-9) -> float:
    value = data.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < math.inf:
        raise BadInput(f"{where}: {name}", repr(value), right)
    return float(value)


def _round_digits(value: float) -> float:
    return float(f"{value:.6g}")


@lru_cache
def load_stock_calibration() -> MemoryCalibration:
    """Return the calibration shipped with fedge, of the TX2."""
    path = resources.files("fedge.costs.memory") / "calibrated" / STOCK_FILE
    return memory_calibration_from_dict(load_yaml(path), STOCK_FILE)
