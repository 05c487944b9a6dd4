"""The records that the dashboard shows, built from a run's rows and the boards' progress reports. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import TypeAdapter

from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.savings import compute_saving, select_comparable
from fedge.telemetry.store_records import ClientRow, RoundRow, Status, relative_error
from fedge.types import PowerMode

RunPhase = Literal["none", "waiting", "going", "quiet", "finished"]
"""``none``: no run; ``waiting``: no round has ended; ``going``: running; ``quiet``: no news for long; ``finished``:
has a summary.
"""
BoardActivity = Literal[
    "unknown",
    "idle",
    "resting",
    "fetching",
    "probing",
    "training",
    "sending",
    "done",
    "late",
    "failed",
    "cancelled",
    "left-out",
    "offline",
]
"""Activity of a board, or its outcome in the last round; ``resting``: not selected in the last round; ``left-out``: not
asked again, since nothing fits into its memory.
"""
TroubleMark = Literal["", "late", "failed", "cancelled", "offline"]
SILENT_AFTER_S = 15.0
"""Seconds of silence after which a real board counts as offline; boards report once a second."""
CURVE_POINTS = 800
"""Maximum number of samples in a curve, about the width of a chart in pixels."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Description of a run.

    Attributes:
        changed_at_s: Unix time of the last row, in seconds.
        real: True for real boards, which can fall silent.
        store: Identifier of the run's rows, which a resumed run keeps; empty if there are none.
        metric: Name of the task's figure of merit, which is a share if it is the accuracy.
    """

    name: str = ""
    policy: str = ""
    backend: str = ""
    state: RunPhase = "none"
    rounds: int = 0
    changed_at_s: float | None = None
    real: bool = False
    store: str = ""
    metric: str = "accuracy"


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of the whole fleet; None if unknown.

    Attributes:
        clock_s: Simulated time in seconds.
        saving: Share of energy saved against working and waiting at MAXN.
        saving_parked: Share of energy saved against working at MAXN and waiting in the lowest mode.
        compared: Number of rounds over which the savings are computed.
    """

    round: int = 0
    accuracy: float | None = None
    loss: float | None = None
    round_s: float | None = None
    deadline_s: float | None = None
    clock_s: float = 0.0
    energy_j: float = 0.0
    resting_energy_j: float = 0.0
    saving: float | None = None
    saving_parked: float | None = None
    compared: int = 0
    late: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class RoundPoint:
    """One round in the charts."""

    round: int
    start_s: float
    end_s: float
    round_s: float
    deadline_s: float | None
    energy_j: float
    accuracy: float | None
    loss: float | None
    selected: int
    done: int
    late: int
    failed: int
    cancelled: int
    straggler: str


@dataclass(frozen=True, slots=True)
class BoardView:
    """One board's tile.

    Attributes:
        state: Activity, or outcome in the last round.
        mark: Problem to highlight, if any.
        progress: Share of the round's steps that is done, 0 to 1.
        latency_p95_s: 95th percentile of the latency of its service's requests in its last round, in seconds.
        memory_mb: Peak memory of its last round.
        time_error: Absolute relative error of the step time predicted for its last round.
        power_error: Absolute relative error of the power predicted for it.
        seen_at_s: Unix time of its last sample or progress report, in seconds.
        told_s: Simulated time of its last row, in seconds.
        refused: Number of refused telemetry messages by reason.
    """

    name: str
    device: str = ""
    state: BoardActivity = "unknown"
    mark: TroubleMark = ""
    round: int = 0
    mode: str = ""
    power_w: float | None = None
    temperature_c: float | None = None
    progress: float | None = None
    steps_done: int | None = None
    steps: int | None = None
    energy_j: float = 0.0
    seen_at_s: float | None = None
    told_s: float | None = None
    latency_p95_s: float | None = None
    latency_budget_s: float | None = None
    memory_mb: float | None = None
    memory_limit_mb: float | None = None
    time_error: float | None = None
    power_error: float | None = None
    error: str = ""
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LastRow:
    """The columns of a board's newest ``ClientRow`` that a tile needs."""

    board: str
    round: int
    device: str
    status: Status
    error: str | None
    end_s: float
    cores: int | None
    cpu_mhz: float | None
    gpu_mhz: float | None
    mem_mhz: float | None
    steps: int
    asked_steps: int | None
    power_w: float | None
    temperature_c: float | None
    step_s: float | None
    predicted_step_s: float | None
    predicted_power_w: float | None
    latency_p95_s: float | None
    latency_budget_s: float | None
    memory_mb: float | None
    memory_limit_mb: float | None
    left_out: bool | None = None


