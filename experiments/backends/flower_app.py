"""Builds the Flower app of a run folder: copies of the programs and the user's plug-ins, and a pyproject.toml."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from fedge.errors import BadInput, RunFailed

PROGRAMS = ("fedge", "clients", "server")
APP_FOLDER = "app"
CONNECTION = "fedge"
# File types that Flower includes in an app bundle, except formats that fedge neither imports nor reads.
SHIPPED_SUFFIXES = (".py", ".yaml", ".yml")
# Folders that Flower silently drops from a bundle: a plug-in of that name would be missing on the boards.
DROPPED_FOLDERS = frozenset({"build", "eggs", "env", "lib", "lib64", "parts", "venv", "ENV"})
TEST_FOLDERS = frozenset({"tests", "test", "testing"})

ConfigValue = str | int | float | bool


def stage_app(
    run_dir: Path,
    plugins: Sequence[Path] = (),
    *,
    packages: Sequence[Path] | None = None,
    config: Mapping[str, ConfigValue] | None = None,
) -> Path:
    """Rebuild ``run_dir``/app.

    Args:
        plugins: The user's modules (a ``.py`` file or a package's folder), importable in the app by their own name.
        packages: Folders of the programs; must contain ``server/app.py`` and ``clients/app.py``, each with an ``app``.
            Default: the installed ``fedge``, ``clients`` and ``server``.
        config: Every key of the run config with its default, because Flower rejects undeclared keys.

    Returns:
        The app's folder.

    Raises:
        BadInput: If a plug-in is missing or its name cannot be shipped.
    """
    sources = installed_packages() if packages is None else tuple(packages)
    check_plugins(plugins, taken=[source.name for source in sources])
    app_dir, fresh = run_dir / APP_FOLDER, run_dir / f"{APP_FOLDER}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for source in (*sources, *plugins):
        _copy(source, fresh)
    (fresh / "pyproject.toml").write_text(_pyproject(fresh, config or {"experiment": ""}), encoding="utf-8")
    shutil.rmtree(app_dir, ignore_errors=True)
    return fresh.rename(app_dir)


def installed_packages(names: Sequence[str] = PROGRAMS) -> tuple[Path, ...]:
    """Return the folders of the installed programs; folders of the same name in the working directory are ignored."""
    return tuple(_find_package(name) for name in names)


def _find_package(name: str) -> Path:
    root = Path(__file__).resolve().parents[2]
    spec = PathFinder.find_spec(name, [str(root)])
    if spec is None or not spec.submodule_search_locations:
        raise RunFailed(f"package {name!r} is not installed in {root}; install fedge again")
    return Path(next(iter(spec.submodule_search_locations)))


def run_config_toml(values: Mapping[str, ConfigValue]) -> str:
    """Encode ``values`` as a TOML document with one line per key."""
    return "".join(f"{_toml_text(key)} = {_toml_value(value)}\n" for key, value in values.items())


def check_plugins(plugins: Sequence[Path], taken: Sequence[str] = PROGRAMS) -> None:
    """Check that every module and package can be shipped under its name, which no module of the app has.

    Raises:
        BadInput: For the first that cannot.
    """
    names = set(taken)
    for plugin in plugins:
        if not (plugin.suffix == ".py" and plugin.is_file()) and not plugin.is_dir():
            raise BadInput(f"plug-in {plugin}", "nothing there", "a .py file or the folder of a package")
        problem = _name_problem(plugin.stem if plugin.is_file() else plugin.name, names)
        if problem:
            raise BadInput(f"plug-in {plugin}", f"the name {plugin.name!r}, {problem}", "another name for it")
        names.add(plugin.stem)


def _name_problem(module: str, taken: set[str]) -> str | None:
    """Return why a module of this name would not reach the boards or would shadow another one; None if it is fine."""
    if not module.isidentifier():
        return "which Python cannot import"
    if module in taken:
        return "which another module of the app has"
    if module in DROPPED_FOLDERS or module.startswith("test_") or module.endswith("_test"):
        return "which Flower leaves out of an app"
    if module in sys.stdlib_module_names or _is_installed(module):
        return "which would hide an installed module"
    return None


def _is_installed(module: str) -> bool:
    site = Path(sysconfig.get_path("purelib"))
    return (site / module).is_dir() or (site / f"{module}.py").is_file()


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copyfile(source, target / source.name)
        return
    for file in _shipped_files(source):
        copy = target / source.name / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _shipped_files(package: Path) -> Iterator[Path]:
    for path in sorted(package.iterdir()):
        if path.name.startswith((".", "__pycache__")):
            continue
        if path.is_dir() and path.name not in TEST_FOLDERS:
            yield from _shipped_files(path)
        elif path.is_file() and path.suffix in SHIPPED_SUFFIXES and not _is_test(path):
            yield path


def _is_test(file: Path) -> bool:
    return file.name.startswith("test_") or file.stem.endswith("_test") or file.name == "conftest.py"


def _pyproject(app_dir: Path, config: Mapping[str, ConfigValue]) -> str:
    # Flower refuses a pattern that matches nothing.
    present = sorted({path.suffix for path in app_dir.rglob("*") if path.suffix in SHIPPED_SUFFIXES})
    patterns = ", ".join(f'"**/*{suffix}"' for suffix in present)
    return f"""\
# Made by `fedge run`; every run makes it anew.
[project]
name = "fedge-run"
version = "1.0.0"
description = "One run of a fedge experiment"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedge"
fab-include = [{patterns}]

[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "clients.app:app"

[tool.flwr.app.config]
{run_config_toml(config)}"""


def _toml_value(value: ConfigValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _toml_text(value) if isinstance(value, str) else repr(value)


def _toml_text(text: str) -> str:
    """Encode a TOML basic string; only control characters, quotes and backslashes need escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if " " <= c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
