"""Resolve a configured name to an object: through a table of built-in names, or as the user's own ``module:NAME``."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedge.errors import BadInput, FedgeError, UnknownName, one_line
from fedge.import_path import OWN_PACKAGES

R = TypeVar("R")
MAX_VALUE_TEXT = 60
"""Longest value that a message quotes, in characters."""


def load_named(where: str, name: str, table: Mapping[str, str]) -> Any:
    """Import the object behind a configured name.

    ``name`` is an entry of ``table`` or ``module:attribute``.

    Raises:
        UnknownName: If the name is neither in the table nor of the form ``module:attribute``.
        BadInput: If the module or attribute cannot be loaded.
    """
    target = table.get(name, name)
    if ":" not in target:
        raise UnknownName(where, name, (*sorted(table), "your own module:NAME"))
    module_name, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        right = f"an importable module:NAME ({error}); its file can be listed under plugins"
        raise BadInput(where, repr(name), right) from error


def check_own_name(where: str, name: str) -> None:
    """Check that the module of the user's ``module:NAME`` can be found, without importing it or a package around it.

    A module that is loaded, perhaps not to its end, counts as found.

    Raises:
        BadInput: There is no such module, or one of the two names is missing.
    """
    module, _, attribute = name.partition(":")
    reason = "" if module and attribute else "both names are needed"
    if not reason and _find_module(module) is None:
        reason = f"No module named {module!r}"
    if reason:
        raise BadInput(where, repr(name), f"an importable module:NAME ({reason})")


def _find_module(name: str) -> list[str] | None:
    """Return the folders of a package, an empty list for another module, or None if there is no such module.

    ``importlib.util.find_spec`` would import the packages around the module.
    """
    if name in sys.modules:
        return list(getattr(sys.modules[name], "__path__", ()))
    parent = name.rpartition(".")[0]
    if not parent:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # of a relative name
            return None
        return None if spec is None else list(spec.submodule_search_locations or ())
    parts = list[str]()
    for finder in map(pkgutil.get_importer, _find_module(parent) or ()):
        found = None if finder is None else finder.find_spec(name)
        if found is not None and found.loader is not None:
            return list(found.submodule_search_locations or ())
        if found is not None:  # a part of a package that has no file of its own
            parts += found.submodule_search_locations or ()
    return parts or None


def call_plugin(where: str, name: str, result: type[R], call: Callable[[], Any]) -> R:
    """Call a user's own function and return its result.

    ``result`` is the record that it must return.

    Raises:
        BadInput: In one line, if the function fails or returns something else.
    """
    article = "an" if result.__name__[0] in "AEIO" else "a"
    right = f"a function that returns {article} {result.__module__}.{result.__name__}"
    try:
        found = call()
    except FedgeError:
        raise
    except Exception as error:
        raise BadInput(where, f"{name!r}, which failed with {describe_failure(error)}", right) from error
    if not isinstance(found, result):
        raise BadInput(where, f"{name!r}, which returned {describe_value(found)}", right)
    return found


def describe_failure(error: BaseException) -> str:
    """Describe an exception of the user's code in one line, with the place in that code if it came so far."""
    libraries = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")} | OWN_PACKAGES
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if libraries.isdisjoint(Path(frame.filename).parents)]
    reason = one_line(f"{type(error).__name__}: {error}")
    return f"{reason} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else reason


def describe_value(value: object) -> str:
    """Describe a value of the user's code by itself, if that is short, and by its type."""
    text, kind = " ".join(repr(value).split()), type(value).__name__
    if value is None:
        return "None"
    return f"{text} ({kind})" if len(text) <= MAX_VALUE_TEXT else f"a value of type {kind}"


def split_names(where: str, text: str, right: str) -> tuple[str, ...]:
    """Split names at commas.

    Raises:
        BadInput: If a name is empty or repeated.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise BadInput(where, repr(text), f"{right}, each once")
    return names


def split_counts(where: str, text: str, example: str, least: int = 1) -> tuple[int, ...]:
    """Split whole numbers at commas.

    Raises:
        BadInput: If one is no number, below ``least`` or repeated.
    """
    right = f"whole numbers{' above 0' if least else ''}, separated by commas, e.g. {example}"
    words = split_names(where, text, right)
    if not all(word.isascii() and word.isdigit() and int(word) >= least for word in words):
        raise BadInput(where, repr(text), right)
    return tuple(map(int, words))
