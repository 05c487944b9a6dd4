"""A run folder, and a real fleet with its newest run, as sources of the dashboard; only new rows are read."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from fedge.telemetry import open_run, run_folder
from fedge.telemetry.fleet_store import read_samples
from fedge.telemetry.intake import BoardLedger
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import read_progress
from fedge.telemetry.store_files import VERSION_FILE
from fedge.telemetry.store_reader import RunReader, compute_store_stamp, read_new_rounds, read_newest_rows
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.telemetry.store_schema import table_to_records
from fedge.yaml_files import read_yaml
from server.dashboard import views
from server.dashboard.views import (
    BoardHistory,
    EventLine,
    FigureOrigin,
    FleetView,
    LastRow,
    PowerCurve,
    RoundView,
    RunInfo,
    RunPhase,
    TileInputs,
    TimelineBar,
)

QUIET_AFTER_S = 900.0
"""Seconds without news after which a run without a summary has probably ended; a default that trades an early notice
for false alarms in long rounds.
"""
LAST_COLUMNS = tuple(item.name for item in fields(LastRow))
CURVE_COLUMNS = ("at_s", "span_s", "power_w", "temperature_c")
ProgressReader = Callable[[], Mapping[str, BoardProgress]]
RefusalReader = Callable[[], Mapping[str, Mapping[str, int]]]


@dataclass(slots=True)
class LoadedRows:
    """The rows of a run, as far as the dashboard needs them.

    Attributes:
        settled: Last finished round; its client rows are final.
        settled_j: Energy of every board before round ``settled``, in joules.
        open_j: Energy of every board from round ``settled`` on, in joules.
    """

    rounds: list[RoundRow] = field(default_factory=list)
    last: dict[str, LastRow] = field(default_factory=dict)
    settled: int = 0
    settled_j: dict[str, float] = field(default_factory=dict)
    open_j: dict[str, float] = field(default_factory=dict)
    points: tuple[views.RoundPoint, ...] = ()
    summary: views.Summary = field(default_factory=views.Summary)

    @property
    def latest_round(self) -> int:
        return self.rounds[-1].round if self.rounds else 0

    def energy_j(self, board: str) -> float:
        return self.settled_j.get(board, 0.0) + self.open_j.get(board, 0.0)


def read_new_rows(folder: Path, before: LoadedRows, policy: str) -> LoadedRows:
    """Update the rows of a run of ``policy`` from the store; only those since the last finished round are read.

    ``before`` is discarded if the run was resumed from an earlier round.
    """
    rounds = read_new_rounds(folder, before.rounds)
    if rounds[: len(before.rounds)] != before.rounds:
        before = LoadedRows()  # a resumed run repeats rounds
    settled = rounds[-1].round if rounds else 0
    newest = read_newest_rows(folder, LAST_COLUMNS, before.settled, settled)
    settled_j = {board: before.settled_j.get(board, 0.0) + joules for board, joules in newest.before_j.items()}
    return LoadedRows(
        rounds=rounds,
        last=before.last | {board: LastRow(*values) for board, values in newest.rows.items()},
        settled=settled,
        settled_j=before.settled_j | settled_j,
        open_j=newest.from_j,
        points=tuple(views.round_point(row) for row in rounds),
        summary=views.summarise_rounds(rounds, policy),
    )


class RunSource:
    """Shows one run.

    Args:
        folder: The run folder; None if there is no run.
        refused: Returns the number of refused telemetry messages by board and reason.
        real: True for real boards, which can fall silent.
    """

    def __init__(
        self,
        folder: Path | None,
        progress: ProgressReader | None = None,
        refused: RefusalReader = dict,
        now_s: Callable[[], float] = time.time,
        real: bool = False,
    ) -> None:
        self._folder, self._refused, self._now_s, self._real = folder, refused, now_s, real
        self._progress: ProgressReader = progress or (
            (lambda: read_progress(folder / run_folder.LIVE)) if folder else dict
        )
        self._rows = LoadedRows()
        self._stamp: tuple[Any, ...] | None = None
        self._record: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._fleet: dict[str, str] = {}
        self._origins: tuple[FigureOrigin, ...] = ()
        self._files: tuple[Any, ...] = ()
        self._changed_s: float | None = None
        self._tiles: dict[str, tuple[TileInputs, views.BoardView]] = {}

    def view(self) -> FleetView:
        self._refresh()
        return self._build_view()

    def round(self, number: int) -> RoundView | None:
        row = next((row for row in self._rows.rounds if row.round == number), None)
        if row is None or self._folder is None:
            return None
        columns = "board, status, start_s, down_s, work_s, up_s, wait_s, coalesce(error, '') as error"
        with open_run(self._folder) as run:
            clients = select_rows(run, columns, "clients", f"round = {row.round}").to_pylist()
        bars = tuple(TimelineBar(**{**bar, "start_s": max(0.0, bar["start_s"] - row.start_s)}) for bar in clients)
        return RoundView(row.round, row.round_s, row.deadline_s, bars)

    def history(self, board: str) -> BoardHistory | None:
        if board not in self._tiles:
            return None
        rows, events, curve = self._read_board(board) if self._has_run() else ([], (), PowerCurve())
        sampled = bool(curve.at_s)
        return BoardHistory(
            board=self._tiles[board][1],
            rounds=tuple(views.board_round(row) for row in rows),
            curve=views.thin_curve(curve if sampled else views.reported_curve(rows)),
            sampled=sampled,
            clock="fleet",
            events=events,
        )

    def _has_run(self) -> bool:
        return self._folder is not None and (self._folder / run_folder.RUN_YAML).is_file()

    def _read_board(self, board: str) -> tuple[list[ClientRow], tuple[EventLine, ...], PowerCurve]:
        assert self._folder is not None
        of_board = board_condition(board)
        with open_run(self._folder) as run:
            rows = table_to_records(select_rows(run, "*", "clients", f"{of_board} order by round"), ClientRow)
            events = select_rows(run, "at_s, round, kind, message", "events", f"{of_board} order by at_s").to_pylist()
            return rows, tuple(EventLine(**event) for event in events), read_curve(self._folder, board)

    def _refresh(self) -> None:
        """Read the files that have changed."""
        if self._folder is None:
            return
        yaml_path, summary_path = self._folder / run_folder.RUN_YAML, self._folder / run_folder.SUMMARY
        files = (_mtime(yaml_path), _mtime(summary_path))
        if files != self._files:
            record = read_yaml(yaml_path) if files[0] else {}
            self._record = record if isinstance(record, dict) else {}
            self._summary = run_folder.read_summary(self._folder) if files[1] else {}
            self._fleet = views.parse_fleet(self._record)
            self._origins = views.parse_origins(self._summary.get("labels") or {})
            self._files = files
        if not files[0]:
            return
        stamp = compute_store_stamp(self._folder, RoundRow, ClientRow)
        if stamp != self._stamp:
            self._rows = read_new_rows(self._folder, self._rows, views.parse_policy(self._record))
            self._stamp = stamp
            self._changed_s = max((at_ns for _, _, at_ns in stamp), default=0) / 1e9 or None

    def _build_view(self) -> FleetView:
        reports, refused, now_s, rows = self._progress(), self._refused(), self._now_s(), self._rows
        run = self._build_run_info(reports, now_s)
        names = dict.fromkeys([*self._fleet, *sorted({*rows.last, *reports, *refused} - self._fleet.keys())])
        tiles = {}
        for name in names:
            report = reports.get(name)
            speaks = report is not None and (run.state != "finished" or run.real)
            inputs = TileInputs(
                name=name,
                device=self._fleet.get(name) or (report.device if report else ""),
                row=rows.last.get(name),
                progress=report if speaks else None,
                silent=report is not None and speaks and views.is_silent(report, run, now_s),
                latest=rows.latest_round,
                energy_j=rows.energy_j(name),
                refused=refused.get(name, {}),
            )
            before = self._tiles.get(name)
            # Unchanged inputs give the same tile again: comparing costs less than building and sending it.
            tiles[name] = before if before and before[0] == inputs else (inputs, views.board_view(inputs))
        self._tiles = tiles
        boards, total_refused = tuple(tile for _, tile in tiles.values()), Counter[str]()
        for board in boards:
            if board.refused:
                total_refused.update(board.refused)
        return FleetView(
            run,
            summary=rows.summary,
            rounds=rows.points,
            boards=boards,
            origins=self._origins,
            refused=dict(total_refused),
        )

    def _build_run_info(self, reports: Mapping[str, BoardProgress], now_s: float) -> RunInfo:
        heard_s = max((report.at_s for report in reports.values()), default=None)
        run = views.run_info(self._record, self._derive_phase(heard_s, now_s), self._changed_s)
        name = run.name or (self._folder.name if self._folder else "")
        return replace(run, name=name, real=run.real or self._real, store=self._identify_store())

    def _identify_store(self) -> str:
        """Return the folder and the time at which a run began to write rows there; a resumed run goes on with them."""
        made_s = None if self._folder is None else _mtime(self._folder / run_folder.STORE / VERSION_FILE)
        return "" if self._folder is None or made_s is None else f"{self._folder.name} {made_s}"

    def _derive_phase(self, heard_s: float | None, now_s: float) -> RunPhase:
        if self._folder is None:
            return "none"
        rounds = self._summary.get("rounds")
        is_app = self._record.get("backend") == "flower"  # whose summary is written anew every round
        if self._summary and not is_app and (not isinstance(rounds, int) or rounds >= len(self._rows.rounds)):
            return "finished"
        news_s = max(self._changed_s or 0.0, heard_s or 0.0, *(at or 0.0 for at in self._files[:1]))
        if not self._rows.rounds and heard_s is None:
            return "waiting"
        return "quiet" if now_s - news_s > QUIET_AFTER_S else "going"


def select_rows(run: RunReader, columns: str, table: str, where: str) -> Any:
    """Query rows as an Arrow table; board names come from outside and must be quoted by ``board_condition``."""
    return run.query(f"select {columns} from {table} where {where}")  # noqa: S608  see above


def board_condition(name: str) -> str:
    """Return the SQL condition for a board, with its name quoted."""
    quoted = name.replace("'", "''")
    return f"board = '{quoted}'"


def read_curve(folder: Path, board: str, since_s: float = -math.inf) -> PowerCurve:
    """Read the power and temperature of a board's samples from a time on."""
    samples = read_samples(folder, board, CURVE_COLUMNS, since_s)
    return PowerCurve(*(tuple(column.to_pylist()) for column in samples.columns))


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


