"""Parent of the trainer process: owns the socket, starts the trainer, diagnoses why it ended, and restarts it.

It never imports torch or numpy, so that whatever kills the trainer spares it. The listening socket outlives the
trainer: clients that connect meanwhile are served by the next one, which reports the cause.
"""

import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from fedge.worker import LAST_EXIT, MAGIC, PREFIX, PROTOCOL
from fedge.worker.exit_causes import (
    YOUNG_S,
    ExitCause,
    ExitEvidence,
    OomCounters,
    diagnose_exit,
    group_counter_paths,
    parse_oom_kills,
    restart_pause_s,
)

CHECK_EVERY_S = 30.0
"""Seconds between two questions. Default; more often would wake an idle board for nothing."""
SILENCE_LIMIT_S = 300.0
"""Seconds without an answer after which the trainer is killed. Default; importing torch from a slow card, during which
no thread of the trainer answers, takes up to a minute.
"""


class AnswerCheck:
    """Asks one trainer for its status every ``CHECK_EVERY_S`` seconds, without ever waiting for it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._link: Optional[socket.socket] = None
        self._since_s = time.monotonic()
        self._waiting = False

    def silence_s(self) -> float:
        """Return for how many seconds a question has been unanswered; 0 if none is."""
        now_s = time.monotonic()
        if self._waiting and self._link is not None and _has_answer(self._link):
            self.close()
            self._since_s = now_s
        elif not self._waiting and now_s - self._since_s >= CHECK_EVERY_S:
            self._waiting, self._since_s = True, now_s
        if self._waiting and self._link is None:
            try:
                self._link = _ask_status(self._path)
            except OSError:  # the socket is gone, which no other trainer would mend
                self._waiting, self._since_s = False, now_s
        return now_s - self._since_s if self._waiting else 0.0

    def close(self) -> None:
        """End the question."""
        self._waiting = False
        if self._link is not None:
            self._link.close()
            self._link = None


def _ask_status(path: str) -> Optional[socket.socket]:
    """Ask for the status and return the connection; None if no more connections can wait at the socket.

    Raises:
        OSError: There is no such socket.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.setblocking(False)
    text = json.dumps({"v": PROTOCOL, "verb": "status"}).encode("ascii")
    try:
        link.connect(path)
        link.send(PREFIX.pack(MAGIC, len(text), 0) + text)
    except OSError as error:
        link.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return link


def _has_answer(link: socket.socket) -> bool:
    """Return whether anything came back; a refusal or a closed connection is an answer too."""
    try:
        link.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


logger = logging.getLogger(__name__)

SOCKET = "/run/fedge-worker/worker.sock"
LONGEST_SOCKET_PATH = 107
"""Bytes of sun_path in unix(7), without its final zero."""
REQUIRED_PACKAGES = ("numpy", "torch")
"""Packages that the trainer requires; the supervisor itself imports neither."""
WAITING = 64
"""Backlog of the socket: connections that may wait while no trainer runs."""
LOOK_S = 5.0
"""Seconds between readings of the kernel's counters, so that an earlier kill elsewhere is not attributed to this
one.
"""
STOPPED_TICK_S = 0.25
STOPPED_TICKS = 4
"""A trainer found stopped (SIGSTOP) at this many consecutive polls is killed, so that its clients know within 2 s."""
TERM_LIMIT_S = 2.0
"""Seconds that the trainer has to end on SIGTERM, before SIGKILL."""
LAST_WORDS_BYTES = 8192
KERNEL_LOG = "/dev/kmsg"


class UnusableSocket(Exception):
    """The socket cannot be created; the text says what to do."""


class SupervisorSettings(NamedTuple):
    """Settings of the supervisor.

    Attributes:
        data_roots: Folders below which data may be read.
        device: Device that ``auto`` in a load means.
        command: Command that starts the trainer; its ``TrainerStart`` record is appended.
        root: Folder that stands for / when the kernel's files are read.
    """

    socket_path: str
    data_roots: Tuple[str, ...] = ()
    device: str = "auto"
    command: Tuple[str, ...] = (sys.executable, "-m", "fedge.worker.trainer_process")
    root: str = "/"


