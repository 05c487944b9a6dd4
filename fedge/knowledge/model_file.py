"""A learnt model of one board as a file of its measurements and prior knowledge, from which it is fitted again.

The file is safetensors: arrays and one JSON text. It holds no weights and no code, so a newer predictor of the same
name can improve an old file, and opening a file from elsewhere executes nothing.

=========================  ===============================================================================
``measured/...``           ``knobs`` (n, 4), ``step_s``, ``power_w``, ``steps`` and ``throttled`` (n,)
``candidates/knobs``       (m, 4): the modes to choose among
``prior/time|power``       (k, 11) and (k, 13): ``PriorKnowledge.priors``, natural logarithms
``reference/I/...``        ``knobs`` (r, 4), ``step_s`` and ``power_w`` (r,): ``PriorKnowledge.references[I]``
``fedge-model``            the JSON text of ``_ModelHeader``, in the file's metadata
=========================  ===============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from fedge import __version__
from fedge.atomic_files import replace_file
from fedge.errors import BadInput, FedgeError, UnknownName, refuse_unwritable
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, Coefficients
from fedge.predictors import PREDICTORS, load_predictor
from fedge.predictors.table_board import check_predictions
from fedge.protocols import Predictor
from fedge.types import Floats, Label, LabelledValue, Measurement, Modes, PowerMode, Predictions, ProfileTable
from fedge.yaml_files import format_field

MODEL_VERSION = 1
METADATA_KEY = "fedge-model"
WRITTEN_BY_FIT = "a file that `fedge predict fit` wrote"
CORES = (1.0, 1024.0)
MHZ = (1.0, 1e5)
STEP_S = (1e-7, 1e6)
POWER_W = (1e-3, 1e4)
STEPS = (1.0, 1e9)
LOGS = (-100.0, 100.0)
# Plausible ranges of a board's values, far wider than any real one, so that damaged files cannot cause overflows.

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]
_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """The origin of a model's measurements.

    Attributes:
        rows: Number of modes that could have been measured.
        sha256: Hash of the table; None for an emulated board.
        explorer: Explorer that chose among them; None if all were used.
    """

    label: Label
    source: _Text
    rows: _Count
    sha256: _Hash | None = None
    explorer: _Text | None = None
    profiling_s: _Share = 0.0
    profiling_j: _Share = 0.0


@dataclass(frozen=True, slots=True)
class HeldOutErrors:
    """Errors and coverage, as shares, over measured modes that the model did not learn from."""

    modes: _Count
    time_mape: _Share
    power_mape: _Share
    time_coverage90: _Share
    power_coverage90: _Share


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's metadata.

    Attributes:
        candidates: Where the candidate modes come from, in words.
        idle: Power at rest in the top mode; None if it is unknown.
        held_out: Errors on other modes; None if there are none.
    """

    method: _Text
    device: _Text
    workload: _Text
    batch_size: _Count
    origin: ModelOrigin
    candidates: _Text
    idle: LabelledValue | None = None
    prior_tables: tuple[_Text, ...] = ()
    """Measured tables behind the priors, as ``device/workload sha256[:12]``."""
    held_out: HeldOutErrors | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BoardModel:
    """The inputs from which a predictor is created and fitted; ``measurements`` holds at least one."""

    about: ModelInfo
    measurements: tuple[Measurement, ...]
    candidates: Modes
    knowledge: PriorKnowledge


@dataclass(frozen=True, slots=True)
class _ReferenceHeader:
    device: _Text
    workload: _Text
    batch_size: _Count
    name: _Text
    sha256: _Hash
    label: Label = "unknown"


@dataclass(frozen=True, slots=True)
class _MaxnHeader:
    cores: _Count
    cpu_mhz: _Positive
    gpu_mhz: _Positive
    mem_mhz: _Positive


@dataclass(frozen=True, slots=True)
class _VersionHeader:
    version: int


@dataclass(frozen=True, slots=True)
class _ModelHeader:
    """The JSON text of a model file."""

    version: int
    fedge: str
    about: ModelInfo
    maxn: _MaxnHeader
    seed: Annotated[int, Field(ge=0)]
    references: tuple[_ReferenceHeader, ...]
    errors: tuple[tuple[_Positive, _Positive], ...] = ()


def fit_model_predictor(model: BoardModel) -> Predictor:
    """Create and fit the model's predictor; the result is deterministic.

    Raises:
        FedgeError: If the predictor cannot be fitted to the measurements.
    """
    predictor = load_predictor(model.about.method, model.knowledge, "method")
    try:
        return predictor.fit(model.measurements)
    except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
        raise FedgeError(f"{model.about.method} cannot be fitted to these measurements ({error})") from error


def predict_candidates(model: BoardModel, predictor: Predictor) -> Predictions:
    """Return the predictions of every candidate.

    Raises:
        FedgeError: If a prediction is not positive or its standard deviation is negative.
    """
    predictions = predictor.predict(model.candidates)
    try:
        check_predictions(predictions, len(model.candidates))
    except FedgeError as error:
        why = f"{model.about.method} predicts no number for some modes; fit with another --method ({error})"
        raise FedgeError(why) from error
    return predictions


