"""Inference between the minibatches of a training: who comes next, and the loop that does it, on any clock.

One thing at a time: a minibatch of training, or a batch of inference. A *service* collects requests up to its batch
size. A full batch is served at the next chance; one that is not full once one more training minibatch would make its
oldest request late. All times are seconds of one clock, real or virtual.
"""

import bisect
import math
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from fedge.worker.latency_histogram import LatencyHistogram

EPS_S = 1e-9
"""Times closer than this are the same."""
TRAINING_SHARE = 0.1
"""Of the time of a training beside services that want more than there is, this share stays its own. Chosen by us."""
CREDIT_S = 0.1
"""So much training time in advance of its share is remembered, so that a burst may run. Chosen by us."""
RECENT_COUNT = 100
QUANTILE = 0.98
"""A minibatch or batch is expected to take as long as this quantile of the last ``RECENT_COUNT`` did. Chosen by us."""
CAUTION = 0.5
"""Of what a budget leaves beside the medians, counting on slow ones may take this share. Beyond it less is counted on:
else nothing would ever be begun on a machine whose slow ones take longer than the whole budget. Chosen by us."""
MIN_WAIT_SHARE = 0.5
"""A request that has waited for less than this share of its budget is not dropped, however slow the batches were: only
what is served can show that they are quicker again. Chosen by us."""
MOST_WAITING = 1024
"""Requests of a service that may wait; further ones are dropped at the door. Chosen by us."""
ADMIT_LIMIT = 4096
"""Requests that are let in at a time: after a long pause of a quick service memory stays bounded. Chosen by us."""
WHEN_LATE = ("serve", "drop")


class HostedService(NamedTuple):
    """A standing inference service: batches of up to ``batch_size``, each answer within ``latency_s`` of its arrival.

    ``max_wait_s`` is a further bound on how long the oldest request waits for its batch to begin; ``(batch_size - 1) /
    rate`` gives the plan with windows of ``batch_size / rate``. ``when_late`` says what becomes of a request that
    cannot be answered in time any more: ``serve`` it late, or ``drop`` it unserved.
    """

    name: str
    batch_size: int
    latency_s: float
    max_wait_s: Optional[float] = None
    when_late: str = "serve"
    most_waiting: int = MOST_WAITING


class Request(NamedTuple):
    """One sample to infer; ``payload`` is the caller's own."""

    arrived_s: float
    payload: Any = None


class PendingBatch(NamedTuple):
    """What the decision knows of a service with requests waiting."""

    name: str
    full: bool
    deadline_s: float
    """When its next batch has to be ready."""
    batch_s: float
    """How long that batch is expected to take."""
    full_at_s: float
    """When the batch is expected to be full; infinite where nothing is known."""
    turn_s: float = -math.inf
    """A batch that is late anyway comes as if this were its deadline, if it is later: it is not to make others late."""


class DurationEstimate(NamedTuple):
    """How long something takes, in seconds: the median, and a high quantile."""

    usual_s: float = 0.0
    slow_s: float = 0.0

    def planned_s(self, caution: float) -> float:
        """What is counted on, from the median (0) to the quantile (1)."""
        return self.usual_s + caution * (self.slow_s - self.usual_s)


class NextAction(NamedTuple):
    """What comes next: ``serve`` the service ``name``, ``hold`` until ``until_s`` or a batch is full, or ``go`` on.

    For ``go``, ``until_s`` is the last moment at which the batches have to begin; infinite when nothing waits.
    """

    what: str
    name: str
    until_s: float


