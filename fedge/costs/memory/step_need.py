"""Calibration of the memory and time models: fitted to all measured networks, stored as YAML, loaded once.

Predicted need of one training step on a board: peak memory and time, with spread and label.

The need is computed from the layers' geometry with coefficients fitted to training steps on a TX2. For other boards,
arithmetic is scaled by the GPU's FLOP/s, traffic by memory bandwidth and launching by the processor's score, all from
data sheets, while memory is taken from the TX2. Such needs are labelled estimated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import yaml

from fedge.costs.cost_profile import load_yaml, round_digits
from fedge.costs.gpu_rates import MIXED_BYTES, OPTIMISER_PASSES, count_optimiser_passes, mixed_flop_share
from fedge.costs.layers.network_cost import LayerCost, NetworkCost
from fedge.costs.memory.step_model import (
    MEGABYTES,
    MEMORY_TERMS,
    TIME_TERMS,
    MemoryModel,
    TimeModel,
    compute_memory_terms,
    compute_time_terms,
    estimate_ceiling_mb,
    find_unbounded_steps,
    fit_memory_model,
    fit_time_model,
)
from fedge.costs.memory.step_table import MeasuredSteps, StepTable, gather_steps
from fedge.errors import BadInput
from fedge.types import DeviceSpec, Floats, Label

STOCK_FILE = "tx2.yaml"
MAX_LOG_ERROR = 0.5
"""Log errors are clipped to this in the spreads: larger ones come from steps during which the board was swapping."""
MIN_NETWORKS = 3
"""Smallest number of networks: two to fit, and a third to evaluate on."""
CALIBRATION_HEADER = (
    "# What a training step needs: coefficients of the terms of fedge/costs/memory/step_model.py, written by\n"
    "# `fedge memory fit`. Spreads are of the logarithm, each network left out in turn.\n"
)


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
        BadInput: There are fewer than ``MIN_NETWORKS`` networks, or no step of any shows its memory or its time.
    """
    if len(tables) < MIN_NETWORKS:
        got = "1 network" if len(tables) == 1 else f"{len(tables)} networks"
        raise BadInput("--data", got, f"at least {MIN_NETWORKS}: the spread comes from leaving one out")
    steps = gather_steps(tables)
    memory, time = _fit_memory(steps), _fit_time(steps)
    errors = np.array([_squared_left_out_errors(steps, table.network) for table in tables])
    for what, of_target in zip(("peak memory between idle and full", "time"), errors.T, strict=True):
        if np.isnan(of_target).all():
            raise BadInput("--data", f"no step with a {what}", "steps that show what a network needs")
    spreads = np.sqrt(np.nanmean(errors, axis=0))
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
    """Return the mean squared log errors of memory and time on a network, fitted to the others.

    One is NaN where no step shows it: the network is too small or too large for the board's memory, or was not timed.
    """
    own = steps.network == network
    others, judged = steps[~own], steps[own]
    memory, time = _fit_memory(others), _fit_time(others)
    shows = find_unbounded_steps(judged.measured["memory"], memory.floor_mb, memory.ceiling_mb)
    need_mb, step_ms = memory.need_mb(judged.terms["memory"]), time.step_ms(judged.terms["time"], judged.layers)
    timed = np.isfinite(judged.measured["latency"])
    off_memory = np.log(judged.measured["memory"][shows] / need_mb[shows])
    off_time = np.log(judged.measured["latency"][timed] / step_ms[timed])
    return np.array([
        np.mean(np.clip(off, -MAX_LOG_ERROR, MAX_LOG_ERROR) ** 2) if len(off) else np.nan
        for off in (off_memory, off_time)
    ])  # fmt: skip


# As a file ------------------------------------------------------------------------------------------------------------


def memory_calibration_to_yaml(calibration: MemoryCalibration) -> str:
    """Return the text of a calibration's file."""
    return CALIBRATION_HEADER + yaml.safe_dump(memory_calibration_to_dict(calibration), sort_keys=False, width=120)


