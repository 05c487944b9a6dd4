"""Plans of sweeps and their points: one point is one setting of all knobs, measured once; its key names it on disk."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from fedge.errors import BadInput, UnknownName
from fedge.types import DeviceSpec, PowerMode

WorkKind = Literal["train", "infer"]
CacheState = Literal["dropped", "warm"]
KNOBS = (
    "mode",
    "workload",
    "kind",
    "batch_size",
    "workers",
    "prefetch",
    "pinned",
    "storage",
    "cache",
    "runtime",
    "dvfs",
)
"""The knobs that a sweep may vary, in display order; board and repeat are not among them."""


DEFAULT_PREFETCH = 2
"""Batches that each loader worker prepares ahead unless a plan says otherwise: PyTorch's own default."""
DEFAULT_STORAGE = "default"
"""Name of the storage in a plan that names none."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One setting of all knobs on one board.

    Attributes:
        board: ``here``, or an emulated board's own name such as ``agx-xavier-1``.
        workers: Loader processes; without any, the training process loads.
        pinned: Whether batches go to page-locked memory.
        cache: ``dropped``: the page cache is emptied before the first epoch only, later epochs find what it left;
            ``warm``: every file was read before.
        runtime: ``bare``, or ``docker:IMAGE``, ``podman:IMAGE``, with ``nvidia+`` in front for NVIDIA's runtime.
        dvfs: Whether clocks may follow the load, below those of the mode.
        repeat: Number of the repeat, from 0.
    """

    board: str
    workload: str
    mode: PowerMode | None = None
    kind: WorkKind = "train"
    batch_size: int = 16
    workers: int = 0
    prefetch: int = DEFAULT_PREFETCH
    pinned: bool = False
    storage: str = DEFAULT_STORAGE
    cache: CacheState = "dropped"
    runtime: str = "bare"
    dvfs: bool = False
    repeat: int = 0

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits that identify the point, equal for equal settings in any plan and version."""
        return hashlib.sha256(json.dumps(self.as_data(), sort_keys=True).encode()).hexdigest()[:12]

    def as_data(self) -> dict[str, Any]:
        """Convert to JSON-compatible data; ``mode`` becomes [cores, CPU MHz, GPU MHz, memory MHz] or null."""
        return asdict(self) | {"mode": None if self.mode is None else list(self.mode.knobs)}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Create a point from the output of ``as_data``; raises KeyError, TypeError or ValueError if it is no such."""
        given = {one.name: data[one.name] for one in fields(cls)}
        if given["mode"] is not None:
            cores, cpu_mhz, gpu_mhz, mem_mhz = map(float, given["mode"])
            given["mode"] = PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)
        return cls(**given)


Count = Annotated[int, Field(ge=1, le=10**9)]
_Pixels = Annotated[int, Field(ge=1, le=20_000)]
_Repeats = Annotated[int, Field(ge=1, le=10_000)]
_Text = Annotated[str, Field(min_length=1)]


class StrictRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Images(StrictRecord):
    """A data set of images.

    Attributes:
        source: ``files`` are JPEGs in a folder per class, ``memory`` is one array that is read at once.
        kb: Mean file size in kB; None: as JPEG yields (measured here; ``JPEG_KB_PER_MPIXEL`` on emulated boards).
        folder: The user's own image folder; None: images are generated, identical for identical parameters.
    """

    count: Count
    width: _Pixels
    height: _Pixels
    channels: Literal[1, 3] = 3
    source: Literal["files", "memory"] = "files"
    kb: Annotated[float, Field(gt=0, le=1e6)] | None = None
    folder: str | None = None

    @property
    def mpixel(self) -> float:
        """Megapixels of a stored image."""
        return self.width * self.height / 1e6


