"""Keys of an experiment that only some backends use: refused with the others, since nothing would follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry
from fedge.yaml_files import format_value

Record = TypeVar("Record", bound=BaseModel)
EMULATING = ("local", "sim")
"""Backends whose boards are emulated."""
FOR_EMULATED = "the fleet backend's boards are real, this is for emulated ones (backend sim or local)"
OWN_SUPERLINK = "only real boards are reached through a SuperLink of yours"


@dataclass(frozen=True, slots=True)
class BackendKey:
    """A key that only some backends use.

    Attributes:
        path: The key; ``fleet.`` stands for every entry.
        backends: The backends that use it.
        reason: Why the others have no use for it.
        describes_boards: Whether it says how the boards are, and not only how the run is carried out.
    """

    path: str
    backends: Sequence[str]
    reason: str = FOR_EMULATED
    describes_boards: bool = True


KEYS = (
    BackendKey("fleet.truth", EMULATING),
    BackendKey("fleet.availability", EMULATING),
    BackendKey("fleet.battery", EMULATING),
    BackendKey("fleet.ambient_c", EMULATING),
    BackendKey(
        "fleet.loader",
        EMULATING,
        "the boards are real, and their minibatches hold their stalls already",
    ),
    BackendKey("fleet.serving.model", ("fleet",), "emulated boards infer nothing, a batch costs what `cost` says"),
    BackendKey("workload.model_mb", EMULATING, "real boards move the model that they train"),
    BackendKey(
        "backend_options.num_gpus",
        EMULATING,
        "real boards train on their own GPUs, this is for emulated ones (backend sim or local)",
        describes_boards=False,
    ),
    BackendKey("superlink.address", ("fleet",), OWN_SUPERLINK, describes_boards=False),
    BackendKey("superlink.root_certificates", ("fleet",), OWN_SUPERLINK, describes_boards=False),
    BackendKey(
        "superlink.connect_timeout_s",
        ("sim", "fleet"),
        "clients in the run's own processes connect to nothing",
        describes_boards=False,
    ),
    BackendKey(
        "reply_timeout_s", ("sim", "fleet"), "clients in the run's own processes always reply", describes_boards=False
    ),
    BackendKey("jobs", ("local",), "only the local backend shares its clients among processes", describes_boards=False),
)

_DEFAULTS = Experiment(fleet=(FleetEntry(device="nano"),)).model_dump(mode="json")


def check_backend_keys(experiment: Experiment) -> None:
    """Raise ``BadInput`` for the first key that the experiment's backend does not use and that is no default."""
    for key in KEYS:
        if experiment.backend not in key.backends:
            for where, value, default in _find_values(experiment, key.path.split(".")):
                if value != default:
                    raise BadInput(where, format_value(value), f"nothing: {key.reason}")


def find_backends(name: str) -> Sequence[str]:
    """Return the backends that use a key, such as ``fleet[].battery``; empty if all do."""
    plain = name.replace("[]", "")
    return next((key.backends for key in KEYS if f"{plain}.".startswith(f"{key.path}.")), ())


def drop_backend_keys(raw: dict[str, Any], backend: str) -> list[str]:
    """Remove the keys of a file that only say how another backend's run is carried out, and return them."""
    unused = [key.path for key in KEYS if backend not in key.backends and not key.describes_boards]
    return [path for path in unused if _drop_value(raw, _DEFAULTS, path.split("."))]


def change_backend(experiment: Experiment, backend: str) -> Experiment:
    """Return the experiment for another backend, with the defaults of the keys that this one does not use."""
    changed = experiment.model_copy(update={"backend": backend})
    for key in KEYS:
        if backend not in key.backends:
            changed = _reset(changed, key.path.split("."))
    return changed


def _find_values(record: BaseModel, path: Sequence[str], place: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield where a key stands, its value and its default, for every entry of a list on the way."""
    name, *rest = path
    value = getattr(record, name)
    if not rest:
        yield place + name, value, type(record).model_fields[name].get_default(call_default_factory=True)
    elif isinstance(value, tuple):
        for number, entry in enumerate(value):
            yield from _find_values(entry, rest, f"{place}{name}[{number}].")
    elif value is not None:
        yield from _find_values(value, rest, f"{place}{name}.")


def _drop_value(raw: dict[str, Any], defaults: dict[str, Any], path: Sequence[str]) -> bool:
    """Remove a key that is set to another value than its default, and return whether it was."""
    name, *rest = path
    value = raw.get(name)
    if rest:
        return isinstance(value, dict) and _drop_value(value, defaults[name], rest)
    if value in (None, defaults[name]):
        return False
    del raw[name]
    return True


def _reset(record: Record, path: Sequence[str]) -> Record:
    name, *rest = path
    value = getattr(record, name)
    if not rest:
        value = type(record).model_fields[name].get_default(call_default_factory=True)
    elif isinstance(value, tuple):
        value = tuple(_reset(entry, rest) for entry in value)
    elif value is not None:
        value = _reset(value, rest)
    return record.model_copy(update={name: value})
