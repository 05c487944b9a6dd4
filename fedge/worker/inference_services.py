"""The worker's inference services: their networks, the requests over the socket, and their statistics.

Only the main thread serves, before the steps of its jobs and between jobs. Connection threads enqueue requests, each
with a ``RequestTicket`` on which they wait.
"""

import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional

import numpy as np

from fedge.worker.arrivals import arrival_times, parse_arrivals
from fedge.worker.inference_interleaver import (
    MOST_WAITING,
    WHEN_LATE,
    HostedService,
    Interleaver,
    Request,
    ServiceFailed,
)
from fedge.worker.job_slot import Reply, WorkerJob
from fedge.worker.refusal import (
    BadField,
    JobStopped,
    NoTaskLoaded,
    error_reply,
    get_count,
    get_number,
    get_object,
    get_seconds,
    get_text,
)

MOST_SIZES = 64
"""Up to this batch size every size is warmed up; beyond it only powers of two and the batch size, to bound the time."""
MOST_SERVICES = 16
"""Upper limit of services: each keeps a network in memory."""
MOST_BATCH = 1024
"""Upper limit of a batch: a mistyped size would otherwise exhaust the memory before it is noticed."""
LEAST_SHARE, MOST_SHARE = 0.01, 0.99
"""Range of ``training_share``. With less than 1 %, training beside overloaded services would practically never step."""
WARM_RUNS = 2
"""Runs per batch size: the first one prepares the device, the last one is timed."""


class LoadedService(NamedTuple):
    """A running service: its settings, its network (None once it has failed), and its description for ``status``."""

    service: HostedService
    net: Any
    about: Dict[str, Any]


class RequestImage(NamedTuple):
    """One image of a request over the socket."""

    ticket: "RequestTicket"
    place: int
    image: Any


