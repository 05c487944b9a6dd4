"""The machine as files and commands below a root, and one with a time limit per file, kept by a child process."""

import contextlib
import errno
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""File with an identifier that changes with every start of the system."""
COMMAND_LIMIT_S = 20.0
"""Time limit of a command in seconds; nvpmodel answers within a second or two."""
DEATH_LIMIT_S = 1.0
"""Seconds to wait for a killed command: one that hangs in a driver ends only when the driver returns."""
LONGEST_READ = 1 << 20
COMMAND_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
NUMBER = re.compile(r"(?<!\d)-?\d{1,20}(?!\d)")


class Machine:
    """Files and commands of a board; paths are absolute as on the board (``/sys/...``) and prefixed with ``root``."""

    def __init__(self, root: str = "/") -> None:
        self.root = str(Path(root).resolve())

    def path(self, path: str) -> Path:
        """Return the real location of a board's path; raises ``OSError`` for what can be no path."""
        if "\0" in path:
            raise OSError(errno.EINVAL, "a path with a zero byte")
        return Path(self.root) / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return the text of a file without surrounding white space; raises ``OSError``."""
        with self.path(path).open("rb") as file:
            return file.read(LONGEST_READ).decode("utf-8", "replace").strip(" \t\r\n\0")

    def write(self, path: str, text: str) -> None:
        """Write a control file in one system call, as the kernel requires; never creates a file; raises ``OSError``."""
        target = os.open(str(self.path(path)), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(target, text.encode("ascii"))
            if self.root != "/":
                os.ftruncate(target, len(text))  # a recorded root holds plain files
        finally:
            os.close(target)

    def exists(self, path: str) -> bool:
        """Return whether the file or folder exists."""
        return self.path(path).exists()

    def glob(self, pattern: str) -> List[str]:
        """Return the board's paths that match, sorted; links are not resolved."""
        skip = len(self.root.rstrip("/"))
        return sorted(str(found)[skip:] for found in Path(self.root).glob(pattern.lstrip("/")))

    def run(self, command: Sequence[str]) -> Tuple[int, str]:
        """Run a command of the board without input; below a recorded root, the command of that root.

        Returns:
            The exit code and the combined output of both streams.

        Raises:
            OSError: There is no such command, or it did not end within ``COMMAND_LIMIT_S`` and was killed with its
                children.
        """
        process = subprocess.Popen(
            [str(self._command(command[0])), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output: bytes = process.communicate(timeout=COMMAND_LIMIT_S)[0]
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{command[0]} did not end within {COMMAND_LIMIT_S:g} s") from error
        finally:
            if process.returncode is None:
                _kill(process)
        return process.returncode, output.decode("utf-8", "replace")

    def _command(self, name: str) -> Path:
        for folder in COMMAND_FOLDERS:
            path = self.path(f"{folder}/{name}")
            if path.is_file() and os.access(str(path), os.X_OK):
                return path
        raise OSError(f"no command {name} on this machine")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a command and its children without waiting for their output, which a child may keep open."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DEATH_LIMIT_S)


def read_int(machine: Machine, path: str) -> int:
    """Return the integer in a file.

    Raises:
        OSError: The file cannot be read or does not contain a single integer.
    """
    text = machine.read(path)
    for base in (0, 10):  # "007" is no Python number
        with contextlib.suppress(ValueError):
            return int(text, base)
    raise OSError(f"{path} holds {text[:80]!r}, not a whole number")


def try_read_int(machine: Machine, path: str) -> Optional[int]:
    """Return the integer in a file; None if there is none."""
    try:
        return read_int(machine, path)
    except OSError:
        return None


def try_read_text(machine: Machine, path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return machine.read(path)
    except OSError:
        return ""


def read_numbers(machine: Machine, path: str) -> Tuple[int, ...]:
    """Return the distinct positive numbers in a file, ascending; empty if it cannot be read."""
    return tuple(sorted({int(found) for found in NUMBER.findall(try_read_text(machine, path)) if int(found) > 0}))


FILE_LIMIT_S = 2.0
"""Seconds that one file may take. Default; the slowest control files take some milliseconds."""
SLOW_LIMITS_S = {"/proc/sys/vm/drop_caches": 20.0}
"""Limits where writing is work: dropping gigabytes of cache takes seconds on a slow card. Clients wait 30 s."""
HUNG_REST_S = 60.0
"""Seconds for which a file that did not answer is not read again, so that the temperatures are still read in time."""
LENGTH = struct.Struct("<I")


class FileChild(NamedTuple):
    """A child process that reads and writes files, and the socket to it."""

    pid: int
    link: socket.socket


class HungFile(NamedTuple):
    """A file that did not answer: the child that was killed for it, and until when it is not read again."""

    child: int
    rests_until_s: float


class Hang(Exception):
    """The child did not answer in time."""


class TimedMachine(Machine):
    """A ``Machine`` with a time limit for each file that is read or written.

    Opening, reading or writing a control file runs a driver of the kernel, and a process that waits inside one cannot
    even be killed. The child has nothing else open, so what is left of it holds no lock and no socket of the daemon.
    """

    def __init__(self, root: str = "/") -> None:
        super().__init__(root)
        self._child: Optional[FileChild] = None
        self._hung: Dict[str, HungFile] = {}

    def read(self, path: str) -> str:
        """Read as ``Machine.read``; raises ``OSError`` also if the file does not answer in time."""
        hung = self._hung.get(path)
        if hung is not None and time.monotonic() < hung.rests_until_s:
            raise OSError(f"{path} did not answer in time; it is asked again within {HUNG_REST_S:g} s")
        return self._request("read", path)

    def write(self, path: str, text: str) -> None:
        """Write as ``Machine.write``; raises ``OSError`` also if the file does not answer in time."""
        self._request("write", path, text)

    def _request(self, verb: str, *arguments: str) -> str:
        path = arguments[0]
        hung = self._hung.get(path)
        if hung is not None and os.waitpid(hung.child, os.WNOHANG)[0] == 0:
            # One child per file at most: there is room for few, and one that waits in a driver cannot be killed.
            raise OSError(f"{path} has not answered since it was asked before")
        self._hung.pop(path, None)
        limit_s = SLOW_LIMITS_S.get(path, FILE_LIMIT_S)
        child = self._child = self._child or _start_child(Machine(self.root))
        try:
            _send(child.link, [verb, *arguments])
            reply = _receive(child.link, limit_s)
        except Hang as error:
            self._end_child(child)
            self._hung[path] = HungFile(child.pid, time.monotonic() + HUNG_REST_S)
            raise OSError(f"{path} did not answer within {limit_s:g} s") from error
        except OSError as error:
            self._end_child(child)
            os.waitpid(child.pid, 0)
            raise OSError(
                f"{path}: the process that reads and writes files ended; the next request starts one"
            ) from error
        if "errno" in reply:
            raise OSError(reply["errno"], reply["error"], path)
        if "error" in reply:
            raise OSError(reply["error"])
        return str(reply["text"])

    def _end_child(self, child: FileChild) -> None:
        child.link.close()
        os.kill(child.pid, signal.SIGKILL)
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
    """Receive one value; raises ``Hang`` if it is not there in time, and ``OSError`` if the peer has ended."""
    ends_s = None if limit_s is None else time.monotonic() + limit_s
    (length,) = LENGTH.unpack(_receive_bytes(link, LENGTH.size, ends_s))
    return json.loads(_receive_bytes(link, length, ends_s).decode("ascii"))


def _receive_bytes(link: socket.socket, count: int, ends_s: Optional[float]) -> bytes:
    found = b""
    while len(found) < count:
        left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
        if not select.select([link], [], [], left_s)[0]:
            raise Hang
        piece = link.recv(count - len(found))
        if not piece:
            raise OSError("the peer has ended")
        found += piece
    return found
