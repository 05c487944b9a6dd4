"""Costs of any torch module from one forward pass without data, by intercepting every executed operator.

The pass runs on torch's ``meta`` device, which has shapes only: neither weights nor activations take memory and nothing
is computed. A module that needs real numbers (an ``item()``) runs once on the CPU instead.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedge.costs.layers import aten
from fedge.costs.layers.counting_rules import (
    RULES,
    Operation,
    build_convolution,
    build_layer_cost,
)
from fedge.costs.layers.network_cost import TRAINING_PASSES, Convolution, LayerCost, NetworkCost, Shape
from fedge.costs.layers.saved_activations import SavedActivations, storage_id
from fedge.errors import BadInput
from fedge.registry import describe_failure

SAVED_BATCHES = (2, 3)
"""Samples of the passes that show what autograd keeps: batch normalisation trains on no single value per channel."""
RECURRENT_RESERVE = 3.0
"""Bytes that a recurrent layer's fused kernel keeps, relative to those of its single steps: oneDNN keeps 1 to 2.9 times
as many (LSTM, GRU and plain layers of 16 to 128 hidden elements); cuDNN's reserve is not known to us."""
FROZEN_PASSES = 2.0
"""Cost of a layer with frozen weights in a training step that goes back through it: forward and gradient of inputs."""


def trace_module(module: nn.Module, input_shape: Shape, name: str, *, fold_batch_norm: bool = True) -> NetworkCost:
    """Trace the cost of a module with one input in evaluation mode; the module is left unchanged.

    Without ``fold_batch_norm``, batch normalisation counts as an operator of its own, as in training.

    Raises:
        BadInput: The module needs more than one input, or fails for this one.
    """
    _check_inputs(module, name)
    recorder = _run_module(module, input_shape, name, fold_batch_norm)
    return NetworkCost(
        name,
        input_shape=input_shape,
        layers=tuple(_add_saved_bytes(recorder, input_shape)),
        source="traced with torch",
        unknown=tuple(recorder.unknown),
    )


def _check_inputs(module: nn.Module, name: str) -> None:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except ValueError:  # compiled modules have no signature; running them reports the error
        return
    plain_kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in plain_kinds]
    if len(needed) > 1:
        raise BadInput(
            name,
            f"a network with {len(needed)} inputs ({', '.join(needed)})",
            "networks with one input are supported; wrap it in a module that makes the others itself",
        )


def _run_module(module: nn.Module, input_shape: Shape, name: str, fold: bool) -> OperatorRecorder:
    """Run the module on the meta device, or else on the CPU; with floats, or else with integers (indices).

    Of several failures the one that came furthest is the module's own: others may be those of a data type that it does
    not take, or of a device without numbers.
    """
    devices = ["meta"] if any(tensor.is_meta for tensor in _named_tensors(module).values()) else ["meta", "cpu"]
    failures: list[tuple[tuple[int, bool, bool], BaseException]] = []
    for device in devices:
        for dtype in (torch.float32, torch.int64):
            recorder = OperatorRecorder(module, fold)
            try:
                recorder.run(torch.zeros((1, *input_shape), dtype=dtype, device=device))
            except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever a user's forward raises is reported in one line
                failures.append(((len(recorder.layers), device == "cpu", dtype.is_floating_point), error))
            else:
                return recorder
    furthest = max(failures, key=lambda failure: failure[0])[1]
    shape = "x".join(map(str, input_shape))
    got = f"a network whose forward fails for an input of {shape} with {describe_failure(furthest)}"
    raise BadInput(name, got, "a forward that takes this input, or the input that it takes (--input-shape)")


def _add_saved_bytes(recorder: OperatorRecorder, input_shape: Shape) -> list[LayerCost]:
    """Return the layers with what autograd keeps of them; unchanged if the module fails in training mode.

    What belongs to no counted layer, such as a loss inside the module, counts with the last one.
    """
    layers = recorder.layers
    passes = _run_training_passes(recorder, input_shape)
    if passes is None:
        return layers
    small, large = passes
    more = {  # never below zero: a module may leave out layers by chance
        name: [max(0, b - a) for a, b in zip(small.get(name, (0, 0)), both, strict=True)]
        for name, both in large.items()
    }
    kept = [more.pop(layer.name, [0, 0]) for layer in reversed(layers)][::-1]
    kept[-1:] = [[sum(part) for part in zip(one, *more.values(), strict=True)] for one in kept[-1:]]
    return [_with_saved_bytes(layer, *each) for layer, each in zip(layers, kept, strict=True)]


