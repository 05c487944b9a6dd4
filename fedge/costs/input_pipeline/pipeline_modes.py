"""Input pipelines across power modes: host times follow the CPU and memory clocks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fedge.costs.input_pipeline.pipeline_model import InputPipeline
from fedge.costs.input_pipeline.resource_contention import count_served_readers
from fedge.costs.input_pipeline.steady_state import BatchNeeds, SteadyStates, build_batch_needs, solve_steady_states
from fedge.types import Floats

MEMORY_SHARE = 0.2
"""Share of the host's work at the top clocks that follows the memory clock instead of the CPU's. With it, stalls fall
by 36 % from 1.2 to 2.1 GHz; the characterisation paper measured 31 to 39 % (doi 10.1145/3570604)."""


@dataclass(frozen=True, slots=True)
class ClockShares:
    """A power mode relative to the top mode.

    Attributes:
        cores: Number of active cores.
        cpu: CPU clock as a share of the highest.
        mem: Memory clock as a share of the highest.
    """

    cores: int
    cpu: float
    mem: float


def compute_host_factor(cpu: Floats, mem: Floats) -> Floats:
    """Return the slow-down of work on a core relative to the top clocks, shape (n,).

    Args:
        cpu: CPU clocks as shares of the highest, shape (n,).
        mem: Memory clocks as shares of the highest, shape (n,).
    """
    factor: Floats = (1.0 - MEMORY_SHARE) / cpu + MEMORY_SHARE / mem
    return factor


def scale_to_clocks(top: InputPipeline, clocks: ClockShares, compute_s: float, host_share: float) -> InputPipeline:
    """Rescale a pipeline from the top clocks to another power mode.

    Args:
        top: The pipeline at the top clocks.
        clocks: The other mode.
        compute_s: Compute time per step in that mode, in seconds; given because the device has clocks of its own.
        host_share: Share of it in which the device waits for the host, from 0 to 1.
    """
    factor = float(compute_host_factor(np.array([clocks.cpu]), np.array([clocks.mem]))[0])
    step, samples = top.step, top.samples
    return dataclasses.replace(
        top,
        samples=dataclasses.replace(
            samples, fetch_s=samples.fetch_s * factor, preprocess_s=samples.preprocess_s * factor
        ),
        step=dataclasses.replace(
            step,
            compute_s=compute_s,
            host_share=host_share,
            copy_s=step.copy_s * factor,
            collate_s=step.collate_s * factor,
            handover_s=step.handover_s * factor,
            foreign_s=step.foreign_s * factor,
            posting_s=step.posting_s * factor,
            overhead_s=step.overhead_s * factor,
        ),
        host=dataclasses.replace(top.host, cores=float(clocks.cores)),
        start_s=top.start_s * factor,
    )


def solve_modes(
    top: InputPipeline, shares: Floats, cores: Floats, compute_s: Floats, host_share: Floats
) -> SteadyStates:
    """Compute the steady state in many power modes at once.

    Args:
        top: The pipeline at the top clocks.
        shares: The knobs as shares of the top mode's (``fedge.physics.time_power_model.knob_shares``), shape (n, 4).
        cores: Numbers of active cores, shape (n,).
        compute_s: Compute times per step in each mode, in seconds, shape (n,).
        host_share: Shares of them in which the device waits for the host, shape (n,).
    """
    factor = compute_host_factor(shares[:, 1], shares[:, 3])
    still = dataclasses.replace(top, step=dataclasses.replace(top.step, compute_s=0.0))
    once = build_batch_needs(still)
    ones = np.ones(len(shares))
    needs = BatchNeeds(
        read_s=once.read_s[0] * ones,
        load_s=once.load_s[0] * factor,
        train_s=once.train_s[0] * factor + compute_s * host_share,
        device_s=compute_s * (1.0 - host_share),
        cores=cores,
    )
    return solve_steady_states(
        needs, top.loader.workers, count_served_readers(top.storage, top.samples.file_mb), top.host
    )
