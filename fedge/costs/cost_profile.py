"""Cost profiles: a workload's model coefficients on a board, with label and source, stored as one YAML file each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from fedge.errors import BadInput
from fedge.physics.time_power_model import POWER_NAMES, TIME_NAMES, Coefficients
from fedge.types import Label, fitted_label
from fedge.user_catalogue import read_catalogue
from fedge.yaml_files import read_yaml, validate_fields

_DIGITS = 6
WorkloadKind = Literal["train", "infer"]
"""Kind of a minibatch: a training step, or a batch of inference."""


@dataclass(frozen=True, slots=True)
class CalibrationEvidence:
    """The table behind a fitted profile, and how well the model fits its time and power.

    Attributes:
        time_p95_ape: 95th percentile of the absolute relative error of time over the rows (0.1 is 10 %).
        time_rows_off: Rows whose time is more than ``OUTLIER_SHARE`` off the fit; not recorded for training.
        label: Label of the table; the tables behind the shipped profiles are published measurements.
    """

    table: str
    sha256: str
    rows: int
    time_p95_ape: float
    power_p95_ape: float
    origin: str = ""
    time_rows_off: int = 0
    power_rows_off: int = 0
    label: Label = "measured"


@dataclass(frozen=True, slots=True, eq=False)
class CostProfile:
    """Coefficients of the time and power model for a workload at one batch size on one board.

    Attributes:
        time_mape: Mean absolute relative error of time over all rows of the table (0.1 is 10 %); None for estimates.
        residual_time_sd_log: Standard deviation of log time about the model.
        evidence: The table behind a calibrated profile; None for estimates.
        time_error_log: Expected error of log time that all boards of a kind share, as a standard deviation; 0 unless
            the step is priced from layers or the profile is a prior.
        power_error_log: The same of log power.
    """

    device: str
    workload: str
    batch_size: int
    coefficients: Coefficients
    label: Label
    source: str
    time_mape: float | None
    power_mape: float | None
    residual_time_sd_log: float
    residual_power_sd_log: float
    evidence: CalibrationEvidence | None = None
    kind: WorkloadKind = "train"
    time_error_log: float = 0.0
    power_error_log: float = 0.0

    def as_estimate(self, source: str, **changes: Any) -> CostProfile:
        """Return a changed profile, labelled ``estimated`` with this source, without errors or evidence."""
        return replace(
            self, label="estimated", source=source, time_mape=None, power_mape=None, evidence=None, **changes
        )


_Positive = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Table(_Strict):
    name: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    rows: Annotated[int, Field(ge=1)]
    origin: str = ""
    label: Label = "measured"


class _Errors(_Strict):
    time_mape: Annotated[float, Field(ge=0)]
    time_p95_ape: Annotated[float, Field(ge=0)]
    residual_time_sd_log: Annotated[float, Field(ge=0)]
    power_mape: Annotated[float, Field(ge=0)]
    power_p95_ape: Annotated[float, Field(ge=0)]
    residual_power_sd_log: Annotated[float, Field(ge=0)]
    time_rows_off: Annotated[int, Field(ge=0)] = 0
    power_rows_off: Annotated[int, Field(ge=0)] = 0


class _File(_Strict):
    device: str
    workload: str
    kind: WorkloadKind = "train"
    batch_size: Annotated[int, Field(ge=1)]
    table: _Table
    errors: _Errors
    time: dict[str, _Positive]
    power: dict[str, _Positive]


def profile_file_name(profile: CostProfile) -> str:
    """Return the file name of a profile.

    It is ``<device>--<workload>.yaml`` for training and ``<device>--<workload>--b<batch size>.yaml`` for inference.
    """
    size = f"--b{profile.batch_size}" if profile.kind == "infer" else ""
    return f"{profile.device}--{profile.workload}{size}.yaml"


def write_profile(profile: CostProfile, folder: Path) -> Path:
    """Write a fitted profile with known table and errors as YAML, named by ``profile_file_name``; return its path.

    Raises:
        BadInput: The profile is an estimate.
    """
    if profile.evidence is None or profile.time_mape is None or profile.power_mape is None:
        raise BadInput(
            profile_file_name(profile), f"an {profile.label} profile", "a fitted one, with the table behind it"
        )
    seen = profile.evidence
    errors = {name: getattr(profile if hasattr(profile, name) else seen, name) for name in _Errors.model_fields}
    content: dict[str, Any] = {
        "device": profile.device,
        "workload": profile.workload,
        "kind": profile.kind,
        "batch_size": profile.batch_size,
        "table": {name: getattr(seen, "table" if name == "name" else name) for name in _Table.model_fields},
        "errors": {name: round_digits(value) if isinstance(value, float) else value for name, value in errors.items()},
        "time": _to_named_values(TIME_NAMES, profile.coefficients.time.tolist()),
        "power": _to_named_values(POWER_NAMES, profile.coefficients.power.tolist()),
    }
    if profile.kind == "train":  # the defaults of a file
        del content["kind"], content["errors"]["time_rows_off"], content["errors"]["power_rows_off"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / profile_file_name(profile)
    head = f"# The physical model's coefficients for one workload on one board, fitted to a table ({seen.label}).\n"
    path.write_text(head + yaml.safe_dump(content, sort_keys=False, width=120), encoding="utf-8")
    return path


def load_yaml(path: Path | Traversable) -> Any:
    """Return the content of a YAML file of fedge, parsed by libyaml if available.

    A board reads all profiles for every message, and Python's parser takes thirty times as long.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506 -- a safe loader


