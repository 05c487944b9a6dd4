"""The standing inference service of an emulated board: true batch costs and simulated requests between steps.

Requests are simulated individually in the board's simulated time by the worker's own code
(``fedge.worker.inference_interleaver``). After ``MAX_SIMULATED_REQUESTS`` requests of one interval of work, the rest of
the interval is extrapolated, and the results say so.
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

from fedge.client.inference_service import (
    InferenceWork,
    RoundService,
    build_demand,
    describe_service,
    inference_costs_and_profiles,
)
from fedge.costs.cost_profile import CostProfile
from fedge.devices import catalogue
from fedge.devices.board_kinds import BoardKind, EstimateError, draw_estimate_error
from fedge.devices.emulated_board import (
    THROTTLED_SLOWDOWN,
    WARM_UP_STEPS,
    SharedWork,
    SharedWorkResult,
    find_top_mode,
    mode_change_s,
)
from fedge.devices.mode_surface import ModeSurface, draw_board_surface
from fedge.experiment import FleetBoard, ServingSpec
from fedge.modes import find_mode_index
from fedge.seeds import make_generator
from fedge.serving.standing_service import (
    MAX_WORKER_SHARE,
    InferenceCosts,
    ServiceDemand,
    ServiceTable,
    build_service_table,
)
from fedge.types import Floats, Modes, PowerMode, ServiceUse
from fedge.worker.arrivals import Arrivals, arrival_times
from fedge.worker.inference_interleaver import HostedService, Interleaver, Request, ServiceStatistics

MAX_SIMULATED_REQUESTS = 10_000
# Requests simulated individually per interval of work, about 60 ms of computing; more cost time and gain accuracy only
# in very long intervals.
LEAD_BUDGETS = 2.0
# Requests start this many latency budgets before the round's work, because the service is already in operation then.
SERVICE_NAME = "service"
WARM_UP_KIND = "warming up"
# Name in the interleaver of a round's first step, which takes longer than all others; its duration is known.


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedService:
    """The parts of a board's service that stay constant over a run; rows of both tables belong to the same modes.

    Attributes:
        average: Batch costs of an average board of the kind, known beforehand.
    """

    spec: ServingSpec
    demand: ServiceDemand
    average: InferenceCosts
    true: InferenceCosts


def build_service(board: FleetBoard, kind: BoardKind, seed: int) -> EmulatedService | None:
    """Build the service of a board over all its modes.

    Returns:
        The service, or None if the board's fleet entry has none.

    Raises:
        BadInput: If the inference cost is unknown.
    """
    spec = board.entry.serving
    if spec is None:
        return None
    demand = build_demand(spec)
    average, profiles = cached_average_costs(board.entry.device, describe_service(spec), kind.average.modes)
    # The same draws for every batch size: a slow board is slow at all of them.
    columns = [
        draw_batch_surface(
            board.entry.device,
            profile,
            ModeSurface(average.modes, average.infer_s[:, i], average.power_w[:, i], average.power_w[:, i]),
            seed=seed,
            rng=make_generator(seed, board.name, "serving"),
        )
        for i, profile in enumerate(profiles)
    ]
    infer_s = np.stack([column.step_s for column in columns], axis=1)
    power_w = np.stack([column.power_w for column in columns], axis=1)
    return EmulatedService(spec, demand, average, InferenceCosts(average.modes, average.batch_sizes, infer_s, power_w))


def draw_batch_surface(
    device: str, profile: CostProfile, average: ModeSurface, seed: int, rng: np.random.Generator
) -> ModeSurface:
    """Draw a board's true cost of a batch of inference.

    Args:
        device: The board's name in the catalogue.
        profile: Cost of the batch on boards of the kind.
        average: Time and power by it.
        seed: Seed of the error that all boards of the kind share.
        rng: Draws the board's own deviation.
    """
    if profile.time_error_log or profile.power_error_log:
        error = _cached_estimate_error(device, profile, average.modes, seed)
        average = dataclasses.replace(
            average, step_s=average.step_s * error.time_ratio, power_w=average.power_w * error.power_ratio
        )
    return draw_board_surface(average, profile.residual_time_sd_log, profile.residual_power_sd_log, rng)


@lru_cache(maxsize=64)
def _cached_estimate_error(device: str, profile: CostProfile, modes: Modes, seed: int) -> EstimateError:
    """Return ``draw_estimate_error`` of a board of the catalogue, which takes tens of milliseconds."""
    return draw_estimate_error(catalogue.find(device, where="fleet.device"), profile, modes, seed)


@lru_cache(maxsize=64)
def cached_average_costs(
    device: str, work: InferenceWork, modes: Modes
) -> tuple[InferenceCosts, tuple[CostProfile, ...]]:
    """Return ``inference_costs_and_profiles`` of a board of the catalogue."""
    return inference_costs_and_profiles(catalogue.find(device, where="fleet.device"), work, modes)


def expected_inference_costs(serving: EmulatedService, modes: Modes, allowed: NDArray[np.bool_]) -> InferenceCosts:
    """Return the expected batch costs in the candidate modes.

    Args:
        allowed: Which of the board's n modes they are, shape (n,).
    """
    average = serving.average
    return InferenceCosts(modes, average.batch_sizes, average.infer_s[allowed], average.power_w[allowed])


def compute_served_surface(
    serving: EmulatedService, service_plan: RoundService, surface: ModeSurface, allowed: NDArray[np.bool_]
) -> ModeSurface:
    """Return the true time and power of training beside the service.

    Args:
        surface: True time and power of all n modes without the service.
        allowed: Which rows of ``surface`` are the candidates from which the plan was made, shape (n,).
    """
    rows = np.flatnonzero(allowed)[service_plan.keep]
    sizes = service_plan.while_training.batch_size
    columns = np.searchsorted(serving.true.batch_sizes, sizes)
    infer_s, power_w = serving.true.infer_s[rows, columns], serving.true.power_w[rows, columns]
    share = np.minimum(infer_s * serving.demand.rate_hz / sizes, MAX_WORKER_SHARE)
    truly = dataclasses.replace(service_plan.while_training, share=share, infer_s=infer_s, power_w=power_w)
    return _add_service_load(truly, surface.step_s[rows], surface.power_w[rows], surface.idle_w[rows])


def compute_best_served_surface(
    serving: EmulatedService, surface: ModeSurface, above: NDArray[np.bool_]
) -> tuple[ModeSurface, float]:
    """Return the true surface of the modes that sustain the service, and the least power of waiting beside it in watts.

    Only modes marked by ``above``, shape (n,), are considered, and the fastest mode in any case. Batches are assumed
    always full, which is slightly better than random arrivals allow.
    """
    working = build_service_table(serving.true, serving.demand, surface.step_s, surface.step_s * (1.0 + WARM_UP_STEPS))
    resting = build_service_table(serving.true, serving.demand)
    keep, rests = working.holds & above, resting.holds & above
    keep[surface.find_row(find_top_mode(surface))] = True
    rests = rests if rests.any() else keep
    loaded = _add_service_load(working, surface.step_s, surface.power_w, surface.idle_w).select_rows(keep)
    return loaded, float(resting.mean_power_w(surface.idle_w)[rests].min())


def _add_service_load(service: ServiceTable, step_s: Floats, power_w: Floats, idle_w: Floats) -> ModeSurface:
    return ModeSurface(
        service.modes, service.loaded_step_s(step_s), service.mean_power_w(power_w), service.mean_power_w(idle_w)
    )


class RequestStream:
    """The arrival times of a service; times that were read but not reached are repeated by ``iter_from``."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._times = arrival_times(arrivals)
        self._seen: list[float] = []

    def iter_from(self, now_s: float) -> Iterator[float]:
        """Iterate over all arrival times after ``now_s``."""
        self._seen = [at_s for at_s in self._seen if at_s > now_s]
        return itertools.chain(list(self._seen), self._iter_new(now_s))

    def _iter_new(self, now_s: float) -> Iterator[float]:
        for at_s in self._times:
            if at_s > now_s:
                self._seen.append(at_s)
                yield at_s


