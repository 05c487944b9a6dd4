"""Reading of plans: YAML to boards, workloads, storages and points, with one clear message for each mistake."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, get_args

import yaml
from pydantic import Field

from fedge.characterisation.measurement_process import is_runtime
from fedge.characterisation.sweep_plan import (
    DEFAULT_STORAGE,
    EMULATED,
    HERE,
    KNOBS,
    CacheState,
    CharacterisationPlan,
    MeasurementSchedule,
    StoragePlan,
    StorageRecord,
    StrictRecord,
    SweepPoint,
    WorkKind,
    WorkloadPlan,
    WorkloadRecord,
    cross_knobs,
    device_name,
    expand_count,
    load_board_spec,
    order_points,
)
from fedge.errors import BadInput, UnknownName
from fedge.types import DeviceSpec, PowerMode
from fedge.yaml_files import NAME_PATTERN, format_value, list_keys, read_yaml_mapping, validate_fields

ALL = "all"
MAX_POINTS = 20_000
"""Upper limit of a sweep's points, a default that catches crossed knobs by mistake: at a minute per point, 20 000
points take two weeks."""
INTEGER_KNOBS = {"batch_size": (1, 65_536), "workers": (0, 64), "prefetch": (1, 1024)}
"""Least and largest value."""
CHOICES: Mapping[str, tuple[str, ...]] = {"kind": get_args(WorkKind), "cache": get_args(CacheState)}
RUNTIMES = ("bare", "docker:IMAGE", "podman:IMAGE", "nvidia+docker:IMAGE", "nvidia+podman:IMAGE")

SpecLookup = Callable[[str], DeviceSpec | None]
Sweep = dict[str, list[Any]]


_Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=64)]


class _BoardRecord(StrictRecord):
    device: str
    count: Annotated[int, Field(ge=1, le=1000)] = 1


class PlanRecord(StrictRecord):
    """The file of a characterisation: boards, workloads and swept settings (docs/how-to/characterise.md).

    Attributes:
        name: Name of the plan.
        board: The one board: ``here``, a board of the catalogue (emulated), or a .yaml file.
        boards: Several boards, or mappings ``{device, count}``.
        workloads: Names of shipped workloads, or mappings with ``model``, ``input``, ``classes`` and ``images``.
        storages: Storages by name, each with a ``path`` or an emulated ``model``.
        course: How every point is measured.
        seed: Seed of the order of points and of emulated boards.
        modes: Names for power modes that ``base`` and ``sweeps`` use.
        base: Value of every knob that a sweep does not vary.
        sweeps: Mappings of knobs to lists of values; each is crossed.
    """

    name: _Name
    board: str | None = None
    boards: Annotated[list[Any], Field(min_length=1)] | None = None
    workloads: Any = None
    storages: dict[_Name, StorageRecord] = Field(default_factory=dict)
    course: MeasurementSchedule = MeasurementSchedule()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    modes: dict[_Name, str] = Field(default_factory=dict)
    base: dict[str, Any] = Field(default_factory=dict)
    sweeps: list[dict[str, Any]] = Field(default_factory=list)


EXAMPLES = {
    "name": "name: my-board",
    "model": "model: mobilenet_v3_small",
    "input": "input: [3, 224, 224] (channels, height, width)",
    "classes": "classes: 10",
    "images": "images: {count: 2000, width: 800, height: 600}",
    "count": "count: 2000",
    "width": "width: 800",
    "height": "height: 600",
}


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    """A plan with the mode that each mode text became, by board.

    Without named modes (``has_modes``), every point runs at MAXN on boards that have modes.
    """

    plan: CharacterisationPlan
    modes: Mapping[str, Mapping[str, PowerMode | None]]
    has_modes: bool = True


def read_resolved_plan(path: Path) -> ResolvedPlan:
    """Read a plan together with the power modes that its mode texts resolved to.

    Raises:
        BadInput: The file cannot be read, is not YAML, or a field is wrong; the message names file and field.
    """
    return resolve_plan(read_yaml_mapping(path, f"a mapping with some of {', '.join(list_keys(PlanRecord))}"), path)


def resolve_plan(raw: Mapping[str, Any], path: Path, spec_of: SpecLookup = load_board_spec) -> ResolvedPlan:
    """Build the plan from a YAML file's content.

    Args:
        raw: The parsed YAML.
        path: The plan's file, named in messages; relative paths in the plan start in its folder.
        spec_of: Returns a board's knobs and presets, or None for a board without power modes.

    Raises:
        BadInput: A field is wrong, or the plan has more than ``MAX_POINTS`` points.
    """
    file = validate_fields(PlanRecord, raw, str(path), EXAMPLES)
    boards = _parse_boards(file, str(path))
    storages = _parse_storages(file, path)
    has_paths = any(storage.path is not None for storage in storages.values())
    workloads = _parse_workloads(file.workloads, f"{path}: workloads", None if has_paths else path.parent)
    course = file.course
    if course.discard >= course.epochs:
        right = f"fewer than course.epochs ({course.epochs}), so that one is left to look at"
        raise BadInput(f"{path}: course.discard", str(course.discard), right)
    base, sweeps = _parse_base_and_sweeps(file, tuple(workloads), tuple(storages), str(path))
    count = len(boards) * course.repeats * sum(math.prod(map(len, sweep.values())) for sweep in sweeps)
    if count > MAX_POINTS:
        raise BadInput(f"{path}: sweeps", f"{count} points", f"at most {MAX_POINTS}")
    texts = [base["mode"], *(text for sweep in sweeps for text in sweep.get("mode", ()))]
    modes: dict[str, dict[str, PowerMode | None]] = {}
    points: list[SweepPoint] = []
    for board in boards:
        spec = spec_of(board)
        own = {text: parse_mode(text, file.modes, spec, f"{path}: mode {text!r} on {board}") for text in texts}
        modes[board] = own
        turned = [
            sweep | ({"mode": [own[text] for text in sweep["mode"]]} if "mode" in sweep else {}) for sweep in sweeps
        ]
        points += cross_knobs(board, base | {"mode": own[base["mode"]]}, turned)
    plan = CharacterisationPlan(
        name=file.name,
        boards=boards,
        workloads=workloads,
        storages=storages,
        course=course,
        points=order_points(points, course.repeats, file.seed),
        seed=file.seed,
        base=base,
        swept=tuple(tuple(knob for knob in KNOBS if knob in sweep) for sweep in sweeps),
    )
    return ResolvedPlan(plan, modes, has_modes="mode" in file.base or any("mode" in sweep for sweep in sweeps))


@cache
def load_shipped_workloads() -> Mapping[str, Mapping[str, Any]]:
    """Load the workloads that a plan may use by name alone, as they stand in ``workloads.yaml``."""
    text = (resources.files("fedge.characterisation") / "workloads.yaml").read_text(encoding="utf-8")
    shipped: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    return shipped


def _parse_boards(file: PlanRecord, path: str) -> tuple[str, ...]:
    """Return ``here``, or the catalogue's name of each emulated board with its number among its kind."""
    if (file.board is None) == (file.boards is None):
        got = "nothing" if file.board is None else "both board and boards"
        raise BadInput(f"{path}: board", got, f"one of them, for example board: {HERE} or board: {EMULATED}NAME")
    names: list[str] = []
    for place, entry in enumerate(file.boards or [file.board]):
        where = f"{path}: board" if file.boards is None else f"{path}: boards[{place}]"
        one = validate_fields(_BoardRecord, {"device": entry} if isinstance(entry, str) else entry, where)
        device = _parse_device(one.device, where)
        if device == HERE and (one.count > 1 or HERE in names):
            raise BadInput(where, "this machine more than once", "here once")
        before = sum(device_name(name) == device for name in names)
        names += [HERE] if device == HERE else [f"{device}-{before + i + 1}" for i in range(one.count)]
    return tuple(names)