class TileInputs(NamedTuple):
    """Everything that a board's tile depends on; a tuple, which is the fastest to compare.

    Attributes:
        device: Kind of board, used if it has no row.
        silent: True if a real board has stopped reporting.
        latest: Number of the last finished round.
    """

    name: str
    device: str
    row: LastRow | None
    progress: BoardProgress | None
    silent: bool
    latest: int
    energy_j: float = 0.0
    refused: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FigureOrigin:
    """Provenance of the figures of one fleet entry: measured, calibrated or estimated."""

    entry: str
    boards: int
    truth: str
    prior: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class FleetView:
    """All data of the page except the histories of single boards; ``problem`` says why it is not up to date."""

    run: RunInfo = RunInfo()
    summary: Summary = Summary()
    rounds: tuple[RoundPoint, ...] = ()
    boards: tuple[BoardView, ...] = ()
    origins: tuple[FigureOrigin, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ViewChanges:
    """Changes since the previous view: boards are replaced by name, rounds appended; None means unchanged."""

    run: RunInfo | None = None
    summary: Summary | None = None
    rounds: tuple[RoundPoint, ...] = ()
    boards: tuple[BoardView, ...] = ()
    origins: tuple[FigureOrigin, ...] | None = None
    refused: Mapping[str, int] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """One board's bar in a round's timeline, in seconds from the start of the round."""

    board: str
    status: str
    start_s: float
    down_s: float
    work_s: float
    up_s: float
    wait_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class RoundView:
    """One round's timeline."""

    round: int
    round_s: float
    deadline_s: float | None
    bars: tuple[TimelineBar, ...]


@dataclass(frozen=True, slots=True)
class BoardRound:
    """One board in one round; errors are |predicted - reported| / reported."""

    round: int
    status: str
    error: str
    mode: str
    why: str
    start_s: float
    work_s: float
    energy_j: float
    temperature_c: float | None
    throttled: bool
    step_s: float | None
    predicted_step_s: float | None
    time_error: float | None
    power_w: float | None
    predicted_power_w: float | None
    power_error: float | None
    requests: int | None = None
    late_requests: int | None = None
    latency_p99_s: float | None = None
    latency_budget_s: float | None = None
    train_steps_per_s: float | None = None
    """Columns of the board's inference service, None without one; dropped requests count as late."""
    lowered: str | None = None
    """Reduction of batch size or width to fit into memory, with its reason; None if there was none."""
    memory_mb: float | None = None
    memory_limit_mb: float | None = None


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """Power and temperature over time, one entry per sample; all columns have the same length."""

    at_s: tuple[float, ...] = ()
    span_s: tuple[float, ...] = ()
    power_w: tuple[float, ...] = ()
    temperature_c: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class EventLine:
    at_s: float
    round: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class BoardHistory:
    """One board's own page.

    Attributes:
        sampled: True if the curve consists of sensor samples, False if it is derived from round reports.
        clock: Whether the curve's times are simulated time (``fleet``) or unix time.
    """

    board: BoardView
    rounds: tuple[BoardRound, ...]
    curve: PowerCurve
    sampled: bool
    clock: Literal["fleet", "unix"]
    events: tuple[EventLine, ...]


VIEW_JSON: TypeAdapter[FleetView] = TypeAdapter(FleetView)
CHANGES_JSON: TypeAdapter[ViewChanges] = TypeAdapter(ViewChanges)
HISTORY_JSON: TypeAdapter[BoardHistory] = TypeAdapter(BoardHistory)
ROUND_JSON: TypeAdapter[RoundView] = TypeAdapter(RoundView)
"""The records in JSON, as the page and other dashboards get them."""


MOST_BOARDS = 10_000
"""Boards of one fleet entry that are shown, whatever a file says."""


def parse_fleet(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the device of every board in the fleet of a run's YAML; empty if there is no readable fleet."""
    entries = record.get("fleet")
    devices: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and (name := entry.get("name") or entry.get("device")):
            count = entry.get("count", 1)
            for i in range(1, (min(count, MOST_BOARDS) if isinstance(count, int) else 1) + 1):
                devices[f"{name}-{i}"] = str(entry.get("device") or "")
    return devices


def parse_policy(record: Mapping[str, Any]) -> str:
    """Return the name of the policy in the content of a run's YAML file; empty if there is none."""
    policy = record.get("policy")
    return str(policy.get("name") or "") if isinstance(policy, dict) else str(policy or "")


def run_info(record: Mapping[str, Any], state: RunPhase, changed_at_s: float | None) -> RunInfo:
    """Build the description of a run from the content of its YAML file."""
    rounds, work = record.get("rounds"), record.get("workload")
    return RunInfo(
        name=str(record.get("name") or ""),
        policy=parse_policy(record),
        backend=str(record.get("backend") or ""),
        state=state,
        rounds=rounds if isinstance(rounds, int) else 0,
        changed_at_s=changed_at_s,
        real=record.get("backend") == "fleet",
        metric=str((work.get("metric") if isinstance(work, dict) else None) or "accuracy"),
    )


def select_fields(kind: type[T], row: Any, **others: Any) -> T:
    """Return a record of type ``kind`` with the row's values of its fields, except for ``others``."""
    names = [item.name for item in dataclasses.fields(kind) if item.name not in others]  # type: ignore[arg-type]
    return kind(**{name: getattr(row, name) for name in names}, **others)


def round_point(row: RoundRow) -> RoundPoint:
    """Convert a round's row to a point of the charts."""
    return select_fields(RoundPoint, row)


def summarise_rounds(rounds: Sequence[RoundRow], policy: str = "") -> Summary:
    """Compute the figures of the whole fleet; savings cover rounds with known truth and without late clients."""
    if not rounds:
        return Summary()
    last = rounds[-1]
    compared = select_comparable(rounds)
    return Summary(
        round=last.round,
        accuracy=last.accuracy,
        loss=last.loss,
        round_s=last.round_s,
        deadline_s=last.deadline_s,
        clock_s=last.end_s,
        energy_j=sum(row.energy_j for row in rounds),
        resting_energy_j=sum(row.resting_energy_j or 0.0 for row in rounds),
        saving=compute_saving(compared, policy, "maxn", "energy_j"),
        saving_parked=compute_saving(compared, policy, "maxn_parked", "energy_j"),
        compared=len(compared),
        late=sum(row.late for row in rounds),
        failed=sum(row.failed for row in rounds),
        cancelled=sum(row.cancelled for row in rounds),
    )


def format_mode(row: ClientRow | LastRow) -> str:
    """Format the mode of a row like ``PowerMode``; empty if there was none."""
    if row.cores is None or row.cpu_mhz is None or row.gpu_mhz is None or row.mem_mhz is None:
        return ""
    return str(PowerMode(row.cores, row.cpu_mhz, row.gpu_mhz, row.mem_mhz))


def board_view(inputs: TileInputs) -> BoardView:
    """Build a board's tile from its last row and its last progress report, whichever is newer."""
    row, silent, progress = inputs.row, inputs.silent, inputs.progress
    is_newer = progress is not None and not silent and (row is None or progress.round > row.round)
    fresh = progress if is_newer else None
    live = None if silent else progress
    state = "offline" if silent else _derive_state(row, fresh, inputs.latest)
    done, whole = _count_steps(row, fresh, inputs.latest)
    return BoardView(
        name=inputs.name,
        device=(row.device if row else "") or inputs.device,
        state=state,
        mark=_derive_mark(state, row, inputs.latest),
        round=max(row.round if row else 0, fresh.round if fresh else 0),
        mode=(fresh.mode if fresh else "") or (format_mode(row) if row else ""),
        power_w=_first_known(live.power_w if live else None, row.power_w if row else None),
        temperature_c=_first_known(live.temperature_c if live else None, row.temperature_c if row else None),
        progress=min(1.0, done / whole) if whole else None,
        steps_done=done if whole else None,
        steps=whole or None,
        energy_j=inputs.energy_j,
        seen_at_s=progress.at_s if progress else None,
        told_s=row.end_s if row else None,
        **({} if row is None else _last_figures(row)),
        error=(fresh.error if fresh else "") or (row.error or "" if row else ""),
        refused={reason: count for reason, count in inputs.refused.items() if count and reason != "taken"},
    )


def _last_figures(row: LastRow) -> dict[str, float | None]:
    """Return what a board's last row says about its service, its memory and its predictions."""
    return {
        "latency_p95_s": row.latency_p95_s,
        "latency_budget_s": row.latency_budget_s,
        "memory_mb": row.memory_mb,
        "memory_limit_mb": row.memory_limit_mb,
        "time_error": relative_error(row.predicted_step_s, row.step_s),
        "power_error": relative_error(row.predicted_power_w, row.power_w),
    }


def is_silent(progress: BoardProgress, run: RunInfo, now_s: float) -> bool:
    """Return True if a real board has stopped reporting; emulated boards report only while they work."""
    return run.real and now_s - progress.at_s > SILENT_AFTER_S


def _derive_state(row: LastRow | None, fresh: BoardProgress | None, latest: int) -> BoardActivity:
    if fresh is not None:
        return fresh.state
    if row is None:
        return "resting" if latest else "unknown"
    if row.left_out:
        return "left-out"
    return row.status if row.round >= latest else "resting"


def _derive_mark(state: BoardActivity, row: LastRow | None, latest: int) -> TroubleMark:
    """Return the problem to highlight: the present one, or that of the last round."""
    if state in {"offline", "failed"}:
        return "offline" if state == "offline" else "failed"
    if row is None or row.round < latest or row.status == "done":
        return ""
    return row.status


def _count_steps(row: LastRow | None, fresh: BoardProgress | None, latest: int) -> tuple[int, int]:
    """Return the number of steps done and the number in the round; zeros if unknown."""
    if fresh is not None:
        return fresh.steps_done, fresh.steps
    if row is None or row.round < latest:
        return 0, 0
    return row.steps, row.asked_steps or row.steps


def _first_known(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def board_round(row: ClientRow) -> BoardRound:
    """Convert a row to a line of the board's history, with prediction errors."""
    return select_fields(
        BoardRound,
        row,
        error=row.error or "",
        mode=format_mode(row),
        time_error=relative_error(row.predicted_step_s, row.step_s),
        power_error=relative_error(row.predicted_power_w, row.power_w),
        late_requests=None if row.late_requests is None else row.late_requests + (row.dropped_requests or 0),
    )


def reported_curve(rows: Iterable[ClientRow]) -> PowerCurve:
    """Derive power over time from round reports: link, work, then waiting. Energies match the rows."""
    points: list[tuple[float, float, float, float | None]] = []
    for row in rows:
        link_s, at_s = row.down_s + row.up_s, row.start_s
        link_w = row.idle_w + (row.radio_j / link_s if link_s > 0 else 0.0)
        work_w = row.work_j / row.work_s if row.work_s > 0 else row.idle_w
        parts = ((row.down_s, link_w), (row.work_s, work_w), (row.up_s, link_w), (row.wait_s, row.idle_w))
        for span_s, power_w in parts:
            if span_s > 0:
                points.append((at_s, span_s, power_w, row.temperature_c))
                at_s += span_s
    return _build_curve(points)


def _build_curve(points: Sequence[tuple[float, float, float, float | None]]) -> PowerCurve:
    at_s, span_s, power_w, temperature_c = zip(*points, strict=True) if points else ((), (), (), ())
    return PowerCurve(at_s, span_s, power_w, temperature_c)


def thin_curve(curve: PowerCurve, points: int = CURVE_POINTS) -> PowerCurve:
    """Merge neighbouring samples down to at most ``points``; energy is preserved, and temperature is the maximum."""
    count = len(curve.at_s)
    if count <= points:
        return curve
    edges = [i * count // points for i in range(points + 1)]
    joined = [_merge_stretches(curve, first, end) for first, end in pairwise(edges)]
    return _build_curve(joined)


def _merge_stretches(curve: PowerCurve, first: int, end: int) -> tuple[float, float, float, float | None]:
    spans, powers = curve.span_s[first:end], curve.power_w[first:end]
    total_s = sum(spans)
    joules = sum(span * power for span, power in zip(spans, powers, strict=True))
    known = [value for value in curve.temperature_c[first:end] if value is not None]
    return curve.at_s[first], total_s, joules / total_s if total_s > 0 else powers[0], max(known, default=None)


def parse_origins(labels: Mapping[str, Any]) -> tuple[FigureOrigin, ...]:
    """Parse the labels in a run's summary, one per fleet entry."""
    origins = []
    for entry, label in labels.items():
        if isinstance(label, dict):
            truth, prior = _get_mapping(label, "truth"), _get_mapping(label, "prior")
            count = label.get("count")
            origins.append(
                FigureOrigin(
                    entry,
                    boards=count if isinstance(count, int) else 0,
                    truth=str(truth.get("label") or ""),
                    prior=str(prior.get("label") or ""),
                    source=str(truth.get("source") or ""),
                )
            )
    return tuple(origins)


def _get_mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = record.get(name)
    return part if isinstance(part, dict) else {}


def compare_views(before: FleetView, after: FleetView) -> FleetView | ViewChanges | None:
    """Return the changes from ``before`` to ``after``.

    Returns:
        None if nothing changed, the changes, or the whole view if boards or rounds were removed or changed.
    """
    if before == after:
        return None
    known = {board.name: board for board in before.boards}
    if [board.name for board in before.boards] != [board.name for board in after.boards]:
        return after
    if len(after.rounds) < len(before.rounds) or after.rounds[: len(before.rounds)] != before.rounds:
        return after
    changed = ("run", "summary", "origins", "refused", "problem")
    news = {name: getattr(after, name) for name in changed if getattr(after, name) != getattr(before, name)}
    return ViewChanges(
        rounds=after.rounds[len(before.rounds) :],
        boards=tuple(board for board in after.boards if known[board.name] != board),
        **news,
    )
