"""Accelerators and precisions that this machine can run, with their library, or the reason why it cannot."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from fedge.analysis.placement.accelerators import Accelerator, PlacementBoard, PrecisionSpeed
from fedge.analysis.placement.catalogue_accelerators import CUDA, FP16, FP32, INT8, MIXED, TENSOR, TF32

TORCH_CPU, ORT_CPU = "torch-cpu", "ort-cpu"
TORCH, ORT, TRT = "torch", "onnxruntime", "tensorrt"
TENSORRT_PROVIDER, CPU_PROVIDER = "TensorrtExecutionProvider", "CPUExecutionProvider"
JETSON = Path("/etc/nv_tegra_release")
MAX_DLA_CORES = 2


@dataclass(frozen=True, slots=True)
class AcceleratorRuntime:
    """An accelerator in one precision, the library that runs it, and the reason why it cannot (None: it can)."""

    accelerator: str
    precision: str
    library: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class InstalledLibraries:
    """Libraries and accelerators of a machine, detected once, so that rules can be tested with other machines."""

    torch: bool
    cuda: str | None
    """Reason why torch has no CUDA device; None if it has one."""
    tf32: bool
    ort_providers: tuple[str, ...]
    tensorrt: bool
    dla_cores: int


def list_runtimes(found: InstalledLibraries) -> tuple[AcceleratorRuntime, ...]:
    """Return the runtime of every accelerator in every precision."""
    torch_reason = None if found.torch else "torch is not installed"
    ort_reason = None if CPU_PROVIDER in found.ort_providers else "onnxruntime is not installed"
    cuda_reason = torch_reason or found.cuda
    tf32_reason = cuda_reason or (None if found.tf32 else "this GPU's tensor cores do not know TF32")
    dla = [
        AcceleratorRuntime(f"dla-{core}", precision, *_find_dla_runtime(found, core))
        for core in range(MAX_DLA_CORES)
        for precision in (FP16, INT8)
    ]
    return (
        AcceleratorRuntime(TORCH_CPU, FP32, TORCH, torch_reason),
        AcceleratorRuntime(ORT_CPU, FP32, ORT, ort_reason),
        AcceleratorRuntime(CUDA, FP32, TORCH, cuda_reason),
        AcceleratorRuntime(TENSOR, TF32, TORCH, tf32_reason),
        AcceleratorRuntime(TENSOR, MIXED, TORCH, cuda_reason),
        *dla,
    )


def _find_dla_runtime(found: InstalledLibraries, core: int) -> tuple[str, str | None]:
    """Return the library that runs a DLA core, and the reason why it cannot."""
    if core >= found.dla_cores:
        return TRT, "this machine has no DLA" if not found.dla_cores else f"this board has no DLA core {core}"
    if TENSORRT_PROVIDER in found.ort_providers:
        return ORT, None
    if not found.tensorrt:
        return TRT, "neither TensorRT nor ONNX Runtime's TensorRT provider is installed"
    return TRT, None if found.torch and found.cuda is None else "TensorRT's buffers need torch with CUDA"


def detect_libraries() -> InstalledLibraries:
    """Detect the libraries and accelerators of this machine."""
    torch_here = importlib.util.find_spec("torch") is not None
    cuda, tf32 = _detect_cuda() if torch_here else ("torch is not installed", False)
    return InstalledLibraries(
        torch=torch_here,
        cuda=cuda,
        tf32=tf32,
        ort_providers=_list_onnxruntime_providers(),
        tensorrt=importlib.util.find_spec("tensorrt") is not None,
        dla_cores=_count_dla_cores(),
    )


def _detect_cuda() -> tuple[str | None, bool]:
    import torch

    if not torch.cuda.is_available():
        build = torch.version.cuda
        return ("torch is built without CUDA" if build is None else "torch sees no CUDA device"), False
    return None, torch.cuda.get_device_capability()[0] >= 8


def _list_onnxruntime_providers() -> tuple[str, ...]:
    if importlib.util.find_spec("onnxruntime") is None:
        return ()
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


def _count_dla_cores() -> int:
    """Count DLA cores with TensorRT if it is installed, else by a Jetson's driver nodes, newer and older names."""
    if importlib.util.find_spec("tensorrt") is not None:
        import tensorrt

        return int(tensorrt.Builder(tensorrt.Logger(tensorrt.Logger.ERROR)).num_DLA_cores)
    if not JETSON.exists():
        return 0
    return len({path.name[-1] for path in Path("/dev").glob("nvhost*nvdla[01]")})


HOST_BOARD = "here"
CORE_FLOP_PER_S, BANDWIDTH, LAUNCH_S = 3e10, 1e10, 2e-5
"""FLOP/s of one core, bytes per second of all, seconds per operator: rough starting values that a fit replaces."""
OVERLAP, CORNER = 0.9, 3.0
IDLE_W, CORE_W = 5.0, 5.0
"""Rough starting values for fitting power, in watts; not reported without measured power."""


def build_host_board() -> PlacementBoard:
    """Return a board with the cores that this process may use."""
    count = len(os.sched_getaffinity(0))
    speeds = (PrecisionSpeed(FP32, CORE_FLOP_PER_S, 1.0, LAUNCH_S),)
    places = tuple(
        Accelerator(name, "cpu", speeds, hindrance=1.0 / count, full_w=CORE_W) for name in (TORCH_CPU, ORT_CPU)
    )
    return PlacementBoard(
        HOST_BOARD,
        accelerators=places,
        bandwidth=BANDWIDTH,
        corner=CORNER,
        overlap=OVERLAP,
        idle_w=IDLE_W,
        memory_j=0.0,
        source="guesses",
    )