def _parse_device(text: str, where: str) -> str:
    from fedge.devices import catalogue

    known = catalogue.load_catalogue()
    name = text.removeprefix(EMULATED)
    name = catalogue.aliases().get(name, name)
    if text == HERE or (name in known and text.startswith(EMULATED)):
        return name
    raise UnknownName(where, text, (HERE, *(EMULATED + one for one in known)))


def _parse_workloads(given: Any, where: str, folder: Path | None) -> dict[str, WorkloadPlan]:
    """Return the plan's workloads; image folders are relative to ``folder`` or, if it is None, to the storages."""
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        given = dict.fromkeys(given)
    if not isinstance(given, dict) or not given:
        names = ", ".join(load_shipped_workloads())
        raise BadInput(where, format_value(given), f"names of shipped workloads ({names}), or a mapping of your own")
    return {name: _parse_workload(name, entry, f"{where}.{name}", folder) for name, entry in given.items()}


def _parse_workload(name: Any, entry: Any, where: str, folder: Path | None) -> WorkloadPlan:
    if not isinstance(name, str) or name == ALL or not name:
        raise BadInput(where, format_value(name), "a name that is text, and not 'all'")
    entry = {} if entry is None else entry
    if not isinstance(entry, dict):
        raise BadInput(where, format_value(entry), f"a mapping with some of {', '.join(list_keys(WorkloadRecord))}")
    like = entry.get("like", name)
    shipped = load_shipped_workloads()
    if like not in shipped and ("like" in entry or not entry):
        raise UnknownName(f"{where}.like" if "like" in entry else where, str(like), tuple(shipped))
    one = validate_fields(WorkloadRecord, _merge_shipped(shipped.get(like, {}), entry), where, EXAMPLES)
    images = one.images
    if images.folder is not None and folder is not None:
        images = images.model_copy(update={"folder": _resolve_path(images.folder, folder)})
    return WorkloadPlan(**{**dict(one), "name": name, "images": images})