# Writing --------------------------------------------------------------------------------------------------------------


def save_model(path: Path, model: BoardModel) -> None:
    """Write the model atomically.

    Raises:
        BadInput: If the path cannot be written.
    """
    from safetensors.numpy import save as to_bytes

    content = to_bytes(
        _build_arrays(model),
        metadata={METADATA_KEY: TypeAdapter(_ModelHeader).dump_json(_build_header(model)).decode()},
    )
    with refuse_unwritable(path, "a writable file"), replace_file(path) as part:
        part.write_bytes(content)


def _build_arrays(model: BoardModel) -> dict[str, NDArray[Any]]:
    seen = model.measurements
    knobs = [(m.mode.cores, m.mode.cpu_mhz, m.mode.gpu_mhz, m.mode.mem_mhz) for m in seen]
    arrays: dict[str, NDArray[Any]] = {
        "measured/knobs": np.array(knobs, dtype=np.float64),
        "measured/step_s": np.array([m.step_s for m in seen], dtype=np.float64),
        "measured/power_w": np.array([m.power_w for m in seen], dtype=np.float64),
        "measured/steps": np.array([m.steps for m in seen], dtype=np.int64),
        "measured/throttled": np.array([m.throttled for m in seen], dtype=np.uint8),
        "candidates/knobs": np.ascontiguousarray(model.candidates.knobs),
        "prior/time": _stack_rows([prior.time for prior in model.knowledge.priors], len(TIME_NAMES)),
        "prior/power": _stack_rows([prior.power for prior in model.knowledge.priors], len(POWER_NAMES)),
    }
    for i, table in enumerate(model.knowledge.references):
        columns = {"knobs": table.modes.knobs, "step_s": table.step_s, "power_w": table.power_w}
        arrays |= {f"reference/{i}/{name}": np.ascontiguousarray(values) for name, values in columns.items()}
    return arrays


def _stack_rows(rows: Sequence[Floats], width: int) -> Floats:
    return np.array(rows, dtype=np.float64).reshape(-1, width)


def _build_header(model: BoardModel) -> _ModelHeader:
    known = model.knowledge
    references = tuple(
        _ReferenceHeader(
            table.device,
            workload=table.workload,
            batch_size=table.batch_size,
            name=Path(table.path).name,
            sha256=table.sha256,
            label=table.label,
        )
        for table in known.references
    )
    return _ModelHeader(
        MODEL_VERSION,
        fedge=__version__,
        about=model.about,
        maxn=_MaxnHeader(**asdict(known.maxn)),
        seed=known.seed,
        references=references,
        errors=known.errors,
    )


# Reading --------------------------------------------------------------------------------------------------------------


def load_model(path: Path) -> BoardModel:
    """Read and validate a model.

    Raises:
        BadInput: If the file is missing or invalid; the message names what is wrong in it.
    """
    header, arrays = _read_file(path)
    _check_arrays(path, arrays, references=len(header.references), errors=len(header.errors))
    knowledge = PriorKnowledge(
        PowerMode(**asdict(header.maxn)),
        priors=tuple(
            Coefficients(time, power) for time, power in zip(arrays["prior/time"], arrays["prior/power"], strict=True)
        ),
        references=tuple(_read_reference(i, about, arrays) for i, about in enumerate(header.references)),
        idle_w=header.about.idle.value if header.about.idle else None,
        seed=header.seed,
        errors=header.errors,
    )
    return BoardModel(header.about, _read_measurements(arrays), Modes(arrays["candidates/knobs"]), knowledge)