def _run_training_passes(recorder: OperatorRecorder, input_shape: Shape) -> list[dict[str, list[int]]] | None:
    """Return the bytes by layer of a batch of each of ``SAVED_BATCHES``, or None if the module cannot be trained.

    What needs a device with numbers is first run on torch's fake tensors, which many libraries take for a compiler's.
    """
    surroundings: list[AbstractContextManager[Any]] = [nullcontext()]
    if recorder.device.type == "cpu":
        from torch._subclasses.fake_tensor import FakeTensorMode

        surroundings.insert(0, FakeTensorMode(allow_non_fake_inputs=True))
    for surrounding in surroundings:
        with suppress(Exception, SystemExit), surrounding:  # whatever a user's forward raises
            batches = [
                torch.zeros((samples, *input_shape), dtype=recorder.dtype, device=recorder.device)
                for samples in SAVED_BATCHES
            ]
            return [OperatorRecorder(recorder.module, fold=False).run_training(batch) for batch in batches]
    return None


def _with_saved_bytes(layer: LayerCost, single: float, mixed: float) -> LayerCost:
    reserve = RECURRENT_RESERVE if layer.kind in aten.RECURRENT else 1.0
    return dataclasses.replace(layer, saved_bytes=reserve * single, saved_mixed_bytes=reserve * mixed)


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class OperatorRecorder:
    """Recorder of the layers of one forward pass.

    Attributes:
        unknown: Names of operators without a counting rule.
        quiet: Above 0 inside a function that is counted as a whole.
    """

    def __init__(self, module: nn.Module, fold: bool) -> None:
        self.module = module
        self.fold = fold
        self.device, self.dtype = torch.device("meta"), torch.float32
        self.layers: list[LayerCost] = []
        self.unknown: list[str] = []
        self.quiet = 0
        self._path: list[tuple[str, bool]] = []
        self._constant: set[int] = set()
        """Storages whose elements depend on no sample: weights, buffers, and results computed from them alone."""
        self._unseen: dict[int, int] = {}
        """Storages of parameters that no layer has used yet, and their numbers of elements."""
        self._made_by: dict[int, str] = {}
        """Kind of the operator that last wrote each storage."""
        self._frozen: dict[int, int] = {}
        """Storages of frozen parameters, and their numbers of elements; empty if all are trained."""
        self._trained: dict[int, int] = {}
        """Storages of trained parameters, and their numbers of elements."""
        self._follows_trained: set[int] = set()
        """Storages whose elements depend on a trained parameter, so that the backward pass goes through them."""
        self._kept: list[Tensor] = []  # a storage's address may be reused once it is freed

    def run(self, images: Tensor) -> None:
        """Run one forward pass; fills ``layers`` and ``unknown``."""
        self.device, self.dtype = images.device, images.dtype
        state = {key: value.detach().to(images.device) for key, value in _named_tensors(self.module).items()}
        trained = {key: weight.requires_grad for key, weight in self.module.named_parameters()}
        for key, tensor in state.items():
            self._constant.add(storage_id(tensor))
            if key in trained:
                self._unseen[storage_id(tensor)] = tensor.numel()
                (self._trained if trained[key] else self._frozen)[storage_id(tensor)] = tensor.numel()
        self._kept.extend(state.values())
        surroundings = (_set_mode(self.module, training=False), self._track_modules(), torch.device(images.device))
        with torch.no_grad(), ExitStack() as stack:
            for part in (*surroundings, _FunctionMode(self), _DispatchMode(self)):
                stack.enter_context(part)
            torch.func.functional_call(self.module, state, (images,))
        self._kept.clear()
        self.layers.extend(self._unused_parameters())

    def run_training(self, samples: Tensor) -> dict[str, list[int]]:
        """Run one forward pass in training mode, and return ``SavedActivations.bytes_by_layer``."""
        tensors, device = _named_tensors(self.module), samples.device
        state = {key: tensor.detach().to(device, copy=True) for key, tensor in tensors.items()}
        for key, weight in self.module.named_parameters():
            state[key].requires_grad_(weight.requires_grad)
        saved = SavedActivations()
        parts = (
            warnings.catch_warnings(action="ignore"),  # as of a training that nobody asked for
            torch.random.fork_rng(devices=[]),
            sdpa_kernel(SDPBackend.MATH),
            _set_mode(self.module, training=True),
            self._track_modules(),
            torch.device(device),
            _SavingMode(self, saved),
            torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor),
        )
        with torch.enable_grad(), ExitStack() as stack:
            for part in parts:
                stack.enter_context(part)
            torch.func.functional_call(self.module, state, (samples,))
        saved.finish()
        return saved.bytes_by_layer

    def _unused_parameters(self) -> Iterator[LayerCost]:
        """Yield a layer for parameters that the pass did not use (such as a head for training), to count them."""
        if left := sum(self._unseen.values()):
            frozen = sum(size for storage, size in self._unseen.items() if storage in self._frozen)
            layer = LayerCost("unused", kind="view", flop=0.0, read_bytes=0.0, written_bytes=0.0, parameters=left)
            yield dataclasses.replace(layer, training_passes=0.0, frozen=frozen) if frozen else layer

    @contextmanager
    def _track_modules(self) -> Iterator[None]:
        """Keep the path of the running module in ``_path``."""
        handles = []
        for path, part in self.module.named_modules():
            leaf = next(part.children(), None) is None
            enter, leave = self._build_hooks(path, leaf)
            handles += [
                part.register_forward_pre_hook(enter),
                part.register_forward_hook(leave, always_call=True),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _build_hooks(self, path: str, leaf: bool) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(*_: Any) -> None:
            self._path.append((path, leaf))

        def leave(*_: Any) -> None:
            self._path.pop()

        return enter, leave

    def layer_name(self, kind: str) -> str:
        """Return the name of the running module, or of an operator of this kind in a module with parts."""
        path, leaf = self._path[-1] if self._path else ("", False)
        return path if leaf and path else f"{path}.{kind}".lstrip(".")

    def depends_on_sample(self, tensor: Tensor) -> bool:
        """Return whether a tensor depends on the sample."""
        return storage_id(tensor) not in self._constant

    def mark_tensors(self, tensors: Sequence[Tensor], used: Sequence[Tensor], *, constant: bool | None) -> None:
        """Record of tensors computed from others whether they are constant, i.e. depend on no sample (None: as they
        were), and whether they depend on trained parameters.
        """
        follows = any(storage_id(tensor) in self._trained.keys() | self._follows_trained for tensor in used)
        for tensor in tensors:
            self._kept.append(tensor)
            if constant is not None:
                (self._constant.add if constant else self._constant.discard)(storage_id(tensor))
            if follows:
                self._follows_trained.add(storage_id(tensor))

    def count_training(self, used: Sequence[Tensor]) -> tuple[float, int]:
        """Return the passes of a training step through an operator, and its frozen parameters that no layer has used.

        Most of its weights decide: a trained bias needs no gradient of a frozen weight.
        """
        storages = [storage_id(tensor) for tensor in used]
        if not any(storage in self._frozen for storage in storages):
            reached = not self._frozen or any(s in self._trained or s in self._follows_trained for s in storages)
            return (TRAINING_PASSES if reached else 1.0), 0
        frozen, trained = (sum(part.get(s, 0) for s in storages) for part in (self._frozen, self._trained))
        unseen = sum(self._unseen.get(storage, 0) for storage in storages if storage in self._frozen)
        if trained >= frozen:
            return TRAINING_PASSES, unseen
        reached = trained > 0 or any(storage in self._follows_trained for storage in storages)
        return (FROZEN_PASSES if reached else 1.0), unseen

    def claim_parameters(self, tensors: Sequence[Tensor]) -> int:
        """Return the number of parameters in these tensors that no earlier layer has used, and mark them as used."""
        return sum(self._unseen.pop(storage_id(tensor), 0) for tensor in tensors)

    def add_operation(
        self, operation: Operation, used: Sequence[Tensor], out: Tensor, shape: Convolution | None = None
    ) -> None:
        """Record an operator as a layer, with the tensors it read and the one it wrote."""
        passes, frozen = self.count_training(used)
        parameters = self.claim_parameters(used)
        name = self.layer_name(operation.kind)
        made_by = self._made_by.get(storage_id(used[0])) if used and self.fold else None
        layer = build_layer_cost(name, operation, parameters, shape, made_by=made_by)
        self.layers.append(dataclasses.replace(layer, training_passes=passes, frozen=frozen))
        self._made_by[storage_id(out)] = operation.kind

    def report_unknown(self, name: str) -> None:
        """Record an operator without a counting rule."""
        if name not in self.unknown:
            self.unknown.append(name)


@contextmanager
def _set_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the module and its parts into training or evaluation mode, and restore each afterwards."""
    before = [(part, part.training) for part in module.modules()]
    try:
        if training:
            module.train()  # which a module may override to keep parts of it in evaluation mode
        for part, _ in () if training else before:
            part.training = False
        yield
    finally:
        for part, was in before:
            part.training = was


class _FunctionMode(TorchFunctionMode):
    """Intercepts functions before torch decomposes them, and counts recurrent networks as a whole."""

    def __init__(self, recorder: OperatorRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in aten.RECURRENT and name not in aten.CELLS:
            return func(*args, **kwargs)
        recorder = self.recorder
        recorder.quiet += 1
        try:
            out = func(*args, **kwargs)
        finally:
            recorder.quiet -= 1
        outs = _find_tensors(out)
        recorder.mark_tensors(outs, _find_tensors((args, kwargs)), constant=False)
        describe = _describe_cell if name in aten.CELLS else _describe_recurrent
        operation = describe(name, args, outs)
        if operation is None:
            recorder.report_unknown(f"{name} (packed, or with projections)")
        else:
            recorder.add_operation(operation, _find_tensors((args, kwargs)), outs[0])
        return out


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Intercepts every executed operator with its tensors."""

    def __init__(self, recorder: OperatorRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.recorder.quiet:
            _record_operator(self.recorder, full_name=func._schema.name, args=args, kwargs=kwargs or {}, out=out)  # noqa: SLF001 -- as torch's own counters do
        return out


class _SavingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells of every executed operator that it keeps activations for."""

    def __init__(self, recorder: OperatorRecorder, saved: SavedActivations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder, self.saved = recorder, saved

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = aten.strip_operator_name(func._schema.name)  # noqa: SLF001 -- as above
        if name not in aten.VIEWS:
            kind = aten.KINDS.get(name, name)
            layer, outs = self.recorder.layer_name(kind), _find_tensors(out)
            self.saved.note_operator(layer, kind, _find_tensors((args, kwargs)), outs)
            if name == "_safe_softmax":  # which torch uses in its own attention only
                self.saved.note_attention(layer, outs)
        return out


def _find_tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _record_operator(
    recorder: OperatorRecorder, full_name: str, args: Sequence[Any], kwargs: dict[str, Any], out: Any
) -> None:
    """Count an executed operator, and record which of its results depend on the sample."""
    name, outs = aten.strip_operator_name(full_name), _find_tensors(out)
    if name in aten.VIEWS or not outs:
        return
    used = _find_tensors((args, kwargs))
    constant = (
        name in aten.CREATORS or name in aten.FREE or not any(recorder.depends_on_sample(tensor) for tensor in used)
    )
    in_place = storage_id(outs[0]) in {storage_id(tensor) for tensor in used}
    # Constants written to part of a tensor do not make the rest constant.
    recorder.mark_tensors(outs, used, constant=None if in_place and constant else constant)
    if name in aten.FREE:
        return
    kind = aten.KINDS.get(name)
    if kind is None or kind not in RULES:
        recorder.report_unknown(full_name.removeprefix("aten::"))
        return
    read = used if kind not in aten.ONLY_LAST_INPUT else used[-1:]
    operation, shape = _describe_operation(recorder, kind=kind, name=name, args=args, used=read, outs=outs)
    recorder.add_operation(operation, read, outs[0], shape)


def _describe_operation(
    recorder: OperatorRecorder, kind: str, name: str, args: Sequence[Any], used: list[Tensor], outs: list[Tensor]
) -> tuple[Operation, Convolution | None]:
    """Convert an operator to its rule's operation and, for a convolution, its geometry."""
    activations = tuple(_shape_of(tensor) for tensor in used if recorder.depends_on_sample(tensor))
    weights = tuple(_shape_of(tensor) for tensor in used if not recorder.depends_on_sample(tensor))
    written = tuple(_shape_of(tensor) for tensor in (outs[:1] if kind in aten.ONLY_FIRST_OUTPUT else outs))
    if kind == "conv":
        return _describe_convolution(args, activations, weights, written)
    if kind == "matmul":
        left = args[1] if name.startswith("add") or name == "baddbmm" else args[0]
        dense = len(activations) < 2 and bool(weights)
        return Operation("linear" if dense else kind, activations, weights, written, inner=left.shape[-1]), None
    if kind == "batch_norm" and any(arg is True for arg in args[3:6]):  # normalised by the sample's own statistics
        return Operation("instance_norm", activations, weights, written), None
    if kind == "attention":
        query, key, value = (_shape_of(tensor) for tensor in used[:3])
        sizes = (prod(query[:-2]), query[-2], key[-2], query[-1], value[-1])
        return Operation(kind, activations, weights, written, sizes=sizes), None
    if kind in {"max_pool", "avg_pool"}:
        window = aten.expand_per_side(args[1], aten.count_pooling_sides(name))
        return Operation(kind, activations, weights, written, window=window), None
    return Operation(kind, activations, weights, written), None


def _describe_convolution(
    args: Sequence[Any],
    activations: tuple[Shape, ...],
    weights: tuple[Shape, ...],
    written: tuple[Shape, ...],
) -> tuple[Operation, Convolution | None]:
    weight, stride, padding, dilation, transposed, groups = args[1], args[3], args[4], args[5], args[6], args[8]
    window = _shape_of(weight)[2:]
    kind = "conv_transpose" if transposed else "conv"
    operation = Operation(kind, activations, weights, written, window=window, groups=groups)
    if transposed or not activations:
        return operation, None
    sides = len(window)
    settings = (aten.expand_per_side(value, sides) for value in (stride, padding, dilation))
    return operation, build_convolution(operation, *settings)


def _describe_recurrent(kind: str, args: Sequence[Any], outs: list[Tensor]) -> Operation | None:
    """Describe a recurrent network; return None if no rule counts it.

    The arguments are input, state, weights, whether there are biases, layers, dropout, training, whether it is
    bidirectional, ... Packed sequences have a further argument in between, and a projection makes the state narrower
    than the gates.
    """
    if not isinstance(args[2], list | tuple) or not isinstance(args[4], int):
        return None
    sample, weights, layers = args[0], args[2], args[4] * (2 if args[7] else 1)
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    hidden = weights[0].shape[0] // gates
    if weights[1].shape[1] != hidden:
        return None
    widths = [weights[row * len(weights) // layers].shape[1] for row in range(layers)]
    return Operation(
        kind,
        activations=(_shape_of(sample),),
        weights=tuple(_shape_of(weight) for weight in weights),
        outputs=(_shape_of(outs[0]),),
        inner=hidden,
        sizes=(sample.numel() // sample.shape[-1], *widths),
    )


def _describe_cell(name: str, args: Sequence[Any], outs: list[Tensor]) -> Operation:
    """Describe one step of a recurrent layer; the arguments are input, state, and the weights."""
    sample, state, weights = args[0], _find_tensors(args[1]), _find_tensors(args[2:])
    width = sample.shape[-1]
    return Operation(
        aten.CELLS[name],
        activations=tuple(_shape_of(tensor) for tensor in (sample, *state)),
        weights=tuple(_shape_of(weight) for weight in weights),
        outputs=tuple(_shape_of(tensor) for tensor in outs),
        inner=state[0].shape[-1],
        sizes=(sample.numel() // width, width),
    )


def _shape_of(tensor: Tensor) -> Shape:
    return tuple(tensor.shape)
