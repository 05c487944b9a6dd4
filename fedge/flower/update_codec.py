"""The encoding of a client's update in fewer bytes: half precision, 8 bits with block scales, or the largest values.

Symbols: x the model sent, x_i what client i trained, u = x_i - x its update as one vector of n values, e what earlier
encodings of the client left out, C the encoding. The client sends C(v) of v = u + e and keeps e <- v - C(v) where
values are left out (``topk``); rounding errors of the other kinds are below half a step and are not kept. The server
computes x + C(v). Statistics and counters are sent as they are. The encoding is deterministic, so that the bytes follow
from the model's shapes alone.

References:
    Stich et al. 2018: Sparsified SGD with Memory, arXiv 1809.07599; Karimireddy et al. 2019: Error Feedback Fixes
    SignSGD, arXiv 1901.09847 (error feedback). Dettmers 2016: 8-Bit Approximations for Parallelism, arXiv 1511.04561.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.errors import FedgeError
from fedge.types import NOT_COMPRESSED, Compression, Floats32, NamedArrays, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from fedge.worker.subnetwork_arrays import array_shapes, take_leading_part

PREFIX = "update:"
"""Start of the names of encoded arrays, which no model has."""
BLOCK = 256
"""Values that share a scale under ``int8``: 1.6 % more bytes. Larger blocks round small values more coarsely."""
DTYPES = {"fp16": "<f2", "int8": "|i1", "scale": "<f4", "place": "<i4", "value": "<f4"}
"""Types of the encoded arrays in NumPy's notation: half precision, 8-bit and 32-bit integers, single precision."""

Encoded = dict[str, NDArray[Any]]


class UndecodableUpdate(FedgeError):
    """Arrays that are no encoding of an update of this model."""


def count_encoded_bytes(compression: Compression, values: int) -> int:
    """Return the bytes of an update of so many values."""
    sizes = {
        "none": 4 * values,
        "fp16": 2 * values,
        "int8": values + 4 * math.ceil(values / BLOCK),
        "topk": 8 * _count_kept(compression, values),
    }
    return sizes[compression.kind]


def compute_up_share(compression: Compression, arrays: NamedArrays, trainable: Collection[str]) -> float:
    """Return the bytes of an encoded update relative to those of the model ``arrays``."""
    if compression.kind == "none":
        return 1.0
    whole, learnt = (sum(arrays[name].nbytes for name in names) for names in (arrays, trainable))
    values = sum(arrays[name].size for name in trainable)
    return (whole - learnt + count_encoded_bytes(compression, values)) / max(1, whole)


def encode_answer(
    request: RequestMessage,
    arrays: NamedArrays | None,
    residual: Floats32 | None,
    answer: tuple[ReplyMessage, TrainResult | None],
) -> tuple[ReplyMessage, TrainResult | None]:
    """Return a client's answer with its update encoded as the goal of the request asks for.

    An update that is not finite is sent as it is, so that the server sees it and nothing of it is kept.

    Args:
        residual: What the client's earlier encodings left out; None for nothing.
    """
    reply, trained = answer
    compression = NOT_COMPRESSED if request.goal is None else request.goal.compression
    if compression.kind == "none" or trained is None or arrays is None or reply.cut:
        return answer
    base = take_leading_part(arrays, trained.arrays)
    update = np.concatenate(
        [np.ravel(_as_floats(trained.arrays[name]) - _as_floats(base[name])) for name in request.trainable]
    )
    if compression.kind == "topk" and residual is not None and residual.shape == update.shape:
        update = update + residual
    if not np.isfinite(update).all():
        return answer
    encoded = encode_vector(compression, update)
    left = update - decode_vector(encoded, len(update)) if compression.kind == "topk" else None
    others = {name: value for name, value in trained.arrays.items() if name not in set(request.trainable)}
    return reply, dataclasses.replace(trained, arrays={**others, **encoded}, residual=left)