RUN_SEARCH_PERIOD_S = 5.0
"""Seconds between searches for a newer run; a default that trades how soon a run appears for file-system load."""
CURVE_WINDOW_S = 3600.0
"""Seconds of samples that a board's history shows; a default that keeps the query fast."""


class TelemetryStatus(Protocol):
    """The telemetry status of every board."""

    def board_telemetry(self) -> dict[str, BoardLedger]: ...


class FleetSource:
    """Shows the boards of a fleet whether a run is active or not.

    Args:
        store: Folder of the boards' samples, with times in unix seconds.
        runs: Folder of the runs; None if there is none.
    """

    def __init__(
        self, status: TelemetryStatus, store: Path, runs: Path | None, now_s: Callable[[], float] = time.time
    ) -> None:
        self._status, self._store, self._runs, self._now_s = status, store, runs, now_s
        self._ledgers: Mapping[str, BoardLedger] = {}
        self._folder: Path | None = None
        self._searched_s = float("-inf")
        self._run = self._build_run_source(None)

    def view(self) -> FleetView:
        now_s = self._now_s()
        if not 0 <= now_s - self._searched_s < RUN_SEARCH_PERIOD_S:
            self._searched_s = now_s
            newest = find_newest_run(self._runs)
            if newest != self._folder:
                self._folder, self._run = newest, self._build_run_source(newest)
        self._ledgers = self._status.board_telemetry()
        return self._run.view()

    def round(self, number: int) -> RoundView | None:
        return self._run.round(number)

    def history(self, board: str) -> BoardHistory | None:
        history = self._run.history(board)
        if history is None:
            return None
        curve = read_curve(self._store, board, self._now_s() - CURVE_WINDOW_S)
        return replace(history, curve=views.thin_curve(curve), sampled=True, clock="unix") if curve.at_s else history

    def _build_run_source(self, folder: Path | None) -> RunSource:
        return RunSource(folder, self._latest_progress, self._refusal_counts, self._now_s, real=True)

    def _latest_progress(self) -> Mapping[str, BoardProgress]:
        return {
            board: restrict_to_run(merge_last_sample(board, ledger), self._folder)
            for board, ledger in self._ledgers.items()
        }

    def _refusal_counts(self) -> Mapping[str, Mapping[str, int]]:
        return {board: ledger.counts for board, ledger in self._ledgers.items()}


