"""The server's programs: the intake of telemetry behind a bad line, and the board page."""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from contracts.live_server import LiveServer, live_server, post
from contracts.processes import wait_for
from faults.fault_points import KILL, MESSAGES, STOP, Attack, require
from faults.run_subjects import ALONE, TinyRuns
from faults.warm_commands import WarmCommands

from experiments.backends.sim_backend import find_free_port
from fedge.telemetry.live_records import TelemetryBatch, encode_batch
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import SampleRow
from fedge.types import Trace

BOARDS, MESSAGES_EACH = 4, 40
T0 = 1_790_000_000.0
LIMIT_S = 120.0


class BadLine(socketserver.ThreadingUnixStreamServer):
    """Passes messages on to a socket, and cuts, delays, slows down or repeats some of them."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, target: Path, chance: Random, share: float) -> None:
        self._target, self._chance, self._share = target, chance, share
        self.troubled = 0
        super().__init__(str(path), socketserver.StreamRequestHandler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def finish_request(self, request: socket.socket, client_address: object) -> None:
        """Pass one message and its answer."""
        with suppress(OSError, ValueError, IndexError):
            data = read_message(request)
            trouble = self._chance.choice(("cut", "lost", "late", "slow", "twice", "half"))
            if self._chance.random() >= self._share:
                request.sendall(self._pass_on(data))
                return
            self.troubled += 1
            if trouble == "half":  # the message breaks off on its way
                self._pass_on(data[: len(data) // 2], answered=False)
            elif trouble == "late":
                time.sleep(self._chance.uniform(0.0, 0.3))
            elif trouble == "slow":
                request.sendall(self._pass_on(data, pieces=7))
            elif trouble in {"twice", "lost"}:
                self._pass_on(data)  # it arrives; of the lost one nobody is told
            if trouble in {"late", "twice"}:
                request.sendall(self._pass_on(data))

    def _pass_on(self, data: bytes, pieces: int = 1, *, answered: bool = True) -> bytes:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(30.0)
            line.connect(str(self._target))
            for start in range(0, len(data), size := len(data) // pieces + 1):
                line.sendall(data[start : start + size])
                time.sleep(0.01 * (pieces > 1))
            return read_message(line) if answered else b""

    def handle_error(self, request: object, client_address: object) -> None:
        return  # a line that breaks is what it is for


def read_message(line: socket.socket) -> bytes:
    """Return one message of HTTP with a body of stated length."""
    data = b""
    while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < body_length(data):
        more = line.recv(65536)
        if not more:
            raise OSError("it broke off")
        data += more
    return data


def body_length(data: bytes) -> int:
    return int(data.lower().partition(b"content-length:")[2].split(b"\r\n")[0])


def build_batch(board: str, number: int) -> bytes:
    """Return a board's message with one stretch, of which every figure is a function of board and number."""
    nobody = (None,)
    trace = Trace((T0 + 10.0 * number,), (1.0,), (number + 0.5,), *((nobody,) * 7))
    return encode_batch(TelemetryBatch(1, board, "s", number, trace, None))


def send_until_acknowledged(path: Path, board: str, stop: threading.Event) -> None:
    """Send message after message, each again until it is acknowledged, as a board does."""
    for number in range(1, MESSAGES_EACH + 1):
        while not stop.is_set():
            with suppress(OSError, http.client.HTTPException):
                if post(path, build_batch(board, number), board)[0] == 200:
                    break
            time.sleep(0.02)


@contextmanager
def open_ingest(scratch: Path) -> Iterator[Attack]:
    """The process that stores what boards tell."""
    numbers = itertools.count()

    def attack(chance: Random, folder: Path, fault: str) -> bool:
        stop, boards = threading.Event(), [f"b{next(numbers)}" for _ in range(BOARDS)]
        with live_server(folder) as server:
            share = 0.5 if fault == MESSAGES else 0.05
            line = BadLine(folder / "line", server.socket, Random(chance.random()), share)
            senders = [
                threading.Thread(target=send_until_acknowledged, args=(folder / "line", board, stop))
                for board in boards
            ]
            for sender in senders:
                sender.start()
            try:
                hit = disturb_server(server, chance, fault, senders)
                for sender in senders:
                    sender.join(LIMIT_S)
                require(not any(sender.is_alive() for sender in senders), "messages are not taken any more")
            finally:
                stop.set()
                line.shutdown()
                line.server_close()
        check_samples(server.folder, boards)
        return hit or line.troubled > 0

    yield attack


def disturb_server(server: LiveServer, chance: Random, fault: str, senders: list[threading.Thread]) -> bool:
    """Let the fault befall the server while boards send; return whether they still did."""
    if fault == MESSAGES:
        return False
    time.sleep(chance.uniform(0.0, 0.6))
    hit = any(sender.is_alive() for sender in senders)
    if fault == STOP:
        server.signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.0, 0.5))
        server.signal(signal.SIGCONT)
    else:
        server.stop(signal.SIGKILL if fault == KILL else signal.SIGTERM)
        server.start()
    return hit


def check_samples(folder: Path, boards: list[str]) -> None:
    """Require every stretch of every board once, in its order, with its own figure."""
    rows = read_rows(folder, SampleRow)
    for board in boards:
        found = [(row.at_s, row.power_w) for row in rows if row.board == board]
        wanted = [(T0 + 10.0 * number, number + 0.5) for number in range(1, MESSAGES_EACH + 1)]
        require(found == wanted, f"{len(found)} stretches of {len(wanted)}, or in another order")


@contextmanager
def open_page(scratch: Path) -> Iterator[Attack]:
    """The board page of a run, while it is read."""
    with WarmCommands() as fedge:
        runs = TinyRuns(fedge, scratch, *ALONE)
        runs.whole(())
        run = scratch / "whole-0"
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

        def attack(chance: Random, folder: Path, fault: str) -> bool:
            port = find_free_port()
            for start in range(2):
                pid = fedge.start(["board", run, "--port", str(port)], folder / f"log-{start}")
                wait_for(lambda: ask_page(port, "/api/view") == 200, "the page answers")
                readers = [threading.Thread(target=read_on, args=(port, chance.uniform(0.1, 0.5))) for _ in range(4)]
                for reader in readers:
                    reader.start()
                time.sleep(chance.uniform(0.0, 0.6))
                os.kill(pid, {KILL: signal.SIGKILL, STOP: signal.SIGSTOP}.get(fault, signal.SIGTERM))
                if fault == STOP:
                    time.sleep(chance.uniform(0.0, 0.2))
                    os.kill(pid, signal.SIGCONT)
                    wait_for(lambda: ask_page(port, "/api/view") == 200, "the page answers again")
                    os.kill(pid, signal.SIGTERM)
                require(fedge.wait() is not None, "it does not end")
                for reader in readers:
                    reader.join(LIMIT_S)
            now = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
            require(now == before, "the run that it shows was changed")
            return True

        yield attack


def ask_page(port: int, path: str) -> int:
    """Return the status of a page's answer; 0 without one."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
    with suppress(OSError, http.client.HTTPException):
        line.request("GET", path)
        answer = line.getresponse()
        answer.read()
        return answer.status
    return 0


def read_on(port: int, seconds: float) -> None:
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        ask_page(port, "/api/view")
        ask_page(port, "/")
