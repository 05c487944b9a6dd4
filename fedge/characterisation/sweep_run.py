"""A sweep: its points measured one after the other into its folder, and the list of them without a measurement."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge.characterisation import sweep_plan
from fedge.characterisation.plan_reader import MAXN, ResolvedPlan, read_resolved_plan
from fedge.characterisation.point_measurement import (
    MeasurementRig,
    ProgressCallback,
    estimate_point_s,
    estimate_remaining_s,
)
from fedge.characterisation.sweep_plan import CharacterisationPlan, SweepPoint, describe_point
from fedge.characterisation.sweep_store import (
    JOURNAL_FILE,
    SweepJournal,
    SweepResult,
    check_plan_extends,
    open_journal,
    read_result,
    write_epochs,
    write_plan,
    write_tables,
)
from fedge.errors import BoardError, format_count, prefix_errors

DEFAULT_FOLDER = Path("characterised")
"""Default parent folder of sweeps, which are named after their plan."""
PointReport = Callable[[str, str], None]
"""Called with the description of a point and the step of its measurement."""
ShowProgress = Callable[["SweepRun"], AbstractContextManager[PointReport]]


@dataclass(frozen=True, slots=True, eq=False)
class SweepOutcome:
    """A sweep after one start, which finished ``new`` of the points; failures by point key are in ``attempts``."""

    result: SweepResult
    new: int
    written: tuple[Path, ...]
    attempts: Mapping[str, int]

    @property
    def board_s(self) -> float:
        return sum(point.seconds for point in self.result.points)


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """A point of a plan by its key in the journal.

    Attributes:
        state: ``done``, ``skipped``, ``failed`` or ``left``.
        seconds: Expected board time, extrapolated from a few steps; None unless emulated.
        reason: Why the board cannot measure it, or None.
    """

    key: str
    state: str
    seconds: float | None
    point: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class SweepListing:
    """The points of a plan in the order of measurement.

    Attributes:
        repeats_s: Least time from the first repeat to the last.
        default_modes: Note on the modes if the plan names none; empty otherwise.
    """

    folder: Path
    points: tuple[PlannedPoint, ...]
    repeats_s: float
    default_modes: str


def run_sweep(
    path: Path,
    out: Path | None,
    *,
    again: bool = False,
    note: Callable[[str], None],
    show_progress: ShowProgress,
    write_report: Callable[[SweepResult], list[Path]],
) -> SweepOutcome:
    """Measure the remaining points of a plan's file and write all results; an interrupt keeps the finished points.

    ``out`` is the sweep's folder, by default ``DEFAULT_FOLDER`` and the plan's name; ``again`` retries points that have
    failed too often. ``write_report`` writes page and findings of a sweep with finished points, and returns their
    paths.

    Raises:
        BadInput: The input is invalid; raised before any measurement.
    """
    resolved = read_resolved_plan(path)
    plan, out = resolved.plan, out or DEFAULT_FOLDER / resolved.plan.name
    rigs = build_rigs(plan, out, path)
    with open_journal(out) as journal:
        journal.begin(plan, {board: rig.software for board, rig in rigs.items()})
        if lost := journal.forget_damaged():
            note(f"the files of {format_count(len(lost), 'finished point')} are gone or damaged: measured again")
        if again:
            journal.past.attempts.clear()
        before = len(journal.past.done)
        write_plan(out, resolved)
        if text := _describe_default_modes(resolved):
            note(text)
        _measure_points(SweepRun(plan, rigs, journal), out, note, show_progress)
        result = read_result(out)
        written = [write_epochs(result)]
        if result.points:
            written += [*write_tables(result), *write_report(result)]
        return SweepOutcome(result, len(result.points) - before, tuple(written), dict(journal.past.attempts))


def list_sweep(path: Path, out: Path | None) -> SweepListing:
    """List the points of a plan with their state; nothing is measured.

    Raises:
        BadInput: If the plan is invalid, or the folder holds the sweep of another plan.
    """
    resolved = read_resolved_plan(path)
    plan, out = resolved.plan, out or DEFAULT_FOLDER / resolved.plan.name
    states = _read_point_states(out, plan)
    rigs = build_rigs(plan, out, path)
    points = tuple(_plan_point(plan, point, rigs[point.board], states) for point in plan.points)
    repeats_s = (plan.course.repeats - 1) * plan.course.every_s
    return SweepListing(out, points, repeats_s, _describe_default_modes(resolved))


def sweep_outcome_to_dict(outcome: SweepOutcome) -> dict[str, Any]:
    result = outcome.result

    def reasons(points: tuple[tuple[SweepPoint, str], ...]) -> list[dict[str, Any]]:
        return [{"key": point.key, "point": describe_point(point), "reason": reason} for point, reason in points]

    return {
        "folder": str(result.folder),
        "points": len(result.plan.points),
        "done": len(result.points),
        "new": outcome.new,
        "skipped": reasons(result.skipped),
        "failed": reasons(result.failed),
        "board_s": outcome.board_s,
        "report": str(result.folder / "report.html") if result.points else None,
        "written": [str(path) for path in outcome.written],
    }


def build_rigs(plan: CharacterisationPlan, folder: Path, path: Path) -> dict[str, MeasurementRig]:
    """Build a measurement rig for every board of a plan by its name; ``path`` is the plan's file, for messages.

    Raises:
        BadInput: A board cannot apply a setting of the plan.
    """
    own = any(":" in workload.model for workload in plan.workloads.values())
    if own and str(Path.cwd()) not in sys.path:  # where the worker looks for the user's own networks too
        sys.path.append(str(Path.cwd()))
    with prefix_errors(str(path)):
        rigs = {board: _build_rig(plan, board, folder) for board in plan.boards}
    first = {(point.board, point.workload): point for point in plan.points}
    for (board, name), point in first.items():
        with prefix_errors(f"{path}: workloads.{name}", "."):
            rigs[board].refusal_reason(point, plan.workloads[name])
    return rigs


def _build_rig(plan: CharacterisationPlan, board: str, folder: Path) -> MeasurementRig:
    if board == sweep_plan.HERE:
        from fedge.characterisation.local_rig import build_local_rig

        return build_local_rig(plan, folder)
    from fedge.characterisation.emulated_rig import build_emulated_rig

    return build_emulated_rig(plan, board)


def _describe_default_modes(resolved: ResolvedPlan) -> str:
    """Describe the mode used if the plan names none; empty if it names one or modes cannot be set."""
    modes = {sweep_plan.device_name(name) or name: own.get(MAXN) for name, own in resolved.modes.items()}
    shown = ", ".join(f"{mode} on {name}" for name, mode in modes.items() if mode is not None)
    return f"the plan names no mode: every point is at MAXN ({shown})" if shown and not resolved.has_modes else ""


def _measure_points(run: SweepRun, out: Path, note: Callable[[str], None], show_progress: ShowProgress) -> None:
    journal = run.journal
    if journal.past.done and len(run.remaining_points):
        note(f"going on: {len(run.remaining_points)} of {format_count(len(run.plan.points), 'point')} are left")
    reasons: set[str] = set()
    try:
        with show_progress(run) as report:
            while run.remaining_points:
                words = describe_point(run.remaining_points[0])
                report(words, "")
                failure = run.run_next(lambda text, words=words: report(words, text))  # type: ignore[misc]
                if failure is not None and failure not in reasons:
                    reasons.add(failure)
                    note(f"{words} failed and is left out: {failure}")
    except KeyboardInterrupt:
        count = format_count(len(journal.past.done), "point")
        note(f"{out} holds the {count} done so far; the same command goes on")
        if journal.past.done:
            note(f"for a report of them: fedge characterise-report {out}")
        raise


def _plan_point(
    plan: CharacterisationPlan, point: SweepPoint, rig: MeasurementRig, states: Mapping[str, str]
) -> PlannedPoint:
    workload = plan.workloads[point.workload]
    reason = rig.refusal_reason(point, workload)
    timed = not reason and point.board != sweep_plan.HERE
    seconds = estimate_point_s(rig, point, workload, plan.course) if timed else None
    state = states.get(point.key, "skipped" if reason else "left")
    return PlannedPoint(point.key, state=state, seconds=seconds, point=describe_point(point), reason=reason)


def _read_point_states(out: Path, plan: CharacterisationPlan) -> dict[str, str]:
    """Return the state by point key of an existing sweep in ``out``; raises ``BadInput`` if it is of another plan."""
    if not (out / JOURNAL_FILE).exists():
        return {}
    result = read_result(out)
    if result.points:
        check_plan_extends(out / JOURNAL_FILE, result.plan, plan)
    states = {point.key: "skipped" for point, _ in result.skipped} | {point.key: "failed" for point, _ in result.failed}
    return {point.point.key: "done" for point in result.points} | states


class SweepRun:
    """One start of a sweep: every remaining point is tried once. The journal must have begun already."""

    def __init__(self, plan: CharacterisationPlan, rigs: Mapping[str, MeasurementRig], journal: SweepJournal) -> None:
        self.plan, self._rigs, self.journal = plan, rigs, journal
        self.remaining_points = journal.past.remaining_points(plan)
        """The points still to be tried in this start, in order."""

    @property
    def local_remaining_s(self) -> float | None:
        """Estimated remaining time on this machine, in seconds; None before its first point is done."""
        here = [one.seconds for one in self.journal.past.done.values() if one.point.board == sweep_plan.HERE]
        rest = [point for point in self.remaining_points if point.board == sweep_plan.HERE]
        return estimate_remaining_s(here, rest, self.plan.course) if here else None

    def run_next(self, report: ProgressCallback = lambda _: None) -> str | None:
        """Try the next point and write the journal; return the reason if its measurement failed.

        A point that its rig refuses is skipped.
        """
        failure = self._try_point(self.remaining_points[0], report)
        self.remaining_points = self.remaining_points[1:]
        return failure

    def _try_point(self, point: SweepPoint, report: ProgressCallback) -> str | None:
        rig, workload = self._rigs[point.board], self.plan.workloads[point.workload]
        if (reason := rig.refusal_reason(point, workload)) is not None:
            self.journal.skip(point, reason)
            return None
        seconds = idle_before_repeat_s(point, self.plan, self.journal)
        if seconds > 0:
            report(f"resting {seconds:.0f} s before repeat {point.repeat + 1}")
            rig.idle(seconds)
        try:
            self.journal.finish(rig.measure(point, workload, self.plan.course, report))
        except BoardError as error:
            self.journal.fail(point, str(error))
            return str(error)
        return None


def idle_before_repeat_s(point: SweepPoint, plan: CharacterisationPlan, journal: SweepJournal) -> float:
    """Return how long a board idles before its first point of a repeat, in seconds.

    The pause makes up the rest of ``every_s`` since the previous repeat began. A repeat's duration is the sum of its
    points' durations; time without measurements does not count.
    """
    here = [done for done in journal.past.done.values() if done.point.board == point.board]
    last = [done.seconds for done in here if done.point.repeat == point.repeat - 1]
    begun = any(done.point.repeat == point.repeat for done in here)
    return max(0.0, plan.course.every_s - sum(last)) if last and not begun else 0.0
