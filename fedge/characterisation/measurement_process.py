"""Where the measuring program runs: bare, or in a container of docker or podman that sees its files and no network."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import fedge
from fedge.errors import BoardError

PACKAGE = Path(fedge.__file__).resolve().parent
PROGRAM_FILE = "worker/characterising.py"
CONTAINER_PACKAGE = "/fedge-program/fedge"
"""Where the package lies in a container."""
PYTHON_VARIABLE = "FEDGE_WORKER_PYTHON"
"""The environment variable that names the Python with torch, where it is not fedge's own."""
BOARD_PYTHON = "/usr/bin/python3"
SHARED_MEMORY = "2g"
"""For the batches that loader workers hand over; docker's own 64 MB do not hold a few."""
ANSWER_S = 20.0
NVIDIA_PREFIX = "nvidia+"
ENGINES = ("docker", "podman")


@dataclass(frozen=True, slots=True)
class Runtime:
    """``engine`` is None where the program runs bare."""

    engine: str | None = None
    image: str = ""
    nvidia: bool = False


def parse_runtime(text: str) -> Runtime | str:
    """A point's runtime, or why it is none."""
    nvidia, rest = text.startswith(NVIDIA_PREFIX), text.removeprefix(NVIDIA_PREFIX)
    engine, _, image = rest.partition(":")
    if text == "bare":
        return Runtime()
    if engine not in ENGINES or not image or image.startswith("-"):
        return f"runtime {text!r} is none of bare, docker:IMAGE, podman:IMAGE, {NVIDIA_PREFIX}docker:IMAGE"
    return Runtime(engine, image, nvidia)


def runtime_refusal(text: str) -> str | None:
    """Why a point cannot run so here, in the engine's own words; None where it can."""
    runtime = parse_runtime(text)
    if isinstance(runtime, str):
        return runtime
    if runtime.engine is None:
        return None
    return _engine_refusal(runtime.engine) or _image_refusal(runtime.engine, runtime.image)


@cache
def _engine_refusal(engine: str) -> str | None:
    code, words = _run_briefly([engine, "info"])
    return None if code == 0 else f"{engine} does not answer: {words}"


@cache
def _image_refusal(engine: str, image: str) -> str | None:
    code, words = _run_briefly([engine, "image", "inspect", "--format", "{{.Id}}", image])
    return None if code == 0 else f"{engine} has no image {image}: {words}; fetch it: {engine} pull {image}"


def _run_briefly(command: Sequence[str]) -> tuple[int, str]:
    """Exit code, and the last line that it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except OSError as error:
        return 1, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {ANSWER_S:g} s"
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()]
    return done.returncode, lines[-1][:300] if lines else "it said nothing"


def find_python() -> str:
    """The interpreter of bare points: the one that is named, fedge's own where it has torch, the board's else."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        return named
    return sys.executable if importlib.util.find_spec("torch") is not None else BOARD_PYTHON


def build_command(runtime: Runtime, spec: Path, out: Path, folders: Sequence[Path], name: str) -> list[str]:
    """What is started; ``folders`` are only read, the one of ``out`` is written, ``name`` names the container."""
    if runtime.engine is None:
        return [find_python(), str(PACKAGE / PROGRAM_FILE), str(spec), str(out)]
    read_only = [f"{folder}:{folder}:ro" for folder in folders]
    mounted = [f"{PACKAGE}:{CONTAINER_PACKAGE}:ro", *read_only, f"{out.parent}:{out.parent}"]
    return [
        runtime.engine,
        *("run", "--rm", "--init", "--interactive", "--network", "none", "--name", name),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--shm-size", SHARED_MEMORY),
        *(("--userns", "keep-id") if runtime.engine == "podman" and os.getuid() != 0 else ()),
        *(("--runtime", "nvidia") if runtime.nvidia else ()),
        *(part for mount in mounted for part in ("--volume", mount)),
        *(part for name, value in PROGRAM_ENVIRONMENT.items() for part in ("--env", f"{name}={value}")),
        runtime.image,
        *("python3", f"{CONTAINER_PACKAGE}/{PROGRAM_FILE}", str(spec), str(out)),
    ]


PROGRAM_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"}
"""One thread for all that is loaded by OpenMP before torch is told its own number."""


