"""The trainer process: the main thread trains, one thread accepts connections, and one thread serves each of them.

Started by the supervisor, which passes the listening socket. ``status``, ``cancel`` and ``request`` are answered beside
a running job; every other verb is a job, and while one runs the others are refused as busy.
"""

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import platform
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from fedge.worker import PROTOCOL, frames
from fedge.worker.job_runner import JOB_VERBS, JobRunner
from fedge.worker.job_slot import JobSlot, Reply, WorkerJob
from fedge.worker.refusal import JobStopped, error_reply
from fedge.worker.trainer_backend import TrainerBackend, make_torch_backend

logger = logging.getLogger(__name__)

VERSION = "0.1.0"
STALL_S = 30.0
"""A peer that neither sends nor receives a byte for this many seconds within a frame is disconnected."""
LEAST_BYTES_PER_S = 4 << 20
"""Slowest accepted rate of a body, after the first ``STALL_S`` seconds: a local socket is far faster."""
LOOK_S = 0.05
"""Seconds until a job whose arrays have stopped coming notices a cancellation; shorter polls more often."""
MOST_CONNECTIONS = 32
"""Upper limit of connections, each of which is a thread: a board has one client and perhaps an operator."""
MOST_ASKING = 16
"""Connections that may wait for a service's answer: half of all, so that some are left for jobs and ``status``."""
MOST_REQUEST = 16 << 20
"""Upper limit of a request's images in bytes: several may arrive at once, beside a job's arrays."""
MOST_ROOM = 256 << 20
"""Largest array buffer in bytes that is kept between requests; larger ones are allocated anew each time."""
GRACE_S = 0.25
"""Seconds after a restart in which clients can ask for the cause: importing torch then blocks every thread."""
BROKEN_EXIT = 70
"""Exit status of a process that only a new one can replace (EX_SOFTWARE)."""
MOST_FAILURES = 3
"""Connections in a row without a thread after which only a new process can help."""
MOST_UNREAD = 1 << 20
"""Bytes read after an invalid frame, so that its sender receives the answer."""
OOM_SCORE_ADJUSTMENT = 500
"""Added to this process's OOM score (0 to 1000), so that the kernel kills it before other processes."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class TrainerStart(NamedTuple):
    """Start record that the supervisor passes to the trainer process.

    Attributes:
        socket_fd: File descriptor of the listening socket.
        parent: Process number of the supervisor.
        data_roots: Folders below which data may be read.
        device: Device that ``auto`` in a load means.
        restarts: Number of restarts so far.
        last_exit: The last trainer's ``ExitCause`` as a dict; None at the first start.
    """

    socket_fd: int
    parent: int
    data_roots: List[str]
    device: str
    restarts: int
    last_exit: Optional[Dict[str, str]]


def main(arguments: Sequence[str], make_parts: Callable[[], TrainerBackend] = make_torch_backend) -> None:
    """Run the process: ``python -m fedge.worker.trainer_process START``, with a ``TrainerStart`` as JSON."""
    status = serve_jobs(TrainerStart(**json.loads(arguments[0])), make_parts)
    sys.stderr.flush()
    os._exit(status)  # a task may have left threads behind, for which an orderly end would wait


def serve_jobs(start: TrainerStart, make_parts: Callable[[], TrainerBackend]) -> int:
    """Serve until the parent ends this process, or until only a new process can help; return the exit status."""
    _protect_process(start.parent)
    runner = JobRunner(make_parts(), start.data_roots, start.device)
    service = JobServer(runner, start)
    listener = socket.socket(fileno=start.socket_fd)
    threading.Thread(target=service.accept_connections, args=(listener,), daemon=True, name="accept").start()
    return service.run_jobs()


def _protect_process(parent: int) -> None:
    """End with the parent, be the kernel's first out-of-memory victim, and print a traceback on a crash."""
    faulthandler.enable()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
        try:
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJUSTMENT))
        except OSError as error:
            logger.info("the kernel's readiness to kill cannot be set: %s", error)
    if os.getppid() != parent:
        os._exit(0)  # it ended before it could be followed


