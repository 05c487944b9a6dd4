"""An emulated board's standing service: what its batches really take, and requests played between minibatches.

Requests are played one by one on the board's virtual clock by the worker's own code (``fedge.worker.interleaving``).
After ``MOST_REQUESTS`` of a stretch of work the rest of it is taken to go as it went so far, and the figures say so.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedge.concurrency.service import GIVEN, Demand, Inference, Standing, standing
from fedge.devices import catalogue
from fedge.devices.emulated import SWITCH_S, THROTTLED_SLOWDOWN, WARM_UP_STEPS, Played, Stretch, top_mode
from fedge.devices.truth import Surface, own_surface
from fedge.experiment import Board, ServingSpec
from fedge.fleetsim.boards import Kind
from fedge.modes import index_of
from fedge.rounds.serving import Duty, demand_of
from fedge.rounds.serving_costs import average_and_spreads
from fedge.seeds import generator
from fedge.types import Floats, Modes, PowerMode, ServiceUse
from fedge.worker.arrivals import Arrivals, times
from fedge.worker.interleaving import Interleaver, Request, Service, Told

MOST_REQUESTS = 10_000
"""Requests of one stretch of work that are played one by one; chosen by us, about 60 ms of computing."""
LEAD = 2.0
"""So many latency budgets before a round's work begins, requests begin to come: the service has stood all the while."""
NAME = "service"
WARMING = "warming up"
"""What the interleaver calls a round's first minibatch, which takes longer than all others, as the board knows."""


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """What stays the same for one board's service over a run; row i of both belongs to the same mode.

    ``average`` is what a batch costs boards of the kind, which is known beforehand, ``true`` what it costs this board.
    """

    spec: ServingSpec
    demand: Demand
    average: Inference
    true: Inference


def serving_of(board: Board, kind: Kind, seed: int) -> Serving | None:
    """The service of a board, over all its modes; None where its entry has none. Raises ``BadInput`` for its cost."""
    spec = board.entry.serving
    if spec is None:
        return None
    demand = demand_of(spec)
    average, spreads = _average(board.entry.device, spec.cost, demand.batch_sizes, kind.average.modes)
    columns = []
    for i, spread in enumerate(spreads):
        column = Surface(average.modes, average.infer_s[:, i], average.power_w[:, i], average.power_w[:, i])
        # The same draws for every batch size: a board that is slow is slow at all of them.
        columns.append(own_surface(column, *spread, generator(seed, board.name, "serving")))
    infer_s = np.stack([column.step_s for column in columns], axis=1)
    power_w = np.stack([column.power_w for column in columns], axis=1)
    return Serving(spec, demand, average, Inference(average.modes, average.batch_sizes, infer_s, power_w))


@lru_cache(maxsize=64)
def _average(
    device: str, cost: str, batch_sizes: tuple[int, ...], modes: Modes
) -> tuple[Inference, tuple[tuple[float, float], ...]]:
    return average_and_spreads(catalogue.find(device, where="fleet.device"), cost, batch_sizes, modes)


def believed_of(serving: Serving, modes: Modes, allowed: NDArray[np.bool_]) -> Inference:
    """What the board takes its batches to cost in the modes that it may choose, which ``allowed`` marks."""
    average = serving.average
    return Inference(modes, average.batch_sizes, average.infer_s[allowed], average.power_w[allowed])


def beside_it(serving: Serving, duty: Duty, surface: Surface, allowed: NDArray[np.bool_]) -> Surface:
    """The truth of training in the modes of a round's duty, beside batches of the sizes that it says.

    ``allowed`` marks the duty's modes among those of ``surface``.
    """
    rows = np.flatnonzero(allowed)[duty.keep]
    sizes = duty.working.batch_size
    columns = np.searchsorted(serving.true.batch_sizes, sizes)
    infer_s, power_w = serving.true.infer_s[rows, columns], serving.true.power_w[rows, columns]
    share = np.minimum(infer_s * serving.demand.rate_hz / sizes, GIVEN)
    truly = dataclasses.replace(duty.working, share=share, infer_s=infer_s, power_w=power_w)
    return _loaded(truly, surface.step_s[rows], surface.power_w[rows], surface.idle_w[rows])


