"""The next values of a power mode's knobs: one step of each clock, and more cores, on boards of the catalogue.

Work on a core follows the CPU's and the memory's clock (``fedge.pipeline.modes``). What computing does with a clock,
and what the board then draws, is what the sweep shows of it (``slopes``); else computing follows the GPU's clock as far
as the GPU does not wait for launches, and the memory's as ``MEMORY_SLOPE`` says, and watts are not foretold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedge.characterisation.advice.modelling import LEAST_ERROR, Modelled
from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.pooling import Pooled
from fedge.characterisation.judging.setting import CLOCKS
from fedge.characterisation.judging.slopes import UNSURE, computing, scaled, slope_of, watts
from fedge.characterisation.judging.turned import Next
from fedge.characterisation.plans.boards import device_of
from fedge.pipeline.modes import host_factor
from fedge.pipeline.records import Pipeline
from fedge.types import DeviceSpec, PowerMode

MEMORY_SLOPE = -0.5
"""Compute time by the memory's clock where the sweep says nothing: twice the clock takes 26 to 33 % off it in the
characterisation paper (doi 10.1145/3570604), a slope of -0.43 to -0.58."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    knob: str
    mode: PowerMode
    then: PowerMode
    ratio: float
    """Of the knob, then by now."""


def clocks(model: Modelled, group: Sequence[Pooled]) -> Iterator[Next]:
    """One step up and one step down of every clock."""
    mode, spec = model.now.point.mode, _spec(model.now.point.board)
    if mode is None or spec is None:
        return
    now = next(one for one in group if one.stats is model.now)
    for knob, table in (("cpu_mhz", spec.cpu_mhz), ("gpu_mhz", spec.gpu_mhz), ("mem_mhz", spec.mem_mhz)):
        own = getattr(mode, knob)
        for value in (_above(table, own), _below(table, own)):
            if value is not None:
                other: dict[str, Any] = {knob: value}
                turn = _Turn(knob, mode, replace(mode, **other), value / own)
                yield _stepped(model, now, group, turn, spec)


def cores(model: Modelled, group: Sequence[Pooled]) -> Iterator[Next]:
    """The next larger number of cores: loaders and training share them."""
    mode, spec = model.now.point.mode, _spec(model.now.point.board)
    more = None if mode is None or spec is None else _above(spec.cores, mode.cores)
    if mode is None or more is None:
        return
    host = replace(model.pipeline.host, cores=float(more))
    why = f"{mode.cores} cores are shared by the training and {model.pipeline.loader.workers} loader workers"
    yield Next("cores", int(more), replace(model.pipeline, host=host), why, model.error, same_work=False)


def _stepped(model: Modelled, now: Pooled, group: Sequence[Pooled], turn: _Turn, spec: DeviceSpec) -> Next:
    pipeline, shown = _turned(model, now, group, turn, spec)
    e2e_s = model.e2e_s(pipeline)
    change = e2e_s.value - model.now.e2e_s.value
    ends = [e2e_s.value + by * UNSURE * change for by in (-1.0, 1.0)]
    likely = Estimate(e2e_s.value, min(ends), max(ends), 0)
    then = getattr(turn.then, turn.knob)
    drawn = slope_of(now, group, turn.knob, watts)
    by = "as the sweep shows near it" if shown else "as host and device times follow their clocks"
    slower = f"; an epoch takes {100 * change / model.now.e2e_s.value:.0f} % longer" if change > 0 else ""
    return Next(
        turn.knob,
        then,
        pipeline,
        f"one step from {getattr(turn.mode, turn.knob):g} MHz to {CLOCKS[turn.knob].format(then)}, {by}{slower}",
        LEAST_ERROR,
        same_work=False,
        e2e_s=likely,
        power=None if drawn is None else scaled(drawn, turn.ratio),
    )


def _turned(
    model: Modelled, now: Pooled, group: Sequence[Pooled], turn: _Turn, spec: DeviceSpec
) -> tuple[Pipeline, bool]:
    """The pipeline at other clocks, and whether the sweep says what computing does with this one."""
    step = model.pipeline.step
    factor = _host(turn.then, spec) / _host(turn.mode, spec)
    seen = slope_of(now, group, turn.knob, computing)
    if seen is not None:
        compute = turn.ratio**seen
    elif turn.knob == "gpu_mhz":
        compute = step.host_share + (1.0 - step.host_share) / turn.ratio
    elif turn.knob == "mem_mhz":
        compute = step.host_share * factor + (1.0 - step.host_share) * turn.ratio**MEMORY_SLOPE
    else:
        compute = 1.0 + step.host_share * (factor - 1.0)
    return _slower(model.pipeline, factor, compute), seen is not None


def _host(mode: PowerMode, spec: DeviceSpec) -> float:
    shares = (
        np.array([own / max(table)]) for own, table in ((mode.cpu_mhz, spec.cpu_mhz), (mode.mem_mhz, spec.mem_mhz))
    )
    return float(host_factor(*shares)[0])


def _slower(pipeline: Pipeline, host: float, compute: float) -> Pipeline:
    """Work on a core takes ``host`` times as long, computing ``compute`` times."""
    samples, step = pipeline.samples, pipeline.step
    parts = {name: getattr(step, name) * host for name in ("copy_s", "collate_s", "handover_s", "overhead_s")}
    return replace(
        pipeline,
        samples=replace(samples, fetch_s=samples.fetch_s * host, preprocess_s=samples.preprocess_s * host),
        step=replace(step, compute_s=step.compute_s * compute, **parts),
    )


def _above(table: Sequence[float], value: float) -> float | None:
    return min((one for one in table if one > value * (1 + 1e-6)), default=None)


def _below(table: Sequence[float], value: float) -> float | None:
    return max((one for one in table if one < value * (1 - 1e-6)), default=None)


def _spec(board: str) -> DeviceSpec | None:
    from fedge.devices.catalogue import load_catalogue

    device = device_of(board)
    return load_catalogue().get(device) if device else None
