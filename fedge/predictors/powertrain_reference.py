"""PowerTrain's reference networks: trained once on a measured table, then kept in a cache folder.

One row per mode, 10 % held out, mean squared error; everything else as in ``network_training``. A network is identified
by its table's content, a seed and ``RECIPE``; a cached file that does not match is replaced.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.atomic_files import replace_file
from fedge.errors import BadInput
from fedge.predictors.network_pair import LAYERS, init_pair, view_pair
from fedge.predictors.network_training import Scaler, TrainedNetworks, TrainingRows, train_pair
from fedge.seeds import make_generator
from fedge.types import ProfileTable

logger = logging.getLogger(__name__)

RECIPE = "1"
"""Version of the training procedure, to be changed whenever the same table would yield other networks."""
SET_ASIDE = 0.1
"""Share of the modes held out to select the best epoch."""
SAFETENSORS_MISSING = "safetensors is not installed here, and boards never have it: take the predictor fedge"


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceNetwork:
    """Networks trained on a whole table.

    Attributes:
        trained: The networks.
        train_s: Wall time of their training in seconds.
        kept: Whether they are in the cache now.
        cached: Whether they were read from the cache.
    """

    trained: TrainedNetworks
    train_s: float
    kept: bool
    cached: bool


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of reference networks: ``FEDGE_CACHE``, else ``XDG_CACHE_HOME``/fedge, else ~/.cache/fedge.

    Args:
        environment: Environment variables by name.
    """
    if environment.get("FEDGE_CACHE"):
        return Path(environment["FEDGE_CACHE"])
    if environment.get("XDG_CACHE_HOME"):
        return Path(environment["XDG_CACHE_HOME"]) / "fedge"
    return Path.home() / ".cache" / "fedge"


def load_reference_network(table: ProfileTable, seed: int, folder: Path) -> ReferenceNetwork:
    """Load the networks of a table from the cache, or train and cache them.

    A damaged file is replaced. A folder that cannot be written to is logged, and the networks are trained again next
    time.

    Args:
        table: The measured table.
        seed: Seed of the training.
        folder: The cache folder.

    Raises:
        BadInput: safetensors is not installed; raised before any training.
    """
    path = reference_path(table, seed, folder)
    found = _read_reference(path, _content_key(table, seed))
    if found is not None:
        return found
    started = time.perf_counter()
    rng = make_generator(seed, "powertrain", "reference")
    rows = TrainingRows(table.modes.knobs, np.stack([table.step_s, table.power_w]))
    trained = train_pair(init_pair(rng), rows=rows, set_aside=SET_ASIDE, loss="mse", rng=rng)
    train_s = time.perf_counter() - started
    try:
        _write_reference(trained, train_s, path, _content_key(table, seed))
    except OSError as error:
        logger.warning("%s cannot be written (%s): the reference network is not kept", path, error.strerror)
        return ReferenceNetwork(trained, train_s, kept=False, cached=False)
    return ReferenceNetwork(trained, train_s, kept=True, cached=False)


def reference_path(table: ProfileTable, seed: int, folder: Path) -> Path:
    """Return the path of the cached file for a table and seed."""
    return folder / "powertrain" / f"{table.sha256[:16] or 'table'}-{_content_key(table, seed)[:16]}.safetensors"


def _content_key(table: ProfileTable, seed: int) -> str:
    """Return a hash of everything the networks depend on.

    The file's SHA-256 is not enough: a file may hold several batch sizes, or be read with repairs.
    """
    content = hashlib.sha256(f"{RECIPE} {seed} {table.batch_size} {table.sha256}".encode())
    for column in (table.modes.knobs, table.step_s, table.power_w):
        content.update(np.ascontiguousarray(column, dtype="<f8").tobytes())
    return content.hexdigest()


def _read_reference(path: Path, key: str) -> ReferenceNetwork | None:
    """Read a cached file; return None if it is missing, damaged or does not belong to ``key``.

    Raises:
        BadInput: safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "safetensors":
            raise
        raise BadInput(
            "predictor", "powertrain, which keeps its references with safetensors", SAFETENSORS_MISSING
        ) from error
    try:
        if not path.exists():
            return None
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in ("parameters", "mean", "sd", "mape")}
        return _parse_reference(arrays, about, key)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        logger.warning("%s is damaged (%s): the reference network is trained anew", path, error)
        return None


def _parse_reference(arrays: Mapping[str, NDArray[np.generic]], about: Mapping[str, str], key: str) -> ReferenceNetwork:
    """Convert a cached file's arrays to networks.

    Raises:
        ValueError: An array is invalid, or the file does not belong to ``key``.
        KeyError: An array or field is missing.
    """
    sizes = {"parameters": sum(2 * (ins + 1) * outs for ins, outs in LAYERS), "mean": 4, "sd": 4, "mape": 2}
    if about["key"] != key:
        raise ValueError("it belongs to another table or recipe")
    for name, size in sizes.items():
        if arrays[name].shape != (size,) or not np.isfinite(arrays[name].astype(np.float64)).all():
            raise ValueError(f"{name} is not {size} finite numbers")
    if not (arrays["sd"].astype(np.float64) > 0).all():
        raise ValueError("sd is not above 0")
    pair = view_pair(arrays["parameters"].astype(np.float32))
    mean, sd, mape = (arrays[name].astype(np.float64) for name in ("mean", "sd", "mape"))
    return ReferenceNetwork(
        TrainedNetworks(pair, Scaler(mean, sd), mape), float(about["train_s"]), kept=True, cached=True
    )


def _write_reference(trained: TrainedNetworks, train_s: float, path: Path, key: str) -> None:
    """Write to a temporary name and rename, so that a reader never sees a partial file."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {
        "parameters": trained.pair.flat,
        "mean": trained.scaler.mean,
        "sd": trained.scaler.sd,
        "mape": trained.validation_mape,
    }
    content = save(arrays, {"key": key, "train_s": f"{train_s:.3f}"})
    with replace_file(path) as part:
        part.write_bytes(content)
