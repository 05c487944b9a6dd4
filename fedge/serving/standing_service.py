"""A standing inference service beside training: its best batch size in every mode, its share of the time, what is left.

Symbols: a requests per second, L latency budget, b batch size, t_in(b) seconds to infer b requests, t_tr seconds of a
training minibatch (0 while nothing is trained), t_first of a round's first one, which takes longer (warm-up), u the
share of the time that serving takes, P_in and P_tr watts.

A mode holds the service with batches of b when the first request of a batch has time to wait for the others (b/a; a
batch of one waits for nobody), for the training minibatch that is under way, and for its own batch:

    b/a + t_tr + t_in <= L / (1 + MARGIN),  t_first + t_in <= L / (1 + FIRST_MARGIN),  u = t_in a / b <= MOST_SHARE

What waits when a round begins is served first, hence nothing is collected before the second condition.
Of these b the one of least u is taken, since it leaves training most; of equals the smallest. Beside it a training
minibatch takes t_tr / (1 - u) and the board draws u P_in + (1 - u) P_tr. To unload a measurement is to undo that with
the share that was seen while it was made; a stretch of few batches has a share of its own, not the usual one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedge.modes import find_mode_index
from fedge.pareto import find_nearest_row
from fedge.protocols import Explorer, Predictor
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions, ServiceUse
from fedge.worker.inference_interleaver import TRAINING_SHARE
from fedge.worker.latency_histogram import LatencyHistogram

MARGIN = 0.05
"""The part of the latency budget, over what a mode needs, that stays free; chosen by us."""
FIRST_MARGIN = 0.15
"""The same of what a round's first minibatch needs: what has piled up by its end is served while more comes, and not
evenly. Chosen by us together with ``MAX_SHARE``."""
MAX_SHARE = 0.7
"""Serving may take this share of the time at most: the rest is training's, and requests do not come evenly. Chosen by
us: of rounds of 14 minibatches played with Poisson arrivals over all services within these limits, 2 in 100 had their
99th percentile over the budget; of those with shares of 0.7 to 0.8, 18."""
MAX_MEASURED_SHARE = 0.95
"""A stretch of work of which serving seems to have taken more is counted as if it had taken this. Chosen by us, above
``MAX_WORKER_SHARE``: short stretches stray."""
MAX_WORKER_SHARE = 1.0 - TRAINING_SHARE
"""A worker gives no more of its time to serving beside training."""
SHARE_SD_LOG = 0.05
"""How far the share of a round may lie off the expected one, log units; chosen by us."""
MIN_TRAINING_POWER_SHARE = 0.2
"""What is left of a measured power when serving is taken off it is at least this part of it. Chosen by us."""
PRIOR_SERVING_S = 2.0
"""A factor between the time that serving takes and the expected one is believed as soon as this much serving was seen:
so many seconds as expected count beside what was seen. Chosen by us."""


@dataclass(frozen=True, slots=True)
class ServiceDemand:
    """What a service must hold: requests per second, each answered within ``latency_s``, in batches of such sizes."""

    rate_hz: float
    latency_s: float
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class InferenceCosts:
    """What inferring a batch costs: ``infer_s`` and ``power_w`` have the shape (n, k), one column per batch size."""

    modes: Modes
    batch_sizes: tuple[int, ...]
    infer_s: Floats
    power_w: Floats

    def select_rows(self, keep: NDArray[np.bool_]) -> InferenceCosts:
        """The rows that ``keep`` marks."""
        return InferenceCosts(Modes(self.modes.knobs[keep]), self.batch_sizes, self.infer_s[keep], self.power_w[keep])

    def batch_power_w(self, mode: PowerMode, batch_size: int) -> float:
        """Watts in ``mode``, or the one nearest to it, at the batch size nearest to ``batch_size``."""
        return float(self.power_w[find_nearest_row(self.modes, mode), self.nearest_column(batch_size)])

    def batch_s(self, mode: PowerMode, batch_size: int) -> float:
        """Seconds of a batch, of the same mode and batch size."""
        return float(self.infer_s[find_nearest_row(self.modes, mode), self.nearest_column(batch_size)])

    def nearest_column(self, batch_size: int) -> int:
        """The place of the batch size nearest to ``batch_size``."""
        return int(np.argmin(np.abs(np.array(self.batch_sizes) - batch_size)))


@dataclass(frozen=True, slots=True, eq=False)
class ServiceTable:
    """A service in every mode, arrays of shape (n,): its batch size, share of the time, seconds and watts of a batch.

    ``holds`` marks the modes that hold it. In the others the row is that of the batch size which takes least of the
    time, whatever its latency, and the share is at most ``MAX_WORKER_SHARE``.
    """

    demand: ServiceDemand
    modes: Modes
    holds: NDArray[np.bool_]
    batch_size: NDArray[np.int64]
    share: Floats
    infer_s: Floats
    power_w: Floats

    def select_rows(self, keep: NDArray[np.bool_]) -> ServiceTable:
        """The rows that ``keep`` marks."""
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
        """Seconds of a training minibatch beside the service, from those without it; shape (n,)."""
        loaded: Floats = step_s / (1.0 - self.share)
        return loaded

    def mean_power_w(self, other_w: Floats) -> Floats:
        """Watts beside the service, from those of what is done between its batches; shape (n,)."""
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
    """The service in every mode beside minibatches of ``train_s`` seconds; batches take ``factor`` times as long.

    ``first_s`` are those of a round's first minibatch, 0 where nothing is trained. Only those of the demand's batch
    sizes are looked at which ``inference`` has a column for.
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
    """The least latency budget that some mode and batch size hold; infinite when none serves fast enough."""
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
    """The least latency budget of every mode and batch size, shape (n, k) like ``infer_s``, however busy it is."""
    wait_s = np.where(sizes > 1, sizes / demand.rate_hz, 0.0)
    train, first = (np.reshape(seconds, (-1, 1)) for seconds in (train_s, first_s))
    usual_s = (wait_s + train + infer_s) * (1.0 + MARGIN)
    first_needed_s = np.where(first > 0, (first + infer_s) * (1.0 + FIRST_MARGIN), 0.0)
    needed: Floats = np.maximum(usual_s, first_needed_s)
    return needed


