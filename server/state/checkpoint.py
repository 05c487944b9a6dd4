"""Checkpoints: the state that the next round needs, in one safetensors file that is written atomically."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedge.atomic_files import replace_file
from fedge.decisions.planning.progress_model import NO_ROUNDS, SHAPES, ProgressFit
from fedge.errors import BadInput, FedgeError
from fedge.json_reader import parse_json
from fedge.strict_json import validate_json
from fedge.telemetry.trace_operations import COLUMNS
from fedge.types import EMPTY_TRACE, Floats32, Front, NamedArrays, Trace, TrainResult
from fedge.wire import ClientState, ReplyMessage, from_json, to_json

logger = logging.getLogger(__name__)
R = TypeVar("R")

MAX_CHECKPOINTS = 2
_DAMAGE = (FedgeError, OSError, LookupError, ArithmeticError, ValueError, TypeError, AttributeError)
"""What a value of another type or shape raises where it is used."""
_MODEL, _STRATEGY, _PENDING, _TRACE, _RESIDUAL = "model/", "strategy/", "pending/", "trace/", "residual/"
_RECORDS = "records/"
"""Records of boards as text, in arrays: all the rest of a file's text is in its header, which safetensors limits to 100
MB, as much as 1,000 boards have."""


@dataclass(frozen=True, slots=True)
class ClientHistory:
    """A client's part in the run, for client selection; None if not known yet.

    Attributes:
        free_at_s: Simulated time from which it can be asked again.
        charge_j: Energy left in its battery, in joules; None on mains.
        unfit_terms: The memory terms (``FleetAvailability.memory_terms``) under which nothing fits; None if something
            may fit.
        unshared: Number of its newest measurements of which peers have not been told.
        links_mbps: Real boards only: measured rates of its link in its last rounds, newest last.
    """

    samples: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    busy_s: float | None = None
    last_round: int | None = None
    rounds: int = 0
    free_at_s: float = 0.0
    charge_j: float | None = None
    unfit_terms: str | None = None
    unshared: int = 0
    links_mbps: tuple[float, ...] = ()

    @property
    def link_mbps(self) -> float | None:
        """Return the median of the measured rates; None without one."""
        return statistics.median(self.links_mbps) if self.links_mbps else None


UNKNOWN_CLIENT = ClientHistory()
"""History of a client that has not been asked."""


@dataclass(frozen=True, slots=True, eq=False)
class FleetState:
    """The server's knowledge of all clients at one simulated time; each mapping is by client name."""

    clock_s: float
    states: Mapping[str, ClientState] = field(default_factory=dict)
    fronts: Mapping[str, Front] = field(default_factory=dict)
    histories: Mapping[str, ClientHistory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PendingResult:
    """A result that has not been merged into the model.

    Attributes:
        start_s: Simulated time at which the work started.
        end_s: Simulated time at which the reply arrives.
        trained: The result. For a late reply, its arrays are the output of ``compute_change`` in
            ``contribution_weights``, because the model that it started from is not kept.
    """

    round: int
    start_s: float
    end_s: float
    answer: ReplyMessage
    trained: TrainResult


@dataclass(frozen=True, slots=True, eq=False)
class RunState:
    """The state of a run after ``round`` rounds.

    Attributes:
        round: Number of finished rounds (models in an asynchronous run).
        spent_j: Energy of all boards so far, in joules: of those asked, and of those that took no part.
        pending: Late results, or the running tasks of an asynchronous run.
        last_j: Energy of all boards in the last round, in joules.
        evaluation_j: Energy of all boards in the last evaluation by clients, in joules; 0 before the first one.
        residuals: What the encodings of each emulated client's updates left out.
        progress: Model of progress fitted to the rounds; the policy ``joint`` only.
    """

    round: int
    fleet: FleetState
    arrays: NamedArrays
    memory: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    selection: Mapping[str, float] = field(default_factory=dict)
    spent_j: float = 0.0
    pending: tuple[PendingResult, ...] = ()
    last_j: float = 0.0
    evaluation_j: float = 0.0
    residuals: Mapping[str, Floats32] = field(default_factory=dict)
    progress: ProgressFit = NO_ROUNDS


class RecordEncoder:
    """Encodes records as JSON; those that are the same objects as the last time are not encoded again.

    Of a large fleet most clients are not asked in a round, and their records stay.
    """

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, tuple[Any, str]]] = {}

    def encode(self, name: str, records: Mapping[str, Any]) -> NDArray[np.uint8]:
        """Encode the records called ``name`` as lines, the name of each board before its record."""
        before, now = self._kept.get(name, {}), dict[str, tuple[Any, str]]()
        for board, record in records.items():
            known = before.get(board)
            now[board] = known if known is not None and known[0] is record else (record, to_json(record))
        self._kept[name] = now
        lines = [line for board, (_, text) in now.items() for line in (json.dumps(board), text)]
        return np.frombuffer("\n".join(lines).encode(), np.uint8)


