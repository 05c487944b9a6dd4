"""One job at a time: a request on its way, told to stop at its next minibatch, and the room that it has to claim."""

import os
import threading
import time
from typing import Any, Callable, Dict, Optional, Tuple

from fedge.worker.frames import Arrays, FrameHead

LONGEST_PAUSE_S = 3600.0
"""Longer ones end early, which costs nothing; an infinite one cannot be waited for."""

Reply = Tuple[Dict[str, Any], Arrays]
"""The header and the arrays of an answer."""


class WorkerJob:
    """One request on its way: who runs it calls ``watch`` before each minibatch, who serves it waits for ``ended``."""

    def __init__(self, verb: str, head: FrameHead, clock: Callable[[], float] = time.monotonic) -> None:
        self.verb = verb
        self.head = head
        self.header = head.header
        self.arrays: Arrays = {}
        self.reply: Optional[Reply] = None
        self.done = 0
        self.of: Optional[int] = None
        self.first_step_s: Optional[float] = None
        self.cancelled = threading.Event()
        self.abandoned = False
        self.before_step: Callable[["WorkerJob"], None] = lambda _job: None
        """What has to be done before each minibatch besides: standing services come first."""
        self._clock = clock
        self.arrived_s = clock()
        self.ended, self._end = os.pipe()

    def should_stop(self) -> bool:
        """Whether to stop now; called before each minibatch, and so also the place where the first one is timed."""
        if not self.cancelled.is_set():
            self.before_step(self)
        if self.first_step_s is None:
            self.first_step_s = self._clock() - self.arrived_s
        return self.cancelled.is_set()

    def abandon(self) -> None:
        """The client is gone: nobody will read the answer."""
        self.abandoned = True
        self.cancelled.set()

    def finish(self, reply: Reply) -> None:
        """The answer is ready: wakes who serves the request."""
        self.reply = reply
        os.write(self._end, b".")

    def get_reply(self) -> Reply:
        """What ``finish`` was given."""
        assert self.reply is not None
        return self.reply

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self.ended)
        os.close(self._end)

    def progress(self) -> Dict[str, Any]:
        """How far it is, for ``status``."""
        return {"verb": self.verb, "done": self.done, "of": self.of}

    def __str__(self) -> str:
        return self.verb if self.of is None else f"{self.verb} ({self.done} of {self.of} steps done)"


class JobSlot:
    """Room for one job, claimed before its arrays are read, so that never two bodies are in memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: Optional[WorkerJob] = None
        self._nudged = False
        self.job: Optional[WorkerJob] = None

    def claim(self, job: WorkerJob) -> Optional[WorkerJob]:
        """Take the room; the job that has it already, or None when it is now this one's."""
        with self._changed:
            if self.job is None:
                self.job = job
                return None
            return self.job

    def submit(self, job: WorkerJob) -> None:
        """The job that claimed the room is complete and may run."""
        with self._changed:
            self._ready = job
            self._changed.notify()

    def wait(self, limit_s: Optional[float] = None) -> Optional[WorkerJob]:
        """The next job to run; None when none came within the limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready is not None, limit_s)
            job, self._ready = self._ready, None
            return job

    @property
    def has_ready_job(self) -> bool:
        """Whether a job waits to be run."""
        return self._ready is not None

    def pause(self, limit_s: float) -> None:
        """Wait until a job may run, until a ``nudge`` (also one since the last pause), or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._nudged or self.has_ready_job, min(limit_s, LONGEST_PAUSE_S))
            self._nudged = False

    def nudge(self) -> None:
        """End the pause: there is something to look at."""
        with self._changed:
            self._nudged = True
            self._changed.notify()

    def release(self, job: WorkerJob) -> None:
        """The job needs the room no longer."""
        with self._changed:
            if self.job is job:
                self.job = None

    def cancel(self) -> bool:
        """Ask the running job to stop; whether there was one."""
        job = self.job
        if job is not None:
            job.cancelled.set()
        return job is not None
