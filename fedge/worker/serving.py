"""The standing services of a worker: their networks, the requests that come over the socket, and what is told of them.

The main thread alone serves, before the minibatches of its jobs and between these. Threads of connections put requests
in, each with a ``Ticket`` on which they wait.
"""

import math
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional

import numpy as np

from fedge.worker import interleaving
from fedge.worker.arrivals import arrivals_of, times
from fedge.worker.fields import BadField, NoTask, a_count, a_number, a_text, an_object, seconds
from fedge.worker.interleaving import WHEN_LATE, Interleaver, Request, ServiceFailed, Told
from fedge.worker.refusal import Stopped, error_reply
from fedge.worker.slot import Job, Reply

MOST_SIZES = 64
"""Up to this batch size every size is warmed up; beyond, the powers of two and the batch size. Chosen by us."""
MOST_SERVICES = 16
"""Each has a network in memory. Chosen by us."""
MOST_BATCH = 1024
"""Chosen by us: a slip beyond it would fill the memory before it is noticed."""
LEAST_SHARE, MOST_SHARE = 0.01, 0.99
"""With less, a training beside too much to serve would wait for its first minibatch for ever. Chosen by us."""
WARM_RUNS = 2
"""Of each size; the last one is timed, the first makes the device ready for it. Chosen by us."""


class Standing(NamedTuple):
    """A service that stands: its fields, its network, and what comes to those who ask once it has failed."""

    service: interleaving.Service
    net: Any
    about: Dict[str, Any]


class Sample(NamedTuple):
    """One image of a request over the socket."""

    ticket: "Ticket"
    place: int
    image: Any


class Ticket:
    """A request over the socket: answered once each of its images is; changed by the main thread alone."""

    def __init__(self, job: Job, images: Any) -> None:
        self.job = job
        self._left = len(images)
        self._rows: List[Any] = [None] * len(images)
        self._latency_s = [0.0] * len(images)
        self._refusal: Optional[Reply] = None
        self.samples = [Sample(self, place, image) for place, image in enumerate(images)]

    def scored(self, place: int, row: Any, latency_s: float) -> None:
        """One image has its scores."""
        self._rows[place], self._latency_s[place] = row, latency_s
        self._one_less()

    def refused(self, reply: Reply) -> None:
        """One image gets none."""
        self._refusal = reply
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.job.finish(self._refusal or self._answer())

    def _answer(self) -> Reply:
        return {"ok": True, "latency_s": self._latency_s}, {"scores": np.stack(self._rows)}