def save(folder: Path, state: RunState, encoder: RecordEncoder | None = None) -> Path:
    """Write a checkpoint, delete all but the newest ``MAX_CHECKPOINTS``, and return the path of the new file.

    The folder is created if missing.

    Args:
        encoder: The one of the run's earlier checkpoints, which saves time.
    """
    from safetensors.numpy import save_file

    path = folder / f"round-{state.round:06d}.safetensors"
    tensors = {_MODEL + name: np.asarray(value, order="C") for name, value in state.arrays.items()}
    tensors |= {_STRATEGY + name: np.asarray(value, order="C") for name, value in state.memory.items()}
    tensors |= {_RESIDUAL + board: np.asarray(value, order="C") for board, value in state.residuals.items()}
    for place, pending in enumerate(state.pending):
        arrays = pending.trained.arrays
        tensors |= {f"{_PENDING}{place}/{name}": np.asarray(value, order="C") for name, value in arrays.items()}
        tensors[f"{_TRACE}{place}"] = trace_to_matrix(pending.answer.trace)
    fleet = {"states": state.fleet.states, "fronts": state.fleet.fronts, "histories": state.fleet.histories}
    encode = (encoder or RecordEncoder()).encode
    tensors |= {_RECORDS + name: encode(name, records) for name, records in fleet.items()}
    with replace_file(path) as part:
        save_file(tensors, part, metadata=_metadata(state))
        part.chmod(0o644)  # safetensors creates files that only their owner can read
    for old in _list_checkpoints(folder)[:-MAX_CHECKPOINTS]:
        old.unlink()
    return path


def load_latest(folder: Path) -> RunState | None:
    """Read the newest checkpoint that is not damaged; None if there is no checkpoint.

    Raises:
        BadInput: There are checkpoints but none can be read; names the newest.
    """
    broken: BadInput | None = None
    for path in reversed(_list_checkpoints(folder)):
        try:
            return _load(path)
        except BadInput as error:
            logger.warning("%s is damaged; going on from the checkpoint before it", path)
            broken = broken or error
    if broken is not None:
        raise broken
    return None


def _list_checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"))


def _metadata(state: RunState) -> dict[str, str]:
    return {
        "round": str(state.round),
        "clock_s": repr(state.fleet.clock_s),
        "order": json.dumps(list(state.arrays)),
        "selection": json.dumps(dict(state.selection)),
        "spent_j": repr(state.spent_j),
        "last_j": repr(state.last_j),
        "evaluation_j": repr(state.evaluation_j),
        "progress": to_json(state.progress),
        "pending": json.dumps([_describe_pending(pending) for pending in state.pending]),
    }


def _decode_records(name: str, kind: type[R], tensors: Mapping[str, NDArray[np.generic]]) -> dict[str, R]:
    """Decode the output of ``RecordEncoder``."""
    text = tensors[_RECORDS + name].tobytes().decode()
    lines = text.split("\n") if text else []  # unlike splitlines, not at line ends within a text
    return {parse_json(board): from_json(kind, text) for board, text in zip(lines[::2], lines[1::2], strict=True)}


