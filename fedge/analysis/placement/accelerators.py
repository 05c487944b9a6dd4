"""A board's accelerators for inference, instances of a network on them, and placements of instances.

Build the accelerators of a catalogue board: counts from its text, peaks and shares from ``boards.yaml``.

The CUDA cores' speed and spill batch are solved from one known point: the best throughput and its batch size.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

from fedge.costs.cost_profile import load_yaml
from fedge.errors import BadInput
from fedge.types import DeviceSpec, Label, LabelledValue

NEVER = float("inf")
DLA_1 = frozenset({
    "conv", "conv_transpose", "linear", "batch_norm", "max_pool", "avg_pool", "adaptive_avg_pool", "mean", "relu",
    "relu6", "clamp", "leaky_relu", "prelu", "sigmoid", "tanh", "silu", "add", "sub", "mul", "max_of", "abs", "cat",
    "upsample_nearest", "upsample_linear", "local_response_norm",
})  # fmt: skip
"""DLA 1.0 (Xavier). A dense layer runs as a convolution, a mean over an image as pooling, SiLU as sigmoid times x."""
DLA_2 = DLA_1 | {"softmax"}
"""DLA 2.0 (Orin)."""
DLA_GENERATIONS = {1: DLA_1, 2: DLA_2}


@dataclass(frozen=True, slots=True)
class PrecisionSpeed:
    """The speed of an accelerator in one precision."""

    precision: str
    flop_per_s: float
    """Attained FLOP per second without other limits; below the peak."""
    bytes_scale: float
    """Bytes moved per byte counted at four bytes per element."""
    launch_s: float
    """Seconds per operator during which the accelerator is occupied without computing."""
    batch_s: float = 0.0
    """The same per batch."""
    offered: bool = True
    """Whether a planner may choose it; not before it has a measured or known speed."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Hardware on which an instance can run. Accelerators of one ``engine`` share it, as two kinds of GPU cores do."""

    name: str
    engine: str
    speeds: tuple[PrecisionSpeed, ...]
    bandwidth_share: float = 1.0
    """Share of the board's usable memory bandwidth that it can draw."""
    spill_batch: float = NEVER
    """Batch size at which its caches no longer help and activations are moved twice."""
    hindrance: float = 1.0
    """How much an instance that occupies the engine delays another: 1, but less on a processor with several cores."""
    full_w: float = 0.0
    """Watts above idle while it computes or moves bytes."""
    waiting_w: float = 0.0
    """Watts above idle while it is occupied without working."""
    supported: frozenset[str] | None = None
    """Kinds of operators that it runs; the others fall back to the GPU. None: all."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that a planner may choose."""
        return tuple(speed.precision for speed in self.speeds if speed.offered)

    def speed(self, precision: str) -> PrecisionSpeed:
        """Return its speed in a precision.

        Raises:
            KeyError: If it does not have the precision.
        """
        for speed in self.speeds:
            if speed.precision == precision:
                return speed
        raise KeyError(precision)


@dataclass(frozen=True, slots=True)
class GpuFallback:
    """The engine for operators that an accelerator does not support, with seconds per switch and watts meanwhile."""

    engine: str
    speed: PrecisionSpeed
    switch_s: float
    full_w: float


@dataclass(frozen=True, slots=True)
class PlacementBoard:
    """Accelerators that share a memory; ``bandwidth`` is the usable one in bytes per second."""

    name: str
    accelerators: tuple[Accelerator, ...]
    bandwidth: float
    corner: float
    """How sharply time turns from computing to moving bytes: (compute^n + memory^n)^(1/n)."""
    overlap: float
    """How much two kinds of cores of one engine delay each other: 0 not at all, 1 as if they were one."""
    idle_w: float
    memory_j: float
    """Joules per byte moved."""
    fallback: GpuFallback | None = None
    label: Label = "estimated"
    source: str = ""
    figures: tuple[tuple[str, LabelledValue], ...] = field(default=())
    """Every number with its source."""

    @property
    def accelerator_names(self) -> tuple[str, ...]:
        return tuple(accelerator.name for accelerator in self.accelerators)

    def accelerator(self, name: str) -> Accelerator:
        """Return the accelerator of this name.

        Raises:
            KeyError: If there is none.
        """
        for accelerator in self.accelerators:
            if accelerator.name == name:
                return accelerator
        raise KeyError(name)


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """A copy of the network that runs one batch after the other on an accelerator."""

    accelerator: str
    batch_size: int
    precision: str

    def __str__(self) -> str:
        return f"{self.accelerator} (batch {self.batch_size}, {self.precision})"


