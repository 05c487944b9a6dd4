"""The process of the measuring program: bare, or in a docker or podman container that sees its files and no network."""

from __future__ import annotations

import contextlib
import importlib.util
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
from fedge.json_reader import MalformedJson, parse_json

PACKAGE = Path(fedge.__file__).resolve().parent
PROGRAM_FILE = "worker/epoch_profiler.py"
CONTAINER_PACKAGE = "/fedge-program/fedge"
"""Where the package is mounted in a container."""
PYTHON_VARIABLE = "FEDGE_WORKER_PYTHON"
"""Environment variable that names a Python with torch, where fedge's own has none."""
BOARD_PYTHON = "/usr/bin/python3"
SHARED_MEMORY = "2g"
"""Shared memory of a container, through which loader workers pass batches; docker's default of 64 MB holds too few."""
ANSWER_S = 20.0
NVIDIA_PREFIX = "nvidia+"
ENGINES = ("docker", "podman")


@dataclass(frozen=True, slots=True)
class Runtime:
    """How the program is run; ``engine`` is None without a container."""

    engine: str | None = None
    image: str = ""
    nvidia: bool = False


def parse_runtime(text: str) -> Runtime | str:
    """Parse a point's runtime (``SweepPoint.runtime``); return it, or the reason why the text is none."""
    nvidia, rest = text.startswith(NVIDIA_PREFIX), text.removeprefix(NVIDIA_PREFIX)
    engine, _, image = rest.partition(":")
    if text == "bare":
        return Runtime()
    if engine not in ENGINES or not image or image.startswith("-"):
        return f"runtime {text!r} is none of bare, docker:IMAGE, podman:IMAGE, {NVIDIA_PREFIX}docker:IMAGE"
    return Runtime(engine, image, nvidia)


def is_runtime(text: str) -> bool:
    return isinstance(parse_runtime(text), Runtime)


def runtime_refusal(text: str) -> str | None:
    """Return why the runtime cannot be used on this machine, in the engine's own words, or None if it can."""
    runtime = parse_runtime(text)
    if isinstance(runtime, str):
        return runtime
    return runtime.engine and (_engine_refusal(runtime.engine) or _image_refusal(runtime.engine, runtime.image))


@cache
def _engine_refusal(engine: str) -> str | None:
    code, words = _run_briefly([engine, "info"])
    return None if code == 0 else f"{engine} does not answer: {words}"


@cache
def _image_refusal(engine: str, image: str) -> str | None:
    code, words = _run_briefly([engine, "image", "inspect", "--format", "{{.Id}}", image])
    return None if code == 0 else f"{engine} has no image {image}: {words}; fetch it: {engine} pull {image}"


def _run_briefly(command: Sequence[str]) -> tuple[int, str]:
    """Run a command for at most ``ANSWER_S`` seconds; return its exit code and the last line of its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except OSError as error:
        return 1, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {ANSWER_S:g} s"
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()]
    return done.returncode, lines[-1][:300] if lines else "it said nothing"


def find_python() -> str:
    """Return the Python for bare points: that of ``PYTHON_VARIABLE``, else ours if it has torch, else the board's."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        return named
    return sys.executable if importlib.util.find_spec("torch") is not None else BOARD_PYTHON


def build_command(runtime: Runtime, spec: Path, out: Path, folders: Sequence[Path], name: str) -> list[str]:
    """Build the command line of the measuring program.

    ``folders`` are those that the program reads; ``name`` is the container's, which may write to the folder of ``out``
    only.
    """
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
"""One OpenMP thread until torch sets its own number, since libraries read the variable when they are loaded."""


def build_environment() -> dict[str, str]:
    """Return the environment of a bare program: the present one, so that the user's CUDA settings apply, and ours."""
    return dict(os.environ) | {name: value for name, value in PROGRAM_ENVIRONMENT.items() if name != "HOME"}