class JobServer:
    """State shared by the threads: the runner, the job slot, and facts about this process."""

    def __init__(self, runner: JobRunner, start: TrainerStart) -> None:
        self._runner = runner
        self._start = start
        self._slot = JobSlot()
        runner.serving.pause, runner.serving.nudge = self._slot.pause, self._slot.nudge
        self._asking = threading.BoundedSemaphore(MOST_ASKING)
        self._begun_s = time.monotonic()
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._told = threading.Event()
        self._room = np.empty(0, np.uint8)

    def run_jobs(self) -> int:
        """Run one job after the other in the main thread and the services in between; return the exit status."""
        if self._start.last_exit is not None:
            time.sleep(GRACE_S)
        self._runner.prepare()
        while not self._runner.broken:
            self._runner.serving.loop.serve_while_idle(
                stop=lambda: self._slot.has_ready_job or bool(self._runner.broken)
            )
            job = self._slot.wait(0.0)
            if job is not None:
                reply = self._runner.run(job)
                self._slot.release(job)  # before the answer, after which the client may send its next job at once
                job.finish(reply)
        self._told.wait(STALL_S)
        sys.stderr.write(f"CUDA can be used again only by a new process: {self._runner.broken}\n")
        return BROKEN_EXIT

    def accept_connections(self, listener: socket.socket) -> None:
        """Accept connections forever, with a thread for each; end the process if none can be served any more."""
        failures = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                logger.warning("cannot accept a connection: %s", error)
                time.sleep(0.1)  # out of file descriptors: some may be given back
                continue
            if not self._places.acquire(blocking=False):
                _refuse_connection(connection, f"{MOST_CONNECTIONS} connections are open; close one of them")
                continue
            try:
                threading.Thread(target=self._serve_connection, args=(connection,), daemon=True).start()
            except (RuntimeError, MemoryError) as error:  # at the limit of threads or of memory, set by a task perhaps
                self._places.release()
                _refuse_connection(connection, f"no thread can be started for this connection ({error})")
                failures += 1
                if failures >= MOST_FAILURES:
                    sys.stderr.write(f"no thread can be started: {error}\n")
                    sys.stderr.flush()
                    os._exit(BROKEN_EXIT)
            else:
                failures = 0

    def _serve_connection(self, connection: socket.socket) -> None:
        try:
            with connection:
                while self._answer_next(connection):
                    pass
        except OSError as error:
            logger.info("a connection ended: %s", error)
        finally:
            self._places.release()

    def _answer_next(self, connection: socket.socket) -> bool:
        """Wait for a request and answer it; return whether the connection remains usable."""
        connection.settimeout(None)
        select.select([connection], [], [])
        connection.settimeout(STALL_S)
        try:
            head = frames.read_head(connection)
            if head is None:
                return False
            header, arrays = self._answer(connection, head)
        except frames.FrameError as error:
            header, arrays = error_reply("bad-request", f"{error}; the connection is closed")
            frames.write(connection, header, arrays)
            _drain_socket(connection)
            return False
        _send_reply(connection, header, arrays)
        if self._runner.broken and not header["ok"]:
            self._told.set()
        return True

    def _answer(self, connection: socket.socket, head: frames.FrameHead) -> Reply:
        verb = head.header.get("verb")
        if head.header.get("v") != PROTOCOL:
            text = f"v: got {str(head.header.get('v'))[:40]}; protocol {PROTOCOL} is spoken here"
            problem = error_reply("bad-request", text)
        elif verb in JOB_VERBS:
            return self._run_job(connection, WorkerJob(str(verb), head))
        elif verb == "request":
            return self._run_request(connection, WorkerJob(verb, head))
        elif verb == "status":
            problem = self.status(), {}
        elif verb == "cancel":
            problem = {"ok": True, "cancelled": self._slot.cancel()}, {}
        else:
            verbs = ", ".join(("status", "cancel", "request", *JOB_VERBS))
            problem = error_reply("unknown-verb", f"verb: got {str(verb)[:40]!r}; one of {verbs}")
        frames.FrameBody(connection, head).drain(BodyDeadline(connection, head.body_bytes).wait)
        return problem

    def _run_job(self, connection: socket.socket, job: WorkerJob) -> Reply:
        body, patience = frames.FrameBody(connection, job.head), BodyDeadline(connection, job.head.body_bytes)
        try:
            refusal = self._receive_arrays(job, body, patience)
            if refusal is None:
                self._slot.submit(job)
                _wait_for_job(connection, job)
                return job.get_reply()
            self._slot.release(job)  # before the rest of the body, which may take its time
            body.drain(patience.wait)
            return refusal
        finally:
            self._slot.release(job)  # for a request that never became a job; else it is free already
            job.close()

    def _run_request(self, connection: socket.socket, job: WorkerJob) -> Reply:
        """Answer a request to an inference service, beside the jobs."""
        body, patience = frames.FrameBody(connection, job.head), BodyDeadline(connection, job.head.body_bytes)
        try:
            if job.head.body_bytes <= MOST_REQUEST and self._asking.acquire(blocking=False):
                try:
                    return self._ask_service(connection, job, body, patience)
                finally:
                    self._asking.release()
            body.drain(patience.wait)
        finally:
            job.close()
        text = f"request: at most {MOST_REQUEST >> 20} MiB of images, and {MOST_ASKING} requests at a time"
        return error_reply("busy" if job.head.body_bytes <= MOST_REQUEST else "bad-request", text)

    def _ask_service(
        self, connection: socket.socket, job: WorkerJob, body: frames.FrameBody, patience: "BodyDeadline"
    ) -> Reply:
        try:
            job.arrays = body.read(None, patience.wait)
            refusal = self._runner.serving.submit_request(job)
        except MemoryError:
            body.drain(patience.wait)
            return error_reply("oom", "request: no memory for its images; send fewer at a time")
        if refusal is None:
            _wait_for_job(connection, job)
            return job.get_reply()
        return refusal

    def _receive_arrays(self, job: WorkerJob, body: frames.FrameBody, patience: "BodyDeadline") -> Optional[Reply]:
        """Claim the slot for a job and read its arrays; return the refusal if that fails."""
        holder = self._slot.claim(job)
        if holder is not None:
            return error_reply("busy", f"the worker is busy with {holder}; ask again after it, or cancel it")
        try:
            room = self._get_array_buffer(job.head.body_bytes)
            job.arrays = body.read(room, lambda: patience.wait(job.cancelled.is_set))
        except MemoryError:
            text = f"{job.verb}: no memory for arrays of {job.head.body_bytes} bytes; a smaller model"
            return error_reply("oom", text)
        except JobStopped as error:
            return error_reply("failed", f"{job.verb} was cancelled: {error}")
        return None

    def _get_array_buffer(self, body_bytes: int) -> Optional[np.ndarray]:
        """Return a reused buffer, since fresh pages cost as much as the copy; only one job at a time uses it."""
        if len(self._room) < body_bytes <= MOST_ROOM:
            self._room = np.empty(0, np.uint8)  # free the old one first
            self._room = np.empty(body_bytes, np.uint8)
        return self._room

    def status(self) -> Dict[str, Any]:
        """Return the answer to ``status``; takes no lock that a job holds."""
        runner, job, loaded, facts = self._runner, self._slot.job, self._runner.loaded, self._runner.facts
        cuda: Optional[Dict[str, Any]] = None
        if facts.cuda_name is not None:
            cuda = {"name": facts.cuda_name, "total_mb": facts.cuda_total_mb, "used_mb": runner.used_cuda_mb()}
        task: Optional[Dict[str, Any]] = None
        if loaded is not None:
            task = {"name": loaded.name, "sha256": loaded.sha256}
            task.update(samples=loaded.reply[0]["samples"], test=loaded.reply[0]["test"])
        fields = {"ok": True, "protocol": PROTOCOL, "version": VERSION, "python": platform.python_version()}
        fields.update(torch=facts.torch, numpy=np.__version__, cuda=cuda, task=task)
        fields.update(device=runner.device if loaded is None else loaded.device)
        fields.update(state="idle" if job is None else "busy", job=None if job is None else job.progress())
        fields.update(restarts=self._start.restarts, last_exit=self._start.last_exit, rss_mb=_rss_mb())
        fields.update(refused=runner.refused or None)
        fields.update(services=runner.serving.describe_services())
        fields.update(up_s=time.monotonic() - self._begun_s)
        return fields


