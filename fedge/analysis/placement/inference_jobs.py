"""Inference jobs, which run one batch to its end, built per library; and which of them this machine can run.

Jobs are built inside an instance's process. An accelerator in a precision has its library, or the reason why the
machine cannot run it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedge.analysis.placement.accelerators import (
    CUDA,
    FP16,
    FP32,
    INT8,
    MIXED,
    TENSOR,
    TF32,
    Accelerator,
    Instance,
    PlacementBoard,
    PrecisionSpeed,
)
from fedge.costs.layers.network_cost import Shape
from fedge.costs.layers.network_source import build_module
from fedge.errors import BadInput, RunFailed

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


OPSET = 18


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model; ``files`` maps batch sizes to ONNX files, all the same one if the model itself is a file."""

    model: str
    shape: Shape
    files: Mapping[int, str]

    def __reduce__(self) -> tuple[object, ...]:
        return ModelSource, (self.model, self.shape, dict(self.files))


def prepare_model_source(model: str, shape: Shape, batch_sizes: Iterable[int], folder: Path | None) -> ModelSource:
    """Return the model with an ONNX file per batch size, written into ``folder``, or without files if that is None.

    Raises:
        BadInput: For a file of costs, which cannot run.
    """
    if model.endswith(".onnx"):
        return ModelSource(model, shape, dict.fromkeys(batch_sizes, model))
    if model.endswith(".json"):
        raise BadInput("NETWORK", model, "a network that can run: costs alone cannot")
    source = ModelSource(model, shape, MappingProxyType({}))
    if folder is None:
        return source
    return replace(source, files={size: str(_export_onnx(model, shape, size, folder)) for size in batch_sizes})


def _export_onnx(model: str, shape: Shape, batch_size: int, folder: Path) -> Path:
    """Export a file of one batch size, because a DLA accepts no other."""
    import torch

    module, _ = build_module(model, shape)
    path = folder / f"batch-{batch_size}.onnx"
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        example = torch.zeros((batch_size, *shape))
        torch.onnx.export(module.eval(), (example,), str(path), opset_version=OPSET, dynamo=True, external_data=False)
    return path


BatchJob = Callable[[], None]


@dataclass(frozen=True, slots=True)
class InstanceTask:
    """An instance with the library and the model that it runs, on one thread."""

    instance: Instance
    library: str
    source: ModelSource


def build_job(task: InstanceTask) -> BatchJob:
    """Build the job of a task, with everything loaded."""
    return {TORCH: build_torch_job, ORT: build_onnxruntime_job, TRT: build_tensorrt_job}[task.library](task)


def build_torch_job(task: InstanceTask) -> BatchJob:
    """Build a PyTorch job on the CPU, or on its own CUDA stream: fp32, TF32, or automatic mixed precision (fp16).

    Raises:
        BadInput: If the model is an ONNX file.
    """
    import torch

    if task.source.model.endswith(".onnx"):
        raise BadInput(task.instance.accelerator, task.source.model, "a torch module; files run on ort-cpu or a DLA")
    torch.set_num_threads(1)
    module, _ = build_module(task.source.model, task.source.shape)
    on_gpu = task.instance.accelerator != TORCH_CPU
    device = torch.device("cuda" if on_gpu else "cpu")
    # By default torch runs fp32 convolutions on the tensor cores as TF32.
    torch.backends.cuda.matmul.allow_tf32 = task.instance.precision == TF32
    torch.backends.cudnn.allow_tf32 = task.instance.precision == TF32
    torch.backends.cudnn.benchmark = on_gpu
    ready = module.eval().to(device)
    images = torch.rand((task.instance.batch_size, *task.source.shape), device=device)
    mixed = task.instance.precision == MIXED
    stream = torch.cuda.Stream() if on_gpu else None  # type: ignore[no-untyped-call]

    def run() -> None:
        with torch.inference_mode(), torch.autocast(device.type, dtype=torch.float16, enabled=mixed):
            if stream is None:
                ready(images)
                return
            with torch.cuda.stream(stream):
                ready(images)
        stream.synchronize()

    return run


