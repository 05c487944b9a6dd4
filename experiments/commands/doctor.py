"""``fedge doctor``: what is installed, which backends and data are usable here, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

PACKAGES = ("flwr", "ray", "torch", "torchvision", "numpy", "scikit-learn", "pyarrow", "plotly", "safetensors")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: whether it is usable, what was found, and what to do if it is not."""

    what: str
    usable: bool
    found: str
    remedy: str = ""


def doctor(console: Console, as_json: bool) -> None:
    """Print every finding; nothing is changed."""
    findings = [*_packages(), *_backends(), *_data()]
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings]) + "\n")
        return
    table = Table(title=f"fedge on Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for column in ("what", "usable", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.what, "yes" if finding.usable else "no", finding.found, finding.remedy)
    console.print(table)


def _packages() -> list[Finding]:
    return [_package(name) for name in PACKAGES]


def _package(name: str) -> Finding:
    try:
        return Finding(f"package {name}", True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(f"package {name}", False, "not installed", "make setup")


def _backends() -> list[Finding]:
    return [_try("backend local", _local), _try("backend sim", _sim), _try("backend fleet", _fleet)]


def _try(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except Exception as error:  # noqa: BLE001 -- whatever breaks here is what the user wants to read
        return Finding(what, False, f"{type(error).__name__}: {error}", "make setup")


def _local() -> str:
    import experiments.backends.local

    return f"{experiments.backends.local.__name__} imports"


def _sim() -> str:
    import ray

    import experiments.backends.sim

    for program in ("flower-superlink", "flwr"):
        if not (Path(sys.executable).parent / program).exists() and shutil.which(program) is None:
            raise FileNotFoundError(f"{program} is not beside {sys.executable}")
    where = os.environ.get("RAY_ADDRESS", "this machine")
    return f"{experiments.backends.sim.__name__} imports, ray {ray.__version__} on {where}, {os.cpu_count()} cores"


def _fleet() -> str:
    import experiments.backends.fleet

    return f"{experiments.backends.fleet.__name__} imports; it needs a SuperLink and boards (docs/fleet.md)"


def _data() -> list[Finding]:
    from fedge.workloads import data_findings

    found = [
        Finding(f"data {name}", here, where, "" if here else f"put it there or let a run fetch it ({where})")
        for name, here, where in data_findings()
    ]
    return [*found, _profiles()]


def _profiles() -> Finding:
    folder = os.environ.get("FEDGE_PROFILES")
    if not folder:
        return Finding("measured tables", False, "FEDGE_PROFILES is not set", "set it to a folder of measured tables")
    tables = len(list(Path(folder).rglob("*.csv")))
    return Finding("measured tables", tables > 0, f"{tables} tables in {folder}")
