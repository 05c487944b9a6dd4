"""Inference between training steps: the scheduling decision, and the loop that applies it, on any clock.

The thread does one thing at a time: a training step or a batch of inference. A *service* collects requests up to its
batch size. A full batch is served at the next opportunity, a partial one when one more training step would make its
oldest request late. All times are seconds on one clock, real or simulated.
"""

import bisect
import math
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from fedge.worker.latency_histogram import LatencyHistogram

EPS_S = 1e-9
"""Times closer than this count as equal."""
TRAINING_SHARE = 0.1
"""Default share of the time that training keeps when services are overloaded: it slows to a tenth, but goes on."""
CREDIT_S = 0.1
"""Training time ahead of its share that is carried over, in seconds, so that a short burst of requests may be
served.
"""
RECENT_COUNT = 100
QUANTILE = 0.98
"""Planned duration of a step or batch: this quantile of the last ``RECENT_COUNT``. A default: a higher one lets fewer
requests be late, but serves smaller batches.
"""
CAUTION = 0.5
"""Largest part of the slack beyond the medians that may be reserved for slow steps and batches. Without this bound
nothing would ever start on a machine whose slow steps exceed the whole latency budget.
"""
MIN_WAIT_SHARE = 0.5
"""A request that has waited for less than this share of its budget is never dropped, however slow recent batches were:
only served batches can show that they have become faster again.
"""
MOST_WAITING = 1024
"""Default queue length of a service; further requests are dropped on arrival."""
ADMIT_LIMIT = 4096
"""Requests admitted at a time: bounds the memory after a long pause of a service with a high rate."""
WHEN_LATE = ("serve", "drop")


class HostedService(NamedTuple):
    """An inference service: batches of up to ``batch_size``, each answer within ``latency_s`` of its arrival.

    Attributes:
        latency_s: Latency budget from arrival to answer, in seconds.
        max_wait_s: Further bound on how long the oldest request waits for its batch to begin, in seconds;
            ``(batch_size - 1) / rate`` reproduces the policy with windows of ``batch_size / rate``. None: no such
            bound.
        when_late: What happens to a request that can no longer be answered in time: ``serve`` it late or ``drop`` it.
    """

    name: str
    batch_size: int
    latency_s: float
    max_wait_s: Optional[float] = None
    when_late: str = "serve"
    most_waiting: int = MOST_WAITING


class Request(NamedTuple):
    """One sample to infer; ``payload`` is opaque to the interleaver."""

    arrived_s: float
    payload: Any = None


class PendingBatch(NamedTuple):
    """State of a service with waiting requests, as the scheduling decision needs it."""

    name: str
    full: bool
    deadline_s: float
    """Time by which its next batch must be finished."""
    batch_s: float
    """Expected duration of that batch in seconds."""
    full_at_s: float
    """Time at which the batch is expected to be full; infinite if unknown."""
    turn_s: float = -math.inf
    """Substitute deadline of a batch that is late anyway, if it is later: it must not make other batches late."""


class DurationEstimate(NamedTuple):
    """Estimated duration in seconds: the median, and a high quantile."""

    usual_s: float = 0.0
    slow_s: float = 0.0

    def planned_s(self, caution: float) -> float:
        """Return the duration to plan with, interpolated between the median (``caution`` 0) and the quantile (1)."""
        return self.usual_s + caution * (self.slow_s - self.usual_s)


class NextAction(NamedTuple):
    """The next action: serve a service, hold until a time or a full batch, or go on training.

    Attributes:
        what: ``serve``, ``hold`` or ``go``.
        name: The service to serve; empty otherwise.
        until_s: For ``hold`` and ``go`` the last moment at which the batches must begin; infinite if nothing waits.
    """

    what: str
    name: str
    until_s: float


def decide_next_action(now_s: float, next_s: float, waiting: Sequence[PendingBatch]) -> NextAction:
    """Decide between serving, waiting and training when a training step could begin.

    A full batch is served, the earliest deadline first, unless batches with earlier deadlines would then be late: they
    go first. Otherwise training goes on while all batches, run in the order of their deadlines, could still begin after
    the next step. If they could not, and one of them is expected to fill up in time, the thread waits for that, because
    an additional batch would cost more. Otherwise the batch with the earliest deadline is served as it is.

    ``next_s`` is the planned duration of the next training step; 0 if nothing is training.
    """
    if not waiting:
        return NextAction("go", "", math.inf)
    chain = sorted(waiting, key=lambda one: max(one.deadline_s, one.turn_s))
    full = [one for one in chain if one.full]
    if full:
        hurried = _latest_start(chain[: chain.index(full[0])]) < now_s + full[0].batch_s - EPS_S
        return NextAction("serve", (chain if hurried else full)[0].name, now_s)
    latest_s = _latest_start(chain)
    if latest_s <= now_s + EPS_S:
        return NextAction("serve", chain[0].name, now_s)
    if latest_s >= now_s + next_s - EPS_S:
        return NextAction("go", "", latest_s)
    if any(one.full_at_s <= latest_s + EPS_S for one in chain):
        return NextAction("hold", "", latest_s)
    return NextAction("serve", chain[0].name, now_s)


