"""Checks whether a sweep may continue with a plan: added points or repeats are allowed, other changes are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fedge.characterisation.point_knobs import describe_point
from fedge.characterisation.sweep_plan import CharacterisationPlan
from fedge.errors import BadInput


def check_plan_extends(path: Path, found: CharacterisationPlan, asked: CharacterisationPlan) -> None:
    """Check that ``asked`` equals ``found`` or only adds points.

    Args:
        path: The journal's path, for messages.
        found: The plan in the journal.
        asked: The plan of this start.

    Raises:
        BadInput: With the first difference.
    """
    for where, there, wanted in _list_differences(found, asked):
        right = f"{wanted} was asked for now: ask for the same, give another --out, or remove the folder"
        raise BadInput(f"{path}: {where}", there, right)


def check_same_software(path: Path, found: Mapping[str, dict[str, str]], asked: Mapping[str, dict[str, str]]) -> None:
    """Check that each board's software is that of the points already measured.

    Args:
        path: The journal's path, for messages.
        found: Versions in the journal: board -> name -> version.
        asked: Versions now.

    Raises:
        BadInput: With the first difference.
    """
    for board, versions in asked.items():
        before = found.get(board, versions)
        for name in sorted({*before, *versions}):
            there, now = before.get(name, "nothing"), versions.get(name, "nothing")
            if there != now:
                right = f"{now} is here now: go on with what was there, or give another --out"
                raise BadInput(f"{path}: {board}: {name}", there, right)


def _list_differences(found: CharacterisationPlan, asked: CharacterisationPlan) -> Iterator[tuple[str, str, str]]:
    """Yield each difference other than an addition: field, value in the journal, value now."""
    for name in ("name", "seed"):
        there, wanted = getattr(found, name), getattr(asked, name)
        if there != wanted:
            yield name, repr(there), repr(wanted)
    yield from _list_schedule_differences(found, asked)
    for kind in ("workloads", "storages"):
        for name, there in getattr(found, kind).items():
            wanted = getattr(asked, kind).get(name)
            if there != wanted:
                yield _find_first_difference(f"{kind}.{name}", there, wanted)
    asked_keys = {point.key for point in asked.points}
    for point in found.points:
        if point.key not in asked_keys:
            yield "points", f"a point that the plan no longer has ({describe_point(point)})", "a plan without it"


def _list_schedule_differences(
    found: CharacterisationPlan, asked: CharacterisationPlan
) -> Iterator[tuple[str, str, str]]:
    for one in fields(found.course):
        there, wanted = getattr(found.course, one.name), getattr(asked.course, one.name)
        if there != wanted and not (one.name == "repeats" and wanted > there):
            yield f"course.{one.name}", repr(there), repr(wanted)


def _find_first_difference(where: str, there: Any, wanted: Any) -> tuple[str, str, str]:
    """Return the first field that differs between two records, or between records nested in them."""
    if wanted is None:
        return where, "one that the plan no longer has", "none of that name"
    for one in fields(there):
        before, now = getattr(there, one.name), getattr(wanted, one.name)
        if before != now:
            place = f"{where}.{one.name}"
            return (
                _find_first_difference(place, before, now) if is_dataclass(before) else (place, repr(before), repr(now))
            )
    raise AssertionError(there)