def memory_calibration_to_dict(calibration: MemoryCalibration) -> dict[str, Any]:
    """Convert a calibration to plain data for YAML, with named terms and six significant digits."""
    memory, time = calibration.memory, calibration.time
    return {
        "board": calibration.board,
        "source": calibration.source,
        "floor_mb": round_digits(memory.floor_mb),
        "ceiling_mb": round_digits(memory.ceiling_mb),
        "memory_sd_log": round_digits(calibration.memory_sd_log),
        "launch_ms": round_digits(time.launch_ms),
        "step_sd_log": round_digits(calibration.step_sd_log),
        "memory_mb": {name: round_digits(c) for name, c in zip(MEMORY_TERMS, memory.coefficients, strict=True)},
        "step_ms": {name: round_digits(c) for name, c in zip(TIME_TERMS, time.coefficients, strict=True)},
    }


def memory_calibration_from_dict(data: Mapping[str, Any]) -> MemoryCalibration:
    """Convert the data of ``memory_calibration_to_dict`` back to a calibration."""
    memory, time = (
        np.array([data[name][term] for term in terms], dtype=np.float64)
        for name, terms in (("memory_mb", MEMORY_TERMS), ("step_ms", TIME_TERMS))
    )
    return MemoryCalibration(
        data["board"],
        memory=MemoryModel(memory, data["floor_mb"], data["ceiling_mb"]),
        time=TimeModel(time, data["launch_ms"]),
        memory_sd_log=data["memory_sd_log"],
        step_sd_log=data["step_sd_log"],
        source=data["source"],
    )


@lru_cache
def load_stock_calibration() -> MemoryCalibration:
    """Return the calibration shipped with fedge, of the TX2."""
    path = resources.files("fedge.costs.memory") / "calibrated" / STOCK_FILE
    return memory_calibration_from_dict(load_yaml(path))


LARGEST_BATCH = 2**16
"""Upper end of the search for the largest batch that fits."""
TX2_SPEEDS = (665.9, 59.7, 0.42)
"""GFLOP/s, GB/s and processor score of the TX2, from the same data sheets as those of the other boards."""
MIN_PRODUCT_FLOP_PER_OUTPUT = 16.0
"""Multiplications per output from which an operator counts as a matrix product. Default; a larger value treats more
small products as free."""
KNOWN_SIDES = (160, 320)
"""Image sides for which the measurements at 224 are representative; outside, the need is labelled estimated. Default; a
wider range labels less certain needs as calibrated."""
MIN_CONVOLUTION_SHARE = 0.9
"""Share of the FLOP that convolutions must have for a network to count as one of the measured kind. Default; a lower
limit labels less certain needs as calibrated."""
OTHER_NETWORK_SD_LOG, OTHER_BOARD_SD_LOG = (0.25, 0.30), (0.15, 0.60)
"""Additional spread of log memory and log time, for a network unlike the measured ones (of the memory: of the part that
is the network's own) and for a board other than the TX2. Defaults; the time on other boards is that uncertain because
their newer libraries are faster."""

BOUND_SDS = 3.0
"""Spreads above the predicted memory that a step is taken to need at most. In ``fedge study transfer --part memory``,
where each network is predicted from the others, this bounds 99.5 % of the steps; the normal distribution's 2.33 bounds
97.9 %, because a spread that three networks show is itself uncertain."""