def _latest_start(chain: Sequence[PendingBatch]) -> float:
    """Return the latest start of the first batch such that none is late if they run in sequence."""
    latest_s, ahead_s = math.inf, 0.0
    for one in chain:
        ahead_s += one.batch_s
        latest_s = min(latest_s, one.deadline_s - ahead_s)
    return latest_s


def compute_caution(latency_s: float, step: DurationEstimate, batch: DurationEstimate) -> float:
    """Return how much of the slow quantile can be planned with inside the budget, from 0 (medians alone) to 1."""
    usual_s = step.usual_s + batch.usual_s
    slower_s = step.slow_s + batch.slow_s - usual_s
    most_s = CAUTION * max(0.0, latency_s - usual_s)
    return 1.0 if slower_s <= most_s else most_s / slower_s


class ServiceStatistics(NamedTuple):
    """Statistics of a service. Every request that arrived is served, dropped or waiting.

    Attributes:
        late: Answered requests that took longer than the latency budget.
        busy_s: Seconds spent in them.
        failed: Why the service has stopped; empty while it runs.
    """

    requests: int
    served: int
    late: int
    dropped: int
    batches: int
    busy_s: float
    waiting: int
    histogram: LatencyHistogram
    failed: str = ""

    def as_data(self) -> Dict[str, Any]:
        """Return the statistics as JSON values."""
        return dict(self._asdict(), histogram=self.histogram.as_data())

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "ServiceStatistics":
        """Restore the statistics that ``as_data`` returned."""
        fields = {name: data[name] for name in cls._fields}
        return cls(**dict(fields, histogram=LatencyHistogram.from_data(data["histogram"])))


class TimeBreakdown(NamedTuple):
    """Time spent since the interleaver was made, in seconds; the parts add up to the time in and between its calls.

    Attributes:
        working_s: Training steps, and other work announced by ``serve_before_step``.
        serving_s: Batches of inference.
        held_s: Time in which a training waited for a batch to fill up.
        idle_s: Waiting without training.
    """

    working_s: float = 0.0
    serving_s: float = 0.0
    held_s: float = 0.0
    idle_s: float = 0.0


class ServiceFailed(Exception):
    """Raised by ``infer`` if the service cannot go on; its text is reported."""


