"""Turns a configured name into an object: by a seam's name table, or as the user's own ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fedge.errors import BadInput, UnknownName


def load_named(where: str, name: str, table: Mapping[str, str]) -> Any:
    """The object behind ``name``: an entry of ``table`` or ``module:attribute``.

    Raises ``UnknownName`` for a name that is neither, ``BadInput`` when the module or attribute cannot be loaded;
    ``where`` names the field it came from.
    """
    target = table.get(name, name)
    if ":" not in target:
        raise UnknownName(where, name, (*sorted(table), "your own module:Class"))
    module_name, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise BadInput(where, repr(name), f"an importable module:Class ({error})") from error
