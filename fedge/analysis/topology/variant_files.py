"""A variant in a folder: a JSON record of the channels kept, and the weights as safetensors, without pickle.

============================  =======================================================================
``variant.json``              ``NetworkVariant``: the network's name, shares, channels kept layer by layer, costs
``weights.safetensors``       the variant's own weights and buffers, of the pruned shapes
============================  =======================================================================

A variant is rebuilt from the whole network of that name, cut by the plan, with the weights loaded. A few steps of SGD
on noise check that it trains on this machine, and measure the memory that they take here.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedge.analysis.topology.channel_plan import NetworkVariant
from fedge.costs.layers import network_record
from fedge.costs.layers.network_cost import Shape
from fedge.costs.layers.network_source import VARIANT_FORMAT
from fedge.errors import BadInput, RunFailed, one_line
from fedge.experiment import VARIANT_FILE
from fedge.json_reader import read_json
from fedge.worker.channel_cuts import LayerCut, cut_module, parse_plan
from fedge.worker.refusal import Refusal
from fedge.workloads.datasets import translate_refusals
from fedge.yaml_files import validate_fields

if TYPE_CHECKING:
    from torch import Tensor, nn


RECORD, WEIGHTS = VARIANT_FILE, "weights.safetensors"
EXPECTED_FOLDER = "a folder that `fedge topology NETWORK --folder DIR` wrote"
_SHARES = ("channel_share", "parameter_share", "flop_share")
NetworkFactory = Callable[[str, Shape], tuple["nn.Module", Shape]]
"""Build the whole network of a name, such as ``fedge.costs.layers.network_source.build_module``."""


def save_variant(variant: NetworkVariant, module: nn.Module, folder: Path) -> None:
    """Write a variant and its module's weights into ``folder`` atomically.

    Raises:
        BadInput: If the folder exists.
    """
    from safetensors.torch import save_file

    if folder.exists():
        raise BadInput("--folder", f"{folder}, which exists", "a folder that does not")
    folder.parent.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
        save_file(weights, half / WEIGHTS)
        text = json.dumps(variant_to_dict(variant), separators=(",", ":"), allow_nan=False)
        (half / RECORD).write_text(text + "\n", encoding="utf-8")
        half.chmod(0o755)
        half.replace(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise


def load_variant_module(folder: Path, whole: NetworkFactory | None = None) -> nn.Module:
    """Return the variant's module with its weights, ready to train.

    Raises:
        BadInput: For a folder, a record or weights that are not a variant's.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from fedge.costs.layers.network_source import build_module

    variant = read_variant(folder)
    network, _ = (whole or build_module)(variant.model, variant.input_shape)
    path = folder / WEIGHTS
    try:
        module = cut_module(network, variant.plan)
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError, Refusal) as error:
        reason = one_line(error)
        raise BadInput(str(path), reason, f"the weights beside {RECORD}, of the shapes that it says") from error
    return module


def read_variant(place: Path) -> NetworkVariant:
    """Read the record of a variant from its folder or its JSON file.

    Raises:
        BadInput: If it is not a variant's record.
    """
    path = place / RECORD if place.is_dir() else place
    return variant_from_dict(read_json(path, EXPECTED_FOLDER), str(path))


def variant_to_dict(variant: NetworkVariant) -> dict[str, Any]:
    """Return a variant for JSON."""
    return {
        "format": VARIANT_FORMAT,
        **{name: getattr(variant, name) for name in ("model", "method", "round_to", *_SHARES)},
        "input_shape": list(variant.input_shape),
        "channels": {layer: _cut_to_dict(one) for layer, one in variant.plan.items()},
        "cost": network_record.network_to_dict(variant.cost),
    }


def _cut_to_dict(one: LayerCut) -> dict[str, list[int]]:
    return {name: list(numbers) for name, numbers in one._asdict().items() if numbers is not None}


_Positive = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(gt=0, le=1)]


class _VariantRecord(BaseModel):
    model_config = ConfigDict(strict=True)
    model: str
    input_shape: Annotated[list[_Positive], Field(min_length=1)]
    method: str
    round_to: _Positive
    channel_share: _Share
    parameter_share: _Share
    flop_share: _Share


def variant_from_dict(data: Any, where: str) -> NetworkVariant:
    """Return the variant of a record of ``variant_to_dict``.

    Raises:
        BadInput: For a wrong field, named below ``where`` (a file).
    """
    if not isinstance(data, dict) or data.get("format") != VARIANT_FORMAT:
        raise BadInput(
            where,
            f"format {data.get('format') if isinstance(data, dict) else None!r}",
            f"{VARIANT_FORMAT}: {EXPECTED_FOLDER}",
        )
    with translate_refusals():
        plan = parse_plan(data.get("channels"), f"{where}: channels")
    record = validate_fields(_VariantRecord, data, where)
    return NetworkVariant(
        **{**record.model_dump(), "input_shape": tuple(record.input_shape)},
        plan=plan,
        cost=network_record.cost_from_variant(data, where),
    )


STEPS, BATCH, LEARNING_RATE = 6, 4, 0.001
"""Enough to see a loss fall on one batch, in deep networks with BatchNorm too."""
MB = 1e6
PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class TrainingCheck:
    """The loss of every step on the same samples, and the growth of this process's peak memory.

    Attributes:
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
    return train_on_noise(load_variant_module(folder), read_variant(folder).input_shape)


def train_on_noise(module: nn.Module, input_shape: Shape, steps: int = STEPS, proc: Path = PROC) -> TrainingCheck:
    """Train ``module`` in place on one batch of noise, with the same random state in every step.

    Raises:
        RunFailed: If a step fails.
    """
    import torch

    chance = torch.Generator().manual_seed(0)
    samples = torch.randn(BATCH, *input_shape, generator=chance)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    before_mb = _reset_peak_mb(proc)
    try:
        losses = tuple(_run_step(module, optimiser, samples) for _ in range(steps))
    except (RuntimeError, ValueError) as error:
        raise RunFailed(f"a step of training failed: {one_line(error)}") from error
    after_mb = _read_status_mb(proc, "VmHWM")
    grown_mb = None if before_mb is None or after_mb is None else max(0.0, after_mb - before_mb)
    return TrainingCheck(losses, BATCH, grown_mb)


def _run_step(module: nn.Module, optimiser: Any, samples: Tensor) -> float:
    """Run one step: cross-entropy to labels 0, 1, 2, ... of every head with an output."""
    import torch
    from torch.nn.functional import cross_entropy

    from fedge.analysis.topology.channel_plan import flatten_tensors

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