@dataclass(frozen=True, slots=True)
class Placement:
    """Instances that run at the same time."""

    instances: tuple[Instance, ...]

    def __str__(self) -> str:
        counts = Counter(self.instances)
        return " + ".join(f"{n} x {one}" if n > 1 else str(one) for one, n in counts.items()) or "nothing"

    @property
    def combination(self) -> str:
        """The accelerators in use, as the paper's figure labels its lines."""
        return " + ".join(dict.fromkeys(instance.accelerator for instance in self.instances))


SMALLEST_SPILL, LARGEST_SPILL = 1.0, 1e6
_BISECTION_STEPS = 200


@dataclass(frozen=True, slots=True)
class ThroughputAnchor:
    """The best throughput of an accelerator alone, and the batch size that reaches it.

    FLOP and bytes of activations are per image, bytes of weights and seconds of launches per batch.
    """

    images_per_s: float
    batch_size: float
    flop: float
    weight_bytes: float
    activation_bytes: float
    fixed_s: float
    bandwidth: float
    corner: float

    def solve(self) -> tuple[float, float]:
        """Return the FLOP per second and spill batch for which the anchor is the maximum over the batch size.

        With Z = compute^n + memory^n the time beyond launches, throughput is largest where the saving of launches by a
        larger batch, fixed / b^2 per image, equals its cost by spilling.

        Raises:
            ValueError: If no speed reaches the anchor.
        """
        low, high = SMALLEST_SPILL, LARGEST_SPILL
        for _ in range(_BISECTION_STEPS):
            middle = (low * high) ** 0.5
            if self._is_rising(middle):
                high = middle
            else:
                low = middle
        compute_s = self._compute_s(self._memory_s(high))
        if compute_s is None:
            raise ValueError(f"no speed reaches {self.images_per_s} images/s with this bandwidth")
        return self.flop * self.batch_size / compute_s, high

    def _memory_s(self, spill: float) -> float:
        grown = 1 + self.batch_size / spill
        return (self.weight_bytes + self.batch_size * self.activation_bytes * grown) / self.bandwidth

    def _compute_s(self, memory_s: float) -> float | None:
        """Return the compute seconds of a batch at this throughput, or None if its bytes alone take longer."""
        left_s = self.batch_size / self.images_per_s - self.fixed_s
        rest = left_s**self.corner - memory_s**self.corner
        return float(rest ** (1 / self.corner)) if left_s > 0 and rest > 0 else None

    def _is_rising(self, spill: float) -> bool:
        """Return whether throughput still rises with the batch size: fixed + w (weights and spill) > 0."""
        b, n, memory_s = self.batch_size, self.corner, self._memory_s(spill)
        compute_s = self._compute_s(memory_s)
        if compute_s is None:
            return False
        roof_s = (compute_s**n + memory_s**n) ** (1 / n)
        # d(T/b)/db * b^2 = b dT/db - T, with compute proportional to b.
        memory_slope_s = b * self.activation_bytes * (1 + 2 * b / spill) / self.bandwidth
        slope_s = (compute_s**n + memory_s ** (n - 1) * memory_slope_s) * roof_s ** (1 - n)
        return bool(slope_s < self.fixed_s + roof_s)


GPU, CUDA, TENSOR = "gpu", "cuda-cores", "tensor-cores"
FP32, TF32, MIXED, FP16, INT8 = "fp32", "tf32", "mixed", "fp16", "int8"
MAX_POWER_FIGURE = "maximum watts"
"""Name of the catalogue's maximum power among a board's figures."""
UNIT_SUFFIXES = {"us": "us", "ms": "ms", "mb": "MB", "gflop": "GFLOP", "gflops": "GFLOP/s", "gbps": "GB/s"}
"""Suffixes of the file's names, and how their units are written."""
AMPERE_FLOP_PER_CLOCK = 256
"""Tensor cores above this support TF32."""
SOURCE = "PyTorch, and TensorRT on DLA, after arXiv 2503.09546 (fedge/analysis/placement/boards.yaml)"


