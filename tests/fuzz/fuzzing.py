"""Feeds a target with hostile inputs in a process of its own, and lists those after which it did not just refuse.

A failure is an exception that is not the target's own refusal, a refusal that is no short printable line, more than
``CPU_S`` of computing, more than ``GROWTH_MB`` of memory, or the end of the process.
"""

import multiprocessing
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutation import Mutate

CPU_S = 2.0
"""Computing time of one input. Reading a good one takes milliseconds."""
GROWTH_MB, MOST_GROWTH_MB = 1_000, 6_000
"""Growth of resident memory that is a failure, and growth of address space that the system refuses."""
HANGS_AFTER_S = 60.0
"""Wall time without an answer after which a process is ended: inside a library no signal is handled."""
LIBRARIES = ["duckdb", "numpy", "pyarrow.dataset", "pyarrow.parquet", "pydantic", "safetensors.numpy", "yaml"]
"""Imported once for all processes."""
LONGEST_MESSAGE = 1_500
"""Characters of a refusal; a list of known names is among the longest."""


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """A parser or command that takes what others wrote.

    Attributes:
        seeds: Returns good inputs, which are accepted.
        feed: Takes an input and an empty folder of its own.
        refusals: What it may raise.
    """

    seeds: Callable[[], Sequence[bytes]]
    feed: Callable[[bytes, Path], object]
    mutate: Mutate
    refusals: tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class FuzzFailure:
    """An input that did not end in a result or a refusal; ``data`` is the input."""

    number: int
    reason: str
    data: bytes


@dataclass(frozen=True, slots=True)
class FuzzOutcome:
    """The result of one target."""

    tried: int
    failures: tuple[FuzzFailure, ...]


class TooLong(BaseException):
    """An input took more than ``CPU_S``; no ``except Exception`` may take it for a wrong input."""


def make_input(target: FuzzTarget, seeds: Sequence[bytes], number: int) -> bytes:
    """Return the input with this number, always the same.

    Good ones come first, then in turn changed ones and, as long as there are some, good ones cut after each byte.
    """
    if number < len(seeds):
        return seeds[number]
    turn, is_changed = divmod(number - len(seeds), 2)
    cuts = 0 if is_changed else turn
    for seed in seeds if not is_changed else ():
        if cuts < len(seed):
            return seed[:cuts]
        cuts -= len(seed)
    random = Random(number)
    return target.mutate(random, random.choice(seeds))


def fuzz_target(name: str, first: int, count: int) -> FuzzOutcome:
    """Feed a target with the inputs ``first`` to ``first + count - 1``.

    A process that ends is replaced, and goes on after the input that ended it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    failures: list[FuzzFailure] = []
    number, end = first, first + count
    while number < end:
        ours, theirs = context.Pipe()
        process = context.Process(target=_feed_inputs, args=(theirs, name, number, end, list(sys.path)))
        process.start()
        theirs.close()
        reason = ""
        try:
            while number < end:
                if not ours.poll(HANGS_AFTER_S):
                    reason = f"it hangs: no answer within {HANGS_AFTER_S:g} s"
                    break
                failure = ours.recv()
                failures += [failure] if failure else []
                number += 1
        except EOFError:
            process.join(HANGS_AFTER_S)
            reason = f"the process ended with {process.exitcode}"
        finally:
            ours.close()
            process.kill() if reason else process.join()
            process.join()
        if reason:
            failures.append(FuzzFailure(number, reason, _remake_input(name, number)))
            number += 1
    return FuzzOutcome(count, tuple(failures))


def _remake_input(name: str, number: int) -> bytes:
    from fuzz.targets import TARGETS

    return make_input(TARGETS[name], TARGETS[name].seeds(), number)


def _feed_inputs(pipe: Connection, name: str, first: int, end: int, path: list[str]) -> None:
    """Send the failure, or None, of every input; runs in the process of the target."""
    sys.path[:] = path
    from fuzz.targets import TARGETS

    target = TARGETS[name]
    seeds = target.seeds()
    for seed in seeds:  # libraries are imported before time and memory count
        with tempfile.TemporaryDirectory(prefix="fedge-fuzz-") as folder:
            target.feed(seed, Path(folder))
    size_mb = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() // 1_000_000
    limit = (size_mb + MOST_GROWTH_MB) * 1_000_000
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for number in range(first, end):
        data = make_input(target, seeds, number)
        reason = describe_failure(target, data)
        pipe.send(FuzzFailure(number, reason, data) if reason else None)


def describe_failure(target: FuzzTarget, data: bytes) -> str:
    """Return what is wrong with a target's way of taking an input; empty if it takes or refuses it."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(prefix="fedge-fuzz-") as folder:
        before = signal.signal(signal.SIGPROF, _raise_too_long)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            target.feed(data, Path(folder))
        except target.refusals as error:
            reason = _describe_message(str(error))
        except TooLong as error:
            reason = f"more than {CPU_S:g} s of computing at {_find_place(error)}"
        except Exception as error:  # noqa: BLE001
            reason = f"{type(error).__name__} at {_find_place(error)}: {str(error)[:120]!r}"
        else:
            reason = ""
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1e3
    return reason or (f"it took {grown_mb:.0f} MB" if grown_mb > GROWTH_MB else "")


def _describe_message(text: str) -> str:
    if not text.isprintable():
        return f"a refusal that is no printable line: {text[:300]!r}"
    return f"a refusal of {len(text)} characters: {text[:200]}" if len(text) > LONGEST_MESSAGE else ""


def _find_place(error: BaseException) -> str:
    """Return file and line of the last frame in the project, for the failures of one cause to look alike."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/site-packages/" not in frame.filename and "/tests/" not in frame.filename]
    last = [frame for frame in own if "/lib/python" not in frame.filename] or own or frames
    return f"{Path(last[-1].filename).name}:{last[-1].lineno}"


def _raise_too_long(*_: Any) -> None:
    raise TooLong
