"""The board catalogue: one YAML file per board, validated strictly and converted to a ``DeviceSpec``.

The stock boards are in ``catalogue/`` beside this file; a user's own file has the same format (docs/how-to/devices.md).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fedge.errors import BadInput, UnknownName, check_known
from fedge.types import DeviceSpec, Label, LabelledValue, PowerMode
from fedge.user_catalogue import read_catalogue
from fedge.yaml_files import read_yaml, read_yaml_mapping, validate_fields

logger = logging.getLogger(__name__)

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader if available: a client reads all files for every message, and the pure Python loader is ten times
slower.
"""
GPU_WORKSTATION = "gpu-workstation"
"""Device of a machine with NVIDIA GPUs, which is in no catalogue: what it can do, only it says itself."""
UNCAPPED = "MAXN"
"""The preset with every knob at its maximum, which every board has."""
PRESET_SLACK = 0.06
"""Largest relative difference between a preset and its table entry. nvpmodel files contain rounded clocks (900 for
905.25, 640 for 614.4), and boards snap them to the nearest; a larger difference is a mistake.
"""
MAX_TABLE_LENGTH = 1000
"""Entries of a clock table, more than any board has; a longer range is a typing error."""
FIGURE_FIELDS = ("ram_gb", "idle_w", "max_w", "gpu_gflops", "mem_gbps", "cpu_score")
"""Fields that are single numbers, each with its own source."""
PLAIN_FIELDS = ("name", "title", "cores", "cpu_mhz", "gpu_mhz", "mem_mhz", "default_preset", "total_power")
TEXT_LISTS = ("rails", "accelerators", "jetpacks")
"""Fields that a ``DeviceSpec`` takes as they are in the file, and as tuples."""
CITED_FIELDS = (
    "modules", "cores", "cpu_mhz", "gpu_mhz", "mem_mhz", "presets", "default_preset",
    "rails", "total_power", "accelerators", "jetpacks",
)  # fmt: skip
"""Fields whose label and source are listed under ``sources``."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Range(_Strict):
    start: float = Field(alias="from")
    to: float
    step: float = Field(default=1.0, gt=0)
    more: list[float] = Field(default_factory=list, alias="and")


def _parse_table(value: object) -> tuple[float, ...]:
    """Parse a knob's table from a list or a range; the ``ValueError`` says what is valid."""
    values = _expand_range(value) if isinstance(value, dict) else value
    if not isinstance(values, list) or not values or not all(type(v) in (int, float) for v in values):
        raise ValueError("a list of numbers, or a range {from, to, step, and}")
    if not all(math.isfinite(v) for v in values):
        raise ValueError("finite numbers")
    numbers = tuple(round(float(v), 4) for v in values)
    if numbers[0] <= 0 or any(b <= a for a, b in pairwise(numbers)):
        raise ValueError("values above 0, each larger than the one before")
    return numbers


def _expand_range(value: dict[object, object]) -> list[float]:
    try:
        given = _Range.model_validate(value)
    except ValidationError as error:
        raise ValueError("a range of numbers: from, to, step (1 if left out), and a list 'and'") from error
    steps = (given.to - given.start) / given.step
    if not 0 <= steps < MAX_TABLE_LENGTH:
        raise ValueError(f"a range that rises in at most {MAX_TABLE_LENGTH} steps")
    if abs(given.start + round(steps) * given.step - given.to) > 1e-6:
        raise ValueError("a range whose 'to' is 'from' plus whole steps")
    return [given.start + i * given.step for i in range(round(steps) + 1)] + given.more


def _parse_core_counts(value: object) -> tuple[int, ...]:
    numbers = _parse_table(value)
    if any(number != int(number) for number in numbers):
        raise ValueError("whole numbers of cores")
    return tuple(int(number) for number in numbers)


_Table = Annotated[tuple[float, ...], BeforeValidator(_parse_table)]
_Counts = Annotated[tuple[int, ...], BeforeValidator(_parse_core_counts)]
_Text = Annotated[str, Field(min_length=1)]
_Texts = Annotated[list[_Text], Field(min_length=1)]


