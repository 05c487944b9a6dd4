"""From a board of the catalogue to its accelerators: counts out of its text, peaks and shares from ``boards.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from fedge.errors import BadInput
from fedge.placement.accelerators import Accelerator, Board, Fallback, Speed
from fedge.placement.anchors import Anchor, Solved, solve
from fedge.placement.support import GENERATIONS
from fedge.types import DeviceSpec, Figure

GPU, CUDA, TENSOR = "gpu", "cuda-cores", "tensor-cores"
FP32, TF32, MIXED, FP16, INT8 = "fp32", "tf32", "mixed", "fp16", "int8"
MAXIMUM = "maximum watts"
"""What the catalogue's figure is called here."""
UNITS = {"us": "us", "ms": "ms", "mb": "MB", "gflop": "GFLOP", "gflops": "GFLOP/s", "gbps": "GB/s"}
"""Ends of the file's names, and how the units are written."""
AMPERE_FLOP_PER_CLOCK = 256
"""Tensor cores above it know TF32."""
SOURCE = "PyTorch, and TensorRT on DLA, after arXiv 2503.09546 (fedge/placement/boards.yaml)"


def board_of(spec: DeviceSpec) -> Board:
    """The accelerators of a board at MAXN, estimated. Raises ``BadInput`` for a board of the user's own."""
    stack, boards = _file()
    if spec.name not in boards:
        right = f"one of {', '.join(boards)}: nothing is known of another board's accelerators"
        raise BadInput("--device", repr(spec.name), right)
    own = boards[spec.name]
    solved = _solved()
    speed = solved.flop_per_s / (1e9 * _anchor("peak_gflops"))
    fp32 = Speed(FP32, speed * 1e9 * spec.gpu_gflops.value, 1.0, 1e-6 * stack["cuda_launch_us"].value)
    tensor, tensor_figures = _tensor(spec, own, fp32, solved)
    dlas, dla_figures = _dlas(spec, own)
    gpu_w = stack["cuda_watts_share"].value * (spec.max_w.value - spec.idle_w.value)
    cuda = Accelerator(CUDA, GPU, (fp32,), 1.0, solved.spill_batch, 1.0, gpu_w, stack["waiting_share"].value * gpu_w)
    half = Speed(FP16, fp32.flop_per_s, 0.5, fp32.launch_s)
    return Board(
        name=spec.name,
        accelerators=(cuda, *tensor, *dlas),
        bandwidth=1e9 * spec.mem_gbps.value * stack["usable_bandwidth"].value,
        corner=stack["corner"].value,
        overlap=stack["overlap"].value,
        idle_w=spec.idle_w.value,
        memory_j=1e-12 * stack["memory_pj_per_byte"].value,
        fallback=Fallback(GPU, half, 1e-6 * stack["switch_us"].value, gpu_w),
        label="estimated",
        source=SOURCE,
        figures=(*_shared(spec), *tensor_figures, *dla_figures),
    )


def _count(spec: DeviceSpec, what: str) -> int:
    """How many of something the catalogue's text of accelerators names."""
    found = [re.match(rf"(\d+) {what}", text) for text in spec.accelerators]
    return next((int(one.group(1)) for one in found if one), 0)


def _tensor(
    spec: DeviceSpec, own: Mapping[str, Any], fp32: Speed, solved: Solved
) -> tuple[tuple[Accelerator, ...], tuple[tuple[str, Figure], ...]]:
    """Tensor cores in mixed precision; TF32 is known to them, but no figure of it: not offered until measured."""
    cores = _count(spec, "tensor cores")
    if not cores:
        return (), ()
    stack, per_clock = _file()[0], own["tensor_flop_per_clock"]
    peak = cores * per_clock.value * 1e6 * max(spec.gpu_mhz)
    mixed = Speed(
        MIXED,
        stack["mixed_of_peak"].value * peak,
        stack["mixed_bytes_scale"].value,
        1e-6 * stack["mixed_launch_us"].value,
    )
    tf32 = Speed(TF32, fp32.flop_per_s, 1.0, fp32.launch_s, offered=False)
    speeds = (mixed, tf32) if per_clock.value > AMPERE_FLOP_PER_CLOCK else (mixed,)
    watts = stack["tensor_watts_share"].value * (spec.max_w.value - spec.idle_w.value)
    waiting_w = stack["waiting_share"].value * watts
    place = Accelerator(TENSOR, GPU, speeds, 1.0, solved.spill_batch, 1.0, watts, waiting_w)
    return (place,), (("tensor core's FLOP per clock", per_clock),)