class Interleaver:
    """Runs inference services between the steps of this thread; only ``push`` may be called from another thread."""

    def __init__(
        self,
        services: Sequence[HostedService],
        arrivals: Mapping[str, Iterator[float]],
        infer: Callable[[HostedService, List[Request]], None],
        now_s: Callable[[], float],
        wait_s: Callable[[float], None],
        *,
        drop: Callable[[HostedService, List[Request]], None] = lambda _service, _requests: None,
        training_share: float = TRAINING_SHARE,
    ) -> None:
        """Create the interleaver with its first services.

        ``arrivals`` are increasing arrival times of requests without payload, by service name. ``infer`` runs one batch
        and returns when it is done; ``wait_s`` waits at most the given seconds (infinite: no limit) and may return
        earlier; ``drop`` gets the requests that will not be served. ``training_share`` is the share of the time that
        training keeps under overload, from 0 to below 1; with 0, ``serve_before_step`` returns under overload only when
        its ``stop`` is true.
        """
        self._infer, self._drop, self._now_s, self._wait_s = infer, drop, now_s, wait_s
        self.training_share = training_share
        self._owed_s = -CREDIT_S
        self._stands: Dict[str, _ServiceQueue] = {}
        self._expected: Dict[str, RecentDurations] = {}
        self._working = ""
        self._since_s = 0.0
        self._spent = TimeBreakdown()
        for service in services:
            self.add(service, arrivals.get(service.name))

    def add(self, service: HostedService, arrivals: Optional[Iterator[float]] = None) -> None:
        """Add a service; one of the same name is removed first."""
        self.remove(service.name)
        self._stands[service.name] = _ServiceQueue(service, arrivals)

    def remove(self, name: str) -> Optional[ServiceStatistics]:
        """Remove a service and drop its waiting requests.

        Returns:
            Its statistics; None if there was no such service.
        """
        stand = self._stands.pop(name, None)
        if stand is None:
            return None
        self._admit(stand, self._now_s())  # also count what arrived since the last call
        self._count_dropped(stand, stand.close())
        return stand.total.to_statistics(stand)

    def push(self, name: str, payloads: Sequence[Any], arrived_s: float) -> bool:
        """Enqueue requests, one for each payload; may be called from any thread.

        Returns:
            False if the service does not exist or has no room for all of them.
        """
        stand = self._stands.get(name)
        return stand is not None and stand.push([Request(arrived_s, one) for one in payloads])

    def learn_batch(self, name: str, size: int, seconds: float) -> None:
        """Record the duration of a batch of ``size`` requests, for example from warming up."""
        self._stands[name].times.add(size, seconds)

    def learn_step(self, seconds: float, kind: str = "train") -> None:
        """Record the duration of a step."""
        self._expected.setdefault(kind, RecentDurations()).add(seconds)

    def serve_before_step(self, stop: Callable[[], bool] = lambda: False, kind: str = "train") -> None:
        """Serve what is due; called before every step. The time until the next call counts as that step.

        Args:
            stop: Checked before each batch; true ends the serving.
            kind: Kind of the step; durations are estimated per kind.
        """
        self.end_step()
        expected = self._expected.get(kind)
        while self._owed_s <= EPS_S and not stop():
            choice = self._choose_action(DurationEstimate() if expected is None else expected.estimate)
            if choice.what == "go":
                break
            begin_s = self._now_s()
            if choice.what == "serve":
                self._serve_batch(self._stands[choice.name])
            else:
                self._wait_for_change(begin_s, choice.until_s, "held_s")
            # Training is owed its share of the total, of which services have just used the rest.
            self._owed_s += self.training_share / (1.0 - self.training_share) * (self._now_s() - begin_s)
        if not stop():
            self._working, self._since_s = kind, self._now_s()

    def end_step(self) -> None:
        """End the current step; the following time does not count as one."""
        if self._working:
            seconds = self._now_s() - self._since_s
            self._add_time("working_s", seconds)
            self._owed_s = max(-CREDIT_S, self._owed_s - seconds)
            self.learn_step(seconds, self._working)
            self._working = ""

    def serve_while_idle(self, until_s: float = math.inf, stop: Callable[[], bool] = lambda: False) -> None:
        """Serve what is due while nothing is training, until the time ``until_s``.

        ``stop``, checked after each wait and batch, ends it earlier if it returns true.
        """
        self.end_step()
        while not stop():
            now_s = self._now_s()
            if now_s >= until_s - EPS_S:
                break
            choice = self._choose_action(DurationEstimate())
            if choice.what == "serve":
                self._serve_batch(self._stands[choice.name])
            else:
                self._wait_for_change(now_s, min(until_s, choice.until_s), "idle_s")

    def get_statistics(self) -> Dict[str, ServiceStatistics]:
        """Return each service's statistics since it was added."""
        return {name: stand.total.to_statistics(stand) for name, stand in list(self._stands.items())}

    def take_statistics(self) -> Dict[str, ServiceStatistics]:
        """Return each service's statistics since the last call of this method."""
        taken = {}
        for name, stand in self._stands.items():
            taken[name] = stand.recent.to_statistics(stand)
            stand.recent = ServiceCounts(stand.service.latency_s)
        return taken

    def get_time_breakdown(self) -> TimeBreakdown:
        """Return how the time was spent."""
        return self._spent

    def _choose_action(self, step: DurationEstimate) -> NextAction:
        now_s, waiting, least = self._now_s(), [], 1.0
        for stand in self._stands.values():
            self._admit(stand, now_s)
            if stand.waiting:
                caution = stand.caution(step)
                waiting.append(stand.to_pending_batch(now_s, caution))
                least = min(least, caution)
        return decide_next_action(now_s, step.planned_s(least), waiting)

    def _admit(self, stand: "_ServiceQueue", now_s: float) -> None:
        more = True
        while more:
            self._count_dropped(stand, stand.admit(now_s))
            more = stand.next_arrival_s(1) <= now_s + EPS_S

    def _wait_for_change(self, now_s: float, until_s: float, what: str) -> None:
        """Wait until the given time, or until a request arrives that may change the decision."""
        for stand in self._stands.values():
            until_s = min(until_s, stand.next_change_s())
        if until_s > now_s:
            self._wait_s(until_s - now_s)
        self._add_time(what, self._now_s() - now_s)

    def _serve_batch(self, stand: "_ServiceQueue") -> None:
        begin_s = self._now_s()
        self._count_dropped(stand, stand.take_hopeless(begin_s))
        batch = stand.next_batch()
        if not batch:
            return
        try:
            self._infer(stand.service, batch)
        except ServiceFailed as error:
            stand.failed = str(error) or "it failed"
        end_s = self._now_s()
        self._add_time("serving_s", end_s - begin_s)
        if stand.failed:
            stand.in_hand = 0
            self._count_dropped(stand, [*batch, *stand.close()])
            return
        stand.times.add(len(batch), end_s - begin_s)
        stand.served_s = end_s
        for account in (stand.total, stand.recent):
            account.count_batch(batch, begin_s, end_s)
        stand.in_hand = 0  # after the counting, since other threads look

    def _count_dropped(self, stand: "_ServiceQueue", dropped: List[Request]) -> None:
        if dropped:
            stand.total.dropped += len(dropped)
            stand.recent.dropped += len(dropped)
            self._drop(stand.service, dropped)

    def _add_time(self, what: str, seconds: float) -> None:
        self._spent = self._spent._replace(**{what: getattr(self._spent, what) + seconds})