MOST_OPTIMIZER_STATE = 3.0
"""Elements per parameter that an optimiser is taken to keep if it cannot be counted: those of Adam with ``amsgrad``,
the most of torch's optimisers but L-BFGS."""
OPTIMIZER_COPIES = 2.0
"""Copies of the trained parameters that torch's update of many tensors at once makes, such as roots of the squared
gradients. They come when the activations are freed."""
KEPT_SCORE_BYTES = {False: 8.0, True: 10.0}
"""Bytes that a loss keeps per score, without and with mixed precision: the scores, and their logarithms in single
precision."""


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The optimiser and precision of a step; by default the SGD with momentum in fp32 that was measured.

    Attributes:
        optimizer_state: Elements kept per trained parameter between steps: 1 for momentum or the start of FedProx, 2
            for Adam.
        mixed: Whether steps are computed in mixed precision.
        assumed: Whether the state is the most that is likely, as it could not be counted.
    """

    optimizer_state: float = 1.0
    mixed: bool = False
    assumed: bool = False

    def __str__(self) -> str:
        known, precision = "assumed" if self.assumed else "counted", "mixed" if self.mixed else "single"
        return f"optimiser's state {self.optimizer_state:.3g} x the parameters ({known}), {precision} precision"


MEASURED_SETUP = TrainingSetup()


@dataclass(frozen=True, slots=True)
class StepNeed:
    """Predicted need of a training step.

    Attributes:
        memory_mb: Peak memory of the training process in MB: memory in use on the board minus that when idle.
    """

    memory_mb: float
    step_s: float
    memory_sd_log: float
    step_sd_log: float
    label: Label
    source: str

    @property
    def upper_mb(self) -> float:
        """Memory in MB that the step stays below with 99 % confidence."""
        return self.memory_mb * math.exp(BOUND_SDS * self.memory_sd_log)


def predict_step_need(
    network: NetworkCost, device: DeviceSpec, batch_size: int, setup: TrainingSetup = MEASURED_SETUP
) -> StepNeed:
    """Predict the need of a step: calibrated on the TX2 in the measured setup, estimated for every other one.

    Raises:
        ValueError: The batch size is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: got {batch_size}; 1 or more")
    calibration, layers = load_stock_calibration(), _build_layer_matrix(network)
    batch = np.array([float(batch_size)])
    known, here = _is_known(network), device.name == calibration.board
    terms = compute_memory_terms(layers, batch)[0] * calibration.memory.coefficients
    memory_mb, own_share = _memory_mb(calibration.memory, network, batch_size, terms=terms, setup=setup)
    step_s = _step_s(calibration.time, device=device, network=network, layers=layers, batch=batch, setup=setup)
    certain = known and not setup.mixed
    spreads = _combine_spreads(calibration, known=certain, here=here, own_share=own_share)
    label: Label = "calibrated" if known and here and setup == MEASURED_SETUP else "estimated"
    source = _describe_source(calibration, known, here)
    if setup != MEASURED_SETUP:
        source += f"; {setup}"
    return StepNeed(memory_mb, step_s, *spreads, label=label, source=source)


def _memory_mb(
    model: MemoryModel, network: NetworkCost, batch_size: int, terms: Floats, setup: TrainingSetup
) -> tuple[float, float]:
    """Return the memory of a step in MB, and the share of it that is the network's, not CUDA's and the libraries'.

    Args:
        terms: MB by term of the calibrated model, in the order of ``MEMORY_TERMS``.
    """
    mb = dict(zip(MEMORY_TERMS, map(float, terms), strict=True))
    trained_mb = MEGABYTES * network.trained_parameters
    # Frozen weights have neither gradients nor an optimiser's state, so they count once, without the fitted factor.
    frozen_mb = MEGABYTES * (network.parameters - network.trained_parameters)
    weights_mb = model.coefficients[MEMORY_TERMS.index("weights")] * trained_mb + frozen_mb
    weights_mb += (setup.optimizer_state - MEASURED_SETUP.optimizer_state) * trained_mb
    working_mb = mb["workspace"] + _activations_mb(network, batch_size, mb, mixed=setup.mixed)
    if setup.optimizer_state > MEASURED_SETUP.optimizer_state:
        working_mb = max(working_mb, OPTIMIZER_COPIES * trained_mb)
    own_mb = weights_mb + working_mb
    memory_mb = max(mb["base"] + own_mb, model.floor_mb)
    return float(memory_mb), max(0.0, own_mb) / float(memory_mb)


def _activations_mb(network: NetworkCost, batch_size: int, mb: Mapping[str, float], *, mixed: bool) -> float:
    """Return the MB of kept activations and of the largest gradients, for mixed precision with halves of weights.

    Of networks of the measured kind they are fitted, of others counted where autograd said what it keeps. Without that,
    mixed precision is not taken to need less.
    """
    saved, kept = network.saved_bytes(mixed=False), network.saved_bytes(mixed=mixed)
    share = kept / saved if saved and kept is not None else 1.0
    kept_mb = share * (mb["outputs"] + mb["inputs"])
    if kept is not None and not _is_known(network):
        scores = next((math.prod(layer.output) for layer in reversed(network.layers) if layer.output), 0)
        kept_mb = batch_size * (kept + KEPT_SCORE_BYTES[mixed] * scores) / 1e6
    return kept_mb + share * mb["largest"] + (network.half_weight_bytes / 1e6 if mixed else 0.0)


