"""The costs of any torch module, from one forward pass without data: every operator is seen as torch runs it.

The pass runs on torch's ``meta`` device, which knows shapes alone, so that neither weights nor activations take memory
and nothing is computed. Where a module needs real numbers on its way (an ``item()``), it runs once on the processor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedge.costs.layers import aten
from fedge.costs.layers.counting_rules import RULES, Operation
from fedge.costs.layers.layer_cost import FOLDABLE_KINDS, build_convolution, build_folded_layer_cost, build_layer_cost
from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost, Shape
from fedge.errors import BadInput


def trace_module(module: nn.Module, input_shape: Shape, name: str, *, fold_batch_norm: bool = True) -> NetworkCost:
    """The cost of a module for inputs of ``input_shape`` (one sample, without the batch), as it is in evaluation.

    The module is left as it was found. ``fold_batch_norm=False`` counts a batch normalisation behind a convolution as
    an operator of its own, as it is in training. Raises ``BadInput`` for a module that needs more than one input or
    that does not take this one.
    """
    _check_inputs(module, name)
    recorder = _run_module(module, input_shape, name, fold_batch_norm)
    return NetworkCost(
        name,
        input_shape=input_shape,
        layers=tuple(recorder.layers),
        source="traced with torch",
        unknown=tuple(recorder.unknown),
    )


def _check_inputs(module: nn.Module, name: str) -> None:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except ValueError:  # compiled ones do not say; the run will
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
    """Run the module: without data, and where that fails for real; as numbers, and where that fails as indices."""
    devices = ["meta"] if any(tensor.is_meta for tensor in _named_tensors(module).values()) else ["meta", "cpu"]
    first: BaseException | None = None
    for device in devices:
        for dtype in (torch.float32, torch.int64):
            recorder = OperatorRecorder(module, fold)
            try:
                recorder.run(torch.zeros((1, *input_shape), dtype=dtype, device=device))
            except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever a user's forward raises is told in one line
                first = first or error
            else:
                return recorder
    assert first is not None
    text = " ".join(f"{type(first).__name__}: {first}".split())[:300]
    shape = "x".join(map(str, input_shape))
    raise BadInput(name, f"an error for an input of {shape}: {text}", "an input that the network takes (--input)")


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _storage_id(tensor: Tensor) -> int:
    """What tensors that look at the same elements share."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 -- torch has no public name for it


