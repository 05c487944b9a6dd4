"""Parsing of plans: YAML to boards, workloads, storages and points, with one clear message for each mistake."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from fedge.characterisation import knob_values
from fedge.characterisation.knob_values import (
    ALL,
    MAXN,
    cross_knobs,
    order_points,
    parse_knob_value,
    parse_knob_values,
    parse_mode,
)
from fedge.characterisation.plan_schema import (
    BoardRecord,
    CourseRecord,
    PlanRecord,
    WorkloadRecord,
    expand_count,
    format_value,
    read_yaml,
    validate_record,
)
from fedge.characterisation.sweep_plan import (
    DEFAULT_STORAGE,
    KNOBS,
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.errors import BadInput, UnknownName
from fedge.types import DeviceSpec, PowerMode

MAX_POINTS = 20_000
"""Upper limit of a sweep's points, a default that catches crossed knobs by mistake: at a minute per point, 20 000
points take two weeks."""
SpecLookup = Callable[[str], DeviceSpec | None]


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    """A plan, and the power mode that each mode text resolved to: board -> text -> mode."""

    plan: CharacterisationPlan
    modes: Mapping[str, Mapping[str, PowerMode | None]]
    has_modes: bool = True
    """Whether the plan mentions power modes; if not, every point runs at MAXN on boards that have modes."""


def read_plan(path: Path, spec_of: SpecLookup = knob_values.load_board_spec) -> CharacterisationPlan:
    """Read the plan in a YAML file.

    Args:
        path: The plan's file.
        spec_of: Returns a board's knobs and presets by its name, or None for a board without power modes.

    Raises:
        BadInput: A field is wrong; the message names the file and the field.
    """
    return read_resolved_plan(path, spec_of).plan


def read_resolved_plan(path: Path, spec_of: SpecLookup = knob_values.load_board_spec) -> ResolvedPlan:
    """Read a plan together with the power modes that its mode texts resolved to.

    Args:
        path: The plan's file.
        spec_of: As for ``read_plan``.

    Raises:
        BadInput: As ``read_plan`` does.
    """
    return resolve_plan(read_yaml(path), path, spec_of)


def resolve_plan(raw: Mapping[str, Any], path: Path, spec_of: SpecLookup) -> ResolvedPlan:
    """Build the plan from a YAML file's content.

    Args:
        raw: The parsed YAML.
        path: The plan's file, named in messages; relative paths in the plan start in its folder.
        spec_of: As for ``read_plan``.

    Raises:
        BadInput: A field is wrong, or the plan has more than ``MAX_POINTS`` points.
    """
    file = validate_record(PlanRecord, raw, str(path))
    names = _parse_board_names(file, str(path))
    storages = _parse_storages(file, path)
    below_storages = any(storage.path is not None for storage in storages.values())
    workloads = _parse_workloads(file.workloads, path, below_storages=below_storages)
    course = _parse_schedule(file.course, str(path))
    base, sweeps = _parse_base_and_sweeps(file, tuple(workloads), tuple(storages), str(path))
    _check_point_count(sweeps, len(names) * course.repeats, str(path))
    became: dict[str, dict[str, PowerMode | None]] = {}
    points: list[SweepPoint] = []
    for board in names:
        texts = [base["mode"], *(text for sweep in sweeps for text in sweep.get("mode", ()))]
        spec = spec_of(board)
        modes = {text: parse_mode(text, file.modes, spec, f"{path}: mode {text!r} on {board}") for text in texts}
        became[board] = modes
        points += cross_knobs(
            board, _resolve_base_mode(base, modes), [_resolve_sweep_modes(sweep, modes) for sweep in sweeps]
        )
    plan = CharacterisationPlan(
        name=file.name,
        boards=names,
        workloads=workloads,
        storages=storages,
        course=course,
        points=order_points(points, course.repeats, file.seed),
        seed=file.seed,
        base=base,
        swept=tuple(tuple(knob for knob in KNOBS if knob in sweep) for sweep in sweeps),
    )
    return ResolvedPlan(plan, became, has_modes="mode" in file.base or any("mode" in sweep for sweep in sweeps))


@cache
def load_shipped_workloads() -> Mapping[str, Mapping[str, Any]]:
    """Load the workloads that a plan may use by name alone, as they stand in ``workloads.yaml``."""
    text = (resources.files("fedge.characterisation") / "workloads.yaml").read_text(encoding="utf-8")
    shipped: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    return shipped


# Boards ---------------------------------------------------------------------------------------------------------------


def _parse_board_names(file: PlanRecord, path: str) -> tuple[str, ...]:
    """Return ``here``, or the catalogue's name of each emulated board with its number among its kind."""
    if (file.board is None) == (file.boards is None):
        got = "nothing" if file.board is None else "both board and boards"
        raise BadInput(
            f"{path}: board", got, f"one of them, for example board: here or board: {knob_values.EMULATED}NAME"
        )
    given: Sequence[Any] = file.boards if file.boards is not None else [file.board]
    names: list[str] = []
    for place, entry in enumerate(given):
        where = f"{path}: board" if file.boards is None else f"{path}: boards[{place}]"
        one = validate_record(BoardRecord, {"device": entry} if isinstance(entry, str) else entry, where)
        device = _parse_device(one.device, where)
        if device == knob_values.HERE and (one.count > 1 or knob_values.HERE in names):
            raise BadInput(where, "this machine more than once", "here once")
        kind = [name for name in names if knob_values.device_name(name) == device]
        names += [device] if device == knob_values.HERE else [f"{device}-{len(kind) + i + 1}" for i in range(one.count)]
    return tuple(names)


