"""Choose mode and batch sizes for given jobs and limits: the best choice, its runners-up, and the binding limits.

With one service the choice is Fulcrum's: most training steps per window, then least t_in. Windows of several services
differ, so there it is most steps per second. Without training it is the least t_in, without services the fastest step.

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
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput
from fedge.types import Floats, Modes, PowerMode

LIMIT_FACTORS = (0.8, 0.9, 1.1, 1.25)
"""Default factors on a limit whose effect is shown."""
MAX_RUNNERS_UP = 6
MODES_AT_BEST_SIZES = 3
"""Modes listed of the batch sizes of the best choice, that one included; of other sizes one is."""
EASING_FACTOR = 1.1
"""Default factor for binding limits: a limit is binding if easing it by this factor improves the choice."""
MAX_RATE_FACTOR = 3.0
"""Default end of the search for a rate that holds, as a factor on the requested rate."""
FINE, COARSE = 1.01, 1.05
"""Default steps of that search, for one service and for several: finer ones find closer rates and take longer."""


@dataclass(frozen=True, slots=True, eq=False)
class ServingJobs:
    """The jobs of a board: services, and training or None; all arrays have one column per mode.

    Attributes:
        modes: The n modes.
        train_s: Seconds per training step, shape (n,), or None without training.
        train_w: Watts while training, shape (n,), or None without training.
    """

    modes: Modes
    services: tuple[MeasuredServiceDemand, ...]
    train_s: Floats | None
    train_w: Floats | None


@dataclass(frozen=True, slots=True)
class ServingOption:
    """One mode with one batch size per service, and its figures; the tuples have an element per service.

    Attributes:
        steps: Training steps in ``window_s``: a whole number with one service, a mean with several, 0 without services.
        window_s: The longest window in seconds; 0 for training alone.
        infer_s: Seconds of a full batch of each service.
        latency_s: The longest latency in seconds with evenly spaced arrivals.
        share: Share of the time that serving takes.
    """

    mode: PowerMode
    row: int
    batch_sizes: tuple[int, ...]
    steps: float
    steps_per_s: float
    window_s: float
    power_w: float
    train_s: float | None
    train_w: float | None
    infer_s: tuple[float, ...]
    infer_w: tuple[float, ...]
    latency_s: tuple[float, ...]
    share: float


@dataclass(frozen=True, slots=True)
class LimitVariation:
    """A limit changed by a factor, the new value, and the choice then, None if none holds."""

    limit: str
    factor: float
    value: float
    option: ServingOption | None


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A limit, and the value at which some choice holds while the other limits stay as they are.

    With several services ``limit`` latency or rate applies to all of theirs, and the values are the first one's.
    ``both`` is power and latency moved by the same factor, if neither alone is enough; the values are those of power.
    """

    limit: str
    now: float
    needed: float

    @property
    def factor(self) -> float:
        return self.needed / self.now


@dataclass(frozen=True, slots=True, eq=False)
class ServingChoices:
    """All choices for some jobs; places are indices into the flattened arrays of shape (combinations, modes)."""

    jobs: ServingJobs
    choices: ServiceCombinations

    def rank_places(self, power_w: float) -> list[int]:
        """Return the places that keep all limits, best first."""
        holds = (self.choices.holds & (self.choices.power_w <= power_w)).ravel()
        keep = np.flatnonzero(holds)
        keys = [key.ravel()[keep] for key in reversed(self._sort_keys())]
        return [int(i) for i in keep[np.lexsort(keys)]]

    def _sort_keys(self) -> tuple[Floats, ...]:
        """Return the keys to minimise, the most important first."""
        if self.jobs.train_s is None:
            return self.choices.infer_s, self.choices.power_w
        first = self.choices.steps if len(self.jobs.services) == 1 else self.choices.steps_per_s
        return -first, self.choices.infer_s, self.choices.power_w

    def build_option(self, place: int) -> ServingOption:
        jobs, (c, row) = self.jobs, divmod(place, len(self.jobs.modes))
        at = list(zip(jobs.services, self.choices.places[c], strict=True))
        sizes = tuple(service.batch_sizes[p] for service, p in at)
        windows = [size / service.rate_hz for size, (service, _) in zip(sizes, at, strict=True)]
        return ServingOption(
            jobs.modes[row],
            row=row,
            batch_sizes=sizes,
            steps=float(self.choices.steps[c, row]) if sizes else 0.0,
            steps_per_s=float(self.choices.steps_per_s[c, row]),
            window_s=max(windows, default=0.0),
            power_w=float(self.choices.power_w[c, row]),
            train_s=None if jobs.train_s is None else float(jobs.train_s[row]),
            train_w=None if jobs.train_w is None else float(jobs.train_w[row]),
            infer_s=tuple(float(service.infer_s[p, row]) for service, p in at),
            infer_w=tuple(float(service.infer_w[p, row]) for service, p in at),
            latency_s=tuple(float(needed) for needed in self.choices.needed_s[:, c, row]),
            share=float(self.choices.share[c, row]),
        )


def enumerate_choices(jobs: ServingJobs) -> ServingChoices:
    """Return all choices of mode and batch sizes."""
    if jobs.services:
        return ServingChoices(jobs, evaluate_combinations(jobs.services, jobs.train_s, jobs.train_w))
    assert jobs.train_s is not None
    assert jobs.train_w is not None
    rate, none = 1.0 / jobs.train_s[None], np.zeros((1, len(jobs.modes)))
    yes = np.ones_like(none, dtype=np.bool_)
    return ServingChoices(
        jobs,
        ServiceCombinations(
            ((),),
            needed_s=np.zeros((0, *none.shape)),
            in_time=yes,
            keeps_up=yes,
            steps=none,
            steps_per_s=rate,
            infer_s=none,
            power_w=jobs.train_w[None],
            share=none,
        ),
    )


