"""Plans of sweeps, their points, and the knobs of a point: their values, descriptions, and what two points share.

A point is one setting of all knobs, measured once; its key names it on disk.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from fedge.types import DeviceSpec, PowerMode

WorkKind = Literal["train", "infer"]
CacheState = Literal["dropped", "warm"]
KNOBS = (
    *("mode", "workload", "kind", "batch_size", "workers", "prefetch"),
    *("pinned", "storage", "cache", "runtime", "dvfs"),
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


_Count = Annotated[int, Field(ge=1, le=10**9)]
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

    count: _Count
    width: _Pixels
    height: _Pixels
    channels: Literal[1, 3] = 3
    source: Literal["files", "memory"] = "files"
    kb: Annotated[float, Field(gt=0, le=1e6)] | None = None
    folder: str | None = None

    @property
    def mpixel(self) -> float:
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
    classes: _Count
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
    minibatches: _Count | None = None
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


KnobValue = str | int | float | bool

CLOCK_KNOBS = ("cpu_mhz", "gpu_mhz", "mem_mhz")
"""Knobs whose values differ from board to board."""
MODE_KNOBS = ("cores", *CLOCK_KNOBS)
ORDERED_KNOBS = (*MODE_KNOBS, "batch_size", "workers", "prefetch")
UNORDERED_KNOBS = ("kind", "pinned", "storage", "cache", "runtime", "dvfs")
REFERENCE_VALUES = {"cache": "dropped", "kind": "train", "runtime": "bare"}
"""The value of an unordered knob that others are compared with; without one, the alphabetically first."""
KIND_NAMES = {"train": "training", "infer": "inference"}
KNOB_TITLES = {
    "board": "board",
    "workload": "workload",
    "mode": "power mode",
    "cores": "CPU cores",
    "cpu_mhz": "CPU clock",
    "gpu_mhz": "GPU clock",
    "mem_mhz": "memory clock",
    "batch_size": "batch size",
    "workers": "loader workers",
    "prefetch": "prefetch",
    "kind": "work",
    "pinned": "pinned memory",
    "storage": "storage",
    "cache": "page cache",
    "runtime": "runtime",
    "dvfs": "DVFS",
}
CLOCK_FORMATS = {
    "cores": "{:g} cores",
    "cpu_mhz": "CPU {:g} MHz",
    "gpu_mhz": "GPU {:g} MHz",
    "mem_mhz": "memory {:g} MHz",
}
_FORMATS = {"mode": "mode {} MHz", "batch_size": "batch {}", "prefetch": "prefetch {}", "cache": "{} cache"}
_BLANK_VALUES: dict[str, Any] = {"batch_size": 0, "workers": 0, "prefetch": 0, "pinned": False, "dvfs": False}
_SETTING_KNOBS = KNOBS[:1] + KNOBS[3:]
"""The knobs that describe a setting of one workload and kind."""
_USUAL_VALUES = {
    "mode": None,
    "prefetch": DEFAULT_PREFETCH,
    "pinned": False,
    "storage": DEFAULT_STORAGE,
    "runtime": "bare",
    "dvfs": False,
}
"""Values that go without saying."""


@lru_cache(maxsize=1024)
def kind_of_board(board: str) -> str:
    """Return the kind of a board by its name: ``agx-xavier`` for ``agx-xavier-2``."""
    return re.sub(r"-\d+$", "", board)


def get_knob_value(point: SweepPoint, knob: str) -> KnobValue | None:
    """Return the value of a knob, or None for a knob of the mode if the mode is not known."""
    if knob in MODE_KNOBS:
        return None if point.mode is None else getattr(point.mode, knob)
    value: KnobValue = getattr(point, knob)
    return value


def format_mode(mode: PowerMode) -> str:
    """Format a mode as plans have it: "4/1190.4/675.75/1331.2"."""
    return f"{mode.cores}/{mode.cpu_mhz:g}/{mode.gpu_mhz:g}/{mode.mem_mhz:g}"


def format_knob_value(knob: str, value: KnobValue | PowerMode | None) -> str:
    """Format a value whose knob is clear from the context: "4", "1377", "training", "on"; "as found" for no mode."""
    if value is None or isinstance(value, PowerMode):
        return "as found" if value is None else str(value).removesuffix(" MHz")
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else KIND_NAMES.get(str(value), str(value))


def describe_knob(knob: str, value: Any) -> str:
    """Describe a value among those of other knobs: "4 workers", "batch 16", "warm cache", "GPU 1377 MHz"."""
    if knob == "workers":
        return "1 worker" if value == 1 else f"{value or 'no'} workers"
    if knob == "pinned":
        return "pinned memory" if value else "pageable memory"
    if knob in CLOCK_FORMATS:
        return CLOCK_FORMATS[knob].format(value)
    word = format_knob_value(knob, value)
    return f"DVFS {word}" if knob == "dvfs" else _FORMATS.get(knob, "{}").format(word)


@lru_cache(maxsize=65536)
def without_knob(point: SweepPoint, knob: str) -> SweepPoint:
    """Return the point with this knob blanked, which is equal for all points that differ in this knob alone."""
    if knob in MODE_KNOBS:
        return replace(point, mode=replace(point.mode or PowerMode(0, 0, 0, 0), **{knob: 0}))
    return replace(point, **{knob: _BLANK_VALUES.get(knob, "")})


def describe_setting(point: SweepPoint) -> str:
    """Describe the whole setting: "training, batch 16, 1 worker, dropped cache"."""
    return f"{KIND_NAMES[point.kind]}, {describe_other_knobs(point, '')}"


def describe_other_knobs(point: SweepPoint, knob: str) -> str:
    """Describe all of a setting but one knob: "batch 16, 1 worker, warm cache"."""
    words = _describe_unusual_knobs(point)
    if knob in MODE_KNOBS and point.mode is not None:
        words["mode"] = ", ".join(describe_knob(one, getattr(point.mode, one)) for one in MODE_KNOBS if one != knob)
    return ", ".join(word for name, word in words.items() if name != knob and word)


def describe_differences(point: SweepPoint, among: Sequence[SweepPoint]) -> str:
    """Describe a setting by the knobs that are not the same in all settings of a group; empty if nothing differs.

    If the group's power modes differ in one knob alone, the mode is named by that knob.
    """
    every = [_describe_unusual_knobs(one) for one in among]
    own = {name: describe_knob(name, getattr(point, name)) for name in _SETTING_KNOBS}
    own["prefetch"] = own["prefetch"] if point.workers else ""
    parts = [one for one in MODE_KNOBS if len({getattr(each.mode, one) for each in among if each.mode is not None}) > 1]
    if point.mode is None or len(parts) == 1:
        own["mode"] = "" if point.mode is None else describe_knob(parts[0], getattr(point.mode, parts[0]))
    differ = [name for name in own if len({words[name] for words in every}) > 1]
    return ", ".join(own[name] for name in differ if own[name])


def _describe_unusual_knobs(point: SweepPoint) -> dict[str, str]:
    """Describe each knob; empty where it has its usual value, or no effect."""
    values = {name: getattr(point, name) for name in _SETTING_KNOBS}
    hidden = {name for name, value in values.items() if name in _USUAL_VALUES and value == _USUAL_VALUES[name]}
    hidden |= set() if point.workers else {"prefetch"}
    return {name: "" if name in hidden else describe_knob(name, value) for name, value in values.items()}


def describe_point(point: SweepPoint) -> str:
    """Describe a point: "nano-1, lenet5-mnist: training, batch 16, no workers, dropped cache, repeat 2"."""
    again = f", repeat {point.repeat + 1}" if point.repeat else ""
    return f"{point.board}, {point.workload}: {describe_setting(point)}{again}"