def _step_s(
    time: TimeModel, device: DeviceSpec, network: NetworkCost, layers: Floats, batch: Floats, setup: TrainingSetup
) -> float:
    flop, traffic, processor = (
        theirs / ours.value
        for theirs, ours in zip(TX2_SPEEDS, (device.gpu_gflops, device.mem_gbps, device.cpu_score), strict=True)
    )
    updating = traffic * count_optimiser_passes(setup.optimizer_state) / OPTIMISER_PASSES
    if setup.mixed:
        flop, traffic = flop * mixed_flop_share(device), traffic * MIXED_BYTES
    slower = np.array([processor, processor * _image_size_ratio(network), flop, flop, traffic, updating])
    there = TimeModel(time.coefficients * slower, time.launch_ms * processor)
    return float(there.step_ms(compute_time_terms(layers, batch), np.array([float(len(layers))]))[0]) / 1e3


def _image_size_ratio(network: NetworkCost) -> float:
    """Return the elements of a sample relative to the measured images, 3 x 224 x 224; loading time follows it."""
    return math.prod(network.input_shape) / (3 * 224 * 224)


def _combine_spreads(
    calibration: MemoryCalibration, *, known: bool, here: bool, own_share: float
) -> tuple[float, float]:
    """Return the spreads of log memory and log time.

    Another kind of network makes only its own share of the memory less certain: CUDA and the libraries take the same
    for every network, however small. Another board may need more for them, too.
    """
    memory, time = calibration.memory_sd_log, calibration.step_sd_log
    if not known:
        memory, time = (
            math.hypot(memory, own_share * OTHER_NETWORK_SD_LOG[0]),
            math.hypot(time, OTHER_NETWORK_SD_LOG[1]),
        )
    if not here:
        memory, time = math.hypot(memory, OTHER_BOARD_SD_LOG[0]), math.hypot(time, OTHER_BOARD_SD_LOG[1])
    return memory, time


def _describe_source(calibration: MemoryCalibration, known: bool, here: bool) -> str:
    source = calibration.source
    if not known:
        source += "; another kind of network or image than was measured"
    return source if here else f"{source}; carried to this board by data-sheet ratios"


def _is_known(network: NetworkCost) -> bool:
    """Return whether the network is of the measured kind: convolutions on images of about 224 x 224."""
    convolutions = sum(layer.flop for layer in network.layers if layer.convolution is not None)
    sides = network.input_shape[1:]
    low, high = KNOWN_SIDES
    like = len(network.input_shape) == 3 and all(low <= side <= high for side in sides)
    return like and convolutions >= MIN_CONVOLUTION_SHARE * network.flop


@lru_cache(maxsize=64)
def _build_layer_matrix(network: NetworkCost) -> Floats:
    """Return convolutions, and matrix products as 1 x 1 convolutions, as rows of ``step_table.GEOMETRY_COLUMNS``."""
    rows = [row for layer in network.layers if (row := _layer_row(layer)) is not None] or [_whole_network_row(network)]
    return np.array(rows, dtype=np.float64).reshape(len(rows), 7)


def _layer_row(layer: LayerCost) -> tuple[float, ...] | None:
    c = layer.convolution
    if c is not None:
        return c.in_channels, c.out_channels, c.kernel, c.padding, c.stride, c.groups, c.input_size
    if not layer.activations or not layer.output or layer.flop < 2 * MIN_PRODUCT_FLOP_PER_OUTPUT * layer.activations:
        return None
    outputs = max(1, layer.output[-1])
    inputs = round(layer.flop / (2 * layer.activations))
    return inputs, outputs, 1, 0, 1, 1, math.sqrt(layer.activations / outputs)


def _whole_network_row(network: NetworkCost) -> tuple[float, ...]:
    """Describe a network without either as a single matrix product with its activations and FLOP."""
    written = max(1, network.activations)
    return max(1.0, network.flop / (2 * written)), 1, 1, 0, 1, 1, math.sqrt(written)


def find_largest_batch(fits: Callable[[int], bool]) -> int:
    """Return the largest batch size that fits, 0 for none; by bisection, as memory grows with the batch size."""
    low, high = 0, 1
    while high <= LARGEST_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