class RecentDurations:
    """The last durations of one kind of work, and the estimate of the next one."""

    def __init__(self) -> None:
        self._order: Deque[float] = deque()
        self._sorted: List[float] = []

    def add(self, seconds: float) -> None:
        """Record one duration in seconds."""
        self._order.append(seconds)
        bisect.insort(self._sorted, seconds)
        if len(self._order) > RECENT_COUNT:
            del self._sorted[bisect.bisect_left(self._sorted, self._order.popleft())]

    @property
    def estimate(self) -> DurationEstimate:
        """Estimate from the recorded durations; zeros if there are none."""
        seen = self._sorted
        if not seen:
            return DurationEstimate()
        return DurationEstimate(seen[(len(seen) - 1) // 2], seen[math.ceil(QUANTILE * len(seen)) - 1])


class BatchTimes:
    """Durations of batches by size, rounded up to the next power of two."""

    def __init__(self) -> None:
        self._durations: Dict[int, RecentDurations] = {}

    def add(self, size: int, seconds: float) -> None:
        """Record the duration of a batch."""
        self._durations.setdefault((size - 1).bit_length(), RecentDurations()).add(seconds)

    def estimate(self, size: int) -> DurationEstimate:
        """Estimate the duration of a batch of ``size``.

        Without a record of its size class, the next larger one is used, else the largest; 0 without records.
        """
        if not self._durations:
            return DurationEstimate()
        wanted = (size - 1).bit_length()
        place = min((one for one in self._durations if one >= wanted), default=max(self._durations))
        return self._durations[place].estimate


class ServiceCounts:
    """Counters of a service over some period."""

    def __init__(self, budget_s: float) -> None:
        self.requests = self.dropped = self.batches = 0
        self.busy_s = 0.0
        self.histogram = LatencyHistogram(budget_s)

    def count_batch(self, batch: Sequence[Request], begin_s: float, end_s: float) -> None:
        """Count one served batch."""
        self.batches += 1
        self.busy_s += end_s - begin_s
        for request in batch:
            self.histogram.add(end_s - request.arrived_s)

    def to_statistics(self, stand: "_ServiceQueue") -> ServiceStatistics:
        """Return an immutable record of the counters."""
        seen, waiting = self.histogram.copy(), stand.in_hand + len(stand.waiting)
        parts = (self.requests, seen.count, seen.late, self.dropped, self.batches, self.busy_s, waiting)
        return ServiceStatistics(*parts, histogram=seen, failed=stand.failed)


class _ServiceQueue:
    """One service with its queues: future arrivals, the inbox (filled by other threads), and waiting requests."""

    def __init__(self, service: HostedService, coming: Optional[Iterator[float]]) -> None:
        self.service = service
        self.coming = coming
        self.room = max(service.most_waiting, service.batch_size)
        self.ahead: Deque[float] = deque()
        self.inbox: Deque[Request] = deque()
        self.waiting: Deque[Request] = deque()
        self.in_hand = 0
        """Requests of the batch that is being served; other threads still count them as waiting."""
        self.times = BatchTimes()
        self.total, self.recent = ServiceCounts(service.latency_s), ServiceCounts(service.latency_s)
        self.failed = ""
        self.served_s = -math.inf
        """Time at which its last batch was finished."""
        self._arrived: Deque[float] = deque(maxlen=RECENT_COUNT)
        self._door = threading.Lock()

    def push(self, requests: Sequence[Request]) -> bool:
        """Put requests into the inbox, all or none; return whether there was room."""
        with self._door:
            if len(self.inbox) + len(self.waiting) + len(requests) > self.room:
                return False
            self.inbox.extend(requests)
            return True

    def close(self) -> List[Request]:
        """Admit no more requests and return those that are left."""
        with self._door:
            self.coming, self.room = None, 0
        turned_away = self.admit(-math.inf)  # the inbox alone
        left = [*self.waiting, *turned_away]
        self.waiting.clear()
        return left

    def admit(self, now_s: float) -> List[Request]:
        """Admit what has arrived, at most about ``ADMIT_LIMIT`` requests; return those without room."""
        new = [self.inbox.popleft() for _ in range(len(self.inbox))]
        while len(new) < ADMIT_LIMIT and self.next_arrival_s(1) <= now_s + EPS_S:
            new.append(Request(self.ahead.popleft()))
        if not new:
            return new
        new.sort(key=lambda one: one.arrived_s)
        self._arrived.extend(one.arrived_s for one in new[-RECENT_COUNT:])
        for account in (self.total, self.recent):
            account.requests += len(new)
        places = max(0, self.room - len(self.waiting))
        self.waiting.extend(new[:places])
        return new[places:]

    def caution(self, step: DurationEstimate) -> float:
        """Return ``compute_caution`` beside a step of the given duration."""
        return compute_caution(self.service.latency_s, step, self.times.estimate(self.service.batch_size))

    def to_pending_batch(self, now_s: float, caution: float) -> PendingBatch:
        """Return the state that the scheduling decision needs."""
        service = self.service
        batch_s = self.times.estimate(service.batch_size).planned_s(caution)
        within_s = service.latency_s
        if service.max_wait_s is not None:
            within_s = min(within_s, service.max_wait_s + batch_s)
        missing = service.batch_size - len(self.waiting)
        deadline_s = self.waiting[0].arrived_s + within_s
        late = self.waiting[0].arrived_s + service.latency_s < now_s + batch_s - EPS_S
        turn_s = self.served_s + service.latency_s if late else -math.inf
        full_at_s = self._expected_full_s(missing, now_s)
        return PendingBatch(service.name, missing <= 0, deadline_s, batch_s, full_at_s=full_at_s, turn_s=turn_s)

    def take_hopeless(self, now_s: float) -> List[Request]:
        """Remove and return the requests that can no longer be answered in time, if the service drops those."""
        gone: List[Request] = []
        latency_s = self.service.latency_s
        while self.service.when_late == "drop" and self.waiting:
            took_s = self.times.estimate(min(self.service.batch_size, len(self.waiting))).usual_s
            if self.waiting[0].arrived_s + latency_s >= now_s + min(took_s, (1.0 - MIN_WAIT_SHARE) * latency_s) - EPS_S:
                break
            gone.append(self.waiting.popleft())
        return gone

    def next_batch(self) -> List[Request]:
        """Remove and return the oldest requests, at most one batch."""
        self.in_hand = min(self.service.batch_size, len(self.waiting))
        return [self.waiting.popleft() for _ in range(self.in_hand)]

    def next_change_s(self) -> float:
        """Return when the next request arrives that may change the decision: the first, or the last of a full batch."""
        missing = self.service.batch_size - len(self.waiting)
        return self.next_arrival_s(missing if self.waiting else 1)

    def next_arrival_s(self, number: int) -> float:
        """Return when the ``number``-th next generated request arrives; used to schedule wake-ups, never to decide."""
        while self.coming is not None and len(self.ahead) < number:
            self.ahead.append(next(self.coming, math.inf))
        return self.ahead[number - 1] if self.coming is not None else math.inf

    def _expected_full_s(self, missing: int, now_s: float) -> float:
        """Return when the batch is expected to be full, from the recent arrival rate."""
        if missing <= 0:
            return now_s
        if len(self._arrived) < 2 or self._arrived[-1] <= self._arrived[0]:
            return math.inf
        gap_s = (self._arrived[-1] - self._arrived[0]) / (len(self._arrived) - 1)
        by_last_s = self._arrived[-1] + missing * gap_s
        return by_last_s if by_last_s > now_s else now_s + missing * gap_s
