"""The import path: fedge's own packages come first, whatever else has their names, and the user's folders last.

``clients``, ``server`` and ``experiments`` are names that a user's own files may have as well.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from fedge.errors import BadInput

ROOT = Path(__file__).resolve().parents[1]
"""Folder of fedge and its programs: a checkout, a ``site-packages``, or the app that a node received."""
OWN_PACKAGES = frozenset(ROOT / name for name in ("fedge", "clients", "server", "experiments"))
"""Every process of a run has them; a user's file is in none of them, also if it is in the root of a checkout."""


def load_package(name: str) -> ModuleType:
    """Import one of fedge's own top-level packages from ``ROOT``; a user's module of that name is left aside.

    Raises:
        BadInput: If a module of that name from elsewhere is in use already.
    """
    module = sys.modules.get(name)
    if module is None:
        spec = PathFinder.find_spec(name, [str(ROOT)])
        if spec is None or spec.loader is None:
            raise ImportError(f"package {name!r} is not in {ROOT}; install fedge again", name=name)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    elif str(ROOT / name) not in {str(Path(folder).resolve()) for folder in getattr(module, "__path__", ())}:
        got = f"a module {name!r} of yours ({getattr(module, '__file__', None) or 'a folder'})"
        raise BadInput("import fedge", got, f"another name for it: {name!r} is a package of fedge")
    return module


def append_folder(folder: Path) -> None:
    """Let Python find modules in the user's ``folder``, unless fedge or an installed package has their name."""
    # An editable install is found after the whole path, so that fedge's folder is put before the user's.
    for one in (str(ROOT), str(folder)):
        if one not in sys.path:
            sys.path.append(one)
    importlib.invalidate_caches()


@contextmanager
def start_children() -> Iterator[None]:
    """Let processes that ``multiprocessing`` spawns inside find fedge first, and leave the user's program alone.

    A spawned process imports the parent's main module again. That would repeat a script of the user that calls fedge
    without ``if __name__ == "__main__"``, and none of fedge's processes needs it.
    """
    main, path = sys.modules["__main__"], list(sys.path)
    before = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    sys.path.insert(0, str(ROOT))
    try:
        main.__spec__ = None
        if "__file__" in before:
            del main.__file__
        yield
    finally:
        sys.path[:] = path
        for name, value in before.items():
            setattr(main, name, value)
