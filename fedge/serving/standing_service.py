"""A standing inference service beside training: best batch size in every mode, its share of the time, training's speed.

Symbols: a requests per second, L latency budget, b batch size, t_in(b) seconds to infer b requests, t_tr seconds of a
training step (0 while nothing is trained), t_first of a round's first step, which takes longer (warm-up), u the share
of the time that serving takes, P_in and P_tr watts.

A mode sustains the service with batches of b if the first request of a batch has time to wait for the others (b/a; not
for b = 1), for the training step in progress, and for its own batch:

    b/a + t_tr + t_in <= L / (1 + MARGIN),  t_first + t_in <= L / (1 + FIRST_MARGIN),  u = t_in a / b <= MAX_SHARE

The second condition contains no b/a because requests that wait when a round begins are served first. Of the feasible b,
the one of least u is used, since it leaves most time to training; of equal ones the smallest. Beside the service a
training step takes t_tr / (1 - u), and the board draws u P_in + (1 - u) P_tr. Removing the service from a measurement
inverts this with the share seen in the measurement itself, because a short interval has a share of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.pareto import find_nearest_row
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions, ServiceUse
from fedge.worker.inference_interleaver import TRAINING_SHARE
from fedge.worker.latency_histogram import LatencyHistogram

MARGIN = 0.05
# Part of the latency budget, relative to a mode's need, that stays free. Default: larger values exclude more modes.
FIRST_MARGIN = 0.15
# The same for a round's first step: requests that piled up by its end are served while more arrive unevenly. Set
# together with ``MAX_SHARE``.
MAX_SHARE = 0.7
# Largest share of the time for serving, since requests do not arrive evenly. In simulated rounds of 14 steps with
# Poisson arrivals over all services within these limits, 2 of 100 exceeded the budget at their 99th percentile; with
# shares from 0.7 to 0.8, 18 of 100 did.
MAX_MEASURED_SHARE = 0.95
# Upper bound on the measured share of an interval. Default above ``MAX_WORKER_SHARE``, since short intervals scatter.
MAX_WORKER_SHARE = 1.0 - TRAINING_SHARE
# The worker's own limit on the share of serving beside training.
SHARE_SD_LOG = 0.05
# Standard deviation of a round's share around the expected one, log units. Default; larger values widen predictions.
MIN_TRAINING_POWER_SHARE = 0.2
# Lower bound on the power left after removing the service, as a share of the measured one. Default: keeps it positive.
PRIOR_SERVING_S = 2.0
# Weight of the expected serving time in seconds: the measured factor dominates once more serving than this was seen.
# Default; a larger value reacts more slowly, a smaller one follows noise.


@dataclass(frozen=True, slots=True)
class ServiceDemand:
    """The requirements of a service."""

    rate_hz: float
    latency_s: float
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class InferenceCosts:
    """Time and power of inference batches.

    Attributes:
        modes: The n modes.
        batch_sizes: The k batch sizes.
        infer_s: Seconds per batch, shape (n, k).
        power_w: Power during a batch in watts, shape (n, k).
    """

    modes: Modes
    batch_sizes: tuple[int, ...]
    infer_s: Floats
    power_w: Floats

    def select_rows(self, keep: NDArray[np.bool_]) -> InferenceCosts:
        """Return the rows marked by ``keep``, shape (n,)."""
        return InferenceCosts(Modes(self.modes.knobs[keep]), self.batch_sizes, self.infer_s[keep], self.power_w[keep])

    def batch_power_w(self, mode: PowerMode, batch_size: int) -> float:
        """Return the power in watts at the nearest mode and the nearest batch size."""
        return float(self.power_w[find_nearest_row(self.modes, mode), self.nearest_column(batch_size)])

    def batch_s(self, mode: PowerMode, batch_size: int) -> float:
        """Return the seconds of a batch at the nearest mode and the nearest batch size."""
        return float(self.infer_s[find_nearest_row(self.modes, mode), self.nearest_column(batch_size)])

    def nearest_column(self, batch_size: int) -> int:
        """Return the index of the batch size nearest to ``batch_size``."""
        return int(np.argmin(np.abs(np.array(self.batch_sizes) - batch_size)))


@dataclass(frozen=True, slots=True, eq=False)
class ServiceTable:
    """A service in every mode; all arrays have shape (n,).

    Attributes:
        modes: The n modes.
        holds: Modes that sustain the service. Rows of the others use the batch size with the smallest share, whatever
            its latency.
        share: Share of the time that serving takes, at most ``MAX_WORKER_SHARE``.
        power_w: Power during a batch in watts.
    """

    demand: ServiceDemand
    modes: Modes
    holds: NDArray[np.bool_]
    batch_size: NDArray[np.int64]
    share: Floats
    infer_s: Floats
    power_w: Floats

    def select_rows(self, keep: NDArray[np.bool_]) -> ServiceTable:
        """Return the rows marked by ``keep``, shape (n,)."""
        return ServiceTable(
            self.demand,
            modes=Modes(self.modes.knobs[keep]),
            holds=self.holds[keep],
            batch_size=self.batch_size[keep],
            share=self.share[keep],
            infer_s=self.infer_s[keep],
            power_w=self.power_w[keep],
        )

    def loaded_step_s(self, step_s: Floats) -> Floats:
        """Return the seconds of a training step beside the service from those without it, shape (n,)."""
        loaded: Floats = step_s / (1.0 - self.share)
        return loaded

    def mean_power_w(self, other_w: Floats) -> Floats:
        """Return the mean power in watts from the power between batches, shape (n,)."""
        mixed: Floats = self.share * self.power_w + (1.0 - self.share) * other_w
        return mixed


def build_service_table(
    inference: InferenceCosts,
    demand: ServiceDemand,
    train_s: Floats | float = 0.0,
    first_s: Floats | float = 0.0,
    *,
    factor: float = 1.0,
) -> ServiceTable:
    """Choose the batch size of a service in every mode.

    Args:
        inference: Batch costs in n modes; only batch sizes that are also in ``demand`` are used.
        demand: Requirements of the service.
        train_s: Seconds of a training step, shape (n,) or scalar; 0 while nothing is trained.
        first_s: Seconds of a round's first step, shape (n,) or scalar; 0 while nothing is trained.
        factor: Measured slow-down of batches relative to ``inference``.
    """
    columns = [i for i, size in enumerate(inference.batch_sizes) if size in demand.batch_sizes]
    sizes = np.array([inference.batch_sizes[i] for i in columns], dtype=np.int64)
    infer_s = factor * inference.infer_s[:, columns]
    rows = np.arange(len(infer_s))
    share = infer_s * demand.rate_hz / sizes
    fits = (
        _latency_budgets_s(infer_s, sizes=sizes, demand=demand, train_s=train_s, first_s=first_s) <= demand.latency_s
    ) & (share <= MAX_SHARE)
    best = np.where(fits, share, np.inf).argmin(axis=1)
    holds = fits[rows, best]
    best = np.where(holds, best, share.argmin(axis=1))
    chosen = np.array(columns)[best]
    return ServiceTable(
        demand,
        modes=inference.modes,
        holds=holds,
        batch_size=sizes[best],
        share=np.minimum(share[rows, best], MAX_WORKER_SHARE),
        infer_s=infer_s[rows, best],
        power_w=inference.power_w[rows, chosen],
    )


def min_latency_budget_s(
    inference: InferenceCosts, demand: ServiceDemand, train_s: Floats | float = 0.0, first_s: Floats | float = 0.0
) -> float:
    """Return the smallest latency budget that some mode and batch size sustain; infinite if none serves fast enough."""
    least = np.inf
    for size in demand.batch_sizes:
        alone = build_service_table(inference, dataclasses.replace(demand, latency_s=np.inf, batch_sizes=(size,)))
        all_s = _latency_budgets_s(
            alone.infer_s[:, None], sizes=np.array([size]), demand=demand, train_s=train_s, first_s=first_s
        )[:, 0]
        least = min(least, float(np.where(alone.holds, all_s, np.inf).min()))
    return least


def _latency_budgets_s(
    infer_s: Floats, sizes: NDArray[np.int64], demand: ServiceDemand, train_s: Floats | float, first_s: Floats | float
) -> Floats:
    """Return the smallest latency budget of every mode and batch size, shape (n, k), regardless of the share."""
    wait_s = np.where(sizes > 1, sizes / demand.rate_hz, 0.0)
    train, first = (np.reshape(seconds, (-1, 1)) for seconds in (train_s, first_s))
    usual_s = (wait_s + train + infer_s) * (1.0 + MARGIN)
    first_needed_s = np.where(first > 0, (first + infer_s) * (1.0 + FIRST_MARGIN), 0.0)
    needed: Floats = np.maximum(usual_s, first_needed_s)
    return needed


def find_cheapest_row(service: ServiceTable, idle_w: Floats) -> int:
    """Return the row of least mean power among the modes that sustain the service.

    ``idle_w`` is the power between batches in watts, shape (n,).
    """
    return int(np.where(service.holds, service.mean_power_w(idle_w), np.inf).argmin())


def estimate_service_time_factor(
    measurements: Sequence[Measurement], inference: InferenceCosts, demand: ServiceDemand
) -> float:
    """Estimate how much longer serving takes on this board than expected.

    Measurements of peers, throttled ones and those without a service are ignored.

    Returns:
        The factor, from 0.5 to 2.
    """
    seen_s = expected_s = PRIOR_SERVING_S
    for measurement in measurements:
        use = measurement.service
        if use is None or measurement.board is not None or measurement.throttled:
            continue
        batches = use.seconds * demand.rate_hz / use.batch_size
        seen_s += use.busy_s
        expected_s += batches * inference.batch_s(measurement.mode, use.batch_size)
    return float(np.clip(seen_s / expected_s, 0.5, 2.0))


def remove_service_load(measurement: Measurement, inference: InferenceCosts) -> Measurement:
    """Return a measurement as if nothing had been served meanwhile; one without a service is returned unchanged."""
    use = measurement.service
    if use is None:
        return measurement
    share = min(use.share, MAX_MEASURED_SHARE)
    left = 1.0 - share
    serving_w = share * inference.batch_power_w(measurement.mode, use.batch_size)
    rest_w = max(measurement.power_w - serving_w, MIN_TRAINING_POWER_SHARE * measurement.power_w)
    return dataclasses.replace(
        measurement,
        step_s=measurement.step_s * left,
        warm_up_s=measurement.warm_up_s * left,
        power_w=rest_w / left,
        power_se_log=measurement.power_se_log * measurement.power_w / rest_w,
        service=None,
    )


def add_service_load(
    measurement: Measurement, service: ServiceTable, row: int, use: ServiceUse | None = None
) -> Measurement:
    """Return a measurement made without a service as it would be beside it.

    ``row`` is that of the measurement's mode in ``service``.
    """
    share, power_w = float(service.share[row]), float(service.power_w[row])
    left_w = (1.0 - share) * measurement.power_w
    mixed_w = share * power_w + left_w
    return dataclasses.replace(
        measurement,
        step_s=measurement.step_s / (1.0 - share),
        warm_up_s=measurement.warm_up_s / (1.0 - share),
        power_w=mixed_w,
        power_se_log=measurement.power_se_log * left_w / mixed_w,
        service=use,
    )


def add_service_to_predictions(predictions: Predictions, service: ServiceTable) -> Predictions:
    """Convert predictions of training alone to training beside the service; rows must belong to the same modes."""
    share, train_w = service.share, (1.0 - service.share) * predictions.power_w
    power_w = service.mean_power_w(predictions.power_w)
    serving_sd = SHARE_SD_LOG * share * service.power_w / power_w
    return Predictions(
        service.modes,
        step_s=service.loaded_step_s(predictions.step_s),
        power_w=power_w,
        step_s_sd_log=np.hypot(predictions.step_s_sd_log, SHARE_SD_LOG * share / (1.0 - share)),
        power_w_sd_log=np.hypot(predictions.power_w_sd_log * train_w / power_w, serving_sd),
    )


def merge_service_use(first: ServiceUse | None, more: ServiceUse | None) -> ServiceUse | None:
    """Merge the statistics of two consecutive intervals."""
    if first is None or more is None:
        return first if more is None else more
    bins: dict[int, int] = dict(first.latencies)
    for place, count in more.latencies:
        bins[place] = bins.get(place, 0) + count
    requests = first.requests + more.requests
    played = first.played * first.requests + more.played * more.requests
    return ServiceUse(
        batch_size=more.batch_size,
        seconds=first.seconds + more.seconds,
        busy_s=first.busy_s + more.busy_s,
        requests=requests,
        late=first.late + more.late,
        dropped=first.dropped + more.dropped,
        batches=first.batches + more.batches,
        worst_s=max(first.worst_s, more.worst_s),
        latencies=tuple(sorted(bins.items())),
        played=played / requests if requests else 1.0,
        latency_s=more.latency_s,
    )


def latency_percentile_s(use: ServiceUse, q: float) -> float | None:
    """Return the latency percentile of the answers.

    Returns:
        Seconds, up to the width of a histogram bin, or None without answers. The result exceeds the budget only if more
        than ``100 - q`` percent of the answers were late.
    """
    answers = sum(count for _, count in use.latencies)
    data = {
        "budget_s": 0.0,
        "count": answers,
        "late": use.late,
        "total_s": 0.0,
        "worst_s": use.worst_s,
        "bins": use.latencies,
    }
    found_s = LatencyHistogram.from_data(data).percentile(q)
    if found_s is None or use.latency_s is None:
        return found_s
    # ``late`` counts all requests, including extrapolated ones.
    within = 100.0 * use.late * use.played <= (100.0 - q) * answers
    return min(found_s, use.latency_s) if within else found_s


def merge_all_service_uses(uses: Sequence[ServiceUse | None]) -> ServiceUse | None:
    """Merge the statistics of consecutive intervals; None if there are none in any of them."""
    total: ServiceUse | None = None
    for use in uses:
        total = merge_service_use(total, use)
    return total