def _dlas(spec: DeviceSpec, own: Mapping[str, Any]) -> tuple[tuple[Accelerator, ...], tuple[tuple[str, Figure], ...]]:
    """One accelerator per DLA core. The paper does not say in which of the two precisions it ran: both are alike."""
    count = _count(spec, "DLA")
    if not count:
        return (), ()
    stack, dla = _file()[0], own["dla"]
    reached = stack["dla_of_peak"].value * 1e12 * dla["tops"].value
    batch_s = 1e-3 * stack["dla_batch_ms"].value
    speeds = (Speed(FP16, reached, 0.5, 0.0, batch_s), Speed(INT8, reached, 0.25, 0.0, batch_s))
    places = tuple(
        Accelerator(
            name=f"dla-{i}",
            engine=f"dla-{i}",
            speeds=speeds,
            bandwidth_share=stack["dla_bandwidth_share"].value,
            spill_batch=stack["dla_spill_batch"].value,
            full_w=dla["watts"].value,
            waiting_w=stack["waiting_share"].value * dla["watts"].value,
            supported=GENERATIONS[dla["generation"]],
        )
        for i in range(count)
    )
    return places, (("dense INT8 TOPS of a DLA core", dla["tops"]), ("watts of a DLA core", dla["watts"]))


def _shared(spec: DeviceSpec) -> tuple[tuple[str, Figure], ...]:
    """The catalogue's figures and the stack's, for showing."""
    catalogue = (
        ("CUDA cores' fp32 peak, GFLOP/s", spec.gpu_gflops),
        ("memory bandwidth, GB/s", spec.mem_gbps),
        ("idle watts", spec.idle_w),
        (MAXIMUM, spec.max_w),
    )
    stack = _file()[0]
    return (*catalogue, *((_words(name), figure) for name, figure in stack.items()))


def _words(name: str) -> str:
    """A name of the file in words, its unit after a comma: ``cuda launch, us``."""
    words = name.split("_")
    unit = UNITS.get(words[-1])
    return " ".join(words) if unit is None else f"{' '.join(words[:-1])}, {unit}"


def _anchor(name: str) -> float:
    return float(_file()[0][f"anchor {name}"].value)


@lru_cache(maxsize=1)
def _solved() -> Solved:
    """CUDA cores' speed and spill batch on the board of the anchor."""
    stack = _file()[0]
    return solve(
        Anchor(
            images_per_s=_anchor("images_per_s"),
            batch_size=_anchor("batch_size"),
            flop=1e9 * _anchor("gflop"),
            weight_bytes=1e6 * _anchor("weights_mb"),
            activation_bytes=1e6 * _anchor("activations_mb"),
            fixed_s=1e-6 * stack["cuda_launch_us"].value * _anchor("launches"),
            bandwidth=1e9 * _anchor("memory_gbps") * stack["usable_bandwidth"].value,
            corner=stack["corner"].value,
        )
    )


@lru_cache(maxsize=1)
def _file() -> tuple[dict[str, Figure], dict[str, dict[str, Any]]]:
    """The stack's figures, the anchor's with ``anchor`` before their names, and every board's."""
    text = (resources.files("fedge.placement") / "boards.yaml").read_text(encoding="utf-8")
    raw = yaml.safe_load(text)
    stack = dict(raw["stack"])
    anchor = {f"anchor {name}": figure for name, figure in stack.pop("anchor").items()}
    boards = {name: {key: _figure(value) for key, value in own.items()} for name, own in raw["boards"].items()}
    return {name: Figure(**figure) for name, figure in (anchor | stack).items()}, boards


def _figure(value: dict[str, Any]) -> Any:
    """A figure, or a record that holds figures and plain numbers."""
    if "value" in value:
        return Figure(**value)
    return {key: _figure(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}
