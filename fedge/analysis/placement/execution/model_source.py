"""The model that instances run: a network by name, its samples' shape, and if needed an ONNX file per batch size."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedge.costs.layers.network_cost import Shape
from fedge.costs.layers.network_source import build_module
from fedge.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        raise BadInput("MODEL", model, "a network that can run: costs alone cannot")
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
