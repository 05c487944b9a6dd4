"""Several inference services beside one training job: which batch sizes meet all latency budgets in which modes.

Symbols, of service i: a_i arrival rate, L_i latency budget, b_i batch size, w_i = b_i / a_i its window, t_i seconds of
a batch; t_tr seconds of a training step. One job runs at a time, and a full batch starts at the next opportunity. A
busy period in which full batches wait begins at worst with a training step in progress and a full batch of every
service, and lasts as long as further batches fill up meanwhile:

    B = t_tr + sum of t_i ceil(B / w_i)

A mode sustains the services if w_i + B <= L_i for every i, so a partly filled batch never has to start early, and if
they keep up: sum of t_i a_i / b_i <= 1. As long as B is below all windows, it is t_tr plus one batch of each. For a
single service, its window can be divided into whole training steps, so that nothing delays the batch: B = t_in. If the
conditions hold only without t_tr, the services run but nothing is trained. If they hold with it, several services leave
the training all remaining time: (1 - sum of t_i a_i / b_i) / t_tr steps per second.

References:
    Fulcrum, arXiv 2509.20205: the rules for a single service.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.types import Floats

MAX_SERVICES = 3
# Combinations of batch sizes are enumerated, which grows exponentially with the number of services.
ITERATIONS = 20
# Limit on the fixed-point iterations of B, after which it counts as infinite; usually two or three suffice.


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredServiceDemand:
    """A service with measured batch costs.

    Attributes:
        batch_sizes: The k batch sizes.
        infer_s: Seconds per batch, shape (k, n).
        infer_w: Power during a batch in watts, shape (k, n).
    """

    name: str
    rate_hz: float
    latency_s: float
    batch_sizes: tuple[int, ...]
    infer_s: Floats
    infer_w: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ServiceCombinations:
    """All c combinations of batch sizes in all n modes.

    Attributes:
        places: Index of every service's batch size, per combination.
        needed_s: Largest latency of every service, shape (services, c, n); infinite if batches pile up.
        in_time: Whether all latency budgets are met, shape (c, n).
        keeps_up: Whether serving takes at most all of the time, shape (c, n).
        steps: Training steps, shape (c, n). One service: the whole number N per window. Several: mean per longest
            window.
        steps_per_s: Training steps per second, shape (c, n); 0 if nothing can be trained.
        infer_s: Seconds of one batch of every service together, shape (c, n).
        power_w: Power of the job that draws most in watts, shape (c, n).
        share: Share of the time that serving takes, shape (c, n).
    """

    places: tuple[tuple[int, ...], ...]
    needed_s: Floats
    in_time: NDArray[np.bool_]
    keeps_up: NDArray[np.bool_]
    steps: Floats
    steps_per_s: Floats
    infer_s: Floats
    power_w: Floats
    share: Floats

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Return whether latency budgets and throughput are met, (c, n)."""
        return self.in_time & self.keeps_up


def evaluate_combinations(
    demands: Sequence[MeasuredServiceDemand], train_s: Floats | None = None, train_w: Floats | None = None
) -> ServiceCombinations:
    """Evaluate every combination of batch sizes.

    Args:
        demands: The services.
        train_s: Seconds per training step, shape (n,); None without training.
        train_w: Power of training in watts, shape (n,); None without training.

    Raises:
        BadInput: If there is no service or more than ``MAX_SERVICES``.
    """
    if not 1 <= len(demands) <= MAX_SERVICES:
        raise BadInput("services", str(len(demands)), f"1 to {MAX_SERVICES}")
    places = tuple(itertools.product(*(range(len(demand.batch_sizes)) for demand in demands)))
    each = [_evaluate_combination(demands, chosen, train_s, train_w) for chosen in places]
    columns: dict[str, Any] = {name: np.stack([one[name] for one in each], axis=-2) for name in each[0]}
    return ServiceCombinations(places, **columns)


def _evaluate_combination(
    demands: Sequence[MeasuredServiceDemand], places: Sequence[int], train_s: Floats | None, train_w: Floats | None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``ServiceCombinations`` for one combination."""
    at = list(zip(demands, places, strict=True))
    sizes = [demand.batch_sizes[place] for demand, place in at]
    window_s = np.array([size / demand.rate_hz for size, demand in zip(sizes, demands, strict=True)])[:, None]
    budget_s = np.array([demand.latency_s for demand in demands])[:, None]
    infer_s = np.stack([demand.infer_s[place] for demand, place in at])
    share = np.sum([t * demand.rate_hz / size for t, demand, size in zip(infer_s, demands, sizes, strict=True)], axis=0)
    # For one service the same comparison as in ``trial_search.evaluate_choices``, so that rounding agrees.
    keeps_up = infer_s[0] * demands[0].rate_hz <= sizes[0] if len(demands) == 1 else share <= 1.0
    needed_s = window_s + _longest_stretch_s(window_s, infer_s, None)
    in_time = np.asarray((needed_s <= budget_s).all(axis=0))
    steps = rate = np.zeros_like(share)
    if train_s is not None:
        beside_s = needed_s if len(demands) == 1 else window_s + _longest_stretch_s(window_s, infer_s, train_s)
        trains = (beside_s <= budget_s).all(axis=0) & keeps_up
        longest_s = float(window_s.max())
        if len(demands) == 1:
            steps = np.where(trains, np.maximum(np.floor((longest_s - infer_s[0]) / train_s), 0.0), 0.0)
            rate = steps / longest_s
        else:
            rate = np.where(trains, (1.0 - share) / train_s, 0.0)
            steps = rate * longest_s
        needed_s = np.where(rate > 0, beside_s, needed_s)
    watts = [demand.infer_w[place] for demand, place in at] + ([] if train_w is None else [train_w])
    return {
        "needed_s": needed_s,
        "in_time": in_time,
        "keeps_up": np.asarray(keeps_up),
        "steps": steps,
        "steps_per_s": rate,
        "infer_s": infer_s.sum(axis=0),
        "power_w": np.max(watts, axis=0),
        "share": share,
    }


def _longest_stretch_s(window_s: Floats, infer_s: Floats, train_s: Floats | None) -> Floats:
    """Return B, (n,), the longest busy period, for windows (s, 1) and batch times (s, n); infinite if it diverges."""
    if len(infer_s) == 1:
        alone: Floats = infer_s[0]
        return alone
    block_s = 0.0 if train_s is None else train_s
    stretch_s, before_s = block_s + infer_s.sum(axis=0), np.zeros(infer_s.shape[1])
    for _ in range(ITERATIONS):
        before_s, stretch_s = stretch_s, block_s + (np.ceil(stretch_s / window_s) * infer_s).sum(axis=0)
        if np.array_equal(before_s, stretch_s):
            break
    settled: Floats = np.where(before_s == stretch_s, stretch_s, np.inf)
    return settled