def find_best_option(jobs: ServingJobs, power_w: float) -> ServingOption | None:
    """Return the best choice within ``power_w`` watts, or None if none keeps the limits."""
    found = enumerate_choices(jobs)
    order = found.rank_places(power_w)
    return found.build_option(order[0]) if order else None


def list_runners_up(found: ServingChoices, order: Sequence[int]) -> list[ServingOption]:
    """Return the runners-up: the choice with most steps per second, further modes of the best one's sizes, and others.

    ``order`` has the places of the choices that keep all limits, best first.

    Returns:
        At most ``MAX_RUNNERS_UP`` choices. If the best one trains, those that leave no time for training are left out.
    """
    if not order:
        return []
    trains = found.choices.steps_per_s.flat[order[0]] > 0
    order = [place for place in order if found.choices.steps_per_s.flat[place] > 0 or not trains]
    n = len(found.jobs.modes)
    places: list[int] = []
    seen: dict[int, int] = {}
    for place in order:
        c = place // n
        seen[c] = seen.get(c, 0) + 1
        if seen[c] <= (MODES_AT_BEST_SIZES if c == order[0] // n else 1):
            places.append(place)
    fastest = max(order, key=lambda place: found.choices.steps_per_s.flat[place])
    if found.choices.steps_per_s.flat[fastest] > found.choices.steps_per_s.flat[order[0]] and fastest not in places:
        places.insert(1, fastest)
    return [found.build_option(place) for place in places[1 : MAX_RUNNERS_UP + 1]]


def vary_limits(jobs: ServingJobs, power_w: float) -> list[LimitVariation]:
    """Return the best choice for each limit eased or tightened alone."""
    return [
        LimitVariation(limit, factor, value, find_best_option(changed, watts))
        for factor in LIMIT_FACTORS
        for limit, value, changed, watts in _change_limits(jobs, power_w, factor)
    ]


def find_binding_limits(jobs: ServingJobs, power_w: float, chosen: ServingOption) -> list[str]:
    """Return the limits of which a little more would give a better choice."""
    eased = _change_limits(jobs, power_w, EASING_FACTOR)
    return [
        limit
        for limit, _, changed, watts in eased
        if limit != "rate"
        and (option := find_best_option(changed, watts)) is not None
        and is_better(jobs, option, chosen)
    ]


def is_better(jobs: ServingJobs, option: ServingOption, than: ServingOption) -> bool:
    """Return whether an option is better than another by the first objective."""
    if jobs.train_s is None:
        return sum(option.infer_s) < sum(than.infer_s)
    if len(jobs.services) == 1:
        return option.steps > than.steps
    return option.steps_per_s > than.steps_per_s


def _change_limits(jobs: ServingJobs, power_w: float, factor: float) -> Iterator[tuple[str, float, ServingJobs, float]]:
    """Yield each limit's name, its new value (of the first service), and the jobs and power with it."""
    yield "power", power_w * factor, jobs, power_w * factor
    if jobs.services:
        first = jobs.services[0]
        longer = [replace(service, latency_s=service.latency_s * factor) for service in jobs.services]
        yield "latency", first.latency_s * factor, replace(jobs, services=tuple(longer)), power_w
        yield "rate", first.rate_hz * factor, scale_rates(jobs, factor), power_w


def scale_rates(jobs: ServingJobs, factor: float) -> ServingJobs:
    return replace(jobs, services=tuple(replace(one, rate_hz=one.rate_hz * factor) for one in jobs.services))


def find_nearest_limits(jobs: ServingJobs, power_w: float) -> list[LimitChange]:
    """Return how far each limit alone would have to move for a choice to hold, the smallest change first.

    If no limit alone is enough, power and latency are moved together; empty if the board cannot keep up at all, or
    only with batches that pile up.
    """
    found = enumerate_choices(jobs).choices
    moves = []
    if found.holds.any():
        moves.append(LimitChange("power", power_w, float(found.power_w[found.holds].min())))
    within = found.power_w <= power_w
    if jobs.services:
        budgets = np.array([service.latency_s for service in jobs.services])
        kept = found.keeps_up & within
        if kept.any():
            factor = float((found.needed_s / budgets[:, None, None]).max(axis=0)[kept].min())
            moves.append(LimitChange("latency", float(budgets[0]), float(budgets[0]) * factor))
        rate = _find_nearest_rate_hz(jobs, power_w)
        if rate is not None:
            moves.append(LimitChange("rate", jobs.services[0].rate_hz, rate))
        if not any(math.isfinite(move.needed) for move in moves) and found.keeps_up.any():
            over = np.maximum((found.needed_s / budgets[:, None, None]).max(axis=0), found.power_w / power_w)
            moves.append(LimitChange("both", power_w, power_w * float(over[found.keeps_up].min())))
    return sorted((move for move in moves if math.isfinite(move.needed)), key=lambda move: abs(math.log(move.factor)))


def _find_nearest_rate_hz(jobs: ServingJobs, power_w: float) -> float | None:
    """Return the first service's nearest rate at which a choice holds, all rates scaled alike.

    None if there is no such rate within ``MAX_RATE_FACTOR``.
    """
    step = FINE if len(jobs.services) == 1 else COARSE
    for power in range(1, math.floor(math.log(MAX_RATE_FACTOR) / math.log(step)) + 1):
        for factor in (step**-power, step**power):
            found = enumerate_choices(scale_rates(jobs, factor)).choices
            if (found.holds & (found.power_w <= power_w)).any():
                return jobs.services[0].rate_hz * factor
    return None


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
    """Evaluate every combination of batch sizes, beside training with these times and powers, shape (n,), or alone.

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
