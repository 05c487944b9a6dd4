"""Choice of a service's batch size from measured times: the largest that meets the latency budget beside training.

    b     requests of a batch            a    arrivals in 1/s           L    latency budget in s
    t_in  seconds of a batch of b        t_tr seconds of a training step, alone

Fulcrum's peak latency is ``b / a + t_in``; in addition, the batch waits for the training step in progress. A batch of
one is not collected: it is due when its request arrives.
"""

from __future__ import annotations

from collections.abc import Mapping

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
# Default batch sizes to measure: powers of two; finer steps take longer to measure.
MAX_LOAD = 0.9
# Largest share of the time, ``t_in * a / b``: at 1 the queue grows without bound. Default: leaves 10 % for bursts.


def peak_latency_s(batch_size: int, batch_s: float, step_s: float, rate_hz: float) -> float:
    """Return the largest latency under even arrivals in seconds: collecting, one training step and the batch itself."""
    collecting_s = batch_size / rate_hz if batch_size > 1 else 0.0
    return collecting_s + step_s + batch_s


def service_load(batch_size: int, batch_s: float, rate_hz: float) -> float:
    """Return the share of the time that the service needs at this batch size."""
    return batch_s * rate_hz / batch_size


def find_largest_batch(batch_s: Mapping[int, float], step_s: float, rate_hz: float, latency_s: float) -> int | None:
    """Return the largest batch size that meets the latency budget and the limit on the load, or None."""

    def is_sustainable(size: int) -> bool:
        in_time = peak_latency_s(size, batch_s[size], step_s, rate_hz) <= latency_s
        return in_time and service_load(size, batch_s[size], rate_hz) <= MAX_LOAD

    return max(filter(is_sustainable, batch_s), default=None)


def find_least_latency_s(batch_s: Mapping[int, float], step_s: float, rate_hz: float) -> float | None:
    """Return the smallest latency budget in seconds that some batch size meets, or None if none keeps up."""
    kept_up = (b for b, seconds in batch_s.items() if service_load(b, seconds, rate_hz) <= MAX_LOAD)
    return min((peak_latency_s(b, batch_s[b], step_s, rate_hz) for b in kept_up), default=None)