def merge_last_sample(board: str, ledger: BoardLedger) -> BoardProgress:
    """Merge a board's last progress report with its last sample; times are those of the server's clock."""
    progress, latest = ledger.progress or BoardProgress(board, ledger.heard_s, "idle"), ledger.latest
    return replace(
        progress,
        at_s=ledger.heard_s,
        power_w=latest.power_w if latest else progress.power_w,
        temperature_c=latest.temperature_c if latest and latest.temperature_c is not None else progress.temperature_c,
    )


def restrict_to_run(progress: BoardProgress, folder: Path | None) -> BoardProgress:
    """Reset round and steps of a progress report that belongs to another run than that of ``folder``."""
    if not progress.run or folder is None or f" ({folder.resolve()}, " in progress.run:
        return progress
    return replace(progress, round=0, steps=0, steps_done=0)


def find_newest_run(runs: Path | None) -> Path | None:
    """Return the run folder below ``runs`` that was started last, or None.

    Runs are searched directly in ``runs`` and in the folders of jobs.
    """
    if runs is None or not runs.is_dir():
        return None
    begun: list[tuple[float, str, Path]] = []
    # `fedge fleet run` makes a job folder with the files that it sends and the run folder.
    for folder in (path for job in runs.iterdir() for path in (job, job / "run")):
        try:
            begun.append(((folder / run_folder.RUN_YAML).stat().st_mtime, folder.name, folder))
        except OSError:
            continue
    return max(begun)[2] if begun else None
