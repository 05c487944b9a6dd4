"""Slot for one job at a time: a request in progress, its cancellation before the next step, and who holds the slot."""

import os
import threading
import time
from typing import Any, Callable, Dict, Optional, Tuple

from fedge.worker.frames import Arrays, FrameHead

LONGEST_PAUSE_S = 3600.0
"""Longer pauses end early, which costs nothing; an infinite one cannot be passed to the condition variable."""

Reply = Tuple[Dict[str, Any], Arrays]
"""Header and arrays of an answer."""


class WorkerJob:
    """One request in progress: the runner calls ``should_stop`` before each step, a connection waits for ``ended``."""

    def __init__(self, verb: str, head: FrameHead) -> None:
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
        """Called before each step; serves the inference requests that are due."""
        self.arrived_s = time.monotonic()
        self.ended, self._end = os.pipe()

    def should_stop(self) -> bool:
        """Return whether to stop now; called before each step, so that it also times the first one."""
        if not self.cancelled.is_set():
            self.before_step(self)
        if self.first_step_s is None:
            self.first_step_s = time.monotonic() - self.arrived_s
        return self.cancelled.is_set()

    def abandon(self) -> None:
        """Cancel the job because the client is gone and nobody will read the answer."""
        self.abandoned = True
        self.cancelled.set()

    def finish(self, reply: Reply) -> None:
        """Set the reply and wake the connection that waits for it."""
        self.reply = reply
        os.write(self._end, b".")

    def get_reply(self) -> Reply:
        """Return the reply that ``finish`` set."""
        assert self.reply is not None
        return self.reply

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.ended)
        os.close(self._end)

    def progress(self) -> Dict[str, Any]:
        """Return the verb and the steps done and planned, for ``status``."""
        return {"verb": self.verb, "done": self.done, "of": self.of}

    def __str__(self) -> str:
        return self.verb if self.of is None else f"{self.verb} ({self.done} of {self.of} steps done)"


class JobSlot:
    """A slot for one job, claimed before its arrays are read, so that two bodies are never in memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: Optional[WorkerJob] = None
        self._nudged = False
        self.job: Optional[WorkerJob] = None

    def claim(self, job: WorkerJob) -> Optional[WorkerJob]:
        """Claim the slot; return the job that holds it, or None if it is now this one's."""
        with self._changed:
            if self.job is None:
                self.job = job
                return None
            return self.job

    def submit(self, job: WorkerJob) -> None:
        """Mark the job that holds the slot as complete and ready to run."""
        with self._changed:
            self._ready = job
            self._changed.notify()

    def wait(self, limit_s: Optional[float] = None) -> Optional[WorkerJob]:
        """Wait for the next job to run; return None if none came within ``limit_s`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready is not None, limit_s)
            job, self._ready = self._ready, None
            return job

    @property
    def has_ready_job(self) -> bool:
        """Whether a job is ready to run."""
        return self._ready is not None

    def pause(self, limit_s: float) -> None:
        """Wait for a ready job or a ``nudge`` (also one since the last pause), at most ``limit_s`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._nudged or self.has_ready_job, min(limit_s, LONGEST_PAUSE_S))
            self._nudged = False

    def nudge(self) -> None:
        """End the pause: there is something to do."""
        with self._changed:
            self._nudged = True
            self._changed.notify()

    def release(self, job: WorkerJob) -> None:
        """Release the slot if this job holds it."""
        with self._changed:
            if self.job is job:
                self.job = None

    def cancel(self) -> bool:
        """Ask the running job to stop; return whether there was one."""
        job = self.job
        if job is not None:
            job.cancelled.set()
        return job is not None
