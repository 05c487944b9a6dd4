"""Where the measuring program runs: bare, or in a container of docker or podman that sees its files and no network."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import fedge
from fedge.errors import BoardError

PACKAGE = Path(fedge.__file__).resolve().parent
PROGRAM = "worker/characterising.py"
INSIDE = "/fedge-program/fedge"
"""Where the package lies in a container."""
PYTHON = "FEDGE_WORKER_PYTHON"
"""The environment variable that names the Python with torch, where it is not fedge's own."""
BOARDS_PYTHON = "/usr/bin/python3"
SHARED_MEMORY = "2g"
"""For the batches that loader workers hand over; docker's own 64 MB do not hold a few."""
ANSWER_S = 20.0
NVIDIA = "nvidia+"
ENGINES = ("docker", "podman")


@dataclass(frozen=True, slots=True)
class Runtime:
    """``engine`` is None where the program runs bare."""

    engine: str | None = None
    image: str = ""
    nvidia: bool = False


def parsed(text: str) -> Runtime | str:
    """A point's runtime, or why it is none."""
    nvidia, rest = text.startswith(NVIDIA), text.removeprefix(NVIDIA)
    engine, _, image = rest.partition(":")
    if text == "bare":
        return Runtime()
    if engine not in ENGINES or not image or image.startswith("-"):
        return f"runtime {text!r} is none of bare, docker:IMAGE, podman:IMAGE, {NVIDIA}docker:IMAGE"
    return Runtime(engine, image, nvidia)


def why_not(text: str) -> str | None:
    """Why a point cannot run so here, in the engine's own words; None where it can."""
    runtime = parsed(text)
    if isinstance(runtime, str):
        return runtime
    if runtime.engine is None:
        return None
    return _engine_lacks(runtime.engine) or _image_lacks(runtime.engine, runtime.image)


@cache
def _engine_lacks(engine: str) -> str | None:
    code, words = _asked([engine, "info"])
    return None if code == 0 else f"{engine} does not answer: {words}"


@cache
def _image_lacks(engine: str, image: str) -> str | None:
    code, words = _asked([engine, "image", "inspect", "--format", "{{.Id}}", image])
    return None if code == 0 else f"{engine} has no image {image}: {words}; fetch it: {engine} pull {image}"


def _asked(command: Sequence[str]) -> tuple[int, str]:
    """Exit code, and the last line that it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except OSError as error:
        return 1, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {ANSWER_S:g} s"
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()]
    return done.returncode, lines[-1][:300] if lines else "it said nothing"


def python() -> str:
    """The interpreter of bare points: the one that is named, fedge's own where it has torch, the board's else."""
    named = os.environ.get(PYTHON)
    if named:
        return named
    return sys.executable if importlib.util.find_spec("torch") is not None else BOARDS_PYTHON


def command(runtime: Runtime, spec: Path, out: Path, folders: Sequence[Path], name: str) -> list[str]:
    """What is started; ``folders`` are only read, the one of ``out`` is written, ``name`` names the container."""
    if runtime.engine is None:
        return [python(), str(PACKAGE / PROGRAM), str(spec), str(out)]
    read_only = [f"{folder}:{folder}:ro" for folder in folders]
    mounted = [f"{PACKAGE}:{INSIDE}:ro", *read_only, f"{out.parent}:{out.parent}"]
    return [
        runtime.engine,
        *("run", "--rm", "--init", "--interactive", "--network", "none", "--name", name),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--shm-size", SHARED_MEMORY),
        *(("--userns", "keep-id") if runtime.engine == "podman" and os.getuid() != 0 else ()),
        *(("--runtime", "nvidia") if runtime.nvidia else ()),
        *(part for mount in mounted for part in ("--volume", mount)),
        *(part for name, value in ENVIRONMENT.items() for part in ("--env", f"{name}={value}")),
        runtime.image,
        *("python3", f"{INSIDE}/{PROGRAM}", str(spec), str(out)),
    ]


ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"}
"""One thread for all that is loaded by OpenMP before torch is told its own number."""


def environment() -> dict[str, str]:
    """That of a bare program: the present one, so that CUDA's and the user's own settings hold."""
    return dict(os.environ) | {name: value for name, value in ENVIRONMENT.items() if name != "HOME"}


def outer_pid(runtime: Runtime, name: str) -> int | None:
    """The process of a running container as this machine numbers it; None where nobody says."""
    if runtime.engine is None:
        return None
    code, words = _asked([runtime.engine, "inspect", "--format", "{{.State.Pid}}", name])
    return int(words) if code == 0 and words.isdigit() and words != "0" else None


def remove(runtime: Runtime, name: str) -> None:
    """End a container that the engine may still run though the client of it was ended; there may be none."""
    if runtime.engine is not None:
        _asked([runtime.engine, "rm", "--force", name])


def packages() -> dict[str, str]:
    """The versions of torch and Pillow with which bare points run; raises ``BoardError`` where there are none."""
    if python() == sys.executable:
        return {name: metadata.version(name) for name in ("torch", "pillow")}
    code, words = _asked([python(), "-c", "import torch, PIL; print(torch.__version__, PIL.__version__)"])
    if code != 0 or len(words.split()) != 2:
        text = f"{python()} has no torch and Pillow ({words}); install them, or name another Python in {PYTHON}"
        raise BoardError(text)
    return dict(zip(("torch", "pillow"), words.split(), strict=True))