def _read_file(path: Path) -> tuple[_ModelHeader, Mapping[str, NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise BadInput(str(path), "a folder" if path.is_dir() else "no such file", WRITTEN_BY_FIT)
    try:
        with safe_open(path, framework="numpy") as opened:
            header = _parse_header(path, (opened.metadata() or {}).get(METADATA_KEY))
            wanted = {
                *_MEASURED_RANGES,
                *_KNOWLEDGE_ARRAYS,
                *(f"reference/{i}/{c}" for i in range(len(header.references)) for c in _TABLE_RANGES),
            }
            missing = sorted(wanted - set(opened.keys()))
            if missing:
                raise BadInput(f"{path}: {missing[0]}", "nothing", f"the array; {WRITTEN_BY_FIT}")
            return header, {name: _read_array(path, name, opened.get_slice(name), opened) for name in sorted(wanted)}
    except (SafetensorError, OSError) as error:
        raise BadInput(str(path), f"a damaged or foreign file ({error})", WRITTEN_BY_FIT) from error


def _parse_header(path: Path, text: str | None) -> _ModelHeader:
    if text is None:
        raise BadInput(str(path), "a safetensors file of something else", WRITTEN_BY_FIT)
    version: int = _validate_record(path, _VersionHeader, text).version
    if version != MODEL_VERSION:
        newer = version > MODEL_VERSION
        right = "a newer fedge to read it" if newer else "a model fitted anew"
        raise BadInput(f"{path}: version", str(version), f"{MODEL_VERSION}; {right}")
    header: _ModelHeader = _validate_record(path, _ModelHeader, text)
    if header.about.method not in PREDICTORS:
        raise UnknownName(f"{path}: about.method", header.about.method, tuple(sorted(PREDICTORS)))
    idle = header.about.idle
    if idle is not None and not POWER_W[0] <= idle.value <= POWER_W[1]:
        raise BadInput(f"{path}: about.idle", f"{idle.value:g} W", f"{POWER_W[0]:g} to {POWER_W[1]:g} W")
    return header


def _validate_record(path: Path, record: type[Any], text: str) -> Any:
    try:
        return TypeAdapter(record).validate_json(text, strict=True)
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        got = "nothing" if first["type"] == "missing" else _shorten(first["input"])
        raise BadInput(format_field(str(path), first["loc"]), got, str(first["msg"])) from error


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _read_array(path: Path, name: str, piece: Any, opened: Any) -> NDArray[Any]:
    """Return the array after checking its type."""
    wanted = {"measured/steps": "I64", "measured/throttled": "U8"}.get(name, "F64")
    if piece.get_dtype() != wanted:
        raise BadInput(f"{path}: {name}", f"values of type {piece.get_dtype()}", f"type {wanted}; {WRITTEN_BY_FIT}")
    array: NDArray[Any] = opened.get_tensor(name)
    return array


_TABLE_RANGES = {"knobs": None, "step_s": STEP_S, "power_w": POWER_W}
"""Columns of a table -> range of their values; knobs have one range per column."""
_MEASURED_RANGES = {
    "measured/knobs": None,
    "measured/step_s": STEP_S,
    "measured/power_w": POWER_W,
    "measured/steps": STEPS,
    "measured/throttled": (0.0, 1.0),
}
_KNOWLEDGE_ARRAYS = ("candidates/knobs", "prior/time", "prior/power")


def _check_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], *, references: int, errors: int) -> None:
    """Raise ``BadInput`` for the first array with an impossible shape or value."""
    _check_rows(path, arrays, _MEASURED_RANGES)
    _check_rows(path, arrays, {"candidates/knobs": None})
    for i in range(references):
        _check_rows(path, arrays, {f"reference/{i}/{name}": ends for name, ends in _TABLE_RANGES.items()})
    for name, width in (("prior/time", len(TIME_NAMES)), ("prior/power", len(POWER_NAMES))):
        _check_shape(path, name, arrays[name], (len(arrays["prior/time"]), width))
        _check_range(path, name, arrays[name], LOGS)
    if errors not in (0, len(arrays["prior/time"])):
        raise BadInput(f"{path}: errors", f"{errors} pairs", f"none, or {len(arrays['prior/time'])}; {WRITTEN_BY_FIT}")


def _check_rows(
    path: Path, arrays: Mapping[str, NDArray[Any]], columns: Mapping[str, tuple[float, float] | None]
) -> None:
    """Check the columns of one table: the first are its knobs, which give the number of rows."""
    rows = -1
    for name, ends in columns.items():
        values = arrays[name]
        rows = len(values) if rows < 0 and values.ndim else rows
        if ends is not None:
            _check_shape(path, name, values, (rows,))
            _check_range(path, name, values, ends)
            continue
        _check_shape(path, name, values, (max(rows, 1), 4))
        for column, limits in enumerate((CORES, MHZ, MHZ, MHZ)):
            _check_range(path, name, values[:, column], limits)
        if (values[:, 0] != np.round(values[:, 0])).any():
            raise BadInput(f"{path}: {name}", "a fraction of a core", "whole numbers of cores")


def _check_shape(path: Path, name: str, values: NDArray[Any], wanted: tuple[int, ...]) -> None:
    if values.shape != wanted:
        raise BadInput(f"{path}: {name}", f"shape {values.shape}", f"shape {wanted}")


def _check_range(path: Path, name: str, values: NDArray[Any], ends: tuple[float, float]) -> None:
    low, high = ends
    wrong = values[~((values >= low) & (values <= high))]
    if wrong.size:
        raise BadInput(f"{path}: {name}", f"{wrong.flat[0]:g}", f"numbers from {low:g} to {high:g}")


def _read_measurements(arrays: Mapping[str, NDArray[Any]]) -> tuple[Measurement, ...]:
    modes = Modes(arrays["measured/knobs"])
    columns = (arrays[f"measured/{name}"].tolist() for name in ("steps", "step_s", "power_w", "throttled"))
    return tuple(
        Measurement(mode, steps, step_s, power_w, throttled=bool(throttled))
        for mode, steps, step_s, power_w, throttled in zip(modes, *columns, strict=True)
    )


def _read_reference(i: int, about: _ReferenceHeader, arrays: Mapping[str, NDArray[Any]]) -> ProfileTable:
    modes, step_s, power_w = (arrays[f"reference/{i}/{name}"] for name in _TABLE_RANGES)
    return ProfileTable(
        about.device,
        workload=about.workload,
        batch_size=about.batch_size,
        modes=Modes(modes),
        step_s=step_s,
        power_w=power_w,
        sha256=about.sha256,
        path=about.name,
        label=about.label,
    )