def find_cheapest_row(service: ServiceTable, idle_w: Floats) -> int:
    """The row of the mode that holds the service and draws least, with ``idle_w`` watts between its batches."""
    return int(np.where(service.holds, service.mean_power_w(idle_w), np.inf).argmin())


def estimate_service_time_factor(
    measurements: Sequence[Measurement], inference: InferenceCosts, demand: ServiceDemand
) -> float:
    """How much longer serving took, on this very board, than expected: at most twice, at least half as long."""
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
    """A measurement as if nothing had been served meanwhile; one without a service stays as it is."""
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
    """A measurement made without a service as it would be beside it, in the mode of a row of ``service``."""
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


class ServingPredictor:
    """A ``Predictor`` around one of training alone: what it learns from and what it predicts is beside a service.

    ``service`` are the modes that may be predicted, ``inference`` what a batch costs in every mode of the board.
    """

    def __init__(self, inner: Predictor, inference: InferenceCosts, service: ServiceTable) -> None:
        self.inner, self.inference, self.service = inner, inference, service

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self.inner = self.inner.fit([remove_service_load(measurement, self.inference) for measurement in measurements])
        return self

    def predict(self, modes: Modes) -> Predictions:
        if modes is not self.service.modes:
            raise ValueError("a serving predictor predicts the modes of its service only")
        return add_service_to_predictions(self.inner.predict(modes), self.service)

    def normalize(self, measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
        """Measurements as they would be with the expected share, each in place of the share that it happened to see."""
        return tuple(self._normalize_one(measurement) for measurement in measurements)

    def _normalize_one(self, measurement: Measurement) -> Measurement:
        use, row = measurement.service, find_mode_index(self.service.modes, measurement.mode)
        if use is None or row is None:
            return measurement
        expected = dataclasses.replace(
            use,
            batch_size=int(self.service.batch_size[row]),
            busy_s=use.seconds * float(self.service.share[row]),
        )
        return add_service_load(remove_service_load(measurement, self.inference), self.service, row, expected)


class ServingExplorer:
    """An ``Explorer`` around one of training alone, which is told of every measurement without the service."""

    def __init__(self, inner: Explorer, inference: InferenceCosts) -> None:
        self.inner, self.inference = inner, inference

    def ask(self, count: int) -> Modes:
        return self.inner.ask(count)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        self.inner.tell([remove_service_load(measurement, self.inference) for measurement in measurements])


def add_service_to_predictions(predictions: Predictions, service: ServiceTable) -> Predictions:
    """Predictions of training alone as they are beside the service; rows must belong to the same modes."""
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
    """What a service did in two stretches of work, one after the other."""
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
    """Seconds within which ``q`` percent of the answers came; None where there was none.

    Told to the width of a bin, except that it is over the budget only if so many answers were.
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
    # ``late`` is of all requests, those included that were not played one by one.
    within = 100.0 * use.late * use.played <= (100.0 - q) * answers
    return min(found_s, use.latency_s) if within else found_s


def merge_all_service_uses(uses: Sequence[ServiceUse | None]) -> ServiceUse | None:
    """What a service did in several stretches; None when there was none in any."""
    total: ServiceUse | None = None
    for use in uses:
        total = merge_service_use(total, use)
    return total