class SocketClaim:
    """The listening socket and its lock, held by this process only; both files are removed on exit.

    Raises:
        UnusableSocket: On entry, if the socket cannot be created or another worker serves it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock: Optional[IO[str]] = None
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> "SocketClaim":  # noqa: PYI034  typing.Self came with 3.11
        try:
            self._bind()
        except OSError as error:
            self.listener.close()
            right = "a place where this user may write: --socket PATH"
            raise UnusableSocket(f"socket {self._path}: {error.strerror or error}; {right}") from error
        except UnusableSocket:
            self.listener.close()
            raise
        return self

    def _bind(self) -> None:
        path = Path(self._path)
        if len(os.fsencode(self._path)) > LONGEST_SOCKET_PATH:
            text = f"a path of at most {LONGEST_SOCKET_PATH} bytes (a limit of unix sockets)"
            raise UnusableSocket(f"socket {path}: {text}")
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o750)
        # A live worker holds the lock; a socket without a locked file was left by a crash.
        try:
            self._lock = _lock_file(Path(f"{path}.lock"))
        except BlockingIOError as error:
            text = "another worker serves it; stop it first, or choose another path"
            raise UnusableSocket(f"socket {path}: {text}") from error
        if path.exists() or path.is_symlink():
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise UnusableSocket(f"socket {path}: there is something else of this name; choose another path")
            path.unlink()
        before = os.umask(0o117)  # 0660 from the first moment on
        try:
            self.listener.bind(self._path)
        finally:
            os.umask(before)
        self.listener.listen(WAITING)

    def __exit__(self, *_error: object) -> None:
        self.listener.close()
        for path in (Path(self._path), Path(self._path + LAST_EXIT), Path(f"{self._path}.lock")):
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.info("%s stays: %s", path, error)
        if self._lock is not None:
            self._lock.close()


def _lock_file(path: Path) -> IO[str]:
    """Return the locked file; raise ``BlockingIOError`` if another process holds it.

    A worker removes its file at its end: one that was opened just before is locked by nobody, but no longer the file.
    """
    while True:
        lock = path.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        except FileNotFoundError:
            pass
        except BlockingIOError:
            lock.close()
            raise
        lock.close()


class TrainerChild(NamedTuple):
    """A running trainer process.

    Attributes:
        words: File descriptor of the pipe from its standard output and error.
        begun_s: When it was started, on the monotonic clock.
    """

    process: "subprocess.Popen[bytes]"
    words: int
    begun_s: float


class TrainerEnd(NamedTuple):
    """How a trainer ended.

    Attributes:
        before: The kernel's counters shortly before its end.
        fault: Why its supervisor killed it; empty if it did not.
    """

    status: int
    before: OomCounters
    fault: str


class Supervisor:
    """Keeps one trainer running on ``listener``."""

    def __init__(self, settings: SupervisorSettings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._restarts = 0
        self._young_deaths = 0
        self._last_exit: Optional[ExitCause] = None
        self._stopping = False
        self._last_words = b""
        self._kernel_log = _open_kernel_log(settings.root)
        self._wake, self._woken = os.pipe()

    def run(self) -> int:
        """Run until SIGTERM or SIGINT and return the exit status 0."""
        self._listen_to_signals()
        while not self._stopping:
            child = self._start_trainer()
            end = self._wait_for_exit(child)
            if self._stopping:
                break
            self._record_exit(child, end)
            self._pause(restart_pause_s(self._young_deaths))
        return 0

    def _listen_to_signals(self) -> None:
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._woken)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to be woken

    def _stop(self, *_signal: object) -> None:
        self._stopping = True

    def _start_trainer(self) -> TrainerChild:
        self._last_words = b""
        theirs = self._listener.fileno()
        start = {
            "socket_fd": theirs,
            "parent": os.getpid(),
            "data_roots": list(self._settings.data_roots),
            "device": self._settings.device,
            "restarts": self._restarts,
            "last_exit": None if self._last_exit is None else self._last_exit._asdict(),
        }
        words, writes = os.pipe()
        try:
            process = subprocess.Popen(
                [*self._settings.command, json.dumps(start)],
                stdin=subprocess.DEVNULL,
                stdout=writes,
                stderr=writes,
                pass_fds=(theirs,),
                env=_trainer_environment(),
                start_new_session=True,
            )
        finally:
            os.close(writes)
        os.set_blocking(words, False)
        return TrainerChild(process, words, time.monotonic())

    def _wait_for_exit(self, child: TrainerChild) -> TrainerEnd:
        """Wait for the child's end, and kill it if it is stopped or answers nobody."""
        pid = child.process.pid
        older = newer = read_oom_counters(pid, self._settings.root)
        stopped, looked_s = 0, time.monotonic()
        status: Optional[int] = None
        was_stopped, fault = False, ""
        check = AnswerCheck(self._settings.socket_path)
        while status is None and not self._stopping:
            self._forward_output(child, STOPPED_TICK_S if was_stopped else LOOK_S)
            was_stopped, status = _poll_state(pid, was_stopped)
            stopped = stopped + 1 if was_stopped else 0
            fault = fault or _find_fault(stopped, check.silence_s())
            if fault and status is None:  # with a status the number may be another process's
                os.kill(pid, signal.SIGKILL)
            if time.monotonic() - looked_s >= LOOK_S:
                older, newer, looked_s = newer, read_oom_counters(pid, self._settings.root), time.monotonic()
        check.close()
        if status is None:
            status = self._end_trainer(child)
        _kill_helpers(pid)
        self._forward_output(child, 0.0)
        os.close(child.words)
        child.process.returncode = status  # it was waited for here
        return TrainerEnd(status, older, fault)

    def _forward_output(self, child: TrainerChild, limit_s: float) -> None:
        """Forward the child's output and remember its end; return on a signal or after ``limit_s`` seconds."""
        ends_s = time.monotonic() + limit_s
        listening = [child.words, self._wake]
        while True:
            ready, _, _ = select.select(listening, [], [], max(0.0, ends_s - time.monotonic()))
            if child.words in ready and not self._forward_chunk(child.words):
                listening.remove(child.words)
            if self._wake in ready:
                _drain_pipe(self._wake)
                return
            if not ready:
                return

    def _forward_chunk(self, words: int) -> bool:
        """Forward one chunk; return whether there may be more."""
        try:
            text = os.read(words, 65536)
        except BlockingIOError:
            return True
        self._last_words = (self._last_words + text)[-LAST_WORDS_BYTES:]
        try:
            os.write(2, text)
        except OSError as error:
            logger.debug("standard error is closed: %s", error)
        return bool(text)

    def _end_trainer(self, child: TrainerChild) -> int:
        """Terminate the child and return its wait status."""
        for number in (signal.SIGTERM, signal.SIGCONT):
            os.kill(child.process.pid, number)  # Popen.send_signal would wait for a child that has just ended
        ends_s = time.monotonic() + TERM_LIMIT_S
        while time.monotonic() < ends_s:
            pid, status = os.waitpid(child.process.pid, os.WNOHANG)
            if pid:
                return status
            select.select([self._wake], [], [], 0.05)
            _drain_pipe(self._wake)
        os.kill(child.process.pid, signal.SIGKILL)
        return os.waitpid(child.process.pid, 0)[1]

    def _record_exit(self, child: TrainerChild, end: TrainerEnd) -> None:
        pid = child.process.pid
        words = self._last_words.decode("utf-8", "replace")
        after = read_oom_counters(os.getpid(), self._settings.root)  # the same control group
        log = _read_kernel_lines(self._kernel_log)
        evidence = ExitEvidence(pid, end.status, end.before, after, last_words=words, kernel_log=log, fault=end.fault)
        self._last_exit = diagnose_exit(evidence)
        self._restarts += 1
        self._write_exit_cause(self._last_exit)
        self._young_deaths = self._young_deaths + 1 if time.monotonic() - child.begun_s < YOUNG_S else 0
        logger.warning("%s; it is started again", self._last_exit.text)

    def _write_exit_cause(self, cause: ExitCause) -> None:
        """Write the cause beside the socket, so that clients can read it before the next trainer has started."""
        path = Path(self._settings.socket_path + LAST_EXIT)
        unfinished = Path(f"{path}.new")
        try:
            unfinished.write_text(json.dumps(dict(cause._asdict(), at_s=time.monotonic())), encoding="utf-8")
            unfinished.chmod(0o640)
            unfinished.rename(path)
        except OSError as error:
            logger.warning("%s cannot be written (%s): clients wait for the next trainer's word", path, error)

    def _pause(self, limit_s: float) -> None:
        ends_s = time.monotonic() + limit_s
        while not self._stopping and time.monotonic() < ends_s:
            select.select([self._wake], [], [], max(0.0, ends_s - time.monotonic()))
            _drain_pipe(self._wake)


