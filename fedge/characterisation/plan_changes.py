"""Whether a sweep goes on with a plan: one that only gained points, repeats or boards does, any other is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fedge.characterisation.point_knobs import describe_point
from fedge.characterisation.sweep_plan import CharacterisationPlan
from fedge.errors import BadInput


def check_plan_extends(path: Path, found: CharacterisationPlan, asked: CharacterisationPlan) -> None:
    """Raise ``BadInput`` with the first difference unless ``asked`` is ``found`` with more points, or the same."""
    for where, there, wanted in _list_differences(found, asked):
        right = f"{wanted} was asked for now: ask for the same, give another --out, or remove the folder"
        raise BadInput(f"{path}: {where}", there, right)


def check_same_software(path: Path, found: Mapping[str, dict[str, str]], asked: Mapping[str, dict[str, str]]) -> None:
    """Raise ``BadInput`` where a board's figures would depend on other software than those that are there."""
    for board, versions in asked.items():
        before = found.get(board, versions)
        for name in sorted({*before, *versions}):
            there, now = before.get(name, "nothing"), versions.get(name, "nothing")
            if there != now:
                right = f"{now} is here now: go on with what was there, or give another --out"
                raise BadInput(f"{path}: {board}: {name}", there, right)


def _list_differences(found: CharacterisationPlan, asked: CharacterisationPlan) -> Iterator[tuple[str, str, str]]:
    """Where two plans differ in more than what one has gained: the field, what is there, what is asked for."""
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
    """The first field that differs of two records, or of the records in them."""
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
