"""A network's costs as plain data: JSON records with validation, and the shipped layers of the known workloads.

``known.yaml`` holds layers that were counted in advance, so that emulated boards need no torch: as text, one line per
layer, with the columns ``LAYER_COLUMNS`` separated by blanks: shapes as ``1x3x224x224`` (several separated by commas),
a convolution as its seven numbers separated by commas, ``-`` for none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from functools import lru_cache
from importlib import resources
from typing import Any

from fedge.costs.cost_profile import load_yaml
from fedge.costs.layers.counting_rules import RULES
from fedge.costs.layers.network_cost import TRAINING_PASSES, Convolution, LayerCost, NetworkCost, Shape
from fedge.errors import BadInput

RECORD_FORMAT = "fedge-layers-1"
TOTALS = ("flop", "weight_bytes", "activation_bytes", "parameters", "activations")
"""Sums that are written for readers."""
CONVOLUTION_COLUMNS = ("in_channels", "out_channels", "kernel", "padding", "stride", "groups", "input_size")
"""Order of a convolution's numbers."""
MAX_NUMBER = 1e30
"""Largest accepted number: larger ones are errors in the file, and would overflow in sums. Default, far above any
network."""
_WHOLE_COLUMNS = {"in_channels", "out_channels", "groups"}
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


def network_from_dict(data: Any, where: str) -> NetworkCost:
    """Convert the data of ``network_to_dict`` back to costs.

    Raises:
        BadInput: A field is missing or invalid; the message names it.
    """
    fields = _require_mapping(data, where)
    if fields.get("format") != RECORD_FORMAT:
        raise BadInput(f"{where}: format", repr(fields.get("format")), f"{RECORD_FORMAT!r}: {_EXPECTED_FILE}")
    layers = _require_list(fields, "layers", where)
    input_shape = _parse_shape(fields.get("input_shape"), f"{where}: input_shape")
    if not all(input_shape) or not input_shape:
        raise BadInput(f"{where}: input_shape", repr(list(input_shape)), "the sides of one sample, each at least 1")
    return NetworkCost(
        name=_require_text(fields, "name", where),
        input_shape=input_shape,
        layers=tuple(_layer_from_dict(layer, f"{where}: layers[{row}]") for row, layer in enumerate(layers)),
        source=_require_text(fields, "source", where),
        unknown=tuple(
            _require_text({"unknown": name}, "unknown", where) for name in _require_list(fields, "unknown", where)
        ),
    )


def _layer_from_dict(data: Any, where: str) -> LayerCost:
    fields = _require_mapping(data, where)
    return LayerCost(
        name=_require_text(fields, "name", where),
        kind=_require_kind(fields, where),
        flop=_require_non_negative(fields.get("flop"), f"{where}: flop"),
        read_bytes=_require_non_negative(fields.get("read_bytes"), f"{where}: read_bytes"),
        written_bytes=_require_non_negative(fields.get("written_bytes"), f"{where}: written_bytes"),
        weight_bytes=_require_non_negative(fields.get("weight_bytes"), f"{where}: weight_bytes"),
        parameters=_require_whole_number(fields.get("parameters"), f"{where}: parameters"),
        activations=_require_whole_number(fields.get("activations"), f"{where}: activations"),
        inputs=tuple(_parse_shape(shape, f"{where}: inputs") for shape in _require_list(fields, "inputs", where)),
        output=_parse_shape(fields.get("output"), f"{where}: output"),
        convolution=convolution_from_list(fields.get("convolution"), f"{where}: convolution"),
        training_passes=_require_non_negative(
            fields.get("training_passes", TRAINING_PASSES), f"{where}: training_passes"
        ),
        frozen=_require_whole_number(fields.get("frozen", 0), f"{where}: frozen"),
    )


