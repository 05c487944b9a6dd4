"""Starts Flower's ClientApps at once: a process that has imported all they need waits, and forks for each message.

``ready.py serve --socket PATH`` is the process that waits. ``ready.py flwr-clientapp ...`` stands in for Flower's
program of this name: it hands its arguments, folder, environment and standard streams to the one that waits, passes
signals on, and ends as the forked process ends. Whatever hinders that before the forked process has begun: it becomes
Flower's own program, beside this Python, which imports everything anew.

The forked process ends when who asked for it ends, however that is, and when the one that waits ends. The app's own
code is imported in the forked process alone, so that no message sees that of another.
"""
# ruff: noqa: INP001 - a program that the role brings

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys

# Only for type checkers: the stand-in does not import these.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

SOCKET = "/run/fedge-app/ready.sock"
SOCKET_VARIABLE = "FEDGE_READY_SOCKET"
"""Environment variable with another path of the server's socket."""
PROGRAM = "flwr-clientapp"
INSTALLS = "--allow-runtime-dependency-installation"
"""With this option the app installs packages of its own, which may conflict with those already imported."""
MODULES = (
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.app",
    "flwr.clientapp",
    "gzip",
    "numpy",
    "numpy.ma",
    "numpy.random",
    "pydantic",
    "statistics",
    "yaml",
)
"""Modules that ClientApps import from outside fedge; packages that a board lacks are skipped."""
OWN = ("fedge", "clients", "experiments", "server")
"""Packages that come with each run, so that the server must not import them."""
MOST = 8
"""Upper limit of forked processes at once; a board that works for one run has one."""
TELL_S = 5.0
"""Seconds for the server to receive a whole request: nobody else is served meanwhile."""
BEGIN_S = 20.0
"""Seconds for the stand-in to learn that its process has begun: a slow, busy board takes a few."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)

# Request: number of arguments, length of the rest; then folder, arguments and environment, each ended by a zero.
HEADER = struct.Struct("<4sII")
MAGIC = b"FDR1"
LONGEST = 4 * 1024 * 1024
# Reply: TAKEN when the process has begun, then ENDED with its exit code, or the negative number of a signal.
TAKEN, ENDED = b"T", b"E"
CODE = struct.Struct("<i")


def main(argv: Sequence[str]) -> int:
    """Run ``serve`` or ``flwr-clientapp`` with its arguments, and return the exit code."""
    if argv[:1] == [PROGRAM]:
        own = os.path.join(os.path.dirname(sys.executable), PROGRAM)  # noqa: PTH118, PTH120 -- loads nothing
        return run_in_fork(argv[1:], os.environ.get(SOCKET_VARIABLE, SOCKET), own)
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["serve", PROGRAM])
    parser.add_argument("--socket", default=SOCKET)
    parser.add_argument("--most", type=int, default=MOST, help="forked processes at once")
    asked = parser.parse_args(argv)
    try:
        listener = listen_at(asked.socket)
    except OSError as error:
        sys.stderr.write(f"{asked.socket}: {error.strerror or error}\n")
        return 1
    missing = preimport(MODULES)
    _log_line(
        f"waits at {asked.socket} with {len(sys.modules)} modules" + f", without {', '.join(missing)}" * bool(missing)
    )
    ForkServer(listener, _run_flower_clientapp, asked.most).serve()
    return 0


# The stand-in


def run_in_fork(arguments: Sequence[str], path: str, own: str) -> int:
    """Run the program in a fork of the server and return its exit code; without a server, replace this process by it.

    ``path`` is that of the server's socket, ``own`` that of Flower's own program.
    """
    link = None if INSTALLS in arguments else _hand_over(arguments, path)
    if link is None:
        os.execv(own, [own, *arguments])  # noqa: S606 -- the program that was asked for
    return _wait_for_outcome(link)


def _hand_over(arguments: Sequence[str], path: str) -> socket.socket | None:
    """Return the connection to the server once the process has begun; None if it has not and never will."""
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(BEGIN_S)
        link.connect(path)
        if _user_of(link) == os.getuid():
            request = _request(os.getcwdb(), [os.fsencode(one) for one in arguments], dict(os.environb))  # noqa: PTH109
            sent = socket.send_fds(link, [request], [0, 1, 2])
            link.sendall(request[sent:])
            if link.recv(1) == TAKEN:
                return link
    except (OSError, ValueError):
        pass
    # A process that begins later finds the connection closed, and ends.
    link.close()
    return None


def _wait_for_outcome(link: socket.socket) -> int:
    """Wait for the process to end, forwarding signals to it; return its exit code."""
    link.settimeout(None)

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            link.send(bytes([number]))

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    said = b""
    while len(said) < 1 + CODE.size:
        try:
            chunk = link.recv(1 + CODE.size - len(said))
        except OSError:
            chunk = b""
        if not chunk:
            sys.stderr.write(f"{PROGRAM}: the process that started it has ended, and it with that\n")
            return 1
        said += chunk
    code: int = CODE.unpack(said[1:])[0]
    return code if code >= 0 else 128 - code


def _request(folder: bytes, arguments: Sequence[bytes], environment: dict[bytes, bytes]) -> bytes:
    parts = [folder, *arguments, *(name + b"=" + value for name, value in environment.items())]
    rest = b"".join(part + b"\0" for part in parts)
    return HEADER.pack(MAGIC, len(arguments), len(rest)) + rest


def _user_of(link: socket.socket) -> int:
    """Return the peer's user id, from the kernel."""
    user: int = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return user


