"""Which mode and batch sizes for some jobs and limits: the choice, its runners-up, what limits it.

With one service the choice is Fulcrum's: most training minibatches per window, then least t_in. Windows of several
services differ, so there it is most minibatches per second. Without training it is the least t_in, without services the
fastest minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.concurrency.several import Demand, Together, together
from fedge.types import Floats, Modes, PowerMode

NEIGHBOURS = (0.8, 0.9, 1.1, 1.25)
"""Factors on a limit whose effect is shown; chosen by us."""
MOST_OTHERS = 6
STEP = 1.1
"""A limit that this factor eases without anything coming of it does not limit. Chosen by us."""
FARTHEST = 3.0
"""No rate is looked for beyond this factor. Chosen by us."""
FINE, COARSE = 1.01, 1.05
"""Steps of that search, for one service and for several; chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """What is to run on the board: services, and training or none; all arrays have one column per mode."""

    modes: Modes
    services: tuple[Demand, ...]
    train_s: Floats | None
    train_w: Floats | None


@dataclass(frozen=True, slots=True)
class Option:
    """One mode with one batch size per service, and what follows; the tuples have an element per service.

    ``steps`` are training minibatches in ``window_s``, the longest window: a whole number with one service, a mean with
    several. ``latency_s`` is the longest latency with evenly spaced arrivals. For training alone there is no window:
    ``window_s`` is 0 and ``steps`` too.
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
    """Of the time that serving takes."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A limit changed by a factor, the new value, and the choice then; None where nothing holds."""

    limit: str
    factor: float
    value: float
    option: Option | None


@dataclass(frozen=True, slots=True)
class Move:
    """A limit, and the value at which some choice holds while the other limits stay as they are.

    With several services ``limit`` latency or rate means all of theirs, and the values are the first one's. ``both``
    is power and latency moved by the same factor, where neither alone is enough; the values are of power.
    """

    limit: str
    now: float
    needed: float

    @property
    def factor(self) -> float:
        return self.needed / self.now


@dataclass(frozen=True, slots=True, eq=False)
class Every:
    """All choices for some jobs; ``order`` lists them, best first, as places in the flattened (c, n)."""

    jobs: Jobs
    all: Together

    def order(self, power_w: float) -> list[int]:
        """Those that hold all limits, best first."""
        holds = (self.all.holds & (self.all.power_w <= power_w)).ravel()
        keep = np.flatnonzero(holds)
        keys = [key.ravel()[keep] for key in reversed(self._keys())]
        return [int(i) for i in keep[np.lexsort(keys)]]

    def _keys(self) -> tuple[Floats, ...]:
        """To be least, the most important first."""
        if self.jobs.train_s is None:
            return self.all.infer_s, self.all.power_w
        first = self.all.steps if len(self.jobs.services) == 1 else self.all.steps_per_s
        return -first, self.all.infer_s, self.all.power_w

    def option(self, place: int) -> Option:
        """The choice at a place of the flattened (c, n)."""
        jobs, (c, row) = self.jobs, divmod(place, len(self.jobs.modes))
        at = list(zip(jobs.services, self.all.places[c], strict=True))
        sizes = tuple(service.batch_sizes[p] for service, p in at)
        windows = [size / service.rate_hz for size, (service, _) in zip(sizes, at, strict=True)]
        return Option(
            jobs.modes[row],
            row,
            sizes,
            float(self.all.steps[c, row]) if sizes else 0.0,
            float(self.all.steps_per_s[c, row]),
            max(windows, default=0.0),
            float(self.all.power_w[c, row]),
            None if jobs.train_s is None else float(jobs.train_s[row]),
            None if jobs.train_w is None else float(jobs.train_w[row]),
            tuple(float(service.infer_s[p, row]) for service, p in at),
            tuple(float(service.infer_w[p, row]) for service, p in at),
            tuple(float(needed) for needed in self.all.needed_s[:, c, row]),
            float(self.all.share[c, row]),
        )


def every(jobs: Jobs) -> Every:
    """All choices of mode and batch sizes."""
    if jobs.services:
        return Every(jobs, together(jobs.services, jobs.train_s, jobs.train_w))
    assert jobs.train_s is not None
    assert jobs.train_w is not None
    rate, none = 1.0 / jobs.train_s[None], np.zeros((1, len(jobs.modes)))
    yes = np.ones_like(none, dtype=np.bool_)
    return Every(
        jobs, Together(((),), np.zeros((0, *none.shape)), yes, yes, none, rate, none, jobs.train_w[None], none)
    )


def best(jobs: Jobs, power_w: float) -> Option | None:
    """The best choice; None where nothing holds the limits."""
    found = every(jobs)
    order = found.order(power_w)
    return found.option(order[0]) if order else None