class _Cited(_Strict):
    label: Label
    source: _Text

    def __str__(self) -> str:
        return f"{self.label}: {self.source}"


class _Figure(_Cited):
    value: float = Field(gt=0, allow_inf_nan=False)


class _Preset(_Strict):
    """The caps of a preset; a missing knob is not capped."""

    cores: int | None = None
    cpu_mhz: float | None = None
    gpu_mhz: float | None = None
    mem_mhz: float | None = None


class _Board(_Strict):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    aliases: list[_Text] = Field(default_factory=list)
    title: _Text
    modules: _Texts
    cores: _Counts
    cpu_mhz: _Table
    gpu_mhz: _Table
    mem_mhz: _Table
    presets: Annotated[dict[str, _Preset], Field(min_length=1)]
    default_preset: _Text
    ram_gb: _Figure
    idle_w: _Figure
    max_w: _Figure
    gpu_gflops: _Figure
    mem_gbps: _Figure
    cpu_score: _Figure
    rails: _Texts
    total_power: _Text
    accelerators: _Texts
    jetpacks: _Texts
    sources: dict[str, _Cited]


def load_catalogue() -> Mapping[str, DeviceSpec]:
    """Return the stock boards and the user's by canonical name, in alphabetical order; read once per process."""
    return _load_all()[0]


def aliases() -> Mapping[str, str]:
    """Return the canonical name for each alias of a board."""
    return _load_all()[1]


def find(name: str, where: str = "--board") -> DeviceSpec:
    """Find a board by name, by alias, or by the path of a YAML file.

    Raises:
        UnknownName: No board has this name; lists the known names.
        BadInput: The YAML file is invalid.
    """
    if name.endswith((".yaml", ".yml")):
        return load_spec(Path(name))
    specs, others = _load_all()
    canonical = others.get(name, name)
    if canonical not in specs:
        raise UnknownName(where, name, (*specs, *others))
    return specs[canonical]


def is_catalogued(name: str) -> bool:
    """Return whether a device is one of a catalogue: of any other, nothing is known before it answers."""
    return name != GPU_WORKSTATION


def canonical_name(name: str) -> str:
    """Return the name of a device without aliases; raises as ``find`` does."""
    return find(name, where="fleet.device").name if is_catalogued(name) else name


def load_spec(path: Path | str) -> DeviceSpec:
    """Load a board from the user's own YAML file.

    Raises:
        BadInput: The file is invalid; names the file and the field.
    """
    content = read_yaml_mapping(Path(path), "a mapping of a board's fields (docs/how-to/devices.md)")
    return _build_spec(validate_fields(_Board, content, str(path)), str(path))


@lru_cache(maxsize=1)
def _load_all() -> tuple[Mapping[str, DeviceSpec], Mapping[str, str]]:
    """Return all boards and aliases; a board of the user cannot take the name of another."""
    stock, stock_aliases = _load_stock()
    specs, others = dict(stock), dict(stock_aliases)
    for board, where in read_catalogue("boards", _read_board):
        names = {board.name, *board.aliases}
        if taken := names & (specs.keys() | others.keys()):
            logger.warning("%s: the name %s is another board's; skipped", where, min(taken))
            continue
        specs[board.name] = _build_spec(board, where)
        others |= dict.fromkeys(board.aliases, board.name)
    return MappingProxyType(dict(sorted(specs.items()))), MappingProxyType(others)


def _read_board(file: Traversable) -> tuple[_Board, str]:
    """Read and check a board of the user; returns it and the name of its file."""
    where = str(file)
    board = validate_fields(_Board, read_yaml(file), where)
    _build_spec(board, where)
    return board, where