# The server


class AppRequest:
    """A stand-in's request: its folder, arguments, environment, and three standard streams."""

    __slots__ = ("arguments", "environment", "folder", "streams")

    def __init__(self, rest: bytes, count: int, streams: Sequence[int]) -> None:
        parts = rest.split(b"\0")[:-1]
        if len(parts) < 1 + count or len(streams) != 3:
            raise ValueError("no whole request")
        self.folder = parts[0]
        self.arguments = [os.fsdecode(part) for part in parts[1 : 1 + count]]
        self.environment = dict(part.partition(b"=")[::2] for part in parts[1 + count :])
        self.streams = tuple(streams)


class ForkServer:
    """The process that waits for requests and forks for each.

    Attributes:
        most: Upper limit of forked processes.
        children: The requesting connection by process id; None once it has closed.
    """

    def __init__(self, listener: socket.socket, run: Callable[[], object], most: int) -> None:
        self.listener, self.run, self.most = listener, run, most
        self.children: dict[int, socket.socket | None] = {}
        self.stops = False
        self.woken, self.wakes = socket.socketpair()

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT, which the forked processes receive too, and until those have ended."""
        self._listen_to_signals()
        while not self.stops or self.children:
            askers = {link.fileno(): pid for pid, link in self.children.items() if link is not None}
            poll = select.poll()
            for number in (self.woken.fileno(), *([] if self.stops else [self.listener.fileno()]), *askers):
                poll.register(number, select.POLLIN)
            for number, _ in poll.poll():
                if number == self.woken.fileno():
                    self._handle_signals(self.woken.recv(4096))
                elif number == self.listener.fileno():
                    self._accept_request()
                elif askers[number] in self.children:
                    self._handle_asker(askers[number])

    def _listen_to_signals(self) -> None:
        """Receive signals as bytes at ``woken``, so that no handler interrupts; also works on old kernels."""
        self.wakes.setblocking(False)
        signal.set_wakeup_fd(self.wakes.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def _handle_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self.stops = True
            self.listener.close()
            for pid in self.children:
                os.kill(pid, signal.SIGTERM)
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code, link = os.waitstatus_to_exitcode(status), self.children.pop(pid, None)
            if code != 0:
                _log_line(f"process {pid} has ended with {code}")
            if link is not None:
                _send(link, ENDED + CODE.pack(code))
                link.close()

    def _handle_asker(self, pid: int) -> None:
        """Forward a signal from the requesting process, or kill the forked one and its group if that is gone."""
        link = self.children[pid]
        assert link is not None
        try:
            numbers = link.recv(64)
        except OSError:
            numbers = b""
        if not numbers:
            link.close()
            self.children[pid] = None
            os.killpg(pid, signal.SIGKILL)
        for number in numbers:
            if number in PASSED_ON:
                os.kill(pid, number)

    def _accept_request(self) -> None:
        """Fork for one request; on failure close the connection, upon which the requester runs the program itself."""
        try:
            link, _ = self.listener.accept()
        except OSError:
            return  # it has gone already
        try:
            asked = _receive_request(link) if len(self.children) < self.most and _user_of(link) == os.getuid() else None
        except (OSError, ValueError):
            asked = None
        if asked is None:
            link.close()
            return
        try:
            pid = os.fork()
        except OSError as error:
            _log_line(f"no process more: {error.strerror}")
            pid = -1
        if pid == 0:
            self._run_child(link, asked)
        for stream in asked.streams:
            os.close(stream)
        if pid < 0:
            link.close()
            return
        _make_group_leader(pid)
        link.setblocking(False)
        self.children[pid] = link
        _log_line(f"process {pid} begins")

    def _run_child(self, link: socket.socket, asked: AppRequest) -> NoReturn:
        """Take the requester's place in the forked process, run, and exit."""
        code = 1
        try:
            parent = os.getppid()
            _make_group_leader(0)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for other in (self.listener, self.woken, self.wakes, *self.children.values()):
                if other is not None:
                    other.close()
            _die_with_parent(parent)
            _adopt_request(asked)
            link.sendall(TAKEN)
            link.close()
            code = _run_to_exit_code(self.run)
        except BaseException:  # noqa: BLE001 -- nothing may get into the loop of the one that waits
            sys.excepthook(*sys.exc_info())
        finally:
            _flush()
            os._exit(code)


