"""A machine whose files are read and written by a child process: a driver that never answers stops that child alone."""

import json
import os
import select
import signal
import socket
import struct
import time
from typing import Any, Dict, List, NamedTuple, Optional

from fedge.powerd.machine import Machine

FILE_LIMIT_S = 2.0
"""Seconds that one file may take. Default; the slowest control files take some milliseconds."""
HUNG_REST_S = 60.0
"""Seconds for which a file that did not answer is left alone, so that the temperatures are still read in time."""
LENGTH = struct.Struct("<I")


class FileChild(NamedTuple):
    """A child process that reads and writes files, and the socket to it."""

    pid: int
    link: socket.socket


class NoAnswer(Exception):
    """The child did not answer in time, or has ended."""


class TimedMachine(Machine):
    """A ``Machine`` with a time limit for each file that is read or written.

    Opening, reading or writing a control file runs a driver of the kernel, and a process that waits inside one cannot
    even be killed. The child has nothing else open, so what is left of it holds no lock and no socket of the daemon.
    """

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self._child: Optional[FileChild] = None
        self._left: List[int] = []
        """Children that were killed and have not ended yet."""
        self._rested_at_s: Dict[str, float] = {}

    def read(self, path: str) -> str:
        """Read as ``Machine.read``; raises ``OSError`` also if the file does not answer in time."""
        return self._request("read", path)

    def write(self, path: str, text: str) -> None:
        """Write as ``Machine.write``; raises ``OSError`` also if the file does not answer in time."""
        self._request("write", path, text)

    def _request(self, verb: str, *arguments: str) -> str:
        path = arguments[0]
        if time.monotonic() < self._rested_at_s.get(path, 0.0):
            raise OSError(
                f"{path} did not answer within {FILE_LIMIT_S:g} s; it is asked again within {HUNG_REST_S:g} s"
            )
        self._left = [pid for pid in self._left if os.waitpid(pid, os.WNOHANG)[0] == 0]
        child = self._child = self._child or _start_child(Machine(self.root))
        try:
            _send(child.link, [verb, *arguments])
            reply = _receive(child.link, FILE_LIMIT_S)
        except (NoAnswer, OSError) as error:
            self._end_child(child)
            self._rested_at_s[path] = time.monotonic() + HUNG_REST_S
            raise OSError(f"{path} did not answer within {FILE_LIMIT_S:g} s ({error})") from error
        if "errno" in reply:
            raise OSError(reply["errno"], reply["error"], path)
        if "error" in reply:
            raise OSError(reply["error"])
        return str(reply["text"])

    def _end_child(self, child: FileChild) -> None:
        child.link.close()
        os.kill(child.pid, signal.SIGKILL)
        self._left.append(child.pid)
        self._child = None


def _start_child(machine: Machine) -> FileChild:
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _serve_files(machine, theirs, parent)
        finally:
            os._exit(0)
    theirs.close()
    return FileChild(pid, ours)


def _serve_files(machine: Machine, link: socket.socket, parent: int) -> None:
    """Carry out requests until the parent has ended."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the daemon still needs this child to restore the board
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(link.fileno(), 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    link = socket.socket(fileno=3)
    while True:
        verb, *arguments = _receive(link, None)
        if os.getppid() != parent:
            return  # nobody would know of the change
        reply: Dict[str, Any]
        try:
            reply = {"text": getattr(machine, verb)(*arguments)}
        except OSError as error:
            reply = {"error": error.strerror or str(error)}
            if error.errno is not None:
                reply["errno"] = error.errno
        _send(link, reply)


def _send(link: socket.socket, value: Any) -> None:
    text = json.dumps(value).encode("ascii")
    link.sendall(LENGTH.pack(len(text)) + text)


def _receive(link: socket.socket, limit_s: Optional[float]) -> Any:
    """Receive one value; raises ``NoAnswer`` if it is not there in time or the peer has ended."""
    ends_s = None if limit_s is None else time.monotonic() + limit_s
    (length,) = LENGTH.unpack(_receive_bytes(link, LENGTH.size, ends_s))
    return json.loads(_receive_bytes(link, length, ends_s).decode("ascii"))


def _receive_bytes(link: socket.socket, count: int, ends_s: Optional[float]) -> bytes:
    found = b""
    while len(found) < count:
        left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
        if not select.select([link], [], [], left_s)[0]:
            raise NoAnswer("the driver hangs")
        piece = link.recv(count - len(found))
        if not piece:
            raise NoAnswer("the process that reads and writes files ended")
        found += piece
    return found
