"""What makes a host a Jetson: a recorded board's files with its kernel-like layer, and a Python of the board's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from contracts import jetsons
from fleet.base import CannotHave, cache, only_one, say

ROOT = Path(__file__).resolve().parents[2]
PLACE = "/opt/board"
"""Where on the host the board's own things lie; /home and /root are hidden from hardened units."""
PYTHON = f"{PLACE}/bin/python3"
POWERD_PYTHON = f"{PLACE}/bin/powerd-python"
FILES = "/var/lib/nvpmodel"
"""The recorded board lies below it: the one folder besides its own that the power daemon's unit may write."""
NVPMODEL, OWN = "usr/sbin/nvpmodel", "var/lib/fedge-powerd"
PYTHONS_VARIABLE = "FLEET_PYTHONS"
"""Which of ``PINS`` boards have as their own, where making both takes too long; 3.11 stands in for the others."""
PINS = {
    "3.6": ["typing-extensions==4.1.1", "dataclasses==0.8", "torch==1.10.2", "numpy==1.19.5"],
    "3.8": ["torch==1.12.1", "numpy<1.25"],
}
"""What such a board's Python has, as in .ci/test-vendor."""
LAYER = """
import sys
sys.dont_write_bytecode = True
sys.path[:0] = ["/usr/lib/fedge-powerd", "{place}/tests"]
from contracts.jetsons.kernel import KernelMachine
from fedge.powerd.daemon import main
sys.exit(main(sys.argv[3:], KernelMachine))
"""
"""The daemon that was provisioned, on the recorded board's kernel; before its arguments stand ``-I`` and its folder."""


@dataclass(frozen=True, slots=True)
class BoardPython:
    """An interpreter's folder and its packages on this machine, to be bound into a host."""

    version: str
    prefix: Path
    packages: Path


def board_python(version: str) -> BoardPython:
    """The board's own Python with torch; 3.11 is this project's own, and stands in for one that is not here."""
    base = _interpreter(version)
    if version == "3.11" or base is None or version not in os.environ.get(PYTHONS_VARIABLE, version).split():
        return project_python()
    short = version.replace(".", "")
    folders = [ROOT / ".venv-vendor" / f"v{short}", cache() / "pythons" / f"v{short}"]
    found = [folder for folder in folders if _works(folder)]
    folder = found[0] if found else _made(folders[-1], base, version)
    return BoardPython(version, base.parents[1], folder / "lib" / f"python{version}" / "site-packages")


def project_python() -> BoardPython:
    return BoardPython(
        f"{sys.version_info[0]}.{sys.version_info[1]}",
        Path(sys.base_prefix),
        Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages",
    )


def _interpreter(version: str) -> Path | None:
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(versions.glob(f"{version}.*/bin/python{version}"))
    return found[-1] if found else None


def _works(folder: Path) -> bool:
    python = folder / "bin" / "python"
    return python.exists() and subprocess.run([python, "-c", "import numpy, torch"], check=False).returncode == 0


def _made(folder: Path, base: Path, version: str) -> Path:
    with only_one(cache() / "pythons.lock"):
        if not _works(folder):
            say(f"installing torch for Python {version}, as a board has it (minutes, once)")
            folder.parent.mkdir(parents=True, exist_ok=True)
            pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            _run([base, "-m", "venv", "--clear", folder], version)
            if version == "3.6":
                _run([*pip, "pip==21.3.1"], version)
            _run([*pip, *PINS[version]], version)
    return folder


def _run(command: list[str | Path], version: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotHave(f"torch for Python {version}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")


def binds(python: BoardPython, at: str) -> dict[str, Path]:
    """What is bound read-only into a host for an environment at ``at``, by its path there."""
    return {f"{at}/base": python.prefix, f"{at}/lib/python{python.version}/site-packages": python.packages}


def put_python(root: Path, python: BoardPython, at: str) -> None:
    """An environment in a host's root whose interpreter and packages are bound in."""
    folder = root / at.lstrip("/")
    for path in binds(python, at):
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "pyvenv.cfg").write_text(f"home = {at}/base/bin\ninclude-system-site-packages = false\n")
    bring_library(root, python)
    for name in ("python", "python3", f"python{python.version}"):
        link = folder / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"{at}/base/bin/python{python.version}")


def bring_library(root: Path, python: BoardPython) -> None:
    """An interpreter that was built with a shared library looks for it where it was built."""
    libraries = list((python.prefix / "lib").glob(f"libpython{python.version}*.so.*"))
    for library in libraries:
        shutil.copy(library, root / "usr/local/lib")
    if libraries:
        subprocess.run(["ldconfig", "-r", root], check=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})


def put_board(root: Path, kind: str, python: BoardPython) -> None:
    """The board's Python, the layer that answers as its kernel, and its files as after the first start."""
    put_python(root, python, PLACE)
    place = root / PLACE.lstrip("/")
    ignore = shutil.ignore_patterns("__pycache__")
    target = place / "tests" / "contracts" / "jetsons"
    shutil.copytree(ROOT / "tests" / "contracts" / "jetsons", target, ignore=ignore, dirs_exist_ok=True)
    (place / "kernel.py").write_text(LAYER.format(place=PLACE).lstrip())
    program = root / POWERD_PYTHON.lstrip("/")
    program.write_text(f'#!/bin/sh\nexec {PYTHON} -I {PLACE}/kernel.py "$@"\n')
    program.chmod(0o755)
    boot(root, kind)


def boot(root: Path, kind: str) -> None:
    """The board's files as after a start, with a new boot id; what the daemon noted survives, as on a disk."""
    folder = root / FILES.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    own, kept = folder / kind / OWN, folder / "kept"
    if own.exists():
        shutil.rmtree(kept, ignore_errors=True)
        own.rename(kept)
    shutil.rmtree(folder / kind, ignore_errors=True)
    fresh = jetsons.build(kind, folder)
    if kept.exists():
        kept.rename(fresh / OWN)
    (fresh / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
    text = (fresh / NVPMODEL).read_text()
    for here, there in (
        (f"#!{sys.executable}", f"#!{PYTHON}"),
        (repr(str(ROOT / "tests")), repr(f"{PLACE}/tests")),
        (repr(str(ROOT)), repr("/usr/lib/fedge-powerd")),
    ):
        if here not in text:
            raise RuntimeError(f"{fresh / NVPMODEL}: no {here} in it; the recorded board's program has changed")
        text = text.replace(here, there)
    (fresh / NVPMODEL).write_text(text)


def powerd_settings(kind: str) -> dict[str, object]:
    """The daemon's file; a board without a table of memory clocks is told them, as an administrator would."""
    truth = jetsons.board(kind)
    return {} if truth.emc.bpmp else {"emc_table_hz": list(truth.emc_hz)}