def _as_shape(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise ValueError("a list of channels, height and width, for example [3, 224, 224]")
    return tuple(value)


def expand_count(value: object) -> object:
    """Expand the shorthand ``images: 512`` to ``images: {count: 512}``."""
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


class WorkloadRecord(StrictRecord):
    """A workload as a plan's file describes it: a network, its input, and the images behind it.

    Attributes:
        model: A torchvision name, one of fedge's own networks, or the user's ``module:function``.
        input: Channels, height and width of a sample.
    """

    shorthands: ClassVar = ("like", "count")
    model: _Text
    input: Annotated[tuple[_Pixels, _Pixels, _Pixels], BeforeValidator(_as_shape)]
    classes: Count
    images: Annotated[Images, BeforeValidator(expand_count)]
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.01
    momentum: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.9


class WorkloadPlan(WorkloadRecord):
    """A training or inference workload by its name in the plan."""

    name: str


class StorageRecord(StrictRecord):
    """A storage of images.

    Attributes:
        path: Folder on this machine in which the images are made.
        model: Emulated storage, such as ``sd`` or ``nvme``.
    """

    path: _Text | None = None
    model: _Text | None = None


class StoragePlan(StorageRecord):
    """A storage by its name in the plan."""

    name: str


class MeasurementSchedule(StrictRecord):
    """How every point is measured.

    Attributes:
        epochs: Epochs per point.
        discard: First epochs that are shown but excluded from the statistics.
        minibatches: Largest number of minibatches of an epoch; None for all.
        repeats: Repetitions of every point, in an order drawn by the seed.
        every_s: Least time from the start of one repeat to the next; the board idles in between.
        sample_hz: Readings of the power sensor per second.
    """

    epochs: _Repeats = 3
    discard: Annotated[int, Field(ge=0)] = 1
    minibatches: Count | None = None
    repeats: _Repeats = 1
    every_s: Annotated[float, Field(ge=0, le=1e7)] = 0.0
    sample_hz: Annotated[float, Field(gt=0, le=100)] = 5.0


@dataclass(frozen=True, slots=True)
class CharacterisationPlan:
    """A sweep.

    Attributes:
        points: All points in measuring order: shuffled by the seed within each repeat.
        base: The value of each knob where a sweep does not vary it.
        swept: The knobs that each sweep of the plan varies.
    """

    name: str
    boards: tuple[str, ...]
    workloads: Mapping[str, WorkloadPlan]
    storages: Mapping[str, StoragePlan]
    course: MeasurementSchedule
    points: tuple[SweepPoint, ...]
    seed: int = 0
    base: Mapping[str, Any] = field(default_factory=dict)
    swept: tuple[tuple[str, ...], ...] = ()


def plan_as_data(plan: CharacterisationPlan) -> dict[str, Any]:
    """Convert a plan to JSON-compatible data; equal plans give equal data."""
    data: dict[str, Any] = TypeAdapter(CharacterisationPlan).dump_python(replace(plan, points=()), mode="json")
    return data | {"points": [point.as_data() for point in plan.points]}


def plan_from_data(data: dict[str, Any]) -> CharacterisationPlan:
    """Create a plan from the output of ``plan_as_data``; raises KeyError, TypeError or ValueError if it is no such."""
    points = tuple(SweepPoint.from_data(one) for one in data["points"])
    return replace(TypeAdapter(CharacterisationPlan).validate_python(data | {"points": ()}), points=points)


HERE, EMULATED = "here", "emulated:"


def device_name(board: str) -> str | None:
    """Return the catalogue's name of an emulated board such as ``agx-xavier-1``, or None for this machine."""
    return None if board == HERE else board.rpartition("-")[0]


def load_board_spec(board: str) -> DeviceSpec | None:
    """Load a board's knobs and presets; None where no power mode can be set.

    Raises:
        BoardError: The power daemon does not answer.
        UnknownName: The catalogue has no such board.
    """
    device = device_name(board)
    if device is not None:
        from fedge.devices import catalogue

        return catalogue.find(device, "board")
    from fedge.devices import local_board
    from fedge.devices.board_spec import build_board_spec

    place = local_board.BoardLocation()
    if not Path(place.power_socket).exists():
        return None
    described = local_board.describe_board(place)
    catalogued = local_board.find_board_spec(place, local_board.parse_identity(described), described)
    return build_board_spec(catalogued, described, catalogued.total_power)


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


Sweep = Mapping[str, Sequence[Any]]
"""Knob -> its values, crossed with those of the sweep's other knobs."""


def cross_knobs(board: str, base: Mapping[str, Any], sweeps: Iterable[Sweep]) -> tuple[SweepPoint, ...]:
    """Return the points of one board, each once, in the order of the sweeps.

    ``base`` has the knobs that differ from ``SweepPoint``'s defaults; an empty sweep is the base itself. Without loader
    workers, settings that differ only in prefetch are one point.
    """
    found: dict[SweepPoint, None] = {}
    for sweep in sweeps:
        for values in product(*sweep.values()):
            turned = dict(zip(sweep, values, strict=True))
            point = SweepPoint(**{"board": board, **base, **turned})
            found[point if point.workers else replace(point, prefetch=DEFAULT_PREFETCH)] = None
    return tuple(found)


def order_points(points: Iterable[SweepPoint], repeats: int, seed: int) -> tuple[SweepPoint, ...]:
    """Return every point once per repeat, shuffled by ``seed`` within each; one repeat follows the other."""

    def rank(point: SweepPoint) -> bytes:
        return hashlib.sha256(f"{seed} {point.key}".encode()).digest()

    once = tuple(dict.fromkeys(points))
    every = ([replace(point, repeat=repeat) for point in once] for repeat in range(repeats))
    return tuple(point for repeat in every for point in sorted(repeat, key=rank))
