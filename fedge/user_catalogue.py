"""Catalogues of the user: boards and cost profiles that are found by name like those of fedge."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal, TypeVar

from fedge.errors import BadInput

T = TypeVar("T")
logger = logging.getLogger(__name__)
FOLDER_VARIABLE = "FEDGE_KNOWLEDGE"
"""Environment variable with the path of the fleet's knowledge folder."""
ENTRY_POINTS = "fedge.catalogue"
"""Group of entry points; the value of each is a package with the folders ``boards`` and ``costs``."""
SUFFIXES = (".yaml", ".yml")


def list_catalogue_files(folder: Literal["boards", "costs"], environment: Mapping[str, str]) -> list[Traversable]:
    """Return the user's boards or cost profiles, which are found by name like those of fedge.

    They are in the folders ``boards`` and ``costs`` of the fleet's knowledge, which come first, and of packages that
    name themselves as entry points of the group ``fedge.catalogue`` (docs/how-to/devices.md).
    """
    roots = list[Traversable]()
    if environment.get(FOLDER_VARIABLE):
        roots.append(Path(environment[FOLDER_VARIABLE]).expanduser())
    for point in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            roots.append(resources.files(point.value))
        except (ImportError, TypeError) as error:
            logger.warning("the catalogue of the package %s cannot be found: %s", point.value, error)
    places = [root / folder for root in roots]
    found = [file for place in places if place.is_dir() for file in place.iterdir() if file.name.endswith(SUFFIXES)]
    return sorted(found, key=lambda file: file.name)


def read_catalogue(folder: Literal["boards", "costs"], read: Callable[[Traversable], T]) -> list[T]:
    """Read the user's files of one kind; an invalid one is skipped with a warning that names it."""
    contents = list[T]()
    for file in list_catalogue_files(folder, os.environ):
        try:
            contents.append(read(file))
        except BadInput as error:
            logger.warning("%s; skipped", error)
    return contents