@lru_cache(maxsize=1)
def _load_stock() -> tuple[Mapping[str, DeviceSpec], Mapping[str, str]]:
    folder = resources.files("fedge.devices") / "catalogue"
    files = [file for file in folder.iterdir() if file.name.endswith(".yaml")]
    contents = ((yaml.load(file.read_text(encoding="utf-8"), _LOADER), file.name) for file in files)  # noqa: S506 -- safe
    boards = sorted(((validate_fields(_Board, *one), one[1]) for one in contents), key=lambda pair: pair[0].name)
    specs = {board.name: _build_spec(board, where) for board, where in boards}
    others = {alias: board.name for board, _ in boards for alias in board.aliases}
    return MappingProxyType(specs), MappingProxyType(others)


def _build_spec(board: _Board, where: str) -> DeviceSpec:
    presets = {name: _build_preset(board, name, caps, where) for name, caps in board.presets.items()}
    top = PowerMode(board.cores[-1], board.cpu_mhz[-1], board.gpu_mhz[-1], board.mem_mhz[-1])
    presets.setdefault(UNCAPPED, top)
    _check_names(board, tuple(presets), where)
    if presets[UNCAPPED] != top:
        raise BadInput(f"{where}: presets.{UNCAPPED}", str(presets[UNCAPPED]), f"every knob at its top, {top}")
    taken: dict[str, Any] = {name: getattr(board, name) for name in PLAIN_FIELDS}
    taken |= {name: tuple(getattr(board, name)) for name in TEXT_LISTS}
    taken |= {name: LabelledValue(one.value, one.label, one.source) for name, one in _figures(board).items()}
    sources = MappingProxyType(_collect_sources(board))
    return DeviceSpec(**taken, presets=MappingProxyType(presets), sources=sources)


def _check_names(board: _Board, presets: tuple[str, ...], where: str) -> None:
    """Check that names inside the file refer to each other; raise ``UnknownName`` or ``BadInput``."""
    check_known(f"{where}: default_preset", board.default_preset, presets)
    for rail in board.total_power.split("+"):
        check_known(f"{where}: total_power", rail.strip(), board.rails)
    for field in CITED_FIELDS:
        if field not in board.sources:
            raise BadInput(f"{where}: sources.{field}", "nothing", "a label and a source for every field")
    for field in board.sources:
        check_known(f"{where}: sources", field, CITED_FIELDS)


def _build_preset(board: _Board, name: str, caps: _Preset, where: str) -> PowerMode:
    field = f"{where}: presets.{name}"
    if caps.cores is not None and caps.cores not in board.cores:
        raise BadInput(f"{field}.cores", str(caps.cores), f"one of {', '.join(map(str, board.cores))}")
    return PowerMode(
        caps.cores or board.cores[-1],
        _snap_to_table(board.cpu_mhz, caps.cpu_mhz, f"{field}.cpu_mhz"),
        _snap_to_table(board.gpu_mhz, caps.gpu_mhz, f"{field}.gpu_mhz"),
        _snap_to_table(board.mem_mhz, caps.mem_mhz, f"{field}.mem_mhz"),
    )


def _snap_to_table(table: tuple[float, ...], cap: float | None, where: str) -> float:
    if cap is None:
        return table[-1]
    closest = min(table, key=lambda value: abs(value - cap))
    if not abs(closest - cap) <= PRESET_SLACK * closest:
        raise BadInput(where, f"{cap:g} MHz", f"a clock of the board's table (nearest: {closest:g})")
    return closest


def _figures(board: _Board) -> dict[str, _Figure]:
    return {field: getattr(board, field) for field in FIGURE_FIELDS}


def _collect_sources(board: _Board) -> dict[str, str]:
    """Return ``label: source`` by field; ``modules`` also lists the numbers, for which ``DeviceSpec`` has no field."""
    cited = {field: str(board.sources[field]) for field in CITED_FIELDS}
    modules = board.sources["modules"]
    cited["modules"] = f"{modules.label}: {', '.join(board.modules)}; {modules.source}"
    return cited | {field: str(figure) for field, figure in _figures(board).items()}