class Serving:
    """All services of this process. ``pause(seconds)`` waits at most so long; what it is may be set later."""

    def __init__(
        self, judge: Callable[[str, BaseException], Reply], release: Callable[[], None], now_s: Callable[[], float]
    ) -> None:
        """``judge`` makes an error the answer to a verb, ``release`` gives back memory after one."""
        self.pause: Callable[[float], None] = _sleep
        self.nudge: Callable[[], None] = lambda: None
        self._judge, self._release, self._now_s = judge, release, now_s
        self._standing: Dict[str, Standing] = {}
        self._failures: Dict[str, Reply] = {}
        self.loop = Interleaver([], {}, self._infer, now_s, self._wait, drop=self._dropped)

    def before_step(self, job: Job) -> None:
        """Serve what is due before a minibatch of this job."""
        if self._standing:
            # The first one takes longer than all others, and says nothing of them.
            self.loop.between(job.cancelled.is_set, job.verb if job.done else job.verb + ", first minibatch")

    def ended(self) -> None:
        """The last minibatch of a job, or of a part of it, is over."""
        self.loop.ended()

    def stand_by(self, stop: Callable[[], bool]) -> None:
        """No job runs: serve until ``stop``."""
        self.loop.idle(math.inf, stop)

    def install(
        self, service: interleaving.Service, arrivals: Callable[[], Optional[Iterator[float]]], net: Any, job: Job
    ) -> Reply:
        """Warm the network up and let the service stand; one of the same name goes on until then.

        ``arrivals`` is called once it stands.
        """
        sizes = warm_sizes(service.batch_size)
        job.of = len(sizes)
        taken_s = []
        for job.done, size in enumerate(sizes):
            if job.watch():
                raise Stopped("{} does not stand".format(service.name))
            for _ in range(WARM_RUNS):
                begin_s = self._now_s()
                scores = net.scores([None] * size)
                took_s = self._now_s() - begin_s
            taken_s.append(took_s)
        self.ended()
        about = {"batch_size": service.batch_size, "latency_s": service.latency_s, "device": str(net.device)}
        self._failures.pop(service.name, None)
        # First the network, then the service: a request may come in between.
        self.loop.remove(service.name)
        self._standing[service.name] = Standing(service, net, about)
        self.loop.add(service, arrivals())
        for size, took_s in zip(sizes, taken_s):
            self.loop.learn_batch(service.name, size, took_s)
        return dict(about, ok=True, name=service.name, sizes=sizes, seconds=taken_s, classes=int(scores.shape[1])), {}

    def remove(self, name: Optional[str]) -> Dict[str, Any]:
        """Let one service stand no more, or all: what each did. Raises ``BadField``."""
        if name is not None and name not in self._standing:
            raise BadField("name", repr(name), "a service that stands: " + (", ".join(self._standing) or "none does"))
        gone = {}
        for one in [name] if name is not None else list(self._standing):
            told = self.loop.remove(one)
            del self._standing[one]
            self._failures.pop(one, None)
            gone[one] = None if told is None else told.as_data()
        self._release()
        return gone

    def room_for(self, name: str) -> None:
        """Raises ``BadField`` where there is no room for one more service."""
        if name not in self._standing and len(self._standing) >= MOST_SERVICES:
            raise BadField("name", repr(name), "one of the {} that stand; `unserve` one".format(MOST_SERVICES))

    def ask(self, job: Job) -> Optional[Reply]:
        """Put a request's images in, from any thread; a refusal, or None: then ``job.ended`` tells of the answer."""
        try:
            name = a_text(job.header, "name")
            standing = self._standing.get(name)
            if standing is None:
                raise NoTask("name", repr(name), "a service that stands; `serve` it first")
            images = _images(job, standing)
        except BadField as error:
            return error_reply(error.kind, "request: {}".format(error))
        if self.loop.push(name, Ticket(job, images).samples, job.arrived_s):
            self.nudge()
            return None
        return self._failures.get(name) or _too_many(name)

    def told(self) -> Dict[str, Any]:
        """What each service is and did since it stands, for ``status``; from any thread."""
        done = self.loop.told()
        return {name: dict(one.about, **_told(done.get(name))) for name, one in list(self._standing.items())}

    def take(self) -> Optional[Dict[str, Any]]:
        """What each service did since this was asked last; None when none stands."""
        taken = self.loop.take()
        return {name: told.as_data() for name, told in taken.items()} if taken else None

    def spent(self) -> interleaving.Spent:
        """Where the main thread's time went."""
        return self.loop.spent()

    def _wait(self, wait_s: float) -> None:
        self.pause(wait_s)

    def _infer(self, service: interleaving.Service, batch: List[Request]) -> None:
        reply = self._score(service, batch)
        if reply is not None:  # after the except block, whose traceback held on to the tensors
            self._failures[service.name] = reply
            self._standing[service.name] = self._standing[service.name]._replace(net=None)
            self._release()
            raise ServiceFailed("{kind}: {text}".format(**reply[0]["error"]))

    def _score(self, service: interleaving.Service, batch: List[Request]) -> Optional[Reply]:
        """Score a batch and answer who asked; the answer to all who ask from now on when it fails."""
        try:
            images = [None if one.payload is None else one.payload.image for one in batch]
            scores = self._standing[service.name].net.scores(images)
        except (KeyboardInterrupt, SystemExit, Exception) as error:  # noqa: BLE001  a task may raise anything
            return self._judge("service {}".format(service.name), error)
        now_s = self._now_s()
        for row, one in zip(scores, batch):
            if one.payload is not None:
                one.payload.ticket.scored(one.payload.place, row, now_s - one.arrived_s)
        return None

    def _dropped(self, service: interleaving.Service, requests: List[Request]) -> None:
        asked = [one.payload for one in requests if one.payload is not None]
        if asked:
            reply = self._failures.get(service.name) or _dropped_reply(service)
            for sample in asked:
                sample.ticket.refused(reply)


