"""Client of the worker: one method per verb, arrays in and out, and a clear error if the worker is absent or has died.

A client keeps one connection for its jobs. ``status`` and ``cancel`` use a short one of their own, so that any thread
may call them while another waits for a job.
"""

import contextlib
import json
import select
import socket
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from fedge.worker import LAST_EXIT, PROTOCOL, frames

SOCKET = "/run/fedge-worker/worker.sock"
STATUS_TRY_S = 0.25
"""Timeout of a single attempt to ask the next trainer for the cause, in seconds."""
CAUSE_LIMIT_S = 2.0
"""Total time spent on finding out why the worker died, in seconds."""
CONTROL_LIMIT_S = 10.0
"""Timeout of ``status`` and ``cancel`` in seconds: they answer at once, unless a slow board is importing torch."""

RESTARTED = {"text": "the worker was started anew with its supervisor", "cause": "killed"}
"""What is reported of a trainer whose supervisor, which knew why it ended, ended too."""

Arrays = Dict[str, np.ndarray]


class WorkerError(Exception):
    """A failed request; ``text`` says what to do.

    Attributes:
        kind: One of ``refusal.KINDS``, or ``unreachable`` or ``died``.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class WorkerClient:
    """Client of the worker at ``socket_path``; ``timeout_s`` limits the wait for a job's answer (None: no limit).

    All methods raise ``WorkerError``.
    """

    def __init__(self, socket_path: str = SOCKET, timeout_s: Optional[float] = None) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s
        self._connection: Optional[socket.socket] = None
        self._turn = threading.Lock()

    def status(self) -> Dict[str, Any]:
        """Return the worker's state; answered at once, also during a job.

        Returns:
            Among others: protocol, version, python, torch (None until loaded), device, cuda, state, job, task, rss_mb,
            restarts, last_exit, refused (why the last task could not be loaded), up_s, and the totals of ``services``.
        """
        return self._send_control("status", CONTROL_LIMIT_S)

    def cancel(self) -> bool:
        """Stop the running job at its next step; may be called from any thread.

        Returns:
            Whether there was a job.
        """
        return bool(self._send_control("cancel", CONTROL_LIMIT_S)["cancelled"])

    def load(self, task: Mapping[str, Any], data: Mapping[str, Any], device: str = "auto") -> Dict[str, Any]:
        """Load a task and its data, or do nothing if the same are loaded.

        Args:
            task: {"builtin": name}, or {"name", "source", "sha256"} of a task file; with {"channels"} of a pruned
                variant, its network is cut.
            data: A source in the form that ``sources.read`` takes.
            device: ``auto``, ``cpu`` or ``cuda``.

        Returns:
            The reply, with the training samples' ``labels`` (n,); ``warm`` says whether the task was loaded already.
        """
        reply, arrays = self._run_job("load", {"task": dict(task), "data": dict(data), "device": device})
        return dict(reply, labels=arrays["labels"])

    def train(
        self,
        begin: Optional[Mapping[str, Any]] = None,
        arrays: Optional[Mapping[str, np.ndarray]] = None,
        share: Optional[np.ndarray] = None,
        steps: int = 0,
        limit_s: Optional[float] = None,
        finish: bool = False,
    ) -> Tuple[Dict[str, Any], Arrays]:
        """Do steps of the current training, or of a new one if ``begin`` is given.

        Args:
            begin: {"seed", "options": {"steps", "batch_size", "learning_rate", ...}} of a new training.
            arrays: The model to begin from; None: freshly initialised.
            share: Indices of the samples to train on; None: all.
            steps: Steps to do now.
            limit_s: Time limit of these steps in seconds; None: no limit.
            finish: Whether to end the training and return its arrays.

        Returns:
            The reply (done, of, seconds, stopped, first_step_after_s, peak_mb; with ``finish`` also loss and accuracy),
            and the trained arrays (empty unless ``finish``). ``peak_mb`` is the peak memory since the training began;
            None where the kernel does not report it.
        """
        fields: Dict[str, Any] = {"steps": steps, "limit_s": limit_s, "finish": finish}
        sent = dict(arrays or {})
        if begin is not None:
            fields["begin"] = dict(begin)
            if share is not None:
                sent["share"] = share
        return self._run_job("train", fields, sent)

    def evaluate(self, arrays: Mapping[str, np.ndarray]) -> Dict[str, Any]:
        """Return ``loss``, ``accuracy`` (0 to 1) and the number of test ``samples`` of a model."""
        return self._run_job("evaluate", {}, arrays)[0]

    def profile(self, steps: int, batch_size: int, kind: str = "train") -> Dict[str, Any]:
        """Return ``fetch_s`` and ``step_s`` of each step, in seconds.

        ``kind`` is ``train`` or ``infer``.
        """
        return self._run_job("profile", {"steps": steps, "batch_size": batch_size, "kind": kind})[0]

    def serve(
        self,
        name: str,
        task: Mapping[str, Any],
        batch_size: int,
        latency_s: float,
        arrays: Optional[Mapping[str, np.ndarray]] = None,
        **more: Any,
    ) -> Dict[str, Any]:
        """Start an inference service.

        An existing service of this name is replaced. ``latency_s`` is the budget from arrival to answer. ``more`` may
        be arrivals, data, device, max_wait_s, most_waiting, seed, training_share and when_late.

        Returns:
            The reply, with the warmed-up batch ``sizes`` and the ``seconds`` of each.
        """
        fields = dict(more, name=name, task=dict(task), batch_size=batch_size, latency_s=latency_s)
        return self._run_job("serve", fields, arrays)[0]

    def unserve(self, name: Optional[str] = None) -> Dict[str, Any]:
        """Stop one service, or all if ``name`` is None, and return the statistics of each by name."""
        services: Dict[str, Any] = self._run_job("unserve", {"name": name})[0]["services"]
        return services

    def request(self, name: str, images: np.ndarray) -> Tuple[np.ndarray, List[float]]:
        """Send images to an inference service; uses a connection of its own, so that any thread may call it.

        The images are uint8 (n, channels, side, side).

        Returns:
            Scores (n, classes), and the latency of each image in seconds.
        """
        limit_s, asked_s = self._timeout_s, time.monotonic()
        fields = {"name": name}
        with self._connect(limit_s) as connection:
            try:
                reply, arrays = _exchange(connection, "request", fields, {"x": images}, limit_s=limit_s)
            except (frames.TruncatedFrame, ConnectionError) as error:
                raise self._explain_disconnect(asked_s) from error
            except (frames.FrameError, OSError) as error:
                within = "" if limit_s is None else f" within {limit_s:g} s"
                text = f"no answer to request{within}; does {name} stand? `status` tells"
                raise WorkerError("unreachable", text) from error
        return arrays["scores"], [float(one) for one in reply["latency_s"]]

    def close(self) -> None:
        """Close the connection; a job that runs on it is cancelled, also one that another thread waits for."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # closing alone would not wake that thread
            connection.close()

    def __enter__(self) -> "WorkerClient":  # noqa: PYI034  typing.Self came with 3.11
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run_job(
        self, verb: str, fields: Dict[str, Any], arrays: Optional[Mapping[str, np.ndarray]] = None
    ) -> Tuple[Dict[str, Any], Arrays]:
        with self._turn:
            asked_s = time.monotonic()
            connection = self._get_connection()
            try:
                return _exchange(connection, verb=verb, fields=fields, arrays=arrays, limit_s=self._timeout_s)
            except frames.FrameError as error:
                self.close()
                if isinstance(error, frames.TruncatedFrame):
                    raise self._explain_disconnect(asked_s) from error
                raise WorkerError("bad-request", str(error)) from error
            except socket.timeout as error:
                self.close()
                text = f"no answer to {verb} within {self._timeout_s:g} s; its job is cancelled; allow more time"
                raise WorkerError("unreachable", text) from error
            except OSError as error:
                self.close()
                raise self._explain_disconnect(asked_s) from error

    def _get_connection(self) -> socket.socket:
        """Return the connection for jobs, reopened if the worker has closed it."""
        if self._connection is not None and _is_closed_by_peer(self._connection):
            self.close()
        if self._connection is None:
            self._connection = self._connect(self._timeout_s)
        return self._connection

    def _connect(self, limit_s: Optional[float]) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(limit_s)
        try:
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            raise WorkerError("unreachable", f"{self._path}: {_connection_remedy(error)}") from error
        return connection

    def _send_control(self, verb: str, limit_s: float) -> Dict[str, Any]:
        """Ask on a separate connection; try again once if the trainer died, since the next one takes over."""
        ends_s, died = time.monotonic() + limit_s, False
        while True:
            left_s = max(0.01, ends_s - time.monotonic())
            try:
                with self._connect(left_s) as connection:
                    return _exchange(connection, verb=verb, fields={}, arrays=None, limit_s=left_s)[0]
            except (frames.FrameError, OSError) as error:
                if died or not isinstance(error, (frames.TruncatedFrame, ConnectionError)):
                    text = (
                        f"{self._path}: no answer to {verb} within {limit_s:.3g} s; is the worker stopped? restart it"
                    )
                    raise WorkerError("unreachable", text) from error
                died = True

    def _explain_disconnect(self, asked_s: float) -> WorkerError:
        """Return why the connection ended within a request, from the supervisor's file or the next trainer."""
        ends_s = time.monotonic() + CAUSE_LIMIT_S
        while time.monotonic() < ends_s:
            died = _read_last_exit(self._path + LAST_EXIT, asked_s)
            if died is not None:
                return died
            try:
                status = self._send_control("status", STATUS_TRY_S)
            except WorkerError as error:
                if error.kind != "unreachable":
                    return error
                time.sleep(0.05)
                continue
            if status["up_s"] > time.monotonic() - asked_s:
                return WorkerError("failed", "the worker closed the connection and lives on; ask again")
            return _trainer_died_error(status["last_exit"] or RESTARTED)
        text = "the worker went away and has not come back; `status` tells the cause once it has, or see its own log"
        return WorkerError("died", text)