def _parse_device(text: str, where: str) -> str:
    from fedge.devices import catalogue

    if text == knob_values.HERE:
        return text
    known = catalogue.load_catalogue()
    name = text.removeprefix(knob_values.EMULATED)
    name = catalogue.aliases().get(name, name)
    if name not in known or not text.startswith(knob_values.EMULATED):
        raise UnknownName(where, text, (knob_values.HERE, *(knob_values.EMULATED + one for one in known)))
    return name


# Workloads and storages -----------------------------------------------------------------------------------------------


def _parse_workloads(given: Any, path: Path, *, below_storages: bool) -> dict[str, WorkloadPlan]:
    """Return the plan's workloads.

    Image folders are relative to the storages' paths or, without storages, to the plan's folder.
    """
    where = f"{path}: workloads"
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        given = dict.fromkeys(given)
    if not isinstance(given, dict) or not given:
        names = ", ".join(load_shipped_workloads())
        raise BadInput(where, format_value(given), f"names of shipped workloads ({names}), or a mapping of your own")
    folder = None if below_storages else path.parent
    return {name: _parse_workload(name, entry, f"{where}.{name}", folder) for name, entry in given.items()}


def _parse_workload(name: Any, entry: Any, where: str, folder: Path | None) -> WorkloadPlan:
    if not isinstance(name, str) or name == ALL or not name:
        raise BadInput(where, format_value(name), "a name that is text, and not 'all'")
    entry = {} if entry is None else entry
    if not isinstance(entry, dict):
        raise BadInput(
            where, format_value(entry), f"a mapping with some of like, {', '.join(WorkloadRecord.model_fields)}"
        )
    like = entry.get("like", name)
    shipped = load_shipped_workloads()
    if like not in shipped and ("like" in entry or not entry):
        raise UnknownName(f"{where}.like" if "like" in entry else where, str(like), tuple(shipped))
    one = validate_record(WorkloadRecord, _merge_shipped(shipped.get(like, {}), entry), where)
    images = one.images.model_dump()
    if images["folder"] is not None and folder is not None:
        images["folder"] = _resolve_path(images["folder"], folder)
    channels, height, width = one.input
    rest = one.model_dump(exclude={"images", "input"})
    return WorkloadPlan(name=name, input=(channels, height, width), images=Images(**images), **rest)


