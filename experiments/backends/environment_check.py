"""Check of this machine's environment: installed packages, usable backends and data, and how to fix the rest."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedge.extras import build_install_command

PACKAGES = {
    "numpy": "",
    "safetensors": "",
    "pyarrow": "report",
    "plotly": "report",
    "flwr": "sim",
    "ray": "sim",
    "scikit-learn": "train",
    "torch": "train",
    "torchvision": "train",
}
"""Package -> the extra that brings it; empty for one of the core."""


@dataclass(frozen=True, slots=True)
class EnvironmentFinding:
    """One check of the environment."""

    what: str
    usable: bool
    found: str
    remedy: str = ""


def check_environment() -> tuple[EnvironmentFinding, ...]:
    """Check packages, backends and data; nothing is changed."""
    return (*_check_packages(), *_check_backends(), *_check_data())


def _check_packages() -> list[EnvironmentFinding]:
    return [_check_package(name, extra) for name, extra in PACKAGES.items()]


def _check_package(name: str, extra: str) -> EnvironmentFinding:
    try:
        return EnvironmentFinding(f"package {name}", True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return EnvironmentFinding(f"package {name}", False, "not installed", _build_remedy(extra))


def _build_remedy(extra: str) -> str:
    return build_install_command(extra) if extra else "install fedge again"


def _check_backends() -> list[EnvironmentFinding]:
    return [
        _check_import("backend local", _check_local),
        _check_import("backend sim", _check_sim),
        _check_import("backend fleet", _check_fleet),
    ]


def _check_import(what: str, check: Callable[[], str]) -> EnvironmentFinding:
    try:
        return EnvironmentFinding(what, True, check())
    except ModuleNotFoundError as error:
        return EnvironmentFinding(what, False, f"no {error.name}", _build_remedy("sim"))
    except Exception as error:  # noqa: BLE001 -- the user wants to read every failure of an import
        return EnvironmentFinding(what, False, f"{type(error).__name__}: {error}", _build_remedy("sim"))


def _check_local() -> str:
    import flwr

    import experiments.backends.local_backend

    return f"{experiments.backends.local_backend.__name__} imports, flwr {flwr.__version__}"


def _check_sim() -> str:
    import ray

    import experiments.backends.sim_backend

    for program in ("flower-superlink", "flwr"):
        if not (Path(sys.executable).parent / program).exists() and shutil.which(program) is None:
            raise FileNotFoundError(f"{program} is not beside {sys.executable}")
    where = os.environ.get("RAY_ADDRESS", "this machine")
    return (
        f"{experiments.backends.sim_backend.__name__} imports, ray {ray.__version__} on {where}, {os.cpu_count()} cores"
    )


def _check_fleet() -> str:
    import flwr

    import experiments.backends.fleet_backend

    name = experiments.backends.fleet_backend.__name__
    return f"{name} imports, flwr {flwr.__version__}; it needs a SuperLink and boards (docs/how-to/fleet.md)"


def _check_data() -> list[EnvironmentFinding]:
    from fedge.workloads import find_datasets
    from fedge.workloads.federated_files import FILE_SOURCES

    data = [
        EnvironmentFinding(
            f"data {name}",
            present,
            where,
            "" if present else _build_data_remedy(name, where, fetched=name not in FILE_SOURCES),
        )
        for name, present, where in find_datasets()
    ]
    return [*data, _check_profiles()]


def _build_data_remedy(name: str, where: str, *, fetched: bool) -> str:
    if name == "digits":
        return _build_remedy("train")
    return f"put it there or let a run fetch it ({where})" if fetched else f"put its files there ({where})"


def _check_profiles() -> EnvironmentFinding:
    folder = os.environ.get("FEDGE_PROFILES")
    if not folder:
        return EnvironmentFinding(
            "measured tables", False, "FEDGE_PROFILES is not set", "set it to a folder of measured tables"
        )
    tables = len(list(Path(folder).rglob("*.csv")))
    return EnvironmentFinding("measured tables", tables > 0, f"{tables} tables in {folder}")