def read_profile(path: Path | Traversable) -> CostProfile:
    """Read a fitted profile.

    Raises:
        BadInput: The file cannot be read or a field is invalid; the message names the field.
    """
    return _parse_profile(read_yaml(path), path)


def _parse_profile(raw: Any, path: Path | Traversable) -> CostProfile:
    content = validate_fields(_File, raw, str(path))
    table, errors = content.table, content.errors.model_dump()
    of_table = {name: errors.pop(name) for name in ("time_p95_ape", "power_p95_ape", "time_rows_off", "power_rows_off")}
    return CostProfile(
        content.device,
        workload=content.workload,
        batch_size=content.batch_size,
        coefficients=Coefficients(
            _to_logs(path, "time", TIME_NAMES, content.time), _to_logs(path, "power", POWER_NAMES, content.power)
        ),
        label=fitted_label(table.label),
        source=f"fitted to {table.rows} rows of {table.name} ({table.label}, sha256 {table.sha256[:12]}); "
        f"time within {content.errors.time_mape:.1%}, power within {content.errors.power_mape:.1%} on average",
        **errors,
        evidence=CalibrationEvidence(table.name, **table.model_dump(exclude={"name"}), **of_table),
        kind=content.kind,
    )


@lru_cache(maxsize=1)
def load_calibrated_training() -> tuple[CostProfile, ...]:
    """Return the training profiles of fedge and of the user, sorted by board and workload."""
    return _add_user_profiles(read_profiles(resources.files("fedge.costs") / "calibrated"), "train")


@lru_cache(maxsize=1)
def load_calibrated_inference() -> tuple[CostProfile, ...]:
    """Return the inference profiles of fedge and of the user, sorted by board, workload and batch size."""
    return _add_user_profiles(read_profiles(resources.files("fedge.costs") / "calibrated" / "infer"), "infer")


@lru_cache(maxsize=1)
def load_user_profiles() -> tuple[CostProfile, ...]:
    """Return the user's cost profiles (``fedge.yaml_files``)."""
    return tuple(read_catalogue("costs", read_profile))


def find_user_batch_size(workload: str, kind: WorkloadKind = "train") -> int | None:
    """Return the batch size of a workload that only the user's profiles of a kind name, or None."""
    sizes = [p.batch_size for p in load_user_profiles() if p.workload == workload and p.kind == kind]
    return sizes[0] if sizes else None


def _add_user_profiles(shipped: Sequence[CostProfile], kind: WorkloadKind) -> tuple[CostProfile, ...]:
    """Return all profiles, sorted; the user's replaces the one of fedge for the same board, workload and batch size."""
    own = [profile for profile in load_user_profiles() if profile.kind == kind]
    every = {(p.device, p.workload, p.batch_size if kind == "infer" else 0): p for p in (*shipped, *own)}
    return tuple(every[key] for key in sorted(every))


def read_profiles(folder: Traversable) -> tuple[CostProfile, ...]:
    """Read every profile of fedge directly inside a folder, sorted by file name.

    Raises:
        BadInput: A file cannot be read or is invalid.
    """
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return tuple(_parse_profile(load_yaml(file), file) for file in files)


def round_digits(value: float) -> float:
    """Round to the significant digits of a file of coefficients."""
    return float(f"{value:.{_DIGITS}g}")


def _to_named_values(names: tuple[str, ...], logs: list[float]) -> dict[str, float]:
    return {name: round_digits(float(np.exp(log))) for name, log in zip(names, logs, strict=True)}


def _to_logs(
    path: Path | Traversable, field: str, names: tuple[str, ...], values: dict[str, float]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    if set(values) != set(names):
        raise BadInput(f"{path}: {field}", ", ".join(values), f"exactly {', '.join(names)}")
    return np.log(np.array([values[name] for name in names], dtype=np.float64))


def list_calibrated_batch_sizes(device: str) -> dict[WorkloadKind, dict[str, list[int]]]:
    """Return the batch sizes of a board's calibrated profiles by kind of step and workload; training is first."""
    sizes: dict[WorkloadKind, dict[str, list[int]]] = {"train": {}, "infer": {}}
    for profile in (*load_calibrated_training(), *load_calibrated_inference()):
        if profile.device == device:
            sizes[profile.kind].setdefault(profile.workload, []).append(profile.batch_size)
    return sizes