@dataclass(slots=True, eq=False)
class ServiceSimulation:
    """A board's service over one round: a ``fedge.devices.emulated_board.ServiceEmulator`` whose clock starts before
    the work.

    Requests that wait when the mode changes keep waiting.

    Attributes:
        round_service: The round's plan: which batch size in which mode.
        surface: True power at rest, over the same modes as the service.
    """

    serving: EmulatedService
    round_service: RoundService
    surface: ModeSurface
    seed: int
    now_s: float = 0.0
    _hot_s: float = math.inf
    _row: int = 0
    _answered: int = 0
    _until_s: float = 0.0
    """Arrival time of the last answered request; requests are answered in order."""
    _begun: bool = False
    _upcoming: RequestStream | None = None

    def idle_w(self, mode: PowerMode, idle_w: float) -> float:
        return self._mean_power_w(self.round_service.while_idle, mode, idle_w)

    def expected_w(self, mode: PowerMode, train_w: float) -> float:
        return self._mean_power_w(self.round_service.while_training, mode, train_w)

    def run_work(self, stretch: SharedWork) -> SharedWorkResult:
        interleaver, batch_size = self._start_interleaver(stretch)
        began_s, ends_s = self.now_s, math.inf if stretch.limit_s is None else self.now_s + stretch.limit_s
        self._hot_s = began_s + stretch.hot_after_s
        done, train_s = 0, 0.0
        while done < stretch.steps:
            warming_s = stretch.warm_up_s if done == 0 else 0.0
            interleaver.serve_before_step(kind=WARM_UP_KIND if warming_s else "train")
            next_s = (stretch.step_s + warming_s) * self._throttle_factor()
            if done and self.now_s + next_s > ends_s:
                break
            self.now_s += next_s
            done, train_s = done + 1, train_s + next_s
            if self._answered >= MAX_SIMULATED_REQUESTS:
                break
        interleaver.end_step()
        statistics, seconds = interleaver.take_statistics()[SERVICE_NAME], self.now_s - began_s
        longer = self._extrapolate_rest(done, stretch.steps, seconds, ends_s)
        use = _build_service_use(statistics, batch_size=batch_size, seconds=seconds, train_s=train_s, longer=longer)
        return SharedWorkResult(
            round(done * longer),
            seconds=seconds * longer,
            train_s=train_s * longer,
            other_w=self._non_training_w(statistics, seconds - train_s),
            use=use,
        )

    def _extrapolate_rest(self, done: int, steps: int, seconds: float, ends_s: float) -> float:
        """Return the factor by which the simulated part is extrapolated, and advance the clock accordingly.

        Requests that wait at that time count as answered within the extrapolated part.
        """
        if done == steps or self._answered < MAX_SIMULATED_REQUESTS:
            return 1.0
        fits = int((ends_s - self.now_s) * done / seconds) if math.isfinite(ends_s) else steps
        longer = 1.0 + min(steps - done, max(0, fits)) / done
        self.now_s += seconds * (longer - 1.0)
        self._until_s = self.now_s
        return longer

    def _non_training_w(self, statistics: ServiceStatistics, other_s: float) -> float:
        """Return the mean power of serving and of waiting for a batch to fill up, which is done at rest, in watts."""
        row, true = self._row, self.serving.true
        size = round(statistics.served / statistics.batches) if statistics.batches else 1
        serving_w, idle_w = float(true.power_w[row, true.nearest_column(size)]), float(self.surface.idle_w[row])
        if other_s <= 0:
            return serving_w
        share = min(1.0, statistics.busy_s / other_s)
        return share * serving_w + (1.0 - share) * idle_w

    def _start_interleaver(self, stretch: SharedWork) -> tuple[Interleaver, int]:
        """Create the interleaver for the work's mode, with the requests that are still waiting."""
        true, working = self.serving.true, self.round_service.while_training
        row = find_mode_index(working.modes, stretch.mode)
        at = find_mode_index(true.modes, stretch.mode)
        if row is None or at is None:
            raise LookupError(f"{stretch.mode} is not among the modes in which the board may serve")
        if self._begun and at != self._row:
            self.now_s += mode_change_s(true.modes[self._row], stretch.mode)
        self._row, batch_size = at, int(working.batch_size[row])
        if self._upcoming is None:
            kind, spec = self.serving.spec.arrivals, self.serving.spec
            self._upcoming = RequestStream(Arrivals(kind, spec.rate_hz, self.seed))
        made = Interleaver(
            services=[HostedService(SERVICE_NAME, batch_size, self.serving.demand.latency_s)],
            arrivals={SERVICE_NAME: self._upcoming.iter_from(self._until_s)},
            infer=self._infer,
            now_s=lambda: self.now_s,
            wait_s=self._wait,
        )
        made.learn_batch(SERVICE_NAME, batch_size, self._batch_s(batch_size))
        made.learn_step(stretch.step_s)
        made.learn_step(stretch.step_s + stretch.warm_up_s, WARM_UP_KIND)
        if not self._begun:
            made.serve_while_idle(self.now_s + LEAD_BUDGETS * self.serving.demand.latency_s)
            made.take_statistics()
        self._begun, self._answered = True, 0
        return made, batch_size

    def _infer(self, _service: HostedService, batch: list[Request]) -> None:
        self.now_s += self._batch_s(len(batch)) * self._throttle_factor()
        self._answered += len(batch)
        self._until_s = batch[-1].arrived_s

    def _wait(self, seconds: float) -> None:
        self.now_s += seconds

    def _throttle_factor(self) -> float:
        return THROTTLED_SLOWDOWN if self.now_s >= self._hot_s else 1.0

    def _batch_s(self, size: int) -> float:
        """Return the seconds of a batch in the current mode, interpolated linearly in log batch size and log time."""
        true = self.serving.true
        at = np.interp(math.log(size), np.log(true.batch_sizes), np.log(true.infer_s[self._row]))
        return math.exp(float(at))

    def _mean_power_w(self, service: ServiceTable, mode: PowerMode, other_w: float) -> float:
        """Return the mean power of serving at its true cost and of ``other_w`` in between, in watts."""
        row, at = find_mode_index(service.modes, mode), find_mode_index(self.serving.true.modes, mode)
        if row is None or at is None:
            raise LookupError(f"{mode} is not among the modes in which the board may serve")
        size = int(service.batch_size[row])
        column = self.serving.true.nearest_column(size)
        share = min(1.0, float(self.serving.true.infer_s[at, column]) * self.serving.demand.rate_hz / size)
        return share * float(self.serving.true.power_w[at, column]) + (1.0 - share) * other_w


def _build_service_use(
    statistics: ServiceStatistics, batch_size: int, seconds: float, train_s: float, longer: float
) -> ServiceUse:
    """Convert the statistics of an interval, extrapolated by the factor ``longer``."""
    return ServiceUse(
        batch_size=batch_size,
        seconds=seconds * longer,
        busy_s=(seconds - train_s) * longer,
        requests=round((statistics.served + statistics.dropped) * longer),
        late=round(statistics.late * longer),
        dropped=round(statistics.dropped * longer),
        batches=round(statistics.batches * longer),
        worst_s=statistics.histogram.worst_s,
        latencies=tuple((int(place), int(count)) for place, count in statistics.histogram.as_data()["bins"]),
        played=1.0 / longer,
        latency_s=statistics.histogram.budget_s,
    )
