"""Networks of every kind with what torch really keeps and allocates for their training steps on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from fedge.worker.optimizers import TrainingOptions, make_optimizer
from fedge.worker.tasks import TrainingTask, cross_entropy

CLASSES = 10
HAS_HALF_KERNELS = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
"""Without AVX-512, oneDNN has no recurrent kernel of half precision and fails: torch's own operators run instead."""


class Attention(nn.Module):
    """Four heads over tokens of 32 numbers, in single operators or as torch's own function."""

    def __init__(self, explicit: bool, dropout: float) -> None:
        super().__init__()
        self.explicit, self.dropout = explicit, dropout
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(x.shape[0], -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        if self.explicit:
            shares = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
            y = functional.dropout(shares, self.dropout, self.training) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).flatten(2)).mean(1)


class MeanScores(nn.Module):
    """An encoder's or a recurrent layer's mean over the sequence, as scores."""

    def __init__(self, part: nn.Module, width: int) -> None:
        super().__init__()
        self.part, self.head = part, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        return self.head((y[0] if isinstance(y, tuple) else y).mean(1))


class WordScores(nn.Module):
    """A score per word and position, far more than its other activations."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 2_000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu()).transpose(1, 2)


def _build_convolutions() -> nn.Module:
    conv, more = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3)
    first = (conv, nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(*first, more, nn.BatchNorm2d(32), nn.SiLU(), nn.Flatten(), nn.Linear(32 * 36, CLASSES))


def _build_adapted() -> nn.Module:
    """Build a network of which the last layer alone is trained."""
    module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Flatten(), nn.Linear(64 * 16, CLASSES))
    module[0].requires_grad_(False)
    return module


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (_build_convolutions, (3, 16, 16)),
    "perceptron": (lambda: nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, CLASSES)), (64,)),
    "explicit attention": (lambda: Attention(explicit=True, dropout=0.1), (16, 32)),
    "torch's attention": (lambda: Attention(explicit=False, dropout=0.0), (16, 32)),
    "torch's attention with dropout": (lambda: Attention(explicit=False, dropout=0.1), (16, 32)),
    "encoder": (lambda: MeanScores(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 32), (16, 32)),
    "gated": (lambda: MeanScores(nn.GRU(32, 48, batch_first=True), 48), (16, 32)),
    "long short-term": (lambda: MeanScores(nn.LSTM(32, 48, batch_first=True), 48), (16, 32)),
    "adapted": (_build_adapted, (16, 32)),
    "scores of words": (WordScores, (16, 64)),
}
FUSED = {"torch's attention", "gated", "long short-term"}
"""Networks of which a fused kernel of this machine keeps another number of bytes than the operators in it."""


def build_network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Build a network in training mode, with the shape of one sample."""
    build, shape = NETWORKS[name]
    return build().train(), shape


def kept_bytes_per_sample(module: nn.Module, shape: tuple[int, ...], *, mixed: bool) -> float:
    """Return the bytes that autograd keeps for a further sample, of a real forward pass."""
    small, large = (_kept_bytes(module, torch.randn(batch, *shape), mixed) for batch in (4, 8))
    return (large - small) / 4


def _kept_bytes(module: nn.Module, samples: Tensor, mixed: bool) -> int:
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, _use_kernels(mixed), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        scores = module(samples)
        del scores
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    return sum(storage.nbytes() for place, storage in kept.items() if place not in weights)


def measure_peak_bytes(
    module: nn.Module, shape: tuple[int, ...], batch_size: int, optimizer: Callable | None, *, mixed: bool
) -> int:
    """Return the peak of what torch allocates in a second step of fedge's own loop, with weights and optimiser."""
    task = TrainingTask("measured", "", lambda _: module, cross_entropy, None, None, optimizer)
    options = TrainingOptions(2, batch_size, 1e-3, mixed=mixed)
    descent = make_optimizer(module, task, options)
    samples = torch.randn(batch_size, *shape)
    labels = torch.randint(0, CLASSES, (batch_size, *module(samples).shape[2:]))
    with _use_kernels(mixed):
        descent.step(samples, labels)
    before = sum(map(_bytes_of, (*module.parameters(), *_list_state(descent))))
    # Gradients of the first step are freed at the start of the second.
    module.zero_grad(set_to_none=True)
    with _use_kernels(mixed), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        descent.step(samples, labels)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return before + peak


@contextmanager
def _use_kernels(mixed: bool) -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and (HAS_HALF_KERNELS or not mixed))
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _list_state(descent: object) -> list[Tensor]:
    own = getattr(descent, "_optimizer", None)
    if own is None:
        return [speed for speed in descent._speeds if speed is not None]
    return [value for state in own.state.values() for value in state.values() if isinstance(value, Tensor)]


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