def _describe_pending(pending: PendingResult) -> dict[str, Any]:
    """Describe a pending result without its arrays and trace, since the safetensors header has to stay small."""
    return {
        "round": pending.round,
        "start_s": pending.start_s,
        "end_s": pending.end_s,
        "answer": to_json(dataclasses.replace(pending.answer, trace=EMPTY_TRACE)),
        "rails": list(pending.answer.trace.rails_w),
        "order": list(pending.trained.arrays),
        "loss": pending.trained.loss,
        "accuracy": pending.trained.accuracy,
        "metrics": dict(pending.trained.metrics),
    }


def trace_to_matrix(trace: Trace) -> NDArray[np.float64]:
    """Convert a trace to float64 of shape (columns + rails, samples); NaN where a value is unknown."""
    rows = (*(getattr(trace, name) for name in COLUMNS), *trace.rails_w.values())
    return np.array([[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64)


def trace_from_matrix(matrix: NDArray[np.generic], rails: Sequence[str]) -> Trace:
    """Convert the output of ``trace_to_matrix`` back to a trace.

    Raises:
        ValueError: If it has another number of rows; a damaged file may claim millions of empty ones.
    """
    if len(matrix) != len(COLUMNS) + len(rails):
        raise ValueError(f"a trace of {len(matrix)} rows; {len(COLUMNS) + len(rails)} would be right")
    rows = [tuple(None if math.isnan(value) else value for value in row) for row in matrix.tolist()]
    columns: dict[str, Any] = dict(zip(COLUMNS, rows, strict=False))
    return Trace(**columns, rails_w=dict(zip(rails, rows[len(COLUMNS) :], strict=True)))


def _restore_pending(place: int, about: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> PendingResult:
    arrays = {name: tensors[f"{_PENDING}{place}/{name}"] for name in about["order"]}
    trained = TrainResult(arrays, about["loss"], about["accuracy"], metrics=about.get("metrics", {}))
    trace = (
        trace_from_matrix(tensors[f"{_TRACE}{place}"], about["rails"]) if f"{_TRACE}{place}" in tensors else EMPTY_TRACE
    )
    answer = dataclasses.replace(from_json(ReplyMessage, about["answer"]), trace=trace)
    return PendingResult(about["round"], start_s=about["start_s"], end_s=about["end_s"], answer=answer, trained=trained)


def _read_progress(text: str | None) -> ProgressFit:
    """Return the model of progress; an earlier version's sums, of other shapes, begin anew."""
    fit = NO_ROUNDS if text is None else from_json(ProgressFit, text)
    return fit if len(fit.products) == len(fit.squares) == len(SHAPES) else NO_ROUNDS


def _load(path: Path) -> RunState:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as opened:
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 -- not a mapping
        fleet = FleetState(
            clock_s=float(about["clock_s"]),
            states=_decode_records("states", ClientState, tensors),
            fronts=_decode_records("fronts", Front, tensors),
            histories=_decode_records("histories", ClientHistory, tensors),
        )
        return RunState(
            round=int(about["round"]),
            fleet=fleet,
            arrays={name: tensors[_MODEL + name] for name in parse_json(about["order"])},
            memory={k.removeprefix(_STRATEGY): v for k, v in tensors.items() if k.startswith(_STRATEGY)},
            selection=validate_json(parse_json(about["selection"], finite=False), dict[str, float], "selection"),
            spent_j=float(about["spent_j"]),
            last_j=float(about["last_j"]),
            evaluation_j=float(about.get("evaluation_j", 0.0)),
            residuals={k.removeprefix(_RESIDUAL): v for k, v in tensors.items() if k.startswith(_RESIDUAL)},
            progress=_read_progress(about.get("progress")),
            pending=tuple(_restore_pending(i, one, tensors) for i, one in enumerate(parse_json(about["pending"]))),
        )
    except (SafetensorError, *_DAMAGE) as error:
        raise BadInput(str(path), f"a file that cannot be read ({error})", "a whole checkpoint") from error
