"""Resolution of the network that a user names as NETWORK, to its costs or a torch module.

NETWORK is a classifier of torchvision (``resnet50``), a task or workload of fedge (``resnet18-imagenet``), the user's
``module:function`` that returns a ``torch.nn.Module``, an ``.onnx`` file, or a ``.json`` file written by ``fedge layers
--out`` or, for a pruned variant, by ``fedge topology --folder``.

Summary of a network's cost for one step: its totals, its kinds of operators, and its costliest layers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedge.costs.layers.network_cost import LayerCost, NetworkCost, Shape
from fedge.costs.layers.network_record import cost_from_variant, find_known_network, network_from_dict
from fedge.errors import MAX_SIMILAR, BadInput, describe_error, find_similar, one_line
from fedge.experiment import VARIANT_FILE
from fedge.json_reader import read_json
from fedge.registry import check_own_name
from fedge.worker import builtin_tasks
from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    from torch import nn


DEFAULT_IMAGE: Shape = (3, 224, 224)
"""Sample shape of torchvision's classifiers, unless the network or the user specifies another."""
OTHER_IMAGES: dict[str, Shape] = {"inception_v3": (3, 299, 299)}
MODULES_HINT = "a classifier of torchvision (resnet50), a workload (resnet18-imagenet), module:function of your own"
FILES_HINT = "or a file: .onnx, or .json of `fedge layers`"
VARIANT_FORMAT = "fedge-variant-1"
"""Format of the record of a pruned variant (``fedge topology --folder``), which holds the layers that it has left."""
MODEL_FILES = (".onnx", ".json")
"""Endings of a NETWORK that is a file, which says what its input is like."""


def load_network_cost(model: str, input_shape: Shape | None = None) -> NetworkCost:
    """Load the costs of the network that NETWORK names; files accept no other input shape than their own.

    Raises:
        BadInput: The name, file or shape is invalid.
    """
    return _find_loader(model, input_shape)()


def check_network_name(model: str, input_shape: Shape | None = None) -> None:
    """Check that NETWORK names something that could be loaded, without building or importing what is the user's own.

    Raises:
        BadInput: The name, file or shape is invalid.
    """
    _find_loader(model, input_shape)
    if ":" in model:
        with _folder_on_path():
            check_own_name("NETWORK", model)
    elif model.endswith(MODEL_FILES) and not Path(model).is_file():
        raise BadInput("NETWORK", f"{model}, which is no file here ({Path.cwd()})", "the path of a file")


def _find_loader(model: str, input_shape: Shape | None) -> Callable[[], NetworkCost]:
    """Return the function that loads the costs of what NETWORK names."""
    if model.endswith(".onnx"):
        from fedge.costs.layers.onnx_graph import read_onnx

        _reject_shape(model, input_shape)
        return partial(read_onnx, Path(model))
    if model.endswith(".json"):
        _reject_shape(model, input_shape)
        return partial(_read_json, Path(model))
    if model not in builtin_tasks.NETWORKS and (
        model in builtin_tasks.REFUSED or find_known_network(model) is not None
    ):
        known = _find_known_only(model, input_shape)
        return lambda: known
    if (Path(model) / VARIANT_FILE).is_file():
        return partial(_read_json, Path(model) / VARIANT_FILE)
    from fedge.costs.layers.torch_trace import trace_module

    builder, shape = _find_builder(model, input_shape)
    return lambda: trace_module(_build(builder, empty=":" not in model), shape, model)


def build_module(model: str, input_shape: Shape | None = None) -> tuple[nn.Module, Shape]:
    """Build the module that NETWORK names, with newly initialised weights; return it and the shape of one sample.

    Raises:
        BadInput: The name or shape is invalid, or NETWORK is a file.
    """
    if model.endswith((".onnx", ".json")):
        raise BadInput(model, "a file, which holds no torch module", MODULES_HINT)
    builder, shape = _find_builder(model, input_shape)
    return _build(builder, empty=False), shape


def parse_input_shape(text: str | None) -> Shape | None:
    """Parse the value of ``--input-shape``, such as ``3x224x224``; None stays None.

    Raises:
        BadInput: The text is not a shape.
    """
    if text is None:
        return None
    sides = text.lower().replace("×", "x").split("x")
    if not all(side.isascii() and side.isdigit() and int(side) for side in sides):
        raise BadInput("--input-shape", repr(text), "the shape of one sample, without the batch: 3x224x224")
    return tuple(int(side) for side in sides)