def build_onnxruntime_job(task: InstanceTask) -> BatchJob:
    """Build an ONNX Runtime job with its CPU provider, or with its TensorRT provider on a DLA core.

    Raises:
        BadInput: If the ONNX file has another batch size.
        RunFailed: If ONNX Runtime does not accept the provider.
    """
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    size = task.instance.batch_size
    path = task.source.files[size]
    for name in _list_free_dimensions(path):
        options.add_free_dimension_override_by_name(name, size)
    session = onnxruntime.InferenceSession(path, options, providers=select_providers(task.instance))
    wanted = select_providers(task.instance)[0][0]
    if wanted not in session.get_providers():
        raise RunFailed(f"{task.instance}: ONNX Runtime did not take {wanted}; it runs {session.get_providers()}")
    given = session.get_inputs()[0]
    rng = np.random.default_rng(0)
    fed = {given.name: rng.random(_resolve_batch_shape(given.shape, size, task.source.shape), dtype=np.float32)}
    return lambda: session.run(None, fed) and None


def select_providers(instance: Instance) -> list[tuple[str, Mapping[str, str]]]:
    """Return ONNX Runtime's providers for an instance, with their options, the preferred one first."""
    if not instance.accelerator.startswith("dla-"):
        return [(CPU_PROVIDER, {})]
    options = {
        "trt_dla_enable": "1",
        "trt_dla_core": instance.accelerator.removeprefix("dla-"),
        "trt_fp16_enable": "1",
        "trt_int8_enable": "1" if instance.precision == INT8 else "0",
    }
    return [(TENSORRT_PROVIDER, options), ("CUDAExecutionProvider", {}), (CPU_PROVIDER, {})]


def _list_free_dimensions(path: str) -> list[str]:
    """Return the name of the batch dimension, if the file's input leaves it free."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {one.name for one in graph.initializer}
    given = next(one for one in graph.input if one.name not in weights)
    first = given.type.tensor_type.shape.dim[0]
    return [first.dim_param] if first.dim_param else []


def _resolve_batch_shape(given: list[Any], batch_size: int, sample: Shape) -> Shape:
    """Return the batch's shape; raise ``BadInput`` for a file of another batch size."""
    if given and isinstance(given[0], int) and given[0] != batch_size:
        raise BadInput("--batch-sizes", f"{batch_size}", f"{given[0]}, the only batch size of this ONNX file")
    return (batch_size, *sample)


def build_tensorrt_job(task: InstanceTask) -> BatchJob:
    """Build a TensorRT job on a DLA core with GPU fallback; buffers and stream are torch's.

    Arbitrary INT8 ranges stand in for a calibration: valid for speed, not for results.

    Raises:
        RunFailed: If TensorRT cannot read the network or build an engine.
    """
    import tensorrt
    import torch

    engine = _build_engine(task)
    context = engine.create_execution_context()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    buffers = []
    for i in range(engine.num_io_tensors):
        name = engine.get_tensor_name(i)
        kind = {tensorrt.float32: torch.float32, tensorrt.float16: torch.float16}.get(
            engine.get_tensor_dtype(name), torch.int32
        )
        buffers.append(torch.zeros(tuple(engine.get_tensor_shape(name)), dtype=kind, device="cuda"))
        context.set_tensor_address(name, buffers[-1].data_ptr())

    def run() -> None:
        context.execute_async_v3(stream.cuda_stream)
        stream.synchronize()

    return run


def _build_engine(task: InstanceTask) -> Any:
    import tensorrt

    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    # From release 10 on every network has an explicit batch, and later releases lack the flag.
    explicit = getattr(tensorrt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(task.source.files[task.instance.batch_size]):
        raise RunFailed(f"{task.instance}: TensorRT cannot read the network: {parser.get_error(0)}")
    config = builder.create_builder_config()
    config.default_device_type = tensorrt.DeviceType.DLA
    config.DLA_core = int(task.instance.accelerator.removeprefix("dla-"))
    config.set_flag(tensorrt.BuilderFlag.GPU_FALLBACK)
    config.set_flag(tensorrt.BuilderFlag.FP16)
    if task.instance.precision == INT8:
        config.set_flag(tensorrt.BuilderFlag.INT8)
        for i in range(network.num_inputs):
            network.get_input(i).set_dynamic_range(-1.0, 1.0)
        for i in range(network.num_layers):
            for j in range(network.get_layer(i).num_outputs):
                network.get_layer(i).get_output(j).set_dynamic_range(-1.0, 1.0)
    built = builder.build_serialized_network(network, config)
    if built is None:
        raise RunFailed(f"{task.instance}: TensorRT could not build an engine")
    return tensorrt.Runtime(logger).deserialize_cuda_engine(built)
