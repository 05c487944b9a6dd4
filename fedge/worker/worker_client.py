"""The worker's client: one call per verb, arrays in and out, and a clear word when the worker is not there or died.

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
"""So long a single try to hear of it from the next trainer lasts. Chosen by us."""
CAUSE_LIMIT_S = 2.0
"""How long may be spent in all on finding out why the worker died. Chosen by us."""
CONTROL_LIMIT_S = 10.0
"""``status`` and ``cancel`` answer at once, unless a slow board is just importing torch. Chosen by us."""

Arrays = Dict[str, np.ndarray]


class WorkerError(Exception):
    """The worker did not do it; ``text`` says what to do.

    ``kind`` is one of ``refusal.KINDS``, or ``unreachable`` or ``died``.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class WorkerClient:
    """Speaks to the worker at ``socket_path``. ``timeout_s`` limits the wait for a job's answer; None: no limit."""

    def __init__(self, socket_path: str = SOCKET, timeout_s: Optional[float] = None) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s
        self._connection: Optional[socket.socket] = None
        self._turn = threading.Lock()

    def status(self) -> Dict[str, Any]:
        """What the worker is and does; answered at once, also during a job."""
        return self._send_control("status", CONTROL_LIMIT_S)

    def cancel(self) -> bool:
        """Stop the running job at its next minibatch; whether there was one. May be called from any thread."""
        return bool(self._send_control("cancel", CONTROL_LIMIT_S)["cancelled"])

    def load(self, task: Mapping[str, Any], data: Mapping[str, Any], device: str = "auto") -> Dict[str, Any]:
        """Load a task and its data; ``labels``, the training samples' (n,), is an array. Again the same: ``warm``."""
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
        """Do ``steps`` minibatches; with ``begin`` of a new training from ``arrays`` on the samples ``share``.

        ``begin`` is {"seed", "options": {"steps", "batch_size", "learning_rate", ...}}. The new arrays come with
        ``finish``, else none.
        """
        fields: Dict[str, Any] = {"steps": steps, "limit_s": limit_s, "finish": finish}
        sent = dict(arrays or {})
        if begin is not None:
            fields["begin"] = dict(begin)
            if share is not None:
                sent["share"] = share
        return self._run_job("train", fields, sent)

    def evaluate(self, arrays: Mapping[str, np.ndarray]) -> Dict[str, Any]:
        """``loss`` and ``accuracy`` of a model on the test ``samples``."""
        return self._run_job("evaluate", {}, arrays)[0]

    def profile(self, steps: int, batch_size: int, kind: str = "train") -> Dict[str, Any]:
        """``fetch_s`` and ``compute_step_s`` of each minibatch."""
        return self._run_job("profile", {"steps": steps, "batch_size": batch_size, "kind": kind})[0]

    def infer(self, batches: int, batch_size: int) -> Dict[str, Any]:
        """``seconds`` of each batch."""
        return self._run_job("infer", {"batches": batches, "batch_size": batch_size})[0]

    def serve(
        self,
        name: str,
        task: Mapping[str, Any],
        batch_size: int,
        latency_s: float,
        arrays: Optional[Mapping[str, np.ndarray]] = None,
        **more: Any,
    ) -> Dict[str, Any]:
        """Let a service stand: ``sizes`` that were warmed up and the ``seconds`` of each. Without ``arrays``: made new.

        ``more`` may have arrivals, data, device, max_wait_s, most_waiting, seed, training_share and when_late.
        """
        fields = dict(more, name=name, task=dict(task), batch_size=batch_size, latency_s=latency_s)
        return self._run_job("serve", fields, arrays)[0]

    def unserve(self, name: Optional[str] = None) -> Dict[str, Any]:
        """Let a service stand no more, or all of them: what each did, by name."""
        services: Dict[str, Any] = self._run_job("unserve", {"name": name})[0]["services"]
        return services

    def request(self, name: str, images: np.ndarray) -> Tuple[np.ndarray, List[float]]:
        """Scores (n, classes) of images uint8 (n, channels, side, side) by a service, and seconds from arrival of each.

        On a connection of its own, so that any thread may call it while another waits for a job.
        """
        limit_s, asked_s = self._timeout_s, time.monotonic()
        connection = self._connect(limit_s)
        with connection:
            try:
                reply, arrays = _exchange(
                    connection, verb="request", fields={"name": name}, arrays={"x": images}, limit_s=limit_s
                )
            except (frames.TruncatedFrame, ConnectionError) as error:
                raise self._explain_disconnect(asked_s) from error
            except (frames.FrameError, OSError) as error:
                within = "" if limit_s is None else f" within {limit_s:g} s"
                text = f"no answer to request{within}; does {name} stand? `status` tells"
                raise WorkerError("unreachable", text) from error
        return arrays["scores"], [float(one) for one in reply["latency_s"]]

    def close(self) -> None:
        """Give the connection back; a job that runs on it is cancelled."""
        connection, self._connection = self._connection, None
        if connection is not None:
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
        """The connection for jobs: the one before, unless the worker has closed it since."""
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
        """Ask on a connection of its own; once more when a trainer died over it, since the next one takes over."""
        ends_s = time.monotonic() + limit_s
        try:
            return self._request_once(verb, limit_s)
        except (frames.TruncatedFrame, ConnectionError):
            pass
        except (frames.FrameError, OSError) as error:
            raise self._no_answer_error(verb, limit_s) from error
        try:
            return self._request_once(verb, max(0.01, ends_s - time.monotonic()))
        except (frames.FrameError, OSError) as error:
            raise self._no_answer_error(verb, limit_s) from error

    def _request_once(self, verb: str, limit_s: float) -> Dict[str, Any]:
        connection = self._connect(limit_s)
        with connection:
            return _exchange(connection, verb=verb, fields={}, arrays=None, limit_s=limit_s)[0]

    def _no_answer_error(self, verb: str, limit_s: float) -> WorkerError:
        text = f"{self._path}: no answer to {verb} within {limit_s:.3g} s; is the worker stopped? restart it"
        return WorkerError("unreachable", text)

    def _explain_disconnect(self, asked_s: float) -> WorkerError:
        """Why the connection ended in the middle of a request: from the supervisor's file, or the next trainer."""
        ends_s = time.monotonic() + CAUSE_LIMIT_S
        while time.monotonic() < ends_s:
            told = _read_last_exit(self._path + LAST_EXIT, asked_s)
            if told is not None:
                return told
            try:
                status = self._send_control("status", STATUS_TRY_S)
            except WorkerError as error:
                if error.kind != "unreachable":
                    return error
                time.sleep(0.05)
                continue
            last = status["last_exit"]
            if last is not None and status["up_s"] <= time.monotonic() - asked_s:
                return _trainer_died_error(last)
            return WorkerError("failed", "the worker closed the connection and lives on; ask again")
        text = "the worker went away and has not come back; `status` tells the cause once it has, or see its own log"
        return WorkerError("died", text)


def _read_last_exit(path: str, asked_s: float) -> Optional[WorkerError]:
    """What the supervisor says of a trainer that ended after ``asked_s``; None when it says nothing of one."""
    try:
        said = json.loads(Path(path).read_text(encoding="utf-8"))
        return _trainer_died_error(said) if float(said["at_s"]) >= asked_s else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _trainer_died_error(said: Mapping[str, Any]) -> WorkerError:
    return WorkerError("died", f"{said['text']} [{said['cause']}]; load and serve again, then go on")


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
        error = reply.get("error", {})
        raise WorkerError(str(error.get("kind", "failed")), str(error.get("text", "no reason given")))
    return reply, got


def _is_closed_by_peer(connection: socket.socket) -> bool:
    """Whether the other side has closed; between requests it has nothing to say."""
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