def _reject_shape(model: str, input_shape: Shape | None) -> None:
    if input_shape is not None:
        raise BadInput(
            "--input-shape", "x".join(map(str, input_shape)), f"nothing: {model} says what its input is like"
        )


def _read_json(path: Path) -> NetworkCost:
    data = read_json(path, "a file that `fedge layers --out` wrote")
    if isinstance(data, dict) and data.get("format") == VARIANT_FORMAT:
        return cost_from_variant(data, str(path))
    return network_from_dict(data, str(path))


def _find_known_only(model: str, input_shape: Shape | None) -> NetworkCost:
    """Return the costs of a workload that may be known without its module."""
    known = find_known_network(model)
    if known is None:
        raise BadInput("NETWORK", repr(model), builtin_tasks.REFUSED[model])
    if input_shape not in (None, known.input_shape):
        raise BadInput(
            "--input-shape", "x".join(map(str, input_shape or ())), f"{model} is known for its own images only"
        )
    return known


def _build(build: Callable[[], nn.Module], *, empty: bool) -> nn.Module:
    """Build a module; with ``empty``, its parameters take no memory, for tracing."""
    try:
        with _without_memory() if empty else nullcontext():
            return build()
    except Refusal as error:
        raise BadInput(error.where, error.got, error.right) from error


def _find_builder(model: str, input_shape: Shape | None) -> tuple[Callable[[], nn.Module], Shape]:
    if ":" in model:
        return _user_builder(model, input_shape)
    if model in builtin_tasks.REFUSED:
        raise BadInput("NETWORK", repr(model), builtin_tasks.REFUSED[model])
    if model in builtin_tasks.NETWORKS:
        return _own_network_builder(model, input_shape)
    classifiers = _list_classifiers()
    if model not in classifiers:
        names = [*classifiers, *builtin_tasks.NETWORKS]
        near = find_similar(model, names) or [name for name in names if model and model in name]
        inside = [str(path.parent) for path in sorted(Path(model).glob(f"*/{VARIANT_FILE}"))]
        hint = f"did you mean {' or '.join((inside or near)[:MAX_SIMILAR])}? Or " if near or inside else ""
        raise BadInput("NETWORK", repr(model), f"{hint}{MODULES_HINT}, {FILES_HINT}")
    return _torchvision_builder(model, input_shape or OTHER_IMAGES.get(model, DEFAULT_IMAGE))


def _list_classifiers() -> tuple[str, ...]:
    """Return the names of torchvision's classifiers; none without torchvision, whose own error follows later."""
    try:
        from fedge.worker.torchvision_shim import models
    except Refusal as error:
        raise BadInput(error.where, error.got, error.right) from error
    return tuple(models.list_models(module=models))


def _torchvision_builder(model: str, shape: Shape) -> tuple[Callable[[], nn.Module], Shape]:
    """Return the builder of a torchvision classifier, for this image size if it is built for a fixed one."""
    from fedge.worker.torchvision_shim import models

    if len(shape) != 3:
        raise BadInput("--input-shape", "x".join(map(str, shape)), f"channels and two sides for {model}: 3x224x224")
    settings: dict[str, Any] = {}
    if model.startswith("vit_"):
        settings["image_size"] = shape[-1]
    elif model.startswith("maxvit"):
        settings["input_size"] = shape[-2:]
    elif model in {"googlenet", "inception_v3"}:
        settings["init_weights"] = True  # the default; given explicitly to avoid torchvision's warning

    def build() -> nn.Module:
        try:
            made: nn.Module = models.get_model(model, **settings)
        except (ValueError, AssertionError, RuntimeError) as error:
            why = one_line(error)
            raise BadInput("--input-shape", "x".join(map(str, shape)), f"images that {model} takes ({why})") from error
        return made

    return build, shape


def _own_network_builder(model: str, input_shape: Shape | None) -> tuple[Callable[[], nn.Module], Shape]:
    """Return the builder of a network of fedge's, for its own samples or square images of another size."""
    from fedge.worker.task_shape import Shape as Images

    own = builtin_tasks.builtin_shape(model)
    shape = input_shape or own.input
    if own.sample:
        if shape != own.sample:
            raise BadInput(
                "--input-shape", "x".join(map(str, shape)), f"nothing: {model} is for samples of {own.sample}"
            )
        return lambda: builtin_tasks.network_builder(model)(own), shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise BadInput(
            "--input-shape", "x".join(map(str, shape)), f"channels and two equal sides for {model}: 3x224x224"
        )
    images = Images(shape[0], shape[1], own.classes)
    return lambda: builtin_tasks.network_builder(model)(images), shape


