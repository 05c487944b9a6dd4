"""A network's costs as plain data for files, and back, validated; loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedge.errors import BadInput
from fedge.layers.network import Convolution, LayerCost, NetworkCost, Shape
from fedge.layers.rules import RULES

FORMAT = "fedge-layers-1"
COLUMNS = ("in_channels", "out_channels", "kernel", "padding", "stride", "groups", "input_size")
"""The order of a convolution's numbers."""
LARGEST = 1e30
"""No network computes or moves more; chosen by us."""
_WHOLE = {"in_channels", "out_channels", "groups"}
_MINDED = "a file that `fedge layers MODEL --json FILE` wrote"


def as_data(network: NetworkCost) -> dict[str, Any]:
    """A network's costs as JSON can hold them; ``totals`` is for readers and is not read back."""
    return {
        "format": FORMAT,
        "name": network.name,
        "input_shape": list(network.input_shape),
        "source": network.source,
        "unknown": list(network.unknown),
        "totals": {
            "flop": network.flop,
            "weight_bytes": network.weight_bytes,
            "activation_bytes": network.activation_bytes,
            "parameters": network.parameters,
            "activations": network.activations,
        },
        "layers": [_layer_as_data(layer) for layer in network.layers],
    }


def _layer_as_data(layer: LayerCost) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "flop": layer.flop,
        "read_bytes": layer.read_bytes,
        "written_bytes": layer.written_bytes,
        "weight_bytes": layer.weight_bytes,
        "parameters": layer.parameters,
        "activations": layer.activations,
        "inputs": [list(shape) for shape in layer.inputs],
        "output": list(layer.output),
        "convolution": convolution_as_data(layer.convolution),
    }


def convolution_as_data(convolution: Convolution | None) -> list[float] | None:
    """A convolution's numbers in the order of ``COLUMNS``."""
    return None if convolution is None else [getattr(convolution, column) for column in COLUMNS]


def from_data(data: Any, where: str) -> NetworkCost:
    """The costs that ``as_data`` wrote. Raises ``BadInput`` that names the field, below ``where`` (a file)."""
    fields = _mapping(data, where)
    if fields.get("format") != FORMAT:
        raise BadInput(f"{where}: format", repr(fields.get("format")), f"{FORMAT!r}: {_MINDED}")
    layers = _list(fields, "layers", where)
    input_shape = _shape(fields.get("input_shape"), f"{where}: input_shape")
    if not all(input_shape) or not input_shape:
        raise BadInput(f"{where}: input_shape", repr(list(input_shape)), "the sides of one sample, each at least 1")
    return NetworkCost(
        name=_text(fields, "name", where),
        input_shape=input_shape,
        layers=tuple(_layer(layer, f"{where}: layers[{row}]") for row, layer in enumerate(layers)),
        source=_text(fields, "source", where),
        unknown=tuple(_text({"unknown": name}, "unknown", where) for name in _list(fields, "unknown", where)),
    )


def _layer(data: Any, where: str) -> LayerCost:
    fields = _mapping(data, where)
    return LayerCost(
        name=_text(fields, "name", where),
        kind=_kind(fields, where),
        flop=_number(fields.get("flop"), f"{where}: flop"),
        read_bytes=_number(fields.get("read_bytes"), f"{where}: read_bytes"),
        written_bytes=_number(fields.get("written_bytes"), f"{where}: written_bytes"),
        weight_bytes=_number(fields.get("weight_bytes"), f"{where}: weight_bytes"),
        parameters=_whole(fields.get("parameters"), f"{where}: parameters"),
        activations=_whole(fields.get("activations"), f"{where}: activations"),
        inputs=tuple(_shape(shape, f"{where}: inputs") for shape in _list(fields, "inputs", where)),
        output=_shape(fields.get("output"), f"{where}: output"),
        convolution=convolution_from(fields.get("convolution"), f"{where}: convolution"),
    )


def convolution_from(data: Any, where: str) -> Convolution | None:
    """A convolution from its numbers in the order of ``COLUMNS``. Raises ``BadInput`` for other data."""
    if data is None:
        return None
    if not isinstance(data, list) or len(data) != len(COLUMNS):
        raise BadInput(where, repr(data), f"null, or {len(COLUMNS)} numbers: {', '.join(COLUMNS)}")
    checks = {**dict.fromkeys(COLUMNS, _number), **dict.fromkeys(_WHOLE, _whole), "padding": _signed}
    numbers = {column: checks[column](value, f"{where}: {column}") for column, value in zip(COLUMNS, data, strict=True)}
    for column, number in numbers.items():
        if number == 0 and column != "padding":
            raise BadInput(f"{where}: {column}", "0", "a number above 0")
    return Convolution(**numbers)  # type: ignore[arg-type] # channels and groups are whole, as checked


def _mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise BadInput(where, type(data).__name__, f"an object with fields: {_MINDED}")
    return data


def _list(fields: Mapping[str, Any], field: str, where: str) -> list[Any]:
    value = fields.get(field)
    if not isinstance(value, list):
        raise BadInput(f"{where}: {field}", repr(value)[:60], f"a list: {_MINDED}")
    return value


def _text(fields: Mapping[str, Any], field: str, where: str) -> str:
    value = fields.get(field)
    if not isinstance(value, str):
        raise BadInput(f"{where}: {field}", repr(value)[:60], f"a text: {_MINDED}")
    return value


def _kind(fields: Mapping[str, Any], where: str) -> str:
    kind = _text(fields, "kind", where)
    if kind not in RULES:
        raise BadInput(f"{where}: kind", repr(kind)[:60], f"the kind of an operator, as conv: {_MINDED}")
    return kind


def _number(value: Any, where: str) -> float:
    """A number of at least zero; a whole one stays whole, so that reading back gives what was written."""
    if _signed(value, where) < 0:
        raise BadInput(where, repr(value), "a number of at least 0")
    return float(value) if isinstance(value, float) else int(value)


def _signed(value: Any, where: str) -> float:
    """A number; a dilated convolution without padding has a negative one in effect."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise BadInput(where, repr(value)[:60], "a number")
    return value


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise BadInput(where, repr(value)[:60], "a whole number of at least 0")
    return value


def _shape(value: Any, where: str) -> Shape:
    if not isinstance(value, list):
        raise BadInput(where, repr(value)[:60], "a list of whole numbers")
    return tuple(_whole(side, where) for side in value)