def _kill_helpers(trainer: int) -> None:
    """Kill the processes that a task forked: they keep memory, and connections whose clients would wait for ever."""
    with contextlib.suppress(OSError):
        os.killpg(trainer, signal.SIGKILL)


def _find_fault(stopped_ticks: int, silence_s: float) -> str:
    """Return why a living trainer is to be replaced; empty if it is not."""
    if stopped_ticks > STOPPED_TICKS:
        return f"was stopped (SIGSTOP) for {STOPPED_TICKS * STOPPED_TICK_S:.0f} s"
    return f"answered nobody for {silence_s:.0f} s" if silence_s > SILENCE_LIMIT_S else ""


def _poll_state(pid: int, was_stopped: bool) -> Tuple[bool, Optional[int]]:
    """Return whether the process is stopped, and its wait status if it has ended."""
    changed, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
    if not changed:
        return was_stopped, None
    if os.WIFSTOPPED(status):
        return True, None
    if os.WIFCONTINUED(status):
        return False, None
    return was_stopped, status


def _trainer_environment() -> Dict[str, str]:
    """Return this process's environment with a PYTHONPATH on which the trainer finds the same fedge."""
    here = str(Path(__file__).resolve().parents[2])
    others = os.environ.get("PYTHONPATH")
    return dict(os.environ, PYTHONPATH=os.pathsep.join([here, others] if others else [here]))