def find_container_pid(runtime: Runtime, name: str) -> int | None:
    """Return the process id of a running container on the host, or None if it is not known."""
    if runtime.engine is None:
        return None
    code, words = _run_briefly([runtime.engine, "inspect", "--format", "{{.State.Pid}}", name])
    return int(words) if code == 0 and words.isdigit() and words != "0" else None


def remove_container(runtime: Runtime, name: str) -> None:
    """Remove a container, if it exists; the engine may still run it after its client has been terminated."""
    if runtime.engine is not None:
        _run_briefly([runtime.engine, "rm", "--force", name])


def read_package_versions() -> dict[str, str]:
    """Return the versions of torch and Pillow that bare points use.

    Raises:
        BoardError: The interpreter has no torch or no Pillow.
    """
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
"""A program without output for this long is terminated. It reports every 2 s between minibatches; the default
leaves room for slow start-up of CUDA and of the loader."""
TERMINATE_S = 3.0
"""Seconds between SIGTERM and SIGKILL."""
READ_BYTES = 65536
MAX_STDERR_BYTES = 4000

MessageCallback = Callable[[Mapping[str, Any]], None]


def run_program(
    command: Sequence[str],
    on_message: MessageCallback,
    *,
    environment: Mapping[str, str] | None = None,
    started: Callable[[int], None] | None = None,
    silence_s: float = MAX_SILENCE_S,
) -> None:
    """Run the measuring program to its end and leave no process behind, also on Ctrl-C.

    ``on_message`` is called with each line of standard output that is a JSON object, ``started`` with the process id.
    A program without output for ``silence_s`` is ended.

    Raises:
        BoardError: The program failed, was killed or fell silent; with its own reason, or the last line of its standard
            error.
    """
    with _open_process(command, environment) as process:
        if started is not None:
            started(process.pid)
        failure, words = _read_output(process, on_message, silence_s)
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
    """Terminate the process; kill whatever remains of its process group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_output(
    process: subprocess.Popen[bytes], on_message: MessageCallback, silence_s: float
) -> tuple[str | None, str]:
    """Read standard output to its end; return the program's reason of failure and the end of standard error."""
    assert process.stdout is not None
    assert process.stderr is not None
    failure: str | None = None
    rest, words = b"", b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, True)
        selector.register(process.stderr, selectors.EVENT_READ, False)
        until_s = time.monotonic() + silence_s
        while any(key.data for key in selector.get_map().values()):
            for key, _ in selector.select(max(0.0, until_s - time.monotonic())):
                chunk = os.read(key.fd, READ_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.data:
                    until_s = time.monotonic() + silence_s
                    *lines, rest = (rest + chunk).split(b"\n")
                    failure = _dispatch_lines(lines, on_message) or failure
                else:
                    words = (words + chunk)[-MAX_STDERR_BYTES:]
            if time.monotonic() >= until_s:
                raise BoardError(f"nothing was heard of the measuring program for {silence_s:g} s; it was ended")
        os.set_blocking(process.stderr.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            words += os.read(process.stderr.fileno(), READ_BYTES)
    return failure, words.decode("utf-8", "replace")


def _dispatch_lines(lines: Sequence[bytes], on_message: MessageCallback) -> str | None:
    """Pass on each JSON object; return the reason of failure if one of them gives it."""
    failure = None
    for line in lines:
        try:
            message = parse_json(line, finite=False)
        except MalformedJson:
            continue  # output of a library
        if isinstance(message, dict) and "failed" in message:
            failure = str(message["failed"])
        elif isinstance(message, dict):
            on_message(message)
    return failure


def _describe_exit(code: int, words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if code == -signal.SIGKILL or code == 128 + signal.SIGKILL:
        return (
            "the measuring program was killed; memory may have run out: a smaller minibatch or fewer workers need less"
        )
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return f"the measuring program ended {how}: {lines[-1][:300] if lines else 'it said nothing'}"