class RequestTicket:
    """A request over the socket: answered once all its images are; changed by the main thread only."""

    def __init__(self, job: WorkerJob, images: Any) -> None:
        self.job = job
        self._left = len(images)
        self._rows: List[Any] = [None] * len(images)
        self._latency_s = [0.0] * len(images)
        self._refusal: Optional[Reply] = None
        self.samples = [RequestImage(self, place, image) for place, image in enumerate(images)]

    def set_scores(self, place: int, row: Any, latency_s: float) -> None:
        """Record the scores of one image."""
        self._rows[place], self._latency_s[place] = row, latency_s
        self._count_down()

    def refuse_image(self, reply: Reply) -> None:
        """Record that one image is refused, which refuses the request."""
        self._refusal = reply
        self._count_down()

    def _count_down(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.job.finish(self._refusal or self._make_reply())

    def _make_reply(self) -> Reply:
        return {"ok": True, "latency_s": self._latency_s}, {"scores": np.stack(self._rows)}


class InferenceServices:
    """All inference services of this process.

    Attributes:
        pause: Waits at most the given seconds; may be replaced.
        nudge: Ends a pause early; may be replaced.
    """

    def __init__(
        self, judge: Callable[[str, BaseException], Reply], release: Callable[[], None], now_s: Callable[[], float]
    ) -> None:
        """Create an empty set: ``judge`` makes an exception a verb's reply, ``release`` frees memory after an error."""
        self.pause: Callable[[float], None] = lambda wait_s: time.sleep(min(wait_s, 1.0))
        self.nudge: Callable[[], None] = lambda: None
        self._judge, self._release, self._now_s = judge, release, now_s
        self._standing: Dict[str, LoadedService] = {}
        self._failures: Dict[str, Reply] = {}
        self.loop = Interleaver(
            [],
            arrivals={},
            infer=self._infer,
            now_s=now_s,
            wait_s=lambda wait_s: self.pause(wait_s),  # noqa: PLW0108  looked up at each call: it may be replaced
            drop=self._refuse_dropped,
        )

    def serve_before_step(self, job: WorkerJob) -> None:
        """Serve what is due before a step of this job."""
        if self._standing:
            # The first step of a job takes longer than the others, so it is estimated as a kind of its own.
            self.loop.serve_before_step(job.cancelled.is_set, job.verb if job.done else job.verb + ", first minibatch")

    def install(
        self,
        service: HostedService,
        arrivals: Callable[[], Optional[Iterator[float]]],
        net: Any,
        job: WorkerJob,
    ) -> Reply:
        """Warm up the network and start the service; an existing one of the same name runs until then.

        ``arrivals`` is called once the service runs and returns its generated arrival times, or None. The ``serve`` job
        is told the progress, and may be cancelled.

        Returns:
            The reply: the warmed-up batch sizes and the seconds of each.

        Raises:
            JobStopped: The job was cancelled.
        """
        sizes = warm_sizes(service.batch_size)
        job.of = len(sizes)
        taken_s = []
        for job.done, size in enumerate(sizes):
            if job.should_stop():
                raise JobStopped("{} does not stand".format(service.name))
            for _ in range(WARM_RUNS):
                begin_s = self._now_s()
                scores = net.scores([None] * size)
                took_s = self._now_s() - begin_s
            taken_s.append(took_s)
        self.loop.end_step()
        about = {"batch_size": service.batch_size, "latency_s": service.latency_s, "device": str(net.device)}
        self._failures.pop(service.name, None)
        # First the network, then the service: a request may arrive in between.
        self.loop.remove(service.name)
        self._standing[service.name] = LoadedService(service, net, about)
        self.loop.add(service, arrivals())
        for size, took_s in zip(sizes, taken_s):
            self.loop.learn_batch(service.name, size, took_s)
        return dict(about, ok=True, name=service.name, sizes=sizes, seconds=taken_s, classes=int(scores.shape[1])), {}

    def remove(self, name: Optional[str]) -> Dict[str, Any]:
        """Stop one service, or all if ``name`` is None.

        Returns:
            The statistics of each stopped service, by name.

        Raises:
            BadField: There is no service of this name.
        """
        if name is not None and name not in self._standing:
            raise BadField("name", repr(name), "a service that stands: " + (", ".join(self._standing) or "none does"))
        gone = {}
        for one in [name] if name is not None else list(self._standing):
            statistics = self.loop.remove(one)
            del self._standing[one]
            self._failures.pop(one, None)
            gone[one] = None if statistics is None else statistics.as_data()
        self._release()
        return gone

    def check_room(self, name: str) -> None:
        """Check that there is room for one more service.

        Raises:
            BadField: ``MOST_SERVICES`` are running.
        """
        if name not in self._standing and len(self._standing) >= MOST_SERVICES:
            raise BadField("name", repr(name), "one of the {} that stand; `unserve` one".format(MOST_SERVICES))

    def submit_request(self, job: WorkerJob) -> Optional[Reply]:
        """Enqueue a request's images; may be called from any thread.

        Returns:
            A refusal, or None: then ``job.ended`` signals the answer.
        """
        try:
            name = get_text(job.header, "name")
            standing = self._standing.get(name)
            if standing is None:
                raise NoTaskLoaded("name", repr(name), "a service that stands; `serve` it first")
            images = _check_images(job, standing)
        except BadField as error:
            return error_reply(error.kind, "request: {}".format(error))
        if self.loop.push(name, RequestTicket(job, images).samples, job.arrived_s):
            self.nudge()
            return None
        text = "request: too many wait for {}; ask less often, or for fewer at once".format(name)
        return self._failures.get(name) or error_reply("busy", text)

    def describe_services(self) -> Dict[str, Any]:
        """Return each service's settings and statistics, for ``status``; may be called from any thread."""
        services = {name: dict(one.about) for name, one in list(self._standing.items())}
        for name, statistics in self.loop.get_statistics().items():
            services.get(name, {}).update(statistics.as_data())
        return services

    def take_statistics(self) -> Optional[Dict[str, Any]]:
        """Return each service's statistics since the last call; None if there are no services."""
        taken = self.loop.take_statistics()
        return {name: statistics.as_data() for name, statistics in taken.items()} if taken else None

    def _infer(self, service: HostedService, batch: List[Request]) -> None:
        reply = self._answer_batch(service, batch)
        if reply is not None:  # after the except block, whose traceback held on to the tensors
            self._failures[service.name] = reply
            self._standing[service.name] = self._standing[service.name]._replace(net=None)
            self._release()
            raise ServiceFailed("{kind}: {text}".format(**reply[0]["error"]))

    def _answer_batch(self, service: HostedService, batch: List[Request]) -> Optional[Reply]:
        """Score a batch and answer its requests; on failure return the reply to all later requests."""
        try:
            images = [None if one.payload is None else one.payload.image for one in batch]
            scores = self._standing[service.name].net.scores(images)
        except (KeyboardInterrupt, SystemExit, Exception) as error:  # noqa: BLE001  a task may raise anything
            return self._judge("service {}".format(service.name), error)
        now_s = self._now_s()
        for row, one in zip(scores, batch):
            if one.payload is not None:
                one.payload.ticket.set_scores(one.payload.place, row, now_s - one.arrived_s)
        return None

    def _refuse_dropped(self, service: HostedService, requests: List[Request]) -> None:
        asked = [one.payload for one in requests if one.payload is not None]
        if asked:
            reply = self._failures.get(service.name) or _dropped_reply(service)
            for sample in asked:
                sample.ticket.refuse_image(reply)


def parse_service(fields: Mapping[str, Any]) -> HostedService:
    """Parse the settings of a ``serve`` request.

    Raises:
        BadField: A field is missing, of the wrong type or out of range.
    """
    budget_s, when_late = get_seconds(fields, "latency_s"), fields.get("when_late", "serve")
    batch_size = get_count(fields, "batch_size", 1)
    if budget_s is None:
        raise BadField("latency_s", "none", "seconds above 0 within which a request is answered")
    if when_late not in WHEN_LATE:
        raise BadField("when_late", repr(when_late)[:80], "one of " + ", ".join(WHEN_LATE))
    if batch_size > MOST_BATCH:
        raise BadField("batch_size", str(batch_size), "from 1 to {}".format(MOST_BATCH))
    wait_s = None if fields.get("max_wait_s") is None else get_number(fields, "max_wait_s")
    if wait_s is not None and wait_s < 0.0:
        raise BadField("max_wait_s", str(wait_s), "seconds, 0 or more, or null for no such bound")
    most = get_count(fields, "most_waiting", 1) if "most_waiting" in fields else MOST_WAITING
    return HostedService(
        get_text(fields, "name"),
        batch_size=batch_size,
        latency_s=budget_s,
        max_wait_s=wait_s,
        when_late=when_late,
        most_waiting=most,
    )


def parse_arrival_times(fields: Mapping[str, Any], now_s: float) -> Optional[Iterator[float]]:
    """Parse the arrival process of a ``serve`` request.

    Returns:
        The arrival times in seconds; None if requests come over the socket.

    Raises:
        BadField: The arrival process is invalid.
    """
    if fields.get("arrivals") is None:
        return None
    return arrival_times(parse_arrivals(get_object(fields, "arrivals")), now_s)


def parse_training_share(fields: Mapping[str, Any]) -> Optional[float]:
    """Parse the share of the time that training keeps.

    Returns:
        A share from ``LEAST_SHARE`` to ``MOST_SHARE``, or None if it is to stay as it is.

    Raises:
        BadField: The share is out of range.
    """
    if fields.get("training_share") is None:
        return None
    share = get_number(fields, "training_share")
    if not LEAST_SHARE <= share <= MOST_SHARE:
        raise BadField("training_share", str(share), "a number from {:g} to {:g}".format(LEAST_SHARE, MOST_SHARE))
    return share


def warm_sizes(batch_size: int) -> List[int]:
    """Return the batch sizes to warm up, ascending."""
    if batch_size <= MOST_SIZES:
        return list(range(1, batch_size + 1))
    return sorted({1 << place for place in range(batch_size.bit_length()) if 1 << place < batch_size} | {batch_size})


def _check_images(job: WorkerJob, standing: LoadedService) -> Any:
    images, net = job.arrays.get("x"), standing.net
    if net is None:  # the service has failed: its requests get the reason
        return np.zeros((1, 1), np.uint8)
    wanted = (net.shape.channels, net.shape.side, net.shape.side)
    if images is None or images.dtype != np.uint8 or images.shape[1:] != wanted or not len(images):
        got = "none" if images is None else "{} {}".format(images.dtype, images.shape)
        raise BadField("array x", got, "images of bytes, uint8 (n, {}, {}, {})".format(*wanted))
    return images


def _dropped_reply(service: HostedService) -> Reply:
    text = "request: dropped by {}, which could not answer it within {:g} s, had no room for it, or stands no more"
    return error_reply("busy", text.format(service.name, service.latency_s))