def _user_builder(model: str, input_shape: Shape | None) -> tuple[Callable[[], nn.Module], Shape]:
    """Return the builder of the user's ``module:function``; modules in the current folder can be imported as well."""
    if input_shape is None:
        raise BadInput("--input-shape", "nothing", f"the shape of one sample of {model}, as --input-shape 3x224x224")
    module_name, _, function_name = model.partition(":")

    def build() -> nn.Module:
        from torch import nn, random

        with random.fork_rng(devices=[]):  # the weights are not used: random numbers of a training stay as they are
            made = _run_user_function(model, module_name, function_name)
        if not isinstance(made, nn.Module):
            raise BadInput(model, type(made).__name__, "a function that returns a torch.nn.Module")
        return made

    return build, input_shape


def _run_user_function(model: str, module_name: str, function_name: str) -> Any:
    try:
        with _folder_on_path():
            return getattr(importlib.import_module(module_name), function_name)()
    except (Exception, SystemExit) as error:
        text = describe_error(error)
        raise BadInput(model, f"an error: {text}", "a module that can be imported and a function that works") from error


@contextmanager
def _folder_on_path() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


@contextmanager
def _without_memory() -> Iterator[None]:
    """Register new parameters on torch's meta device: they have shapes but hold no numbers."""
    from torch import nn
    from torch.nn.modules import module as modules

    def empty_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    # torch's annotation omits that a hook may return the parameter to be registered instead
    handle = modules.register_module_parameter_registration_hook(empty_parameter)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


StepKind = Literal["train", "infer"]


@dataclass(frozen=True, slots=True)
class LayerCostRow:
    """Cost of one layer (with its output shape) or of all layers of a kind, for one step."""

    name: str
    kind: str
    layers: int
    flop: float
    bytes: float
    output: str = ""


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """A network's cost for one step.

    Attributes:
        by_kind: Cost by kind of operator, most bytes first, without free operators.
        costliest: The layers that move most bytes, in this order.
    """

    network: NetworkCost
    batch_size: int
    kind: StepKind
    by_kind: tuple[LayerCostRow, ...]
    costliest: tuple[LayerCostRow, ...]


def count_network(model: str, input_shape: str | None, batch_size: int, kind: StepKind, top: int) -> LayerSummary:
    """Load a network (see ``load_network_cost``) and summarise its cost, with its ``top`` costliest layers.

    Raises:
        BadInput: If the network or the shape is invalid.
    """
    return summarize_layers(load_network_cost(model, parse_input_shape(input_shape)), batch_size, kind, top)


def summarize_layers(network: NetworkCost, batch_size: int, kind: StepKind, top: int) -> LayerSummary:
    """Summarise the cost of one step; see ``count_network``."""
    costliest = list_costliest_layers(network, batch_size, kind, top)
    return LayerSummary(
        network,
        batch_size=batch_size,
        kind=kind,
        by_kind=tuple(cost_by_kind(network, batch_size, kind)),
        costliest=tuple(costliest),
    )


def cost_by_kind(network: NetworkCost, batch_size: int, kind: StepKind) -> list[LayerCostRow]:
    """Return the cost by kind of operator, most bytes first, without free operators."""
    kinds = dict.fromkeys(layer.kind for layer in network.layers)
    rows = [
        _sum_layers(name, [layer for layer in network.layers if layer.kind == name], batch_size, kind) for name in kinds
    ]
    return sorted((row for row in rows if row.flop or row.bytes), key=lambda row: -row.bytes)


def list_costliest_layers(network: NetworkCost, batch_size: int, kind: StepKind, top: int) -> list[LayerCostRow]:
    """Return the layers that move most bytes, which limit networks on boards more often than arithmetic does."""
    rows = [_sum_layers(layer.name, [layer], batch_size, kind) for layer in network.layers]
    return sorted(rows, key=lambda row: -row.bytes)[:top]


def _sum_layers(name: str, part: list[LayerCost], batch_size: int, kind: StepKind) -> LayerCostRow:
    work = NetworkCost(name, (), tuple(part), "").batch_work(batch_size, kind)
    output = "x".join(map(str, part[0].output)) if len(part) == 1 else ""
    return LayerCostRow(name, kind=part[0].kind, layers=len(part), flop=work.flop, bytes=work.bytes, output=output)