def runners_up(found: Every, order: Sequence[int], same: int = 2) -> list[Option]:
    """What comes next: most per second, ``same`` further modes at the best one's batch sizes, the best of the others.

    Where the best one trains, those that leave no time for it are left out; at most ``MOST_OTHERS``.
    """
    if not order:
        return []
    trains = found.all.steps_per_s.flat[order[0]] > 0
    order = [place for place in order if found.all.steps_per_s.flat[place] > 0 or not trains]
    n = len(found.jobs.modes)
    places: list[int] = []
    seen: dict[int, int] = {}
    for place in order:
        c = place // n
        seen[c] = seen.get(c, 0) + 1
        if seen[c] <= (same + 1 if c == order[0] // n else 1):
            places.append(place)
    fastest = max(order, key=lambda place: found.all.steps_per_s.flat[place])
    if found.all.steps_per_s.flat[fastest] > found.all.steps_per_s.flat[order[0]] and fastest not in places:
        places.insert(1, fastest)
    return [found.option(place) for place in places[1 : MOST_OTHERS + 1]]


def neighbours(jobs: Jobs, power_w: float) -> list[Neighbour]:
    """What each limit, eased or tightened alone, would give."""
    return [
        Neighbour(limit, factor, value, best(changed, watts))
        for factor in NEIGHBOURS
        for limit, value, changed, watts in _changed(jobs, power_w, factor)
    ]


def limiting(jobs: Jobs, power_w: float, chosen: Option) -> list[str]:
    """The limits of which a little more would give a better choice."""
    eased = _changed(jobs, power_w, STEP)
    return [
        limit
        for limit, _, changed, watts in eased
        if limit != "rate" and (option := best(changed, watts)) is not None and better(jobs, option, chosen)
    ]


def better(jobs: Jobs, option: Option, than: Option) -> bool:
    """Whether an option reaches more of what is aimed at."""
    if jobs.train_s is None:
        return sum(option.infer_s) < sum(than.infer_s)
    if len(jobs.services) == 1:
        return option.steps > than.steps
    return option.steps_per_s > than.steps_per_s


def _changed(jobs: Jobs, power_w: float, factor: float) -> Iterator[tuple[str, float, Jobs, float]]:
    """Per limit its name, its new value (of the first service), and the jobs and the power with it."""
    yield "power", power_w * factor, jobs, power_w * factor
    if jobs.services:
        first = jobs.services[0]
        longer = [replace(service, latency_s=service.latency_s * factor) for service in jobs.services]
        yield "latency", first.latency_s * factor, replace(jobs, services=tuple(longer)), power_w
        yield "rate", first.rate_hz * factor, faster(jobs, factor), power_w


def faster(jobs: Jobs, factor: float) -> Jobs:
    """The same with so many times as many requests per second."""
    return replace(jobs, services=tuple(replace(one, rate_hz=one.rate_hz * factor) for one in jobs.services))


def nearest(jobs: Jobs, power_w: float) -> list[Move]:
    """Where nothing holds: per limit how far it alone would have to move, the smallest move first.

    Where no limit alone would do, power and latency together; empty when the board cannot keep up at all.
    """
    found = every(jobs).all
    moves = []
    if found.holds.any():
        moves.append(Move("power", power_w, float(found.power_w[found.holds].min())))
    within = found.power_w <= power_w
    if jobs.services:
        budgets = np.array([service.latency_s for service in jobs.services])
        kept = found.keeps_up & within
        if kept.any():
            factor = float((found.needed_s / budgets[:, None, None]).max(axis=0)[kept].min())
            moves.append(Move("latency", float(budgets[0]), float(budgets[0]) * factor))
        rate = _nearest_rate(jobs, power_w)
        if rate is not None:
            moves.append(Move("rate", jobs.services[0].rate_hz, rate))
        if not moves and found.keeps_up.any():
            over = np.maximum((found.needed_s / budgets[:, None, None]).max(axis=0), found.power_w / power_w)
            moves.append(Move("both", power_w, power_w * float(over[found.keeps_up].min())))
    return sorted(moves, key=lambda move: abs(math.log(move.factor)))


def _nearest_rate(jobs: Jobs, power_w: float) -> float | None:
    """The rate of the first service at which something holds, those of all changed alike; None within ``FARTHEST``."""
    step = FINE if len(jobs.services) == 1 else COARSE
    for power in range(1, math.floor(math.log(FARTHEST) / math.log(step)) + 1):
        for factor in (step**-power, step**power):
            found = every(faster(jobs, factor)).all
            if (found.holds & (found.power_w <= power_w)).any():
                return jobs.services[0].rate_hz * factor
    return None
