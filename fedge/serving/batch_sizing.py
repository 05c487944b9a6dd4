"""Which batch size a service takes: the largest that holds its budget beside a training, from measured times.

    b     requests of a batch            a    arrivals in 1/s           L    latency budget in s
    t_in  seconds of a batch of b        t_tr seconds of a training minibatch, alone

Fulcrum's peak latency is ``b / a + t_in``; on top, the batch waits for the minibatch of training that is under way.
A batch of one is not collected: it is due when its request arrives.
"""

from __future__ import annotations

from collections.abc import Mapping

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Batch sizes that are measured. Chosen by us."""
MAX_LOAD = 0.9
"""A service may want so much of the time at most: ``t_in * a / b``; at 1 its queue grows for ever. Chosen by us."""


def peak_latency_s(batch_size: int, batch_s: float, step_s: float, rate_hz: float) -> float:
    """The longest that a request takes under even arrivals: collecting, one training minibatch, its batch."""
    collecting_s = batch_size / rate_hz if batch_size > 1 else 0.0
    return collecting_s + step_s + batch_s


def service_load(batch_size: int, batch_s: float, rate_hz: float) -> float:
    """The share of the time that the service wants, in batches of this size."""
    return batch_s * rate_hz / batch_size


def is_sustainable(batch_size: int, batch_s: float, step_s: float, rate_hz: float, latency_s: float) -> bool:
    """Whether batches of this size keep within the budget and keep up."""
    in_time = peak_latency_s(batch_size, batch_s, step_s, rate_hz) <= latency_s
    return in_time and service_load(batch_size, batch_s, rate_hz) <= MAX_LOAD


def find_largest_batch(batch_s: Mapping[int, float], step_s: float, rate_hz: float, latency_s: float) -> int | None:
    """The largest size of ``batch_s`` (seconds by size) that holds; None when none does."""
    return max(
        (
            b
            for b, seconds in batch_s.items()
            if is_sustainable(b, batch_s=seconds, step_s=step_s, rate_hz=rate_hz, latency_s=latency_s)
        ),
        default=None,
    )


def find_least_latency_s(batch_s: Mapping[int, float], step_s: float, rate_hz: float) -> float | None:
    """The smallest budget that any of the sizes would hold; None when none keeps up."""
    kept_up = (b for b, seconds in batch_s.items() if service_load(b, seconds, rate_hz) <= MAX_LOAD)
    return min((peak_latency_s(b, batch_s[b], step_s, rate_hz) for b in kept_up), default=None)
