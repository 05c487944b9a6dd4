"""A real fleet as a source of the dashboard: continuous telemetry from its boards, and its newest run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fedge.telemetry import open_run, run_folder
from fedge.telemetry.intake import BoardLedger
from fedge.telemetry.live_records import BoardProgress
from server.dashboard import views
from server.dashboard.run_source import RunSource, board_condition, read_curve
from server.dashboard.views import BoardHistory, FleetView, RoundView

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
        newer = f"at_s >= {self._now_s() - CURVE_WINDOW_S:.3f}"
        with open_run(self._store) as store:
            curve = read_curve(store, f"{board_condition(board)} and {newer} order by at_s")
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