def best_beside(serving: Serving, surface: Surface, above: NDArray[np.bool_]) -> tuple[Surface, float]:
    """The truth of training in the modes that truly hold the service, and the least watts of waiting beside it.

    Only the modes that ``above`` marks are looked at, and the fastest where none holds it. It is what a planner would
    reach whose batches are always full: somewhat better than requests that come at random allow.
    """
    working = standing(serving.true, serving.demand, surface.step_s, surface.step_s * (1.0 + WARM_UP_STEPS))
    resting = standing(serving.true, serving.demand)
    keep, rests = working.holds & above, resting.holds & above
    keep[surface.row(top_mode(surface))] = True
    rests = rests if rests.any() else keep
    loaded = _loaded(working, surface.step_s, surface.power_w, surface.idle_w).where(keep)
    return loaded, float(resting.mixed_w(surface.idle_w)[rests].min())


def _loaded(service: Standing, step_s: Floats, power_w: Floats, idle_w: Floats) -> Surface:
    return Surface(service.modes, service.step_s(step_s), service.mixed_w(power_w), service.mixed_w(idle_w))


class Upcoming:
    """The arrival times of a service; those that were looked at but not reached come again after ``again_from``."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._times = times(arrivals)
        self._seen: list[float] = []

    def again_from(self, now_s: float) -> Iterator[float]:
        """All times after ``now_s``."""
        self._seen = [at_s for at_s in self._seen if at_s > now_s]
        return itertools.chain(list(self._seen), self._next(now_s))

    def _next(self, now_s: float) -> Iterator[float]:
        for at_s in self._times:
            if at_s > now_s:
                self._seen.append(at_s)
                yield at_s


@dataclass(slots=True, eq=False)
class Attendance:
    """A board's service over one round: a ``fedge.devices.emulated.Beside`` on a clock that begins before the work.

    ``duty`` says in batches of how many the board serves in which mode; ``serving`` what they truly take. Requests that
    wait when the mode changes wait on.
    """

    serving: Serving
    duty: Duty
    surface: Surface
    """The board's truth, for its power at rest; of the same modes as the service's."""
    seed: int
    now_s: float = 0.0
    _hot_s: float = math.inf
    _row: int = 0
    _answered: int = 0
    _until_s: float = 0.0
    """The arrival of the last request that was answered: they are answered in their order."""
    _begun: bool = False
    _upcoming: Upcoming | None = None

    def idle_w(self, mode: PowerMode, idle_w: float) -> float:
        return self._mixed_w(self.duty.resting, mode, idle_w)

    def expected_w(self, mode: PowerMode, train_w: float) -> float:
        return self._mixed_w(self.duty.working, mode, train_w)

    def play(self, stretch: Stretch) -> Played:
        interleaver, batch_size = self._ready(stretch)
        began_s, ends_s = self.now_s, math.inf if stretch.limit_s is None else self.now_s + stretch.limit_s
        self._hot_s = began_s + stretch.hot_after_s
        done, train_s = 0, 0.0
        while done < stretch.steps:
            warming_s = stretch.warm_up_s if done == 0 else 0.0
            interleaver.between(kind=WARMING if warming_s else "train")
            next_s = (stretch.step_s + warming_s) * self._slowed()
            if done and self.now_s + next_s > ends_s:
                break
            self.now_s += next_s
            done, train_s = done + 1, train_s + next_s
            if self._answered >= MOST_REQUESTS:
                break
        interleaver.ended()
        told, seconds = interleaver.take()[NAME], self.now_s - began_s
        longer = self._rest(done, stretch.steps, seconds, ends_s)
        use = _use(told, batch_size, seconds, train_s, longer)
        return Played(
            round(done * longer), seconds * longer, train_s * longer, self._other_w(told, seconds - train_s), use
        )

    def _rest(self, done: int, steps: int, seconds: float, ends_s: float) -> float:
        """How many times as much as was played is taken to have been done; the clock goes on by it.

        What waits then was answered in the time that was not played.
        """
        if done == steps or self._answered < MOST_REQUESTS:
            return 1.0
        fits = int((ends_s - self.now_s) * done / seconds) if math.isfinite(ends_s) else steps
        longer = 1.0 + min(steps - done, max(0, fits)) / done
        self.now_s += seconds * (longer - 1.0)
        self._until_s = self.now_s
        return longer

    def _other_w(self, told: Told, other_s: float) -> float:
        """Mean watts of serving, and of waiting for a batch to fill up, which is done at rest."""
        row, true = self._row, self.serving.true
        size = round(told.served / told.batches) if told.batches else 1
        serving_w, idle_w = float(true.power_w[row, true.column(size)]), float(self.surface.idle_w[row])
        if other_s <= 0:
            return serving_w
        share = min(1.0, told.busy_s / other_s)
        return share * serving_w + (1.0 - share) * idle_w

    def _ready(self, stretch: Stretch) -> tuple[Interleaver, int]:
        """The interleaver in the stretch's mode, what waited before waiting on."""
        true, working = self.serving.true, self.duty.working
        row = index_of(working.modes, stretch.mode)
        at = index_of(true.modes, stretch.mode)
        if row is None or at is None:
            raise LookupError(f"{stretch.mode} is not among the modes in which the board may serve")
        if self._begun and at != self._row:
            self.now_s += SWITCH_S
        self._row, batch_size = at, int(working.batch_size[row])
        if self._upcoming is None:
            kind, spec = self.serving.spec.arrivals, self.serving.spec
            self._upcoming = Upcoming(Arrivals(kind, spec.rate_hz, self.seed))
        made = Interleaver(
            services=[Service(NAME, batch_size, self.serving.demand.latency_s)],
            arrivals={NAME: self._upcoming.again_from(self._until_s)},
            infer=self._infer,
            now_s=lambda: self.now_s,
            wait_s=self._wait,
        )
        made.learn_batch(NAME, batch_size, self._seconds(batch_size))
        made.learn_work(stretch.step_s)
        made.learn_work(stretch.step_s + stretch.warm_up_s, WARMING)
        if not self._begun:
            made.idle(self.now_s + LEAD * self.serving.demand.latency_s)
            made.take()
        self._begun, self._answered = True, 0
        return made, batch_size

    def _infer(self, _service: Service, batch: list[Request]) -> None:
        self.now_s += self._seconds(len(batch)) * self._slowed()
        self._answered += len(batch)
        self._until_s = batch[-1].arrived_s

    def _wait(self, seconds: float) -> None:
        self.now_s += seconds

    def _slowed(self) -> float:
        return THROTTLED_SLOWDOWN if self.now_s >= self._hot_s else 1.0

    def _seconds(self, size: int) -> float:
        """A batch of ``size`` in the present mode: between the known batch sizes linear in the logarithms."""
        true = self.serving.true
        at = np.interp(math.log(size), np.log(true.batch_sizes), np.log(true.infer_s[self._row]))
        return math.exp(float(at))

    def _mixed_w(self, service: Standing, mode: PowerMode, other_w: float) -> float:
        """Watts of serving, with what it truly takes, and of what is done between."""
        row, at = index_of(service.modes, mode), index_of(self.serving.true.modes, mode)
        if row is None or at is None:
            raise LookupError(f"{mode} is not among the modes in which the board may serve")
        size = int(service.batch_size[row])
        column = self.serving.true.column(size)
        share = min(1.0, float(self.serving.true.infer_s[at, column]) * self.serving.demand.rate_hz / size)
        return share * float(self.serving.true.power_w[at, column]) + (1.0 - share) * other_w


def _use(told: Told, batch_size: int, seconds: float, train_s: float, longer: float) -> ServiceUse:
    """What was told of a stretch, and of the rest of it that was not played."""
    return ServiceUse(
        batch_size=batch_size,
        seconds=seconds * longer,
        busy_s=(seconds - train_s) * longer,
        requests=round((told.served + told.dropped) * longer),
        late=round(told.late * longer),
        dropped=round(told.dropped * longer),
        batches=round(told.batches * longer),
        worst_s=told.histogram.worst_s,
        latencies=tuple((int(place), int(count)) for place, count in told.histogram.as_data()["bins"]),
        played=1.0 / longer,
        latency_s=told.histogram.budget_s,
    )