def build_placement_board(spec: DeviceSpec) -> PlacementBoard:
    """Return the estimated accelerators of a board at MAXN.

    Raises:
        BadInput: For a board outside the catalogue of accelerators.
    """
    stack, boards = _load_figures()
    if spec.name not in boards:
        right = f"one of {', '.join(boards)}: nothing is known of another board's accelerators"
        raise BadInput("--board", repr(spec.name), right)
    own = boards[spec.name]
    flop_per_s, spill_batch = _solve_cuda_anchor()
    speed = flop_per_s / (1e9 * _anchor_value("peak_gflops"))
    fp32 = PrecisionSpeed(FP32, speed * 1e9 * spec.gpu_gflops.value, 1.0, 1e-6 * stack["cuda_launch_us"].value)
    tensor, tensor_figures = _build_tensor_cores(spec, own, fp32, spill_batch)
    dlas, dla_figures = _build_dlas(spec, own)
    gpu_w = stack["cuda_watts_share"].value * (spec.max_w.value - spec.idle_w.value)
    waiting_w = stack["waiting_share"].value * gpu_w
    cuda = Accelerator(CUDA, engine=GPU, speeds=(fp32,), spill_batch=spill_batch, full_w=gpu_w, waiting_w=waiting_w)
    half = PrecisionSpeed(FP16, fp32.flop_per_s, 0.5, fp32.launch_s)
    return PlacementBoard(
        name=spec.name,
        accelerators=(cuda, *tensor, *dlas),
        bandwidth=1e9 * spec.mem_gbps.value * stack["usable_bandwidth"].value,
        corner=stack["corner"].value,
        overlap=stack["overlap"].value,
        idle_w=spec.idle_w.value,
        memory_j=1e-12 * stack["memory_pj_per_byte"].value,
        fallback=GpuFallback(GPU, half, 1e-6 * stack["switch_us"].value, gpu_w),
        label="estimated",
        source=SOURCE,
        figures=(*_common_figures(spec), *tensor_figures, *dla_figures),
    )


def _count_units(spec: DeviceSpec, what: str) -> int:
    """Return the number of units of a kind in the catalogue's text of accelerators."""
    found = [re.match(rf"(\d+) {what}", text) for text in spec.accelerators]
    return next((int(one.group(1)) for one in found if one), 0)


def _build_tensor_cores(
    spec: DeviceSpec, own: Mapping[str, Any], fp32: PrecisionSpeed, spill_batch: float
) -> tuple[tuple[Accelerator, ...], tuple[tuple[str, LabelledValue], ...]]:
    """Build tensor cores in mixed precision; TF32 has no known figure and is not offered until measured."""
    cores = _count_units(spec, "tensor cores")
    if not cores:
        return (), ()
    stack, per_clock = _load_figures()[0], own["tensor_flop_per_clock"]
    peak = cores * per_clock.value * 1e6 * max(spec.gpu_mhz)
    mixed = PrecisionSpeed(
        MIXED,
        stack["mixed_of_peak"].value * peak,
        stack["mixed_bytes_scale"].value,
        1e-6 * stack["mixed_launch_us"].value,
    )
    tf32 = PrecisionSpeed(TF32, fp32.flop_per_s, 1.0, fp32.launch_s, offered=False)
    speeds = (mixed, tf32) if per_clock.value > AMPERE_FLOP_PER_CLOCK else (mixed,)
    watts = stack["tensor_watts_share"].value * (spec.max_w.value - spec.idle_w.value)
    waiting_w = stack["waiting_share"].value * watts
    place = Accelerator(TENSOR, engine=GPU, speeds=speeds, spill_batch=spill_batch, full_w=watts, waiting_w=waiting_w)
    return (place,), (("tensor core's FLOP per clock", per_clock),)


