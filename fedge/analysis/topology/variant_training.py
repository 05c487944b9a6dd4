"""Check that a variant trains: a few steps of SGD on noise on this machine, and the memory that they took here."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedge.costs.layers.network_cost import Shape
from fedge.errors import RunFailed

if TYPE_CHECKING:
    from torch import Tensor, nn

STEPS, BATCH, LEARNING_RATE = 6, 4, 0.001
"""Enough to see a loss fall on one batch, in deep networks with BatchNorm too."""
MB = 1e6
PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class TrainingCheck:
    """The loss of every step on the same samples, and the growth of this process's peak memory.

    Attributes:
        losses: Loss of every step.
        batch_size: Samples per step.
        grown_mb: Growth of the peak memory in MB on this machine, which says nothing about a board; None if unknown.
    """

    losses: tuple[float, ...]
    batch_size: int
    grown_mb: float | None

    @property
    def is_loss_falling(self) -> bool:
        """Whether every loss is finite and the last is below the first."""
        return all(math.isfinite(loss) for loss in self.losses) and self.losses[-1] < self.losses[0]


def check_variant_training(folder: Path) -> TrainingCheck:
    """Rebuild the variant in ``folder`` and train it; run it in a separate process to measure its memory alone.

    Raises:
        BadInput: For a folder without a variant.
        RunFailed: If a step fails.
    """
    from fedge.analysis.topology.variant_files import load_variant_module, read_variant

    return train_on_noise(load_variant_module(folder), read_variant(folder).input_shape)


def train_on_noise(
    module: nn.Module, input_shape: Shape, batch_size: int = BATCH, steps: int = STEPS, proc: Path = PROC
) -> TrainingCheck:
    """Train ``module`` in place on one batch of noise, with the same random state in every step.

    Args:
        module: The network.
        input_shape: Shape of one sample.
        batch_size: Samples per step.
        steps: Number of steps.
        proc: The process's folder in ``/proc``.

    Raises:
        RunFailed: If a step fails.
    """
    import torch

    chance = torch.Generator().manual_seed(0)
    samples = torch.randn(batch_size, *input_shape, generator=chance)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    before_mb = _reset_peak_mb(proc)
    try:
        losses = tuple(_run_step(module, optimiser, samples) for _ in range(steps))
    except (RuntimeError, ValueError) as error:
        raise RunFailed(f"a step of training failed: {' '.join(str(error).split())[:200]}") from error
    after_mb = _read_status_mb(proc, "VmHWM")
    grown_mb = None if before_mb is None or after_mb is None else max(0.0, after_mb - before_mb)
    return TrainingCheck(losses, batch_size, grown_mb)


def _run_step(module: nn.Module, optimiser: Any, samples: Tensor) -> float:
    """Run one step: cross-entropy to labels 0, 1, 2, ... of every head with an output."""
    import torch
    from torch.nn.functional import cross_entropy

    from fedge.analysis.topology.dependency_graph import flatten_tensors

    optimiser.zero_grad()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        outputs = flatten_tensors(module(samples))
    labels = torch.arange(len(samples))
    loss = sum((cross_entropy(logits, labels % logits.shape[1]) for logits in outputs), torch.zeros(()))
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimiser.step()
    return float(loss.detach())


def _reset_peak_mb(proc: Path) -> float | None:
    """Reset the peak memory if the system allows it, and return the present value in MB."""
    with suppress(OSError):
        (proc / "clear_refs").write_text("5", encoding="ascii")
    return _read_status_mb(proc, "VmHWM")


def _read_status_mb(proc: Path, field: str) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (proc / "status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{field}:"):
                return float(line.split()[1]) * 1024 / MB
    return None
