"""Resolve a configured name to an object: through a table of built-in names, or as the user's own ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fedge.errors import BadInput, UnknownName


def load_named(where: str, name: str, table: Mapping[str, str]) -> Any:
    """Import the object behind a configured name.

    Args:
        where: Field that the name comes from, for error messages.
        name: An entry of ``table`` or ``module:attribute``.
        table: Built-in names and their ``module:attribute``.

    Raises:
        UnknownName: If the name is neither in the table nor of the form ``module:attribute``.
        BadInput: If the module or attribute cannot be loaded.
    """
    target = table.get(name, name)
    if ":" not in target:
        raise UnknownName(where, name, (*sorted(table), "your own module:Class"))
    module_name, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        right = f"an importable module:Class ({error}); its file can be listed under plugins"
        raise BadInput(where, repr(name), right) from error


def split_names(where: str, text: str, right: str) -> tuple[str, ...]:
    """Split names at commas.

    Args:
        where: The option or field, for messages.
        text: Its value.
        right: Description of a valid value.

    Raises:
        BadInput: If a name is empty or repeated.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise BadInput(where, repr(text), f"{right}, each once")
    return names