def _build_dlas(
    spec: DeviceSpec, own: Mapping[str, Any]
) -> tuple[tuple[Accelerator, ...], tuple[tuple[str, LabelledValue], ...]]:
    """Build one accelerator per DLA core; the paper does not name its precision, hence both have the same speed."""
    count = _count_units(spec, "DLA")
    if not count:
        return (), ()
    stack, dla = _load_figures()[0], own["dla"]
    reached = stack["dla_of_peak"].value * 1e12 * dla["tops"].value
    batch_s = 1e-3 * stack["dla_batch_ms"].value
    speeds = (
        PrecisionSpeed(FP16, flop_per_s=reached, bytes_scale=0.5, launch_s=0.0, batch_s=batch_s),
        PrecisionSpeed(INT8, flop_per_s=reached, bytes_scale=0.25, launch_s=0.0, batch_s=batch_s),
    )
    places = tuple(
        Accelerator(
            name=f"dla-{i}",
            engine=f"dla-{i}",
            speeds=speeds,
            bandwidth_share=stack["dla_bandwidth_share"].value,
            spill_batch=stack["dla_spill_batch"].value,
            full_w=dla["watts"].value,
            waiting_w=stack["waiting_share"].value * dla["watts"].value,
            supported=DLA_GENERATIONS[dla["generation"]],
        )
        for i in range(count)
    )
    return places, (("dense INT8 TOPS of a DLA core", dla["tops"]), ("watts of a DLA core", dla["watts"]))


def _common_figures(spec: DeviceSpec) -> tuple[tuple[str, LabelledValue], ...]:
    """Return the catalogue's and the software stack's figures for display."""
    catalogue = (
        ("CUDA cores' fp32 peak, GFLOP/s", spec.gpu_gflops),
        ("memory bandwidth, GB/s", spec.mem_gbps),
        ("idle watts", spec.idle_w),
        (MAX_POWER_FIGURE, spec.max_w),
    )
    stack = _load_figures()[0]
    return (*catalogue, *((_format_figure_name(name), figure) for name, figure in stack.items()))


def _format_figure_name(name: str) -> str:
    """Return a name of the file in words, its unit after a comma: ``cuda launch, us``."""
    words = name.split("_")
    unit = UNIT_SUFFIXES.get(words[-1])
    return " ".join(words) if unit is None else f"{' '.join(words[:-1])}, {unit}"


def _anchor_value(name: str) -> float:
    return float(_load_figures()[0][f"anchor {name}"].value)


@lru_cache(maxsize=1)
def _solve_cuda_anchor() -> tuple[float, float]:
    """Return the CUDA cores' speed and spill batch on the board of the anchor measurement."""
    stack = _load_figures()[0]
    return ThroughputAnchor(
        images_per_s=_anchor_value("images_per_s"),
        batch_size=_anchor_value("batch_size"),
        flop=1e9 * _anchor_value("gflop"),
        weight_bytes=1e6 * _anchor_value("weights_mb"),
        activation_bytes=1e6 * _anchor_value("activations_mb"),
        fixed_s=1e-6 * stack["cuda_launch_us"].value * _anchor_value("launches"),
        bandwidth=1e9 * _anchor_value("memory_gbps") * stack["usable_bandwidth"].value,
        corner=stack["corner"].value,
    ).solve()


@lru_cache(maxsize=1)
def _load_figures() -> tuple[dict[str, LabelledValue], dict[str, dict[str, Any]]]:
    """Return the software stack's figures, the anchor's prefixed with ``anchor``, and every board's."""
    raw = load_yaml(resources.files("fedge.analysis.placement") / "boards.yaml")
    stack = dict(raw["stack"])
    anchor = {f"anchor {name}": figure for name, figure in stack.pop("anchor").items()}
    boards = {name: {key: _parse_figure(value) for key, value in own.items()} for name, own in raw["boards"].items()}
    return {name: LabelledValue(**figure) for name, figure in (anchor | stack).items()}, boards


def _parse_figure(value: dict[str, Any]) -> Any:
    """Parse a figure, or a record that holds figures and plain numbers."""
    if "value" in value:
        return LabelledValue(**value)
    return {key: _parse_figure(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}
