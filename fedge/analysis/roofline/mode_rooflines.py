"""Rooflines of many power modes at once, a batch's overheads beyond Pagoda's model, and time and energy per mode.

Symbols besides those of ``roofline_model``: N launches (one per operator of the network), b samples. Beyond the five
constants
=====================  ====================================================================================
``kernel_s``           per launch on the GPU: the least time of a kernel, however small it is
``launch_s``           per launch on the CPU, hidden behind the GPU unless this is the slower of the two
``sample_s``           per sample on the CPU: loading and preprocessing, hidden likewise
``copy_s``             per sample on the CPU, not hidden
``fixed_s``            per batch, whatever the clocks
``launch_j sample_j``  joules per launch and per sample on the CPU
``overlap_*``          the norm that joins two times: 1 one after the other, infinite one hidden behind the other
=====================  ====================================================================================
G = |W tau_f, Q tau_m| + N kernel_s;  T = |G, N launch_s, b sample_s| + b copy_s + fixed_s
E = eps_f W + eps_m Q + N launch_j + b sample_j + pi_0 T
Without overheads (``RooflineOverheads`` None) this is Pagoda's own model: T = max(W tau_f, Q tau_m).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedge.analysis.roofline.roofline_model import Roofline
from fedge.costs.layers.network_cost import TRAINING_PASSES, BatchWork, NetworkCost
from fedge.physics.time_power_model import q_norm
from fedge.types import Floats, Label


@dataclass(frozen=True, slots=True, eq=False)
class RooflineBatch:
    """The work of one batch; numbers, or arrays of one shape that broadcast with the modes' arrays.

    Attributes:
        flop: FLOP of the batch.
        bytes: Bytes moved between processor and memory.
        launches: Kernel launches.
        samples: Samples.
    """

    flop: Floats | float
    bytes: Floats | float
    launches: Floats | float
    samples: Floats | float


@dataclass(frozen=True, slots=True, eq=False)
class RooflineOverheads:
    """Overheads beyond Pagoda's model per mode: arrays of shape (n,) in seconds and joules, and the two norms."""

    kernel_s: Floats
    launch_s: Floats
    sample_s: Floats
    copy_s: Floats
    fixed_s: Floats
    launch_j: Floats
    sample_j: Floats
    overlap_gpu: float
    overlap_stages: float


@dataclass(frozen=True, slots=True, eq=False)
class ModeRooflines:
    """The five constants of every mode, arrays of shape (n,), and the overheads; None for Pagoda's own model."""

    tau_f: Floats
    tau_m: Floats
    eps_f: Floats
    eps_m: Floats
    pi_0_w: Floats
    label: Label
    overheads: RooflineOverheads | None = None

    def mode_roofline(self, row: int) -> Roofline:
        """Return the roofline of one mode."""
        return Roofline(
            float(self.tau_f[row]),
            tau_m=float(self.tau_m[row]),
            eps_f=float(self.eps_f[row]),
            eps_m=float(self.eps_m[row]),
            pi_0_w=float(self.pi_0_w[row]),
            label=self.label,
        )


@dataclass(frozen=True, slots=True, eq=False)
class BatchDurations:
    """Seconds of a batch in every mode, and its parts: on the GPU, launching, preparing samples; shape (n,)."""

    total_s: Floats
    gpu_s: Floats
    launch_s: Floats
    sample_s: Floats


def build_roofline_batch(
    network: NetworkCost, batch_size: int, kind: Literal["train", "infer"] = "infer"
) -> RooflineBatch:
    """Return a batch of a network; every layer is launched once, in training ``TRAINING_PASSES`` times."""
    work = network.batch_work(batch_size, kind)
    passes = TRAINING_PASSES if kind == "train" else 1.0
    return RooflineBatch(work.flop, work.bytes, passes * len(network.layers), float(batch_size))


def batch_to_work(batch: RooflineBatch) -> BatchWork:
    """Return the work of a batch that holds numbers."""
    return BatchWork(float(batch.flop), float(batch.bytes))


def compute_batch_times(rooflines: ModeRooflines, batch: RooflineBatch) -> BatchDurations:
    """Return the seconds of a batch in every mode, shape (n,)."""
    math_s, mem_s = batch.flop * rooflines.tau_f, batch.bytes * rooflines.tau_m
    extra = rooflines.overheads
    if extra is None:
        total_s = np.maximum(math_s, mem_s)
        return BatchDurations(total_s, total_s, np.zeros_like(total_s), np.zeros_like(total_s))
    gpu_s = q_norm(extra.overlap_gpu, math_s, mem_s) + batch.launches * extra.kernel_s
    launch_s, sample_s = batch.launches * extra.launch_s, batch.samples * extra.sample_s
    overlapped_s = q_norm(extra.overlap_stages, gpu_s, launch_s, sample_s)
    return BatchDurations(overlapped_s + batch.samples * extra.copy_s + extra.fixed_s, gpu_s, launch_s, sample_s)


def batch_energy_j(rooflines: ModeRooflines, batch: RooflineBatch, total_s: Floats) -> Floats:
    """Return the joules of a batch that takes ``total_s`` seconds in every mode, shape (n,)."""
    joules = rooflines.eps_f * batch.flop + rooflines.eps_m * batch.bytes + rooflines.pi_0_w * total_s
    extra = rooflines.overheads
    if extra is not None:
        joules = joules + extra.launch_j * batch.launches + extra.sample_j * batch.samples
    return np.asarray(joules, dtype=np.float64)