def convolution_from_list(data: Any, where: str) -> Convolution | None:
    """Convert numbers in the order of ``CONVOLUTION_COLUMNS`` to a convolution; None for none.

    Raises:
        BadInput: The data are of another form.
    """
    if data is None:
        return None
    if not isinstance(data, list) or len(data) != len(CONVOLUTION_COLUMNS):
        raise BadInput(
            where, repr(data), f"null, or {len(CONVOLUTION_COLUMNS)} numbers: {', '.join(CONVOLUTION_COLUMNS)}"
        )
    checks = {
        **dict.fromkeys(CONVOLUTION_COLUMNS, _require_non_negative),
        **dict.fromkeys(_WHOLE_COLUMNS, _require_whole_number),
        "padding": _require_number,
    }
    numbers = {
        column: checks[column](value, f"{where}: {column}")
        for column, value in zip(CONVOLUTION_COLUMNS, data, strict=True)
    }
    for column, number in numbers.items():
        if number == 0 and column != "padding":
            raise BadInput(f"{where}: {column}", "0", "a number above 0")
    return Convolution(**numbers)  # type: ignore[arg-type] # channels and groups are whole, as checked


def _require_mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise BadInput(where, type(data).__name__, f"an object with fields: {_EXPECTED_FILE}")
    return data


def _require_list(fields: Mapping[str, Any], field: str, where: str) -> list[Any]:
    value = fields.get(field)
    if not isinstance(value, list):
        raise BadInput(f"{where}: {field}", repr(value)[:60], f"a list: {_EXPECTED_FILE}")
    return value


def _require_text(fields: Mapping[str, Any], field: str, where: str) -> str:
    value = fields.get(field)
    if not isinstance(value, str):
        raise BadInput(f"{where}: {field}", repr(value)[:60], f"a text: {_EXPECTED_FILE}")
    return value


def _require_kind(fields: Mapping[str, Any], where: str) -> str:
    kind = _require_text(fields, "kind", where)
    if kind not in RULES:
        raise BadInput(f"{where}: kind", repr(kind)[:60], f"the kind of an operator, as conv: {_EXPECTED_FILE}")
    return kind


def _require_non_negative(value: Any, where: str) -> float:
    """Return a number of at least zero; whole numbers stay integers, so that reading back gives what was written."""
    if _require_number(value, where) < 0:
        raise BadInput(where, repr(value), "a number of at least 0")
    return float(value) if isinstance(value, float) else int(value)


def _require_number(value: Any, where: str) -> float:
    """Return a number; it may be negative, as is the effective padding of a dilated convolution without padding."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
        raise BadInput(where, repr(value)[:60], "a number")
    return value


def _require_whole_number(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise BadInput(where, repr(value)[:60], "a whole number of at least 0")
    return value


def _parse_shape(value: Any, where: str) -> Shape:
    if not isinstance(value, list):
        raise BadInput(where, repr(value)[:60], "a list of whole numbers")
    return tuple(_require_whole_number(side, where) for side in value)


LAYER_COLUMNS = tuple(field.name for field in dataclass_fields(LayerCost))
FROZEN_COLUMNS = 2
"""The last columns, which only layers with frozen weights, or before everything that is trained, have."""
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
        *((f"{layer.training_passes:g}", str(layer.frozen)) if has_frozen else ()),
    ])  # fmt: skip


def _parse_layer(line: str) -> LayerCost:
    values = line.split()
    columns = LAYER_COLUMNS if len(values) == len(LAYER_COLUMNS) else LAYER_COLUMNS[:-FROZEN_COLUMNS]
    row = dict(zip(columns, values, strict=True))
    inputs, output, geometry = row["inputs"], row["output"], row["convolution"]
    return LayerCost(
        name=row["name"],
        kind=row["kind"],
        flop=float(row["flop"]),
        read_bytes=float(row["read_bytes"]),
        written_bytes=float(row["written_bytes"]),
        weight_bytes=float(row["weight_bytes"]),
        parameters=int(row["parameters"]),
        activations=int(row["activations"]),
        inputs=() if inputs == ABSENT else tuple(_parse_shape_text(text) for text in inputs.split(",")),
        output=() if output == ABSENT else _parse_shape_text(output),
        convolution=None if geometry == ABSENT else _parse_convolution_text(geometry),
        training_passes=float(row.get("training_passes", TRAINING_PASSES)),
        frozen=int(row.get("frozen", 0)),
    )


def _format_shape(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _parse_shape_text(text: str) -> Shape:
    return tuple(int(side) for side in text.split("x"))


def _parse_convolution_text(text: str) -> Convolution:
    numbers = (float(number) if "." in number else int(number) for number in text.split(","))
    return Convolution(**dict(zip(CONVOLUTION_COLUMNS, numbers, strict=True)))  # type: ignore[arg-type] # whole where it must be
