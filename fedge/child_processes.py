"""Child processes that end with their parent, or with its use of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from types import FrameType
from typing import TypeVar

from fedge.errors import FedgeError, RunFailed
from fedge.import_path import start_children

A = TypeVar("A")
R = TypeVar("R")
SignalHandler = Callable[[int, FrameType | None], None] | signal.Handlers
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Read by numeric libraries when they are loaded. Tasks fill the cores and use one thread each, with which results are
the same bits on every machine.
"""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a command besides Ctrl-C, as far as the platform has them."""


def limit_to_one_thread() -> AbstractContextManager[None]:
    """Let numeric libraries loaded inside, also by new processes, use one thread; then restore the environment."""
    return set_environment(dict.fromkeys(THREAD_VARIABLES, "1"))


@contextmanager
def set_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process's environment inside the block, then restore them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def replace_handlers(handlers: Mapping[signal.Signals, SignalHandler]) -> Iterator[None]:
    """Install signal handlers inside the block; a no-op outside the main thread, where Python forbids it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    """Act on a signal as on Ctrl-C."""
    raise KeyboardInterrupt


def handle_signals(
    handler: SignalHandler = raise_interrupt, numbers: Iterable[signal.Signals] = SIGNALS
) -> AbstractContextManager[None]:
    """Call ``handler``, by default Ctrl-C's, on signals inside the block; without effect outside the main thread."""
    return replace_handlers(dict.fromkeys(numbers, handler))


def end_process(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Terminate a child process, kill it if it is still there after ``limit_s`` seconds, and reap it."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_in_child(function: Callable[[A], R], argument: A) -> R:
    """Call a module-level function in a fresh process that ends with the call, and return its result.

    Raises:
        RunFailed: If the function fails with a ``FedgeError``, or its process ends before its time.
    """
    # Spawned, not forked: a forked child inherits threads' locks and may hang.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_result, args=(sender, function, argument), daemon=True)
    with start_children():
        child.start()
    sender.close()
    try:
        result, error = receiver.recv()
    except EOFError as lost:
        raise RunFailed("a worker process ended before its time (out of memory?)") from lost
    finally:
        child.terminate()
        child.join()
    if error is not None:
        raise RunFailed(error)
    return result  # type: ignore[no-any-return]  # a pipe does not know what it carries


def _send_result(sender: Connection, function: Callable[[A], R], argument: A) -> None:
    exit_with_parent()
    try:
        sender.send((function(argument), None))
    except FedgeError as error:
        sender.send((None, str(error)))


def exit_with_parent() -> None:
    """Let this process, started by ``multiprocessing``, end when its parent does, however that ends."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