def read_oom_counters(pid: int, root: str = "/") -> OomCounters:
    """Read the kernel's counts of out-of-memory kills on the machine and in a process's control group.

    ``root`` stands for /.
    """
    machine = parse_oom_kills(_read_text(root, "/proc/vmstat"))
    for path in group_counter_paths(_read_text(root, f"/proc/{pid}/cgroup")):
        found = parse_oom_kills(_read_text(root, path))
        if found is not None:
            return OomCounters(machine, found)
    return OomCounters(machine, None)


def _read_text(root: str, path: str) -> str:
    try:
        return (Path(root) / path.lstrip("/")).read_text(errors="replace")
    except OSError:
        return ""


def _open_kernel_log(root: str) -> Optional[int]:
    """Open the kernel's log at its end; return None if it may not be read."""
    if root != "/":
        return None
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(log, 0, os.SEEK_END)
    except OSError:
        return None
    return log


def _read_kernel_lines(log: Optional[int]) -> str:
    """Return the lines that the kernel has logged since the last call."""
    lines: List[str] = []
    while log is not None:
        try:
            lines.append(os.read(log, 8192).decode("utf-8", "replace"))
        except BrokenPipeError:
            continue  # older lines were overwritten before they were read
        except OSError:
            break
    return "".join(lines)


def _drain_pipe(pipe: int) -> None:
    try:
        while os.read(pipe, 4096):
            pass
    except BlockingIOError:
        pass


def main(settings: SupervisorSettings) -> int:
    """Run the supervisor for a command line; print errors as one line on standard error and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="fedge-worker: %(message)s")
    own = settings.command == SupervisorSettings(settings.socket_path).command  # another trainer may need less
    lacking = [name for name in REQUIRED_PACKAGES if own and importlib.util.find_spec(name) is None]
    if lacking:
        lack = " and ".join(lacking)
        logger.error("%s has no %s: install it there, or use the Python that has", sys.executable, lack)
        return 2
    try:
        with SocketClaim(settings.socket_path) as claim:
            return Supervisor(settings, claim.listener).run()
    except UnusableSocket as error:
        logger.error("%s", error)  # noqa: TRY400  a user's mistake, reported in one line
        return 2


def parse_arguments(arguments: Sequence[str]) -> SupervisorSettings:
    """Parse the command line."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m fedge.worker", description="The resident trainer of a board.")
    parser.add_argument("--socket", default=SOCKET, metavar="PATH", help=f"where to listen (default {SOCKET})")
    roots = "a folder below which data may be read; may be given again"
    parser.add_argument("--data-root", action="append", default=[], metavar="DIR", help=roots)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="what `auto` in a load means")
    given: Any = parser.parse_args(arguments)
    return SupervisorSettings(given.socket, tuple(given.data_root), given.device)
