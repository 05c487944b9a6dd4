"""A network's costs as plain data: JSON records with validation, and the shipped layers of the known workloads.

``known.yaml`` holds layers that were counted in advance, so that emulated boards need no torch: as text, one line per
layer, with the columns ``LAYER_COLUMNS`` separated by blanks: shapes as ``1x3x224x224`` (several separated by commas),
a convolution as its seven numbers separated by commas, ``-`` for none.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from functools import lru_cache
from importlib import resources
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from fedge.costs.cost_profile import load_yaml
from fedge.costs.layers.counting_rules import RULES
from fedge.costs.layers.network_cost import TRAINING_PASSES, Convolution, LayerCost, NetworkCost, Shape
from fedge.errors import BadInput, one_line
from fedge.yaml_files import validate_fields

RECORD_FORMAT = "fedge-layers-1"
TOTALS = ("flop", "weight_bytes", "activation_bytes", "parameters", "activations")
"""Sums that are written for readers."""
CONVOLUTION_COLUMNS = ("in_channels", "out_channels", "kernel", "padding", "stride", "groups", "input_size")
"""Order of a convolution's numbers."""
MAX_NUMBER = 10**30
"""Largest accepted number: larger ones are errors in the file, and would overflow in sums. Default, far above any
network."""
_EXPECTED_FILE = "a file that `fedge layers NETWORK --out FILE` wrote"


def network_to_dict(network: NetworkCost) -> dict[str, Any]:
    """Convert a network's costs to data for JSON; ``totals`` is for readers and is not read back."""
    return {
        "format": RECORD_FORMAT,
        "name": network.name,
        "input_shape": list(network.input_shape),
        "source": network.source,
        "unknown": list(network.unknown),
        "totals": {name: getattr(network, name) for name in TOTALS},
        "layers": [_layer_to_dict(layer) for layer in network.layers],
    }


def _layer_to_dict(layer: LayerCost) -> dict[str, Any]:
    shapes = {"inputs": [list(shape) for shape in layer.inputs], "output": list(layer.output)}
    return {**asdict(layer), **shapes, "convolution": convolution_to_list(layer.convolution)}


def convolution_to_list(convolution: Convolution | None) -> list[float] | None:
    """Convert a convolution to its numbers in the order of ``CONVOLUTION_COLUMNS``."""
    return None if convolution is None else [getattr(convolution, column) for column in CONVOLUTION_COLUMNS]


def _require_rule(kind: str) -> str:
    if kind not in RULES:
        raise ValueError(f"the kind of an operator, as conv: {_EXPECTED_FILE}")
    return kind


def _keep_whole(value: Any, validate: ValidatorFunctionWrapHandler) -> float:
    """Keep whole numbers as integers, so that reading back gives what was written."""
    number: float = validate(value)
    return value if isinstance(value, int) else number


_Whole = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
_Channels = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
_Amount = Annotated[float, Field(ge=0, le=MAX_NUMBER), WrapValidator(_keep_whole)]
_Size = Annotated[float, Field(gt=0, le=MAX_NUMBER), WrapValidator(_keep_whole)]


class _ConvolutionRecord(BaseModel):
    model_config = ConfigDict(strict=True)
    in_channels: _Channels
    out_channels: _Channels
    kernel: _Size
    # The effective padding of a dilated convolution without padding is negative.
    padding: Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER), WrapValidator(_keep_whole)]
    stride: _Size
    groups: _Channels
    input_size: _Size

    @model_validator(mode="before")
    @classmethod
    def _name_columns(cls, numbers: Any) -> Any:
        if not isinstance(numbers, list) or len(numbers) != len(CONVOLUTION_COLUMNS):
            raise ValueError(f"null, or {len(CONVOLUTION_COLUMNS)} numbers: {', '.join(CONVOLUTION_COLUMNS)}")
        return dict(zip(CONVOLUTION_COLUMNS, numbers, strict=True))


class _LayerRecord(BaseModel):
    model_config = ConfigDict(strict=True)
    name: str
    kind: Annotated[str, AfterValidator(_require_rule)]
    flop: _Amount
    read_bytes: _Amount
    written_bytes: _Amount
    weight_bytes: _Amount
    parameters: _Whole
    activations: _Whole
    inputs: list[list[_Whole]]
    output: list[_Whole]
    convolution: _ConvolutionRecord | None = None
    training_passes: _Amount = TRAINING_PASSES
    frozen: _Whole = 0
    saved_bytes: _Amount | None = None
    saved_mixed_bytes: _Amount | None = None

    def to_layer(self) -> LayerCost:
        fields = self.model_dump()
        convolution = None if self.convolution is None else Convolution(**fields["convolution"])
        shapes = {"inputs": tuple(map(tuple, self.inputs)), "output": tuple(self.output)}
        return LayerCost(**{**fields, **shapes, "convolution": convolution})


class _NetworkRecord(BaseModel):
    model_config = ConfigDict(strict=True)
    name: str
    input_shape: Annotated[list[_Channels], Field(min_length=1)]
    layers: list[_LayerRecord]
    source: str
    unknown: list[str]


