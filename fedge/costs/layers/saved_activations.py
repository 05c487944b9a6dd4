"""Bytes of activations that autograd keeps for the backward pass, in single and in mixed precision.

Autograd itself says which tensors it keeps, in a forward pass in training mode; a storage that several operators keep
counts once. Batches of two sizes tell what a further sample adds. The pass runs in single precision. What mixed
precision would keep follows from torch's rules for autocast on CUDA: products take halves (``HALF_KINDS``), so that a
whole tensor is kept as a copy of half its size; some others take whole numbers (``WHOLE_KINDS``), which is a copy of
twice the size of a half; the rest keep the type of their inputs. Attention counts as torch computes it without fused
kernels, which boards may lack: with its matrices of scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedge.costs.layers.network_cost import HALF_KINDS

WHOLE_KINDS = frozenset({
    "cumsum", "exp", "group_norm", "layer_norm", "log", "log_softmax", "norm", "pow", "prod", "reciprocal", "rsqrt",
    "softmax", "softplus", "sum",
})  # fmt: skip
"""Kinds that autocast computes in single precision (docs of ``torch.amp``, operators that autocast to float32)."""
RESULT_KINDS = frozenset({"exp", "log_softmax", "relu", "rsqrt", "sigmoid", "softmax", "sqrt", "tanh"})
"""Kinds whose gradient needs the result; other operators keep inputs."""
NORMALISERS = frozenset({"batch_norm", "instance_norm"})
"""Kinds whose output has the type of the sample, whatever that of their weights."""
HALF_BYTES = 2


def storage_id(tensor: Tensor) -> int:
    """Return an identifier shared by all tensors that view the same storage."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 -- torch has no public name for it


class SavedActivations:
    """Sums of kept bytes by layer: ``pack`` hears of every kept tensor, ``note_operator`` of every operator.

    Attributes:
        bytes_by_layer: Bytes of a layer in single and in mixed precision, for the whole batch.
    """

    def __init__(self) -> None:
        self.bytes_by_layer: dict[str, list[int]] = {}
        self._pending: list[Tensor] = []
        """Tensors kept since the last operator: its results, then inputs of the next one."""
        self._halves: set[int] = set()
        """Storages that are halves in mixed precision."""
        self._upcast: set[int] = set()
        """Storages within torch's attention without fused kernels, which computes halves in single precision."""
        self._counted: set[tuple[int, int]] = set()
        self._alive: list[Tensor] = []  # a storage's address may be reused once it is freed
        self._last: tuple[str, str, set[int]] = "", "", set()
        """Layer, kind and written storages of the last operator."""
        self._product_inputs: list[Tensor] = []
        """What the last product keeps."""

    def pack(self, tensor: Tensor) -> Tensor:
        """Take a tensor that autograd keeps; for ``torch.autograd.graph.saved_tensors_hooks``."""
        self._pending.append(tensor)
        return tensor

    def note_operator(self, layer: str, kind: str, used: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """Count what is kept of an operator's inputs, and of the last one's results."""
        inputs = set(map(storage_id, used))
        results = set(self._last[2]) if self._last[1] in RESULT_KINDS else self._last[2] - inputs
        whole = kind in WHOLE_KINDS or (kind in HALF_KINDS and not inputs.isdisjoint(self._upcast))
        kept = []
        for tensor in self._pending:
            if storage_id(tensor) in results:
                results.discard(storage_id(tensor))  # the next mention is of an input
                self._count(self._last[0], tensor, self._is_half(tensor))
            else:
                kept.append(tensor)
                self._count(layer, tensor, not whole and (kind in HALF_KINDS or self._is_half(tensor)))
        self._pending = []
        self._product_inputs = kept if kind in HALF_KINDS else self._product_inputs
        self._mark_types(kind, used, outs)
        self._alive.extend(outs)
        self._last = layer, kind, set(map(storage_id, outs))

    def note_attention(self, layer: str, outs: Sequence[Tensor]) -> None:
        """Note the softmax of torch's own attention, whose products are in single precision too."""
        for tensor in self._product_inputs:
            self._count(layer, tensor, half=False)
        self._upcast |= set(map(storage_id, outs))

    def finish(self) -> None:
        """Count what is kept of the last operator's results."""
        self.note_operator(*self._last[:2], used=(), outs=())

    def _count(self, layer: str, tensor: Tensor, half: bool) -> None:
        place, stored = storage_id(tensor), tensor.untyped_storage().nbytes()
        halved = half and tensor.dtype == torch.float32
        kept = self.bytes_by_layer.setdefault(layer, [0, 0])
        in_mixed = stored * HALF_BYTES // tensor.element_size() if halved else stored
        for precision, copy, size in ((0, 0, stored), (1, 1 + halved, in_mixed)):
            if (place, copy) not in self._counted:
                self._counted.add((place, copy))
                kept[precision] += size

    def _is_half(self, tensor: Tensor) -> bool:
        return storage_id(tensor) in self._halves

    def _mark_types(self, kind: str, used: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        inputs = set(map(storage_id, used))
        floats = [tensor for tensor in used if tensor.is_floating_point() and tensor.dim()]
        if kind in NORMALISERS:
            floats = floats[:1]
        half = kind in HALF_KINDS or (kind not in WHOLE_KINDS and bool(floats) and all(map(self._is_half, floats)))
        for place in set(map(storage_id, outs)) - inputs:  # what is written in place keeps its type
            (self._halves.add if half else self._halves.discard)(place)
            if kind not in HALF_KINDS and not inputs.isdisjoint(self._upcast):
                self._upcast.add(place)
