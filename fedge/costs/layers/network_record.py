"""Conversion of a network's costs to plain data for files, and validated conversion back; does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedge.costs.layers.counting_rules import RULES
from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost, Shape
from fedge.errors import BadInput

RECORD_FORMAT = "fedge-layers-1"
CONVOLUTION_COLUMNS = ("in_channels", "out_channels", "kernel", "padding", "stride", "groups", "input_size")
"""Order of a convolution's numbers."""
MAX_NUMBER = 1e30
"""Largest accepted number: larger ones are errors in the file, and would overflow in sums. Default, far above any
network."""
_WHOLE_COLUMNS = {"in_channels", "out_channels", "groups"}
_EXPECTED_FILE = "a file that `fedge layers MODEL --json FILE` wrote"


def network_to_dict(network: NetworkCost) -> dict[str, Any]:
    """Convert a network's costs to data for JSON; ``totals`` is for readers and is not read back."""
    return {
        "format": RECORD_FORMAT,
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
        "layers": [_layer_to_dict(layer) for layer in network.layers],
    }


def _layer_to_dict(layer: LayerCost) -> dict[str, Any]:
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
        "convolution": convolution_to_list(layer.convolution),
    }


def convolution_to_list(convolution: Convolution | None) -> list[float] | None:
    """Convert a convolution to its numbers in the order of ``CONVOLUTION_COLUMNS``."""
    return None if convolution is None else [getattr(convolution, column) for column in CONVOLUTION_COLUMNS]


def network_from_dict(data: Any, where: str) -> NetworkCost:
    """Convert the data of ``network_to_dict`` back to costs.

    Args:
        data: The data read from a file.
        where: The file to name in the error.

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
    )


def convolution_from_list(data: Any, where: str) -> Convolution | None:
    """Convert numbers in the order of ``CONVOLUTION_COLUMNS`` to a convolution.

    Args:
        data: The numbers, or None for no convolution.
        where: The field to name in the error.

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