class OperatorRecorder:
    """The layers of one forward pass, in order, and the names of the operators that no rule counts."""

    def __init__(self, module: nn.Module, fold: bool) -> None:
        self.module = module
        self.fold = fold
        self.layers: list[LayerCost] = []
        self.unknown: list[str] = []
        self.quiet = 0
        """Above zero: inside a function that was counted as a whole."""
        self._path: list[tuple[str, bool]] = []
        self._constant: set[int] = set()
        """Storages whose elements depend on no sample: weights, buffers, and what is computed from them alone."""
        self._unseen: dict[int, int] = {}
        """Storages of parameters that no layer has used yet, and how many elements they hold."""
        self._made_by: dict[int, str] = {}
        """Storages written by a convolution or dense layer and by nothing else since."""
        self._kept: list[Tensor] = []  # a storage's address is only its own while somebody holds it

    def run(self, images: Tensor) -> None:
        """One forward pass; fills ``layers`` and ``unknown``."""
        state = {key: value.detach().to(images.device) for key, value in _named_tensors(self.module).items()}
        parameters = {key for key, _ in self.module.named_parameters()}
        for key, tensor in state.items():
            self._constant.add(_storage_id(tensor))
            if key in parameters:
                self._unseen[_storage_id(tensor)] = tensor.numel()
        self._kept.extend(state.values())
        surroundings = (_evaluation_mode(self.module), self._track_modules(), torch.device(images.device))
        with torch.no_grad(), ExitStack() as stack:
            for part in (*surroundings, _FunctionMode(self), _DispatchMode(self)):
                stack.enter_context(part)
            torch.func.functional_call(self.module, state, (images,))
        self._kept.clear()
        self.layers.extend(self._unused_parameters())

    def _unused_parameters(self) -> Iterator[LayerCost]:
        """Parameters that the pass never touched (a head that only training uses), for the number of parameters."""
        if left := sum(self._unseen.values()):
            yield LayerCost("unused", kind="view", flop=0.0, read_bytes=0.0, written_bytes=0.0, parameters=left)

    @contextmanager
    def _track_modules(self) -> Iterator[None]:
        """While inside, ``_path`` says which module runs."""
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

    def _layer_name(self, kind: str) -> str:
        path, leaf = self._path[-1] if self._path else ("", False)
        return path if leaf and path else f"{path}.{kind}".lstrip(".")

    def depends_on_sample(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on the sample."""
        return _storage_id(tensor) not in self._constant

    def mark_tensors(self, tensors: Sequence[Tensor], *, constant: bool) -> None:
        """Remember of new tensors whether they depend on the sample."""
        for tensor in tensors:
            self._kept.append(tensor)
            (self._constant.add if constant else self._constant.discard)(_storage_id(tensor))

    def claim_parameters(self, tensors: Sequence[Tensor]) -> int:
        """How many parameters these tensors hold that no earlier layer has used."""
        return sum(self._unseen.pop(_storage_id(tensor), 0) for tensor in tensors)

    def add_operation(
        self, operation: Operation, used: Sequence[Tensor], out: Tensor, shape: Convolution | None = None
    ) -> None:
        """Record an operator that read the tensors ``used`` and wrote ``out``."""
        parameters = self.claim_parameters(used)
        name = self._layer_name(operation.kind)
        maker = self._made_by.get(_storage_id(used[0])) if used else None
        if self.fold and operation.kind == "batch_norm" and maker in FOLDABLE_KINDS:
            self.layers.append(build_folded_layer_cost(name, operation, parameters))
        else:
            self.layers.append(build_layer_cost(name, operation, parameters, shape))
        self._made_by[_storage_id(out)] = operation.kind

    def report_unknown(self, name: str) -> None:
        """An operator that no rule counts."""
        if name not in self.unknown:
            self.unknown.append(name)


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    """While inside, the module and its parts evaluate; each is set back to what it did."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


class _FunctionMode(TorchFunctionMode):
    """Sees functions before torch takes them apart, and counts recurrent networks as a whole."""

    def __init__(self, recorder: OperatorRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in aten.RECURRENT:
            return func(*args, **kwargs)
        recorder = self.recorder
        recorder.quiet += 1
        try:
            out = func(*args, **kwargs)
        finally:
            recorder.quiet -= 1
        outs = _find_tensors(out)
        recorder.mark_tensors(outs, constant=False)
        operation = _describe_recurrent(name, args, outs)
        if operation is None:
            recorder.report_unknown(f"{name} (packed, or with projections)")
        else:
            recorder.add_operation(operation, _find_tensors((args, kwargs)), outs[0])
        return out


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that torch runs, with its tensors."""

    def __init__(self, recorder: OperatorRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.recorder.quiet:
            _record_operator(self.recorder, full_name=func._schema.name, args=args, kwargs=kwargs or {}, out=out)  # noqa: SLF001 -- as torch's own counters do
        return out


def _find_tensors(values: Any) -> list[Tensor]:
    """All tensors in arguments or a result, however they are nested."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _record_operator(
    recorder: OperatorRecorder, full_name: str, args: Sequence[Any], kwargs: dict[str, Any], out: Any
) -> None:
    """Count an operator that ran, and remember which of its results depend on the sample."""
    name, outs = aten.strip_operator_name(full_name), _find_tensors(out)
    if name in aten.VIEWS or not outs:
        return
    used = _find_tensors((args, kwargs))
    constant = (
        name in aten.CREATORS or name in aten.FREE or not any(recorder.depends_on_sample(tensor) for tensor in used)
    )
    in_place = _storage_id(outs[0]) in {_storage_id(tensor) for tensor in used}
    if not (in_place and constant):  # constants put into a part of a tensor leave the rest of it as it was
        recorder.mark_tensors(outs, constant=constant)
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
    """An operator as its rule wants it, and a convolution's geometry."""
    activations = tuple(_shape_of(tensor) for tensor in used if recorder.depends_on_sample(tensor))
    weights = tuple(_shape_of(tensor) for tensor in used if not recorder.depends_on_sample(tensor))
    written = tuple(_shape_of(tensor) for tensor in (outs[:1] if kind in aten.ONLY_FIRST_OUTPUT else outs))
    if kind == "conv":
        return _describe_convolution(args, activations, weights, written)
    if kind == "matmul":
        left = args[1] if name.startswith("add") or name == "baddbmm" else args[0]
        dense = len(activations) < 2 and bool(weights)
        return Operation("linear" if dense else kind, activations, weights, written, inner=left.shape[-1]), None
    if kind == "batch_norm" and any(arg is True for arg in args[3:6]):  # with the statistics of the sample itself
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
    """A recurrent network; None for one that no rule counts.

    The arguments are input, state, weights, biases or not, layers, dropout, training, both directions or one, ...; of
    packed sequences another one stands between, and a projection makes the state narrower than the gates.
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


def _shape_of(tensor: Tensor) -> Shape:
    return tuple(tensor.shape)