def build_environment() -> dict[str, str]:
    """That of a bare program: the present one, so that CUDA's and the user's own settings hold."""
    return dict(os.environ) | {name: value for name, value in PROGRAM_ENVIRONMENT.items() if name != "HOME"}


def find_container_pid(runtime: Runtime, name: str) -> int | None:
    """The process of a running container as this machine numbers it; None where nobody says."""
    if runtime.engine is None:
        return None
    code, words = _run_briefly([runtime.engine, "inspect", "--format", "{{.State.Pid}}", name])
    return int(words) if code == 0 and words.isdigit() and words != "0" else None


def remove_container(runtime: Runtime, name: str) -> None:
    """End a container that the engine may still run though the client of it was ended; there may be none."""
    if runtime.engine is not None:
        _run_briefly([runtime.engine, "rm", "--force", name])


def read_package_versions() -> dict[str, str]:
    """The versions of torch and Pillow with which bare points run; raises ``BoardError`` where there are none."""
    if find_python() == sys.executable:
        return {name: metadata.version(name) for name in ("torch", "pillow")}
    code, words = _run_briefly([find_python(), "-c", "import torch, PIL; print(torch.__version__, PIL.__version__)"])
    if code != 0 or len(words.split()) != 2:
        text = (
            f"{find_python()} has no torch and Pillow ({words}); install them, or name another Python in "
            f"{PYTHON_VARIABLE}"
        )
        raise BoardError(text)
    return dict(zip(("torch", "pillow"), words.split(), strict=True))


MAX_SILENCE_S = 120.0
"""A program that says nothing for so long counts as dead; chosen by us: it speaks every 2 s between minibatches."""
TERMINATE_S = 3.0
"""What a process that is asked to end gets before it is killed."""
READ_BYTES = 65536
MAX_STDERR_BYTES = 4000

MessageCallback = Callable[[Mapping[str, Any]], None]


def run_program(
    command: Sequence[str],
    heard: MessageCallback,
    *,
    environment: Mapping[str, str] | None = None,
    started: Callable[[int], None] | None = None,
    silence_s: float = MAX_SILENCE_S,
) -> None:
    """Run it to its end; ``heard`` is told every line of its stdout that is a JSON object.

    Nothing of it is left when this returns or raises, also on Ctrl-C. Raises ``BoardError`` with the program's own
    reason, or with the last line of its stderr.
    """
    with _open_process(command, environment) as process:
        if started is not None:
            started(process.pid)
        failure, words = _read_output(process, heard, silence_s)
        code = process.wait()
    if failure is not None:
        raise BoardError(failure)
    if code != 0:
        raise BoardError(_describe_exit(code, words))


@contextmanager
def _open_process(command: Sequence[str], environment: Mapping[str, str] | None) -> Iterator[subprocess.Popen[bytes]]:
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
            _end_process(process)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group; what is left of the group after the process is killed at once."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_output(process: subprocess.Popen[bytes], heard: MessageCallback, silence_s: float) -> tuple[str | None, str]:
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
                chunk = os.read(key.fd, READ_BYTES)
                if not chunk:
                    ears.unregister(key.fileobj)
                elif key.data:
                    until_s = time.monotonic() + silence_s
                    *lines, rest = (rest + chunk).split(b"\n")
                    failure = _dispatch_lines(lines, heard) or failure
                else:
                    words = (words + chunk)[-MAX_STDERR_BYTES:]
            if time.monotonic() >= until_s:
                raise BoardError(f"nothing was heard of the measuring program for {silence_s:g} s; it was ended")
        words += _read_available(process)
    return failure, words.decode("utf-8", "replace")


def _read_available(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    try:
        return os.read(process.stderr.fileno(), READ_BYTES)
    except BlockingIOError:
        return b""


def _dispatch_lines(lines: Sequence[bytes], heard: MessageCallback) -> str | None:
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


def _describe_exit(code: int, words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if code == -signal.SIGKILL or code == 128 + signal.SIGKILL:
        return (
            "the measuring program was killed; memory may have run out: a smaller minibatch or fewer workers need less"
        )
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return f"the measuring program ended {how}: {lines[-1][:300] if lines else 'it said nothing'}"