def service_of(fields: Mapping[str, Any]) -> interleaving.Service:
    """The service that a ``serve`` describes; raises ``BadField``."""
    budget_s, when_late = seconds(fields, "latency_s"), fields.get("when_late", "serve")
    batch_size = a_count(fields, "batch_size", 1)
    if budget_s is None:
        raise BadField("latency_s", "none", "seconds above 0 within which a request is answered")
    if when_late not in WHEN_LATE:
        raise BadField("when_late", repr(when_late)[:80], "one of " + ", ".join(WHEN_LATE))
    if batch_size > MOST_BATCH:
        raise BadField("batch_size", str(batch_size), "{} at most".format(MOST_BATCH))
    wait_s = None if fields.get("max_wait_s") is None else a_number(fields, "max_wait_s")
    if wait_s is not None and wait_s < 0.0:
        raise BadField("max_wait_s", str(wait_s), "seconds, 0 or more, or null for no such bound")
    most = a_count(fields, "most_waiting", 1) if "most_waiting" in fields else interleaving.MOST_WAITING
    return interleaving.Service(a_text(fields, "name"), batch_size, budget_s, wait_s, when_late, most)


def arrivals_from(fields: Mapping[str, Any], now_s: float) -> Optional[Iterator[float]]:
    """The times of a ``serve``'s own requests from now on; None: they come over the socket. Raises ``BadField``."""
    if fields.get("arrivals") is None:
        return None
    return times(arrivals_of(an_object(fields, "arrivals")), now_s)


def training_share_of(fields: Mapping[str, Any]) -> Optional[float]:
    """The share of the time that stays training's own, if it is to change; raises ``BadField``."""
    if fields.get("training_share") is None:
        return None
    share = a_number(fields, "training_share")
    if not LEAST_SHARE <= share <= MOST_SHARE:
        raise BadField("training_share", str(share), "a number from {:g} to {:g}".format(LEAST_SHARE, MOST_SHARE))
    return share


def warm_sizes(batch_size: int) -> List[int]:
    """The batch sizes to warm up."""
    if batch_size <= MOST_SIZES:
        return list(range(1, batch_size + 1))
    return sorted({1 << place for place in range(batch_size.bit_length()) if 1 << place < batch_size} | {batch_size})


def _images(job: Job, standing: Standing) -> Any:
    images, net = job.arrays.get("x"), standing.net
    if net is None:  # it has failed: whoever asks hears why
        return np.zeros((1, 1), np.uint8)
    wanted = (net.shape.channels, net.shape.side, net.shape.side)
    if images is None or images.dtype != np.uint8 or images.shape[1:] != wanted or not len(images):
        got = "none" if images is None else "{} {}".format(images.dtype, images.shape)
        raise BadField("array x", got, "images of bytes, uint8 (n, {}, {}, {})".format(*wanted))
    return images


def _told(told: Optional[Told]) -> Dict[str, Any]:
    return {} if told is None else told.as_data()


def _too_many(name: str) -> Reply:
    return error_reply("busy", "request: too many wait for {}; ask less often, or for fewer at once".format(name))


def _dropped_reply(service: interleaving.Service) -> Reply:
    text = "request: dropped by {}, which could not answer it within {:g} s, had no room for it, or stands no more"
    return error_reply("busy", text.format(service.name, service.latency_s))


def _sleep(wait_s: float) -> None:
    time.sleep(min(wait_s, 1.0))
