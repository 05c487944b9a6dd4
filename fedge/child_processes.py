"""Child processes that end with their parent, and the import path that they and users' files share."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import PathFinder
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from fedge.errors import BadInput, FedgeError, RunFailed

A = TypeVar("A")
R = TypeVar("R")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Read by numeric libraries when they are loaded. Tasks fill the cores and use one thread each, with which results are
the same bits on every machine.
"""


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


# The import path: fedge's own packages come first, whatever else has their names, and the user's folders last ---------


ROOT = Path(__file__).resolve().parents[1]
"""Folder of fedge and its programs: a checkout, a ``site-packages``, or the app that a node received."""


def load_package(name: str) -> ModuleType:
    """Import one of fedge's own top-level packages from ``ROOT``; a user's module of that name is left aside.

    Raises:
        BadInput: If a module of that name from elsewhere is in use already.
    """
    module = sys.modules.get(name)
    if module is None:
        spec = PathFinder.find_spec(name, [str(ROOT)])
        if spec is None or spec.loader is None:
            raise ImportError(f"package {name!r} is not in {ROOT}; install fedge again", name=name)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    elif str(ROOT / name) not in {str(Path(folder).resolve()) for folder in getattr(module, "__path__", ())}:
        got = f"a module {name!r} of yours ({getattr(module, '__file__', None) or 'a folder'})"
        raise BadInput("import fedge", got, f"another name for it: {name!r} is a package of fedge")
    return module


def append_folder(folder: Path) -> None:
    """Let Python find modules in the user's ``folder``, unless fedge or an installed package has their name."""
    # An editable install is found after the whole path, so that fedge's folder is put before the user's.
    for one in (str(ROOT), str(folder)):
        if one not in sys.path:
            sys.path.append(one)
    importlib.invalidate_caches()


@contextmanager
def start_children() -> Iterator[None]:
    """Let processes that ``multiprocessing`` spawns inside find fedge first, and leave the user's program alone.

    A spawned process imports the parent's main module again. That would repeat a script of the user that calls fedge
    without ``if __name__ == "__main__"``, and none of fedge's processes needs it.
    """
    main, path = sys.modules["__main__"], list(sys.path)
    before = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    sys.path.insert(0, str(ROOT))
    try:
        main.__spec__ = None
        if "__file__" in before:
            del main.__file__
        yield
    finally:
        sys.path[:] = path
        for name, value in before.items():
            setattr(main, name, value)