def _merge_shipped(shipped: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a shipped workload with the plan's overrides; ``count`` is short for ``images.count``."""
    own = {key: value for key, value in entry.items() if key not in {"like", "count"}}
    images = expand_count(own.get("images", {}))
    if isinstance(images, dict):
        images = {**shipped.get("images", {}), **images, **({"count": entry["count"]} if "count" in entry else {})}
        own |= {"images": images} if images else {}
    return {**shipped, **own}


def _parse_storages(file: PlanRecord, path: Path) -> dict[str, StoragePlan]:
    if not file.storages:
        return {DEFAULT_STORAGE: StoragePlan(DEFAULT_STORAGE)}
    if ALL in file.storages:
        raise BadInput(f"{path}: storages", "one that is called 'all'", "another name")
    return {
        name: StoragePlan(name, None if one.path is None else _resolve_path(one.path, path.parent), one.model)
        for name, one in file.storages.items()
    }


def _resolve_path(text: str, folder: Path) -> str:
    return str((folder / Path(text).expanduser()).resolve())


def _parse_schedule(course: CourseRecord, path: str) -> MeasurementSchedule:
    if course.discard >= course.epochs:
        right = f"fewer than course.epochs ({course.epochs}), so that one is left to look at"
        raise BadInput(f"{path}: course.discard", str(course.discard), right)
    return MeasurementSchedule(**course.model_dump())


# Knobs ----------------------------------------------------------------------------------------------------------------


def _parse_base_and_sweeps(
    file: PlanRecord, workloads: tuple[str, ...], storages: tuple[str, ...], path: str
) -> tuple[dict[str, Any], list[dict[str, list[Any]]]]:
    """Return the base (one value per knob) and the sweeps (values per knob), with modes as written."""
    if ALL in file.modes:
        raise BadInput(f"{path}: modes", "one that is called 'all'", "another name")
    names = {"workload": workloads, "storage": storages, "mode": tuple(file.modes)}
    _check_knob_names(file.base, f"{path}: base")
    everywhere = {
        knob: parse_knob_values(knob, ALL, names, f"{path}: base.{knob}")
        for knob in file.base
        if file.base[knob] == ALL
    }
    usual = asdict(SweepPoint("", ""))
    base: dict[str, Any] = {knob: usual[knob] for knob in KNOBS}
    base |= {"mode": MAXN, "workload": workloads[0], "storage": storages[0]}
    base |= {
        knob: parse_knob_value(knob, file.base[knob], names, f"{path}: base.{knob}")
        for knob in file.base
        if knob not in everywhere
    }
    base |= {knob: values[0] for knob, values in everywhere.items()}
    sweeps: list[dict[str, list[Any]]] = []
    for place, given in enumerate(file.sweeps or [{}]):
        where = f"{path}: sweeps[{place}]"
        _check_knob_names(given, where)
        turned = {
            knob: parse_knob_values(knob, given[knob], names, f"{where}.{knob}") for knob in KNOBS if knob in given
        }
        sweeps.append({**{knob: values for knob, values in everywhere.items() if knob not in turned}, **turned})
        _check_choice_given(base, said=file.base, sweep=sweeps[-1], names=names, where=where)
        _check_prefetch(base, sweeps[-1], where)
    return base, sweeps


def _check_knob_names(given: Mapping[str, Any], where: str) -> None:
    for knob in given:
        if knob not in KNOBS:
            raise UnknownName(where, str(knob), KNOBS)


def _check_choice_given(
    base: Mapping[str, Any],
    said: Mapping[str, Any],
    sweep: Mapping[str, Any],
    names: Mapping[str, tuple[str, ...]],
    where: str,
) -> None:
    """Require that a plan with several workloads or storages says which one to use."""
    for knob in ("workload", "storage"):
        if len(names[knob]) > 1 and knob not in said and knob not in sweep:
            right = f"{knob}: all, some of {', '.join(names[knob])}, or base.{knob}"
            raise BadInput(f"{where}.{knob}", "nothing", f"{right} (it would be {base[knob]})")


def _check_prefetch(base: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]], where: str) -> None:
    """Reject a sweep over prefetch alone without loader workers, where prefetch has no effect."""
    if len(sweep.get("prefetch", ())) > 1 and not any(sweep.get("workers", (base["workers"],))):
        right = "workers of 1 or more in the sweep or in base, since without workers nothing is fetched ahead"
        raise BadInput(f"{where}.prefetch", format_value(sweep["prefetch"]), right)


def _resolve_base_mode(base: Mapping[str, Any], modes: Mapping[str, PowerMode | None]) -> dict[str, Any]:
    return {**base, "mode": modes[base["mode"]]}


def _resolve_sweep_modes(sweep: Mapping[str, list[Any]], modes: Mapping[str, PowerMode | None]) -> dict[str, list[Any]]:
    return {knob: [modes[text] for text in values] if knob == "mode" else values for knob, values in sweep.items()}


def _check_point_count(sweeps: Sequence[Mapping[str, Sequence[Any]]], times: int, path: str) -> None:
    count = times * sum(math.prod(len(values) for values in sweep.values()) for sweep in sweeps)
    if count > MAX_POINTS:
        raise BadInput(f"{path}: sweeps", f"{count} points", f"at most {MAX_POINTS}")