def decide_next_action(now_s: float, next_s: float, waiting: Sequence[PendingBatch]) -> NextAction:
    """What comes next, when a training minibatch that is expected to take ``next_s`` could begin; 0: nobody trains.

    A full batch is served, the earliest deadline first, unless batches with earlier deadlines would then be late: they
    go first. Otherwise training goes on while all batches, one after the other in the order of their
    deadlines, could still begin after its next minibatch. When they could not, and one of them is expected to fill up
    in time, that is waited for: a batch more would cost more. Else the earliest deadline's batch is served as it is.
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
    """When the first of the batches has to begin, if they run one after the other, for none to be late."""
    latest_s, ahead_s = math.inf, 0.0
    for one in chain:
        ahead_s += one.batch_s
        latest_s = min(latest_s, one.deadline_s - ahead_s)
    return latest_s


def compute_caution(latency_s: float, step: DurationEstimate, batch: DurationEstimate) -> float:
    """How far slow minibatches and batches can be counted on within the budget, from 0 (medians alone) to 1."""
    usual_s = step.usual_s + batch.usual_s
    slower_s = step.slow_s + batch.slow_s - usual_s
    most_s = CAUTION * max(0.0, latency_s - usual_s)
    return 1.0 if slower_s <= most_s else most_s / slower_s


class ServiceStatistics(NamedTuple):
    """What a service did. Every request that arrived is served, dropped, or waits."""

    requests: int
    served: int
    late: int
    """Of the served ones, those that took longer than the budget."""
    dropped: int
    batches: int
    busy_s: float
    waiting: int
    histogram: LatencyHistogram
    failed: str = ""
    """Why it serves no more; empty while it does."""

    def as_data(self) -> Dict[str, Any]:
        """As JSON has it."""
        return dict(self._asdict(), histogram=self.histogram.as_data())

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "ServiceStatistics":
        """What ``as_data`` wrote."""
        fields = {name: data[name] for name in cls._fields}
        return cls(**dict(fields, histogram=LatencyHistogram.from_data(data["histogram"])))


class TimeBreakdown(NamedTuple):
    """Where the time went since the interleaver was made: adds up to the time that passed in and between its calls."""

    working_s: float = 0.0
    """Training minibatches, and whatever else asked before each of its parts."""
    serving_s: float = 0.0
    held_s: float = 0.0
    """A training waited for a batch to fill up."""
    idle_s: float = 0.0


class ServiceFailed(Exception):
    """Raised by ``infer``: this service cannot go on; its text is told."""


class Interleaver:
    """Services that stand beside whatever else this thread does; nothing but ``push`` may be called from another.

    ``infer(service, requests)`` carries out one batch and returns when it is done; ``drop(service, requests)`` hears
    of requests that will not be served. ``wait_s(seconds)`` waits at most so long (infinite: without limit) and may
    return earlier.
    """

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
        """``arrivals`` gives services by name the times (of this clock, increasing) of requests without payload.

        ``training_share``, from 0 to below 1, is what training keeps of its time however much is asked. With 0 a
        ``between`` ends only by its ``stop`` where more is asked than can be done.
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
        """Let a service stand from now on; one of the same name makes room, as by ``remove``."""
        self.remove(service.name)
        self._stands[service.name] = _ServiceQueue(service, arrivals)

    def remove(self, name: str) -> Optional[ServiceStatistics]:
        """Let a service stand no more: its waiting requests are dropped. What it did; None when there was none."""
        stand = self._stands.pop(name, None)
        if stand is None:
            return None
        self._admit(stand, self._now_s())  # what came since the last look counts as well
        self._close_service(stand)
        return stand.total.to_statistics(stand)

    def push(self, name: str, payloads: Sequence[Any], arrived_s: float) -> bool:
        """Requests have arrived, one for each payload; False when the service is not there or has no room for all.

        May be called from any thread.
        """
        stand = self._stands.get(name)
        return stand is not None and stand.push([Request(arrived_s, one) for one in payloads])

    def learn_batch(self, name: str, size: int, seconds: float) -> None:
        """A batch of ``size`` was seen to take so long, as by warming up."""
        self._stands[name].times.add(size, seconds)

    def learn_step(self, seconds: float, kind: str = "train") -> None:
        """A minibatch was seen to take so long."""
        self._expected.setdefault(kind, RecentDurations()).add(seconds)

    @property
    def has_services(self) -> bool:
        """Whether any service stands that has not failed."""
        return any(not stand.failed for stand in list(self._stands.values()))

    def serve_before_step(self, stop: Callable[[], bool] = lambda: False, kind: str = "train") -> None:
        """Serve what is due; called before every minibatch. What passes until the next call is that minibatch.

        ``stop`` is asked before each batch. Training is let go on at once while it has had less than its share.
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
            # What training owns of a time of which the rest has just been used.
            self._owed_s += self.training_share / (1.0 - self.training_share) * (self._now_s() - begin_s)
        if not stop():
            self._working, self._since_s = kind, self._now_s()

    def end_step(self) -> None:
        """The last minibatch is over, and what passes from now on is none."""
        if self._working:
            seconds = self._now_s() - self._since_s
            self._add_time("working_s", seconds)
            self._owed_s = max(-CREDIT_S, self._owed_s - seconds)
            self.learn_step(seconds, self._working)
            self._working = ""

    def serve_while_idle(self, until_s: float = math.inf, stop: Callable[[], bool] = lambda: False) -> None:
        """Nobody trains: serve what is due until then, or until ``stop``, which is asked after each wait and batch."""
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
        """What each service has done since it was added."""
        return {name: stand.total.to_statistics(stand) for name, stand in list(self._stands.items())}

    def take_statistics(self) -> Dict[str, ServiceStatistics]:
        """What each service has done since this was asked last."""
        taken = {}
        for name, stand in self._stands.items():
            taken[name] = stand.recent.to_statistics(stand)
            stand.recent = ServiceCounts(stand.service.latency_s)
        return taken

    def get_time_breakdown(self) -> TimeBreakdown:
        """Where the time went."""
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
        """Wait until then, or until something arrives that may change the choice."""
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
            self._add_time("serving_s", self._now_s() - begin_s)
            stand.in_hand = 0
            self._count_dropped(stand, batch)
            self._close_service(stand)
            return
        end_s = self._now_s()
        self._add_time("serving_s", end_s - begin_s)
        stand.times.add(len(batch), end_s - begin_s)
        stand.served_s = end_s
        for account in (stand.total, stand.recent):
            account.count_batch(batch, begin_s, end_s)
        stand.in_hand = 0

    def _close_service(self, stand: "_ServiceQueue") -> None:
        """Nothing comes any more, and what waits is dropped."""
        self._count_dropped(stand, stand.close())

    def _count_dropped(self, stand: "_ServiceQueue", dropped: List[Request]) -> None:
        if dropped:
            stand.total.dropped += len(dropped)
            stand.recent.dropped += len(dropped)
            self._drop(stand.service, dropped)

    def _add_time(self, what: str, seconds: float) -> None:
        self._spent = self._spent._replace(**{what: getattr(self._spent, what) + seconds})


class RecentDurations:
    """The last durations of one kind of thing, and how long the next one is expected to take."""

    def __init__(self) -> None:
        self._order: Deque[float] = deque()
        self._sorted: List[float] = []

    def add(self, seconds: float) -> None:
        """One more was seen."""
        self._order.append(seconds)
        bisect.insort(self._sorted, seconds)
        if len(self._order) > RECENT_COUNT:
            del self._sorted[bisect.bisect_left(self._sorted, self._order.popleft())]

    @property
    def estimate(self) -> DurationEstimate:
        """What is expected by what was seen; zeros before anything was."""
        seen = self._sorted
        if not seen:
            return DurationEstimate()
        return DurationEstimate(seen[(len(seen) - 1) // 2], seen[math.ceil(QUANTILE * len(seen)) - 1])


class BatchTimes:
    """How long batches take, by their size to the next power of two."""

    def __init__(self) -> None:
        self._seen: Dict[int, RecentDurations] = {}

    def add(self, size: int, seconds: float) -> None:
        """A batch of this size was seen to take so long."""
        self._seen.setdefault((size - 1).bit_length(), RecentDurations()).add(seconds)

    def estimate(self, size: int) -> DurationEstimate:
        """For a batch of this size; where none was seen, of the next larger one, else of the largest; at first 0."""
        if not self._seen:
            return DurationEstimate()
        wanted = (size - 1).bit_length()
        place = min((one for one in self._seen if one >= wanted), default=max(self._seen))
        return self._seen[place].estimate


class ServiceCounts:
    """What a service did over some time."""

    def __init__(self, budget_s: float) -> None:
        self.requests = self.dropped = self.batches = 0
        self.busy_s = 0.0
        self.histogram = LatencyHistogram(budget_s)

    def count_batch(self, batch: Sequence[Request], begin_s: float, end_s: float) -> None:
        """One batch was served."""
        self.batches += 1
        self.busy_s += end_s - begin_s
        for request in batch:
            self.histogram.add(end_s - request.arrived_s)

    def to_statistics(self, stand: "_ServiceQueue") -> ServiceStatistics:
        """As a record that changes no more."""
        seen, waiting = self.histogram.copy(), stand.in_hand + len(stand.waiting)
        parts = (self.requests, seen.count, seen.late, self.dropped, self.batches, self.busy_s, waiting)
        return ServiceStatistics(*parts, histogram=seen, failed=stand.failed)


class _ServiceQueue:
    """One service with its queue: requests to come, in the inbox (filled by other threads), and waiting."""

    def __init__(self, service: HostedService, coming: Optional[Iterator[float]]) -> None:
        self.service = service
        self.coming = coming
        self.room = max(service.most_waiting, service.batch_size)
        self.ahead: Deque[float] = deque()
        self.inbox: Deque[Request] = deque()
        self.waiting: Deque[Request] = deque()
        self.in_hand = 0
        """Requests of the batch that is being served: for those who look from another thread, they still wait."""
        self.times = BatchTimes()
        self.total, self.recent = ServiceCounts(service.latency_s), ServiceCounts(service.latency_s)
        self.failed = ""
        self.served_s = -math.inf
        """When a batch of it was ready last."""
        self._arrived: Deque[float] = deque(maxlen=RECENT_COUNT)
        self._door = threading.Lock()

    def push(self, requests: Sequence[Request]) -> bool:
        """Put them into the inbox, all or none; whether there was room."""
        with self._door:
            if len(self.inbox) + len(self.waiting) + len(requests) > self.room:
                return False
            self.inbox.extend(requests)
            return True

    def close(self) -> List[Request]:
        """Nothing comes in any more; those that are left."""
        with self._door:
            self.coming, self.room = None, 0
        turned_away = self.admit(-math.inf)  # the inbox alone
        left = [*self.waiting, *turned_away]
        self.waiting.clear()
        return left

    def admit(self, now_s: float) -> List[Request]:
        """Let in what has arrived, or a ``ADMIT_LIMIT`` of it; those for whom there was no room."""
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
        """As ``compute_caution``, beside a minibatch such as ``step``."""
        return compute_caution(self.service.latency_s, step, self.times.estimate(self.service.batch_size))

    def to_pending_batch(self, now_s: float, caution: float) -> PendingBatch:
        """What the decision has to know of it."""
        service = self.service
        batch_s = self.times.estimate(service.batch_size).planned_s(caution)
        within_s = service.latency_s
        if service.max_wait_s is not None:
            within_s = min(within_s, service.max_wait_s + batch_s)
        missing = service.batch_size - len(self.waiting)
        deadline_s = self.waiting[0].arrived_s + within_s
        late = self.waiting[0].arrived_s + service.latency_s < now_s + batch_s - EPS_S
        turn_s = self.served_s + service.latency_s if late else -math.inf
        return PendingBatch(
            service.name,
            full=missing <= 0,
            deadline_s=deadline_s,
            batch_s=batch_s,
            full_at_s=self._expected_full_s(missing, now_s),
            turn_s=turn_s,
        )

    def take_hopeless(self, now_s: float) -> List[Request]:
        """Take out the requests that cannot be answered in time any more, where the service drops those."""
        gone: List[Request] = []
        latency_s = self.service.latency_s
        while self.service.when_late == "drop" and self.waiting:
            took_s = self.times.estimate(min(self.service.batch_size, len(self.waiting))).usual_s
            if self.waiting[0].arrived_s + latency_s >= now_s + min(took_s, (1.0 - MIN_WAIT_SHARE) * latency_s) - EPS_S:
                break
            gone.append(self.waiting.popleft())
        return gone

    def next_batch(self) -> List[Request]:
        """Take out the oldest requests, a batch of them at most."""
        self.in_hand = min(self.service.batch_size, len(self.waiting))
        return [self.waiting.popleft() for _ in range(self.in_hand)]

    def next_change_s(self) -> float:
        """When the next request comes that may change the choice: the first, or the one that fills the batch."""
        missing = self.service.batch_size - len(self.waiting)
        return self.next_arrival_s(missing if self.waiting else 1)

    def next_arrival_s(self, number: int) -> float:
        """When the so-manieth next request comes of itself; used to know when to look, never to decide."""
        while self.coming is not None and len(self.ahead) < number:
            self.ahead.append(next(self.coming, math.inf))
        return self.ahead[number - 1] if self.coming is not None else math.inf

    def _expected_full_s(self, missing: int, now_s: float) -> float:
        """When the batch is expected to be full, from how often requests came lately."""
        if missing <= 0:
            return now_s
        if len(self._arrived) < 2 or self._arrived[-1] <= self._arrived[0]:
            return math.inf
        gap_s = (self._arrived[-1] - self._arrived[0]) / (len(self._arrived) - 1)
        by_last_s = self._arrived[-1] + missing * gap_s
        return by_last_s if by_last_s > now_s else now_s + missing * gap_s
