"""The user's plug-ins: their files with the modules beside them that they import, and how they are imported."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.import_path import append_folder

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


def _is_found(file: Path) -> bool:
    """Return whether Python finds this module or package by its name."""
    spec = importlib.util.find_spec(file.stem)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return file.resolve() in {Path(place).resolve() for place in places if place}


def _forget_changed(files: Sequence[Path]) -> None:
    """Let Python import all files anew if one of them was changed since its import in this process."""
    times = {file: max(one.stat().st_mtime_ns for one in (file, *file.rglob("*.py"))) for file in files}
    if any(_modified_ns.get(file, time) != time for file, time in times.items()):
        stems = {file.stem for file in files}
        for name in [name for name in sys.modules if name.partition(".")[0] in stems]:
            del sys.modules[name]
        importlib.invalidate_caches()
    _modified_ns.update(times)


def format_error(error: Exception) -> str:
    """Return an exception of the user's code as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