def listen_at(path: str) -> socket.socket:
    """Listen at ``path`` for this user only.

    Raises:
        OSError: The folder is accessible to others, or another process listens there.
    """
    folder = os.stat(os.path.dirname(path) or ".")  # noqa: PTH116, PTH120 -- loads nothing
    if folder.st_uid != os.getuid() or folder.st_mode & 0o077:
        raise PermissionError(1, "its folder has to be of mode 0700 and this user's own")
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.connect(path)
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        os.unlink(path)  # noqa: PTH108 -- loads nothing
    else:
        listener.close()
        raise FileExistsError(17, "another process waits there")
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen()
    return listener


def preimport(names: Sequence[str]) -> list[str]:
    """Import the available modules and return the names of the missing ones.

    Raises:
        SystemExit: There is more than one thread, of which a fork would copy only one, or a package of a run was
            imported.
    """
    import gc
    import importlib

    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    own = sorted({name.partition(".")[0] for name in sys.modules} & set(OWN))
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 -- loads nothing
    if own or threads != 1:
        raise SystemExit(f"got {threads} threads and {own} imported; right: one thread and none (OMP_NUM_THREADS=1)")
    # Freeze the present objects, so that forked processes share their memory.
    gc.collect()
    gc.freeze()
    return missing


def _receive_request(link: socket.socket) -> AppRequest:
    """Receive a request.

    Raises:
        ValueError: The request is incomplete or invalid.
        OSError: The request did not arrive in time.
    """
    link.settimeout(TELL_S)
    said, streams, _, _ = socket.recv_fds(link, 65536, 3)
    try:
        said += _receive_rest(link, said, HEADER.size)
        magic, count, long = HEADER.unpack_from(said)
        if magic != MAGIC or long > LONGEST:
            raise ValueError("no request")  # noqa: TRY301 -- the streams are closed below
        said += _receive_rest(link, said, HEADER.size + long)
        return AppRequest(said[HEADER.size :], count, streams)
    except (OSError, ValueError):
        for stream in streams:
            os.close(stream)
        raise


def _receive_rest(link: socket.socket, said: bytes, long: int) -> bytes:
    """Receive what is missing to ``long`` bytes."""
    rest = b""
    while len(said) + len(rest) < long:
        chunk = link.recv(65536)
        if not chunk:
            raise ValueError("no whole request")
        rest += chunk
    return rest


def _make_group_leader(pid: int) -> None:
    """Give the process its own group, so that its helpers can be killed with it; parent and child both try."""
    with contextlib.suppress(OSError):  # it has ended, or leads already
        os.setpgid(pid, pid)


def _die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent`` ends."""
    import ctypes

    libc = ctypes.CDLL(None)
    set_death_signal, set_name = 1, 15
    libc.prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)
    libc.prctl(set_name, PROGRAM.encode(), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the process that started this one has ended")


def _adopt_request(asked: AppRequest) -> None:
    """Adopt the requester's streams, folder, environment and arguments, and reseed the random numbers."""
    for number, stream in enumerate(asked.streams):
        os.dup2(stream, number)
    for stream in asked.streams:
        if stream > 2:
            os.close(stream)
    os.chdir(asked.folder)
    os.environb.clear()
    os.environb.update(asked.environment)
    own = os.path.join(os.path.dirname(sys.executable), PROGRAM)  # noqa: PTH118, PTH120 -- loads nothing
    sys.argv = [own, *asked.arguments]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _run_flower_clientapp() -> None:
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    flwr_clientapp()


def _run_to_exit_code(run: Callable[[], object]) -> int:
    """Run a program and return its exit code; wait for threads and call exit handlers, as Python does at its end."""
    import atexit
    import threading

    code = 0
    try:
        run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 -- as Python's own end of a program
        sys.excepthook(*sys.exc_info())
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # noqa: SLF001 -- there is no public way, and multiprocessing has none either
    return code & 0xFF


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader has gone
            stream.flush()


def _send(link: socket.socket, said: bytes) -> None:
    with contextlib.suppress(OSError):  # the requester has gone meanwhile
        link.sendall(said)


def _log_line(text: str) -> None:
    """Log a line; never the content of a request, whose arguments include a secret."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
