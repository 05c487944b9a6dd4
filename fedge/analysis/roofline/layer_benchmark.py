"""Rates of the kinds of layers that networks consist of, on a real processor.

Every kind is run at two batch sizes, as inference and as a training step (forward, gradients of inputs and weights),
and an optimiser as the update of ``UPDATED_WEIGHTS``. FLOP and bytes are those by which networks are priced: per
operator, without fusion (``fedge.costs.layers``), so that the rates compare with the shares in
``fedge.costs.gpu_rates``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fedge.analysis.roofline.kernel_timing import BenchmarkKernel, KernelTimer
from fedge.costs.gpu_rates import count_optimiser_passes
from fedge.costs.layers.network_cost import ELEMENT_BYTES, Shape

if TYPE_CHECKING:
    import torch
    from torch import nn

LayerStep = Literal["infer", "train", "update"]
LAYER_BATCHES = {"cpu": (1, 8), "cuda": (8, 128)}
"""Batch sizes by device: the smaller is near launching alone on a GPU, the larger keeps it busy."""
UPDATED_WEIGHTS = 4_000_000
OPTIMISERS: Mapping[str, tuple[float, float]] = {
    "SGD": (4.0, count_optimiser_passes(1.0)),
    "Adam": (12.0, count_optimiser_passes(2.0)),
}
"""FLOP per weight and passes over the weights of an update: SGD with momentum, and Adam with two moments."""
WORDS = 10_000
REFERENCE_KIND = "convolution 3x3"
"""Kind with whose FLOP/s the others' are compared: the price of layers knows shares of it."""


@dataclass(frozen=True, slots=True)
class LayerPoint:
    """One kind of layer, or optimiser, in one kind of step.

    Attributes:
        sample: Shape of one sample, without the batch; of an optimiser that of the weights.
        batch_size: Samples per step; 1 for an update.
        seconds: Median time of a step.
    """

    kind: str
    step: LayerStep
    sample: Shape
    batch_size: int
    flop: float
    bytes: float
    seconds: float
    joules: float | None

    @property
    def gflop_per_s(self) -> float:
        """Return the achieved GFLOP/s."""
        return 1e-9 * self.flop / self.seconds

    @property
    def gb_per_s(self) -> float:
        """Return the achieved GB/s, counted without caches."""
        return 1e-9 * self.bytes / self.seconds


def measure_layers(timer: KernelTimer, where: str, seconds: float) -> tuple[LayerPoint, ...]:
    """Measure every kind of layer on ``cpu`` or ``cuda``; they share the ``seconds`` evenly."""
    import torch

    layers, batches = _list_layers(), LAYER_BATCHES[where]
    device, share_s = torch.device(where), seconds / (2 * len(layers) * len(batches) + len(OPTIMISERS))
    found = [
        _measure_layer(timer, kernel, share_s, sample=sample, batch_size=size, step=step)
        for kind, (build, sample) in layers.items()
        for size in batches
        for step, kernel in _generate_steps(kind, build, sample=sample, batch_size=size, device=device)
    ]
    return (*found, *(_measure_layer(timer, kernel, share_s) for kernel in _generate_updates(device)))


def _measure_layer(
    timer: KernelTimer,
    kernel: BenchmarkKernel,
    share_s: float,
    sample: Shape = (UPDATED_WEIGHTS,),
    batch_size: int = 1,
    step: LayerStep = "update",
) -> LayerPoint:
    point = timer.time(kernel, share_s)
    return LayerPoint(
        kernel.name,
        step=step,
        sample=sample,
        batch_size=batch_size,
        flop=point.flop,
        bytes=point.bytes,
        seconds=point.seconds,
        joules=point.joules,
    )


def _list_layers() -> dict[str, tuple[Callable[[], nn.Module], Shape]]:
    """Return how to build each kind of layer, and the shape of a sample: of an image classifier or a language model."""
    from torch import nn

    image, tokens, channels = (128, 28, 28), (128, 256), 128
    convolution = partial(nn.Conv2d, channels, channels, 3, padding=1)
    return {
        REFERENCE_KIND: (convolution, image),
        "convolution 1x1": (partial(nn.Conv2d, channels, channels, 1), image),
        "grouped convolution": (partial(convolution, groups=8), image),
        "depthwise convolution": (partial(convolution, groups=channels), image),
        "linear": (partial(nn.Linear, 256, 256), tokens),
        "attention": (_build_attention, (8, 128, 32)),
        "LSTM": (partial(nn.LSTM, 256, 256, batch_first=True), (32, 256)),
        "GRU": (partial(nn.GRU, 256, 256, batch_first=True), (32, 256)),
        "batch norm": (partial(nn.BatchNorm2d, channels), image),
        "layer norm": (partial(nn.LayerNorm, 256), tokens),
        "embedding": (partial(nn.Embedding, WORDS, 256), (128,)),
        "ReLU": (nn.ReLU, image),
        "GELU": (nn.GELU, tokens),
    }


def _build_attention() -> nn.Module:
    from torch import Tensor, nn

    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    return Attention()


def _generate_steps(
    kind: str, build: Callable[[], nn.Module], sample: Shape, batch_size: int, device: torch.device
) -> Iterator[tuple[LayerStep, BenchmarkKernel]]:
    """Yield inference and training of a layer."""
    import torch

    from fedge.costs.layers.torch_trace import trace_module

    cost, layer = trace_module(build(), sample, kind, fold_batch_norm=False), build().to(device)
    shape, is_index = (batch_size, *sample), kind == "embedding"
    x = torch.randint(WORDS, shape, device=device) if is_index else torch.rand(shape, device=device)
    work = cost.batch_work(batch_size)
    layer.eval()

    @torch.inference_mode()
    def infer() -> object:
        return layer(x)

    yield "infer", BenchmarkKernel(kind, work.flop, work.bytes, infer)
    work = cost.batch_work(batch_size, "train")
    layer.train()
    yield "train", BenchmarkKernel(kind, work.flop, work.bytes, _build_training_step(layer, x))


def _build_training_step(layer: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """Return a step that computes the gradients of weights and, unless it holds indices, of the input."""
    import torch

    x.requires_grad_(x.is_floating_point())

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        made = layer(x)
        made = made[0] if isinstance(made, tuple) else made
        torch.autograd.backward(made, torch.ones_like(made))

    return run


def _generate_updates(device: torch.device) -> Iterator[BenchmarkKernel]:
    """Yield the optimisers' updates of one tensor of weights."""
    import torch

    for name, (flop, passes) in OPTIMISERS.items():
        weights = torch.rand(UPDATED_WEIGHTS, device=device, requires_grad=True)
        weights.grad = torch.rand_like(weights)
        made = torch.optim.SGD([weights], 1e-3, momentum=0.9) if name == "SGD" else torch.optim.Adam([weights])
        moved = passes * ELEMENT_BYTES * UPDATED_WEIGHTS
        yield BenchmarkKernel(name, flop * UPDATED_WEIGHTS, moved, made.step)
