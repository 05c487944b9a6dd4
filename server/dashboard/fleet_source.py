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
from server.dashboard.run_source import CURVE_COLUMNS, RunSource, board_condition, select_rows, to_curve
from server.dashboard.views import BoardHistory, FleetView, PowerCurve, RoundView

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
        hearing: Telemetry status of the boards.
        store: Folder of the boards' samples, with times in unix seconds.
        runs: Folder of the runs; None if there is none.
        now_s: Clock in unix seconds.
    """

    def __init__(
        self, hearing: TelemetryStatus, store: Path, runs: Path | None, now_s: Callable[[], float] = time.time
    ) -> None:
        self._hearing, self._store, self._runs, self._now_s = hearing, store, runs, now_s
        self._heard: Mapping[str, BoardLedger] = {}
        self._folder: Path | None = None
        self._looked_s = float("-inf")
        self._run = self._build_run_source(None)

    def view(self) -> FleetView:
        now_s = self._now_s()
        if not 0 <= now_s - self._looked_s < RUN_SEARCH_PERIOD_S:
            self._looked_s = now_s
            newest = find_newest_run(self._runs)
            if newest != self._folder:
                self._folder, self._run = newest, self._build_run_source(newest)
        self._heard = self._hearing.board_telemetry()
        return self._run.view()

    def round(self, number: int) -> RoundView | None:
        return self._run.round(number)

    def history(self, board: str) -> BoardHistory | None:
        found = self._run.history(board)
        if found is None:
            return None
        curve = self._read_curve(board)
        return replace(found, curve=views.thin_curve(curve), sampled=True, clock="unix") if curve.at_s else found

    def _build_run_source(self, folder: Path | None) -> RunSource:
        return RunSource(folder, self._latest_progress, self._refusal_counts, self._now_s, real=True)

    def _latest_progress(self) -> Mapping[str, BoardProgress]:
        return {
            board: restrict_to_run(merge_last_sample(board, heard), self._folder)
            for board, heard in self._heard.items()
        }

    def _refusal_counts(self) -> Mapping[str, Mapping[str, int]]:
        return {board: heard.counts for board, heard in self._heard.items()}

    def _read_curve(self, board: str) -> PowerCurve:
        newer = f"at_s >= {self._now_s() - CURVE_WINDOW_S:.3f}"
        with open_run(self._store) as store:
            return to_curve(
                select_rows(store, CURVE_COLUMNS, "samples", f"{board_condition(board)} and {newer} order by at_s")
            )


def merge_last_sample(board: str, heard: BoardLedger) -> BoardProgress:
    """Merge a board's last progress report with its last sample; times are those of the server's clock."""
    said = heard.progress or BoardProgress(board, heard.heard_s, "idle")
    latest = heard.latest
    return replace(
        said,
        at_s=heard.heard_s,
        power_w=latest.power_w if latest else said.power_w,
        temperature_c=latest.temperature_c if latest and latest.temperature_c is not None else said.temperature_c,
    )


def restrict_to_run(said: BoardProgress, folder: Path | None) -> BoardProgress:
    """Reset round and steps of a progress report that belongs to another run than that of ``folder``."""
    if not said.run or folder is None or f" ({folder.name}, " in said.run:
        return said
    return replace(said, round=0, steps=0, steps_done=0)


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
