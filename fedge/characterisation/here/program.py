"""The measuring program as a process: started, listened to, and ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedge.errors import BoardError

SILENCE_S = 120.0
"""A program that says nothing for so long counts as dead; chosen by us: it speaks every 2 s between minibatches."""
GOODBYE_S = 3.0
"""What a process that is asked to end gets before it is killed."""
CHUNK = 65536
LAST_WORDS = 4000

Heard = Callable[[Mapping[str, Any]], None]


def run(
    command: Sequence[str],
    heard: Heard,
    *,
    environment: Mapping[str, str] | None = None,
    started: Callable[[int], None] | None = None,
    silence_s: float = SILENCE_S,
) -> None:
    """Run it to its end; ``heard`` is told every line of its stdout that is a JSON object.

    Nothing of it is left when this returns or raises, also on Ctrl-C. Raises ``BoardError`` with the program's own
    reason, or with the last line of its stderr.
    """
    with _process(command, environment) as process:
        if started is not None:
            started(process.pid)
        failure, words = _listen(process, heard, silence_s)
        code = process.wait()
    if failure is not None:
        raise BoardError(failure)
    if code != 0:
        raise BoardError(_why(code, words))


@contextmanager
def _process(command: Sequence[str], environment: Mapping[str, str] | None) -> Iterator[subprocess.Popen[bytes]]:
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise BoardError(f"{command[0]} cannot be started: {error.strerror}") from error
    with process:  # closes the pipes
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group; what is left of the group after the process is killed at once."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GOODBYE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _listen(process: subprocess.Popen[bytes], heard: Heard, silence_s: float) -> tuple[str | None, str]:
    """Hear it to the end of its stdout: the reason that it gave, and the last of its stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    failure: str | None = None
    rest, words = b"", b""
    with selectors.DefaultSelector() as ears:
        ears.register(process.stdout, selectors.EVENT_READ, True)
        ears.register(process.stderr, selectors.EVENT_READ, False)
        until_s = time.monotonic() + silence_s
        while any(key.data for key in ears.get_map().values()):
            for key, _ in ears.select(max(0.0, until_s - time.monotonic())):
                chunk = os.read(key.fd, CHUNK)
                if not chunk:
                    ears.unregister(key.fileobj)
                elif key.data:
                    until_s = time.monotonic() + silence_s
                    *lines, rest = (rest + chunk).split(b"\n")
                    failure = _told(lines, heard) or failure
                else:
                    words = (words + chunk)[-LAST_WORDS:]
            if time.monotonic() >= until_s:
                raise BoardError(f"nothing was heard of the measuring program for {silence_s:g} s; it was ended")
        words += _what_is_there(process)
    return failure, words.decode("utf-8", "replace")


def _what_is_there(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    try:
        return os.read(process.stderr.fileno(), CHUNK)
    except BlockingIOError:
        return b""


def _told(lines: Sequence[bytes], heard: Heard) -> str | None:
    """Pass on what the lines say; the reason for its end, where one gives it."""
    failure = None
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue  # a library that prints
        if isinstance(said, dict) and "failed" in said:
            failure = str(said["failed"])
        elif isinstance(said, dict):
            heard(said)
    return failure


def _why(code: int, words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if code == -signal.SIGKILL or code == 128 + signal.SIGKILL:
        return (
            "the measuring program was killed; memory may have run out: a smaller minibatch or fewer workers need less"
        )
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return f"the measuring program ended {how}: {lines[-1][:300] if lines else 'it said nothing'}"
