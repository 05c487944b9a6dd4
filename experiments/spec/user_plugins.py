"""The user's plug-ins: their files with the modules beside them that they import, and how they are imported."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from fedge.child_processes import ROOT, append_folder
from fedge.errors import BadInput
from fedge.experiment import Experiment

OWN_PACKAGES = frozenset(ROOT / name for name in ("fedge", "clients", "server", "experiments"))
"""Every process of a run has them: for a plug-in in the root of a checkout they are no neighbours."""
_modified_ns: dict[Path, int] = {}
"""When a plug-in's file had last been changed at its import, in ns: a notebook may change it between two runs."""


def list_plugin_files(plugins: Sequence[str]) -> tuple[Path, ...]:
    """Return the plug-ins and the modules beside them that they import, directly or not.

    Args:
        plugins: Paths of Python files.

    Returns:
        Files, and folders of packages; each once.
    """
    found = dict.fromkeys(Path(plugin) for plugin in plugins)
    waiting = list(found)
    while waiting:
        source = waiting.pop()
        for neighbour in _find_neighbours(source):
            if neighbour not in found:
                found[neighbour] = None
                waiting.append(neighbour)
    return tuple(found)


def _find_neighbours(source: Path) -> Iterator[Path]:
    """Yield the modules and packages in the folder of a module or package that it imports."""
    for file in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # its import says what is wrong
        for name in _list_imported_names(tree):
            module, package = source.with_name(f"{name}.py"), source.with_name(name)
            if package.resolve() in OWN_PACKAGES:
                continue
            if package.is_dir() and any(package.glob("*.py")):
                yield package
            elif module.is_file():
                yield module


def _list_imported_names(tree: ast.Module) -> set[str]:
    """Return the top-level names that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def import_plugins(experiment: Experiment) -> None:
    """Make the user's modules importable and import them.

    Raises:
        BadInput: If a module is missing, another one has the name of it or of a module beside it, or it fails to
            import.
    """
    for i, plugin in enumerate(experiment.plugins):
        path, where = Path(plugin), f"plugins[{i}]"
        if not path.is_file() or path.suffix != ".py":
            raise BadInput(where, plugin, "the path of an existing Python file")
        append_folder(path.parent)
        files = list_plugin_files([plugin])
        for file in files:
            if not _is_found(file):
                got = plugin if file == path else f"{plugin}, which needs {file.name} beside it"
                raise BadInput(where, got, f"a file of another name: there is a module {file.stem!r} already")
        _forget_changed(files)
        try:
            importlib.import_module(path.stem)
        except Exception as error:
            raise BadInput(where, plugin, f"a Python file that can be imported ({format_error(error)})") from error


@contextmanager
def import_apart(plugins: Sequence[str]) -> Iterator[None]:
    """Let Python import the plug-ins anew inside the block: calls there leave the run's modules as they are."""
    stems = {file.stem for file in list_plugin_files(plugins)}
    kept = _pop_modules(stems)
    try:
        yield
    finally:
        _pop_modules(stems)
        sys.modules.update(kept)


def _pop_modules(stems: Collection[str]) -> dict[str, ModuleType]:
    """Forget the modules of these top-level names, and return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in stems}


def _is_found(file: Path) -> bool:
    """Return whether Python finds this module or package by its name."""
    spec = importlib.util.find_spec(file.stem)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return file.resolve() in {Path(place).resolve() for place in places if place}


def _forget_changed(files: Sequence[Path]) -> None:
    """Let Python import all files anew if one of them was changed since its import in this process."""
    times = {file: max(one.stat().st_mtime_ns for one in (file, *file.rglob("*.py"))) for file in files}
    if any(_modified_ns.get(file, time) != time for file, time in times.items()):
        _pop_modules({file.stem for file in files})
        importlib.invalidate_caches()
    _modified_ns.update(times)


def format_error(error: Exception) -> str:
    """Return an exception of the user's code as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