def decode_result(arrays: NamedArrays, trainable: Collection[str], trained: TrainResult) -> TrainResult:
    """Return a training result with its update decoded and added to the model, or as it is if it is not encoded.

    Args:
        arrays: The model that was sent, or its leading part for a narrow result.
        trainable: Names of the arrays that are encoded, in the client's order.

    Raises:
        UndecodableUpdate: The arrays are no encoding of an update of this model.
    """
    encoded = {name: np.asarray(value) for name, value in trained.arrays.items() if name.startswith(PREFIX)}
    if not encoded:
        return trained
    shapes = array_shapes({name: arrays[name] for name in trainable})
    values = decode_vector(encoded, sum(math.prod(shape) for shape in shapes.values()))
    decoded, place = {}, 0
    for name, shape in shapes.items():
        part = values[place : place + math.prod(shape)].reshape(shape)
        decoded[name] = np.asarray(_as_floats(arrays[name]) + part, dtype=arrays[name].dtype)
        place += math.prod(shape)
    kept = {name: decoded.get(name, trained.arrays.get(name)) for name in arrays}
    return dataclasses.replace(trained, arrays={name: value for name, value in kept.items() if value is not None})


def encode_vector(compression: Compression, update: Floats32) -> Encoded:
    """Return the arrays that are sent for an update of n values."""
    if compression.kind == "fp16":
        limit = np.finfo(np.float16).max
        return {f"{PREFIX}fp16": np.clip(update, -limit, limit).astype(np.float16)}
    if compression.kind == "int8":
        blocks = np.pad(update, (0, -len(update) % BLOCK)).reshape(-1, BLOCK)
        scale = np.abs(blocks).max(axis=1) / 127.0
        steps = np.rint(blocks / np.where(scale > 0.0, scale, 1.0)[:, None])
        return {f"{PREFIX}int8": steps.ravel()[: len(update)].astype(np.int8), f"{PREFIX}scale": scale.astype("f4")}
    kept = _count_kept(compression, len(update))
    places = np.sort(np.argpartition(-np.abs(update), kept - 1)[:kept])
    return {f"{PREFIX}place": places.astype(np.int32), f"{PREFIX}value": update[places]}


def decode_vector(encoded: Mapping[str, NDArray[Any]], count: int) -> Floats32:
    """Return the ``count`` values of an encoded update.

    Raises:
        UndecodableUpdate: The arrays are no encoding of so many values.
    """
    got = {name.removeprefix(PREFIX): value for name, value in encoded.items()}
    if wrong := [f"{name!r} of {value.dtype}" for name, value in got.items() if DTYPES.get(name) != value.dtype.str]:
        raise UndecodableUpdate(f"an update of {count} values: got {', '.join(wrong)}")
    values = np.zeros(count, dtype=np.float32)
    if set(got) == {"fp16"} and got["fp16"].shape == (count,):
        values[:] = got["fp16"]
    elif set(got) == {"int8", "scale"} and got["int8"].shape == (count,):
        if got["scale"].shape != (math.ceil(count / BLOCK),):
            raise UndecodableUpdate(f"an update of {count} values with {got['scale'].size} scales")
        if not np.isfinite(got["scale"]).all():
            raise UndecodableUpdate(f"an update of {count} values with scales that are not finite")
        values[:] = got["int8"] * np.repeat(got["scale"], BLOCK)[:count]
    elif set(got) == {"place", "value"} and got["place"].shape == got["value"].shape and got["place"].ndim == 1:
        places = got["place"]
        if len(places) and (places.min() < 0 or places.max() >= count):
            raise UndecodableUpdate(f"an update with places outside its {count} values")
        values[places] = got["value"]
    else:
        shapes = {name: value.shape for name, value in got.items()}
        raise UndecodableUpdate(f"an update of {count} values: got {shapes}")
    return values


def _as_floats(values: NDArray[Any]) -> Floats32:
    return np.asarray(values, dtype=np.float32)


def _count_kept(compression: Compression, values: int) -> int:
    return min(values, max(1, math.ceil(compression.keep * values)))