def _read_last_exit(path: str, asked_s: float) -> Optional[WorkerError]:
    """Return the supervisor's report on a trainer that ended after ``asked_s``; None if there is none."""
    try:
        last = json.loads(Path(path).read_text(encoding="utf-8"))
        return _trainer_died_error(last) if float(last["at_s"]) >= asked_s else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _trainer_died_error(last: Mapping[str, Any]) -> WorkerError:
    return WorkerError("died", f"{last['text']} [{last['cause']}]; load and serve again, then go on")


def _exchange(
    connection: socket.socket,
    verb: str,
    fields: Mapping[str, Any],
    arrays: Optional[Mapping[str, np.ndarray]],
    limit_s: Optional[float],
) -> Tuple[Dict[str, Any], Arrays]:
    connection.settimeout(limit_s)
    with contextlib.suppress(BrokenPipeError):  # refused before all was read: the reason may be there to be read
        frames.write(connection, dict(fields, v=PROTOCOL, verb=verb), arrays)
    answer = frames.read(connection)
    if answer is None:
        raise frames.TruncatedFrame("the connection ended before the answer")
    reply, got = answer
    if not reply.get("ok"):
        error = reply.get("error")
        error = error if isinstance(error, dict) else {}
        raise WorkerError(str(error.get("kind", "failed")), str(error.get("text", "no reason given")))
    return reply, got


def _is_closed_by_peer(connection: socket.socket) -> bool:
    """Return whether the peer has closed; between requests it sends nothing."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _connection_remedy(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such socket; start the worker (python3 -m fedge.worker --socket PATH) or name its socket"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there; start the worker again"
    if isinstance(error, PermissionError):
        return "this user may not use it; join the group that owns it"
    return f"{error}; is the worker stopped? restart it"