def network_from_dict(data: Any, where: str) -> NetworkCost:
    """Convert the data of ``network_to_dict`` back to costs.

    Raises:
        BadInput: A field is missing or invalid; the message names it.
    """
    if not isinstance(data, dict):
        raise BadInput(where, type(data).__name__, f"an object with fields: {_EXPECTED_FILE}")
    if data.get("format") != RECORD_FORMAT:
        raise BadInput(f"{where}: format", repr(data.get("format")), f"{RECORD_FORMAT!r}: {_EXPECTED_FILE}")
    record = validate_fields(_NetworkRecord, data, where)
    return NetworkCost(
        record.name,
        input_shape=tuple(record.input_shape),
        layers=tuple(layer.to_layer() for layer in record.layers),
        source=record.source,
        unknown=tuple(record.unknown),
    )


def cost_from_variant(data: dict[str, Any], where: str) -> NetworkCost:
    """Convert the costs in a variant's record, which says the shape of its input beside them too.

    Raises:
        BadInput: A field is missing or invalid, or the two shapes differ.
    """
    cost = network_from_dict(data.get("cost"), f"{where}: cost")
    given, right = json.dumps(data.get("input_shape")), json.dumps(cost.input_shape)
    if given != right:
        raise BadInput(f"{where}: input_shape", given, f"{one_line(right)}, the shape in cost.input_shape")
    return cost


LAYER_COLUMNS = tuple(field.name for field in dataclass_fields(LayerCost))
OPTIONAL_COLUMNS = 2
"""Columns of frozen weights, and after them of kept activations, that stand in pairs where a layer has them."""
ABSENT = "-"


@lru_cache(maxsize=1)
def _load_file() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = load_yaml(resources.files("fedge.costs.layers") / "known.yaml")
    return entries


def list_known_workloads() -> tuple[str, ...]:
    """Return the workloads whose networks are known."""
    return tuple(_load_file())


@lru_cache(maxsize=32)
def find_known_network(workload: str) -> NetworkCost | None:
    """Return the shipped network of a workload, or None if it is not known."""
    entry = _load_file().get(workload)
    if entry is None:
        return None
    return NetworkCost(workload, tuple(entry["input_shape"]), parse_layers(entry["layers"]), entry["source"])


def parse_layers(text: str) -> tuple[LayerCost, ...]:
    """Parse the text of ``format_layers``.

    Raises:
        ValueError: The text is not of this form.
    """
    return tuple(_parse_layer(line) for line in text.splitlines())


def format_layers(network: NetworkCost) -> str:
    """Format a network's layers as text, one line per layer."""
    return "\n".join(map(_format_layer, network.layers))


def format_entry(network: NetworkCost) -> str:
    """Format a network's entry for ``known.yaml``."""
    rows = "".join(f"    {_format_layer(layer)}\n" for layer in network.layers)
    shape = list(network.input_shape)
    return f"{network.name}:\n  input_shape: {shape}\n  source: {network.source}\n  layers: |\n{rows}"


def _format_layer(layer: LayerCost) -> str:
    numbers = (layer.flop, layer.read_bytes, layer.written_bytes, layer.weight_bytes)
    shapes = ",".join(_format_shape(shape) for shape in layer.inputs) or ABSENT
    geometry = convolution_to_list(layer.convolution)
    saved = layer.saved_bytes, layer.saved_mixed_bytes
    kept = () if None in saved else tuple(f"{number:.17g}" for number in saved)
    has_frozen = layer.frozen > 0 or layer.training_passes != TRAINING_PASSES
    return " ".join([
        "_".join(layer.name.split()) or ABSENT,
        layer.kind,
        *(f"{number:.17g}" for number in numbers),
        str(layer.parameters),
        str(layer.activations),
        shapes,
        _format_shape(layer.output) or ABSENT,
        ABSENT if geometry is None else ",".join(f"{number:.17g}" for number in geometry),
        *((f"{layer.training_passes:g}", str(layer.frozen)) if has_frozen or kept else ()),
        *kept,
    ])  # fmt: skip


def _parse_layer(line: str) -> LayerCost:
    values = line.split()
    missing = len(LAYER_COLUMNS) - len(values)
    columns = LAYER_COLUMNS[:-missing] if missing in {OPTIONAL_COLUMNS, 2 * OPTIONAL_COLUMNS} else LAYER_COLUMNS
    row = dict(zip(columns, values, strict=True))
    numbers = {name: float(row[name]) for name in ("flop", "read_bytes", "written_bytes", "weight_bytes")}
    inputs, output, geometry = row["inputs"], row["output"], row["convolution"]
    return LayerCost(
        name=row["name"],
        kind=row["kind"],
        **numbers,
        parameters=int(row["parameters"]),
        activations=int(row["activations"]),
        inputs=() if inputs == ABSENT else tuple(_parse_shape_text(text) for text in inputs.split(",")),
        output=() if output == ABSENT else _parse_shape_text(output),
        convolution=None if geometry == ABSENT else _parse_convolution_text(geometry),
        training_passes=float(row.get("training_passes", TRAINING_PASSES)),
        frozen=int(row.get("frozen", 0)),
        saved_bytes=float(row["saved_bytes"]) if "saved_bytes" in row else None,
        saved_mixed_bytes=float(row["saved_mixed_bytes"]) if "saved_mixed_bytes" in row else None,
    )


def _format_shape(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _parse_shape_text(text: str) -> Shape:
    return tuple(int(side) for side in text.split("x"))


def _parse_convolution_text(text: str) -> Convolution:
    numbers = (float(number) if "." in number else int(number) for number in text.split(","))
    return Convolution(**dict(zip(CONVOLUTION_COLUMNS, numbers, strict=True)))  # type: ignore[arg-type] # whole where it must be