def _merge_shipped(shipped: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a shipped workload with the plan's overrides; ``count`` is short for ``images.count``."""
    own = {key: value for key, value in entry.items() if key not in {"like", "count"}}
    images = expand_count(own.get("images", {}))
    if isinstance(images, dict):
        images = {**shipped.get("images", {}), **images, **({"count": entry["count"]} if "count" in entry else {})}
        own |= {"images": images} if images else {}
    return {**shipped, **own}


def _parse_storages(file: PlanRecord, path: Path) -> dict[str, StoragePlan]:
    if ALL in file.storages:
        raise BadInput(f"{path}: storages", "one that is called 'all'", "another name")
    return {
        name: StoragePlan(name=name, path=one.path and _resolve_path(one.path, path.parent), model=one.model)
        for name, one in file.storages.items()
    } or {DEFAULT_STORAGE: StoragePlan(name=DEFAULT_STORAGE)}


def _resolve_path(text: str, folder: Path) -> str:
    return str((folder / Path(text).expanduser()).resolve())


def _parse_base_and_sweeps(
    file: PlanRecord, workloads: tuple[str, ...], storages: tuple[str, ...], path: str
) -> tuple[dict[str, Any], list[Sweep]]:
    """Return the base (one value per knob) and the sweeps (values per knob), with modes as written."""
    if ALL in file.modes:
        raise BadInput(f"{path}: modes", "one that is called 'all'", "another name")
    names = {"workload": workloads, "storage": storages, "mode": tuple(file.modes)}
    for where, given in ((f"{path}: base", file.base), *_name_sweeps(file, path)):
        unknown = next((knob for knob in given if knob not in KNOBS), None)
        if unknown is not None:
            raise UnknownName(where, str(unknown), KNOBS)
    everywhere: Sweep = {}
    base = {one.name: one.default for one in fields(SweepPoint) if one.default is not MISSING}
    base = {knob: base.get(knob) for knob in KNOBS} | {"mode": MAXN, "workload": workloads[0], "storage": storages[0]}
    for knob, given in file.base.items():
        where = f"{path}: base.{knob}"
        if given == ALL:
            everywhere[knob] = _parse_values(knob, given, names, where)
        base[knob] = everywhere[knob][0] if given == ALL else _parse_value(knob, given, names, where)
    sweeps: list[Sweep] = []
    for where, given in _name_sweeps(file, path):
        own = {knob: _parse_values(knob, given[knob], names, f"{where}.{knob}") for knob in KNOBS if knob in given}
        sweep = {**{knob: values for knob, values in everywhere.items() if knob not in own}, **own}
        _check_sweep(sweep, file=file, base=base, names=names, where=where)
        sweeps.append(sweep)
    return base, sweeps


def _name_sweeps(file: PlanRecord, path: str) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{path}: sweeps[{place}]", given) for place, given in enumerate(file.sweeps or [{}])]


def _check_sweep(
    sweep: Sweep, *, file: PlanRecord, base: Mapping[str, Any], names: Mapping[str, tuple[str, ...]], where: str
) -> None:
    """Require a choice of several workloads or storages, and loader workers where prefetch is varied."""
    for knob in ("workload", "storage"):
        if len(names[knob]) > 1 and knob not in file.base and knob not in sweep:
            right = f"{knob}: all, some of {', '.join(names[knob])}, or base.{knob}"
            raise BadInput(f"{where}.{knob}", "nothing", f"{right} (it would be {base[knob]})")
    if len(sweep.get("prefetch", ())) > 1 and not any(sweep.get("workers", (base["workers"],))):
        right = "workers of 1 or more in the sweep or in base, since without workers nothing is fetched ahead"
        raise BadInput(f"{where}.prefetch", format_value(sweep["prefetch"]), right)


def _parse_values(knob: str, given: Any, names: Mapping[str, tuple[str, ...]], where: str) -> list[Any]:
    """Return the values that a sweep gives a knob: a list, a single value, or ``all`` of the plan's names."""
    if given == ALL and knob in names:
        if not names[knob]:
            raise BadInput(where, ALL, "names of the plan to choose from: it has none (modes:)")
        return list(names[knob])
    values = given if isinstance(given, list) else [given]
    if not values:
        raise BadInput(where, "an empty list", "at least one value")
    return [_parse_value(knob, value, names, where) for value in values]


def _parse_value(knob: str, given: Any, names: Mapping[str, tuple[str, ...]], where: str) -> Any:
    """Check one value of a knob; which mode a text names depends on the board and is checked there."""
    if knob in INTEGER_KNOBS:
        least, most = INTEGER_KNOBS[knob]
        is_right = isinstance(given, int) and not isinstance(given, bool) and least <= given <= most
        right = f"a whole number from {least} to {most}"
    elif knob in {"pinned", "dvfs"}:
        is_right, right = isinstance(given, bool), "true or false"
    elif knob == "mode":
        is_right = isinstance(given, str) and given != ""
        right = "maxn, a preset's name, or CORES/CPU/GPU/MEMORY with clocks in MHz"
    else:
        known = RUNTIMES if knob == "runtime" else CHOICES.get(knob) or names[knob]
        if not isinstance(given, str) or not (is_runtime(given) if knob == "runtime" else given in known):
            raise UnknownName(where, str(given), known)
        return given
    if not is_right:
        raise BadInput(where, format_value(given), right)
    return given


MAXN, TOP, LOWEST = "maxn", "-", "min"
MAX_CLOCK_DISTANCE = 0.15
"""Largest relative distance of a written clock to the nearest one of the board. A default: wide enough for clocks
rounded by hand, narrow enough to reject those of another board."""
MODE_SYNTAX = "CORES/CPU/GPU/MEMORY with clocks in MHz ('-' the board's top, 'min' its lowest)"


def parse_mode(text: str, named: Mapping[str, str], spec: DeviceSpec | None, where: str) -> PowerMode | None:
    """Resolve a mode text to a power mode; None for ``maxn`` where no mode can be set.

    Args:
        text: A name in ``named``, ``maxn``, a preset's name, or ``CORES/CPU/GPU/MEMORY`` with clocks in MHz.
        named: The plan's own modes: name -> text.
        spec: The board, whose nearest clocks are taken; None where no mode can be set: the numbers stay as written.
        where: Prefix of messages.

    Raises:
        BadInput: The board has no such core count, or no clock near one of those written.
        UnknownName: The text is neither a known name nor four knobs.
    """
    text = named.get(text, text)
    presets = {} if spec is None else {name.lower(): mode for name, mode in spec.presets.items()}
    if text.lower() == MAXN:
        return None if spec is None else spec.maxn
    if text.lower() in presets:
        return presets[text.lower()]
    words = text.split("/")
    if len(words) == len(PowerMode.__slots__):
        return _parse_mode_knobs(words, spec, f"{where} {text!r}" if text not in where else where)
    known = [] if spec is None else [name for name in spec.presets if name.lower() != MAXN]
    raise UnknownName(where, text, (*named, MAXN, *known, MODE_SYNTAX))


def _parse_mode_knobs(words: Sequence[str], spec: DeviceSpec | None, where: str) -> PowerMode:
    if spec is None:
        cores, *clocks = (_parse_number(word, where) for word in words)
        return PowerMode(_parse_whole_number(cores, where), *clocks)
    cores = _parse_cores(words[0], spec, where)
    tables = (spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz)
    clocks = [_find_nearest_clock(word, table, where) for word, table in zip(words[1:], tables, strict=True)]
    return PowerMode(cores, *clocks)


def _parse_cores(word: str, spec: DeviceSpec, where: str) -> int:
    if word in {TOP, LOWEST}:
        return max(spec.cores) if word == TOP else min(spec.cores)
    cores = _parse_whole_number(_parse_number(word, where), where)
    if cores not in spec.cores:
        raise BadInput(where, f"{cores} cores", f"one of {', '.join(map(str, spec.cores))} on {spec.name}")
    return cores


def _find_nearest_clock(word: str, table: Sequence[float], where: str) -> float:
    if word in {TOP, LOWEST}:
        return max(table) if word == TOP else min(table)
    wished = _parse_number(word, where)
    nearest = min(table, key=lambda value: abs(value - wished))
    if abs(nearest - wished) > MAX_CLOCK_DISTANCE * wished:
        raise BadInput(where, f"{wished:g} MHz", f"a clock that the board has ({', '.join(f'{v:g}' for v in table)})")
    return nearest


def _parse_number(word: str, where: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadInput(where, repr(word), MODE_SYNTAX)
    return value


def _parse_whole_number(value: float, where: str) -> int:
    if value != int(value):
        raise BadInput(where, f"{value:g} cores", "a whole number of cores")
    return int(value)