class SlowPeer(frames.FrameError):
    """A body that stalls, or comes so slowly that it keeps others waiting."""


class BodyDeadline:
    """Time limits of one body: ``STALL_S`` for each piece, and a total that depends on its size."""

    def __init__(self, connection: socket.socket, body_bytes: int) -> None:
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._limit_s = STALL_S + body_bytes / LEAST_BYTES_PER_S
        self._ends_s = time.monotonic() + self._limit_s

    def wait(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Wait for the next piece.

        Raises:
            SlowPeer: A time limit passed.
            JobStopped: ``stop`` was true.
        """
        stalled_s = time.monotonic() + STALL_S
        while True:
            if stop():
                raise JobStopped("its arrays were still coming")
            now_s = time.monotonic()
            if now_s >= self._ends_s:
                raise SlowPeer(f"the body was not whole after {self._limit_s:.0f} s; at least {LEAST_BYTES_PER_S} B/s")
            if now_s >= stalled_s:
                raise SlowPeer(f"no byte of the body for {STALL_S:.0f} s; send a frame in one go")
            if self._poll.poll(1e3 * LOOK_S):
                return


def _wait_for_job(connection: socket.socket, job: WorkerJob) -> None:
    """Wait until the job has ended; cancel it if the client disconnects."""
    poll = select.poll()
    poll.register(job.ended, select.POLLIN)
    poll.register(connection, 0)  # only the hang-up: a client may send its next request early, or close its half
    while True:
        events = dict(poll.poll())
        if job.ended in events:  # not job.reply: the pipe is closed next, and the main thread must have written to it
            return
        if connection.fileno() in events:
            job.abandon()
            poll.unregister(connection)


def _drain_socket(connection: socket.socket) -> None:
    """Read what is pending: closing the socket with unread data would discard the answer."""
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(MOST_UNREAD // frames.PIECE_BYTES):
            if not connection.recv(frames.PIECE_BYTES):
                return


def _send_reply(connection: socket.socket, header: Dict[str, Any], arrays: frames.Arrays) -> None:
    try:
        frames.write(connection, header, arrays)
    except (frames.FrameError, TypeError, ValueError) as error:
        # A task's arrays may be of any kind, and nothing was sent yet.
        frames.write(connection, *error_reply("failed", f"the answer cannot be sent: {error}"))


def _refuse_connection(connection: socket.socket, text: str) -> None:
    with connection:
        connection.settimeout(0.1)
        try:
            frames.write(connection, *error_reply("busy", text))
        except OSError as error:
            logger.info("a connection too many ended: %s", error)


def _rss_mb() -> Optional[float]:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return None


if __name__ == "__main__":
    main(sys.argv[1:])
