"""``fedge characterise``: measures the remaining points of a plan, then writes its tables and report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from experiments.cli import characterise_output as output
from experiments.cli.characterise_report import format_count, print_summary
from fedge.characterisation import knob_values
from fedge.characterisation.knob_values import MAXN
from fedge.characterisation.plan_changes import check_plan_extends
from fedge.characterisation.plan_reader import ResolvedPlan, read_resolved_plan
from fedge.characterisation.point_knobs import describe_point
from fedge.characterisation.point_measurement import MeasurementRig, estimate_point_s, estimate_remaining_s
from fedge.characterisation.sweep_plan import CharacterisationPlan, SweepPoint
from fedge.characterisation.sweep_run import SweepRun, UnmeasuredPoint
from fedge.characterisation.sweep_store import JOURNAL_FILE, SweepJournal, SweepResult, open_journal, read_result
from fedge.errors import BadInput

EXIT_NO_FIGURES = 1
DEFAULT_FOLDER = Path("characterised")
"""Default parent folder of sweeps, which are named after their plan."""


def characterise(path: Path, out: Path | None, as_json: bool, again: bool = False) -> None:
    """Measure the remaining points of a plan, write tables and report, and print a summary.

    Ctrl-C keeps the finished points. Exits with code 1 if no point has results.

    Args:
        path: The plan.
        out: The sweep's folder, or None for the default.
        as_json: Whether to print the summary as JSON.
        again: Whether to retry points that have failed too often.

    Raises:
        BadInput: If the input is invalid; raised before any measurement.
    """
    asked = read_resolved_plan(path)
    out = out or DEFAULT_FOLDER / asked.plan.name
    rigs = build_rigs(asked.plan, out, path)
    with open_journal(out) as journal:
        journal.begin(asked.plan, {board: rig.software for board, rig in rigs.items()})
        if lost := journal.forget_damaged():
            _say(f"the files of {format_count(len(lost), 'finished point')} are gone or damaged: measured again")
        if again:
            journal.past.attempts.clear()
        before = len(journal.past.done)
        output.write_plan(out, asked)
        if assumed := _describe_default_modes(asked):
            _say(assumed)
        _measure_points(asked.plan, rigs, journal, out)
        result = read_result(out)
        written = _write_results(result)
        tries = journal.past.attempts
    board_s = sum(point.seconds for point in result.points)
    if as_json:
        typer.echo(json.dumps(_to_json(result, before, written, board_s)))
    else:
        print_summary(result, board_s, tries)
    if result.plan.points and not result.points:
        raise typer.Exit(EXIT_NO_FIGURES)


def list_points(path: Path, out: Path | None, as_json: bool) -> None:
    """Print the points in order, with their state and, for emulated boards, their duration."""
    asked = read_resolved_plan(path)
    out = out or DEFAULT_FOLDER / asked.plan.name
    state = _read_point_states(out, asked.plan)
    rigs = build_rigs(asked.plan, out, path)
    rows = [_describe_point(asked, point, rigs.get(point.board), state) for point in asked.plan.points]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        why = f" ({row['reason']})" if row["reason"] and row["state"] != "done" else ""
        typer.echo("  ".join([row["key"], f"{row['state']:7}", _format_time(row["seconds"]), row["point"] + why]))
    known = [row["seconds"] for row in rows if row["seconds"] is not None]
    about = f", about {_format_time(sum(known)).strip()} of the emulated boards' time" if known else ""
    course = asked.plan.course
    between_s = (course.repeats - 1) * course.every_s
    spread = f"; at least {_format_time(between_s).strip()} from the first repeat to the last" if between_s else ""
    done, skipped = (sum(row["state"] == state for row in rows) for state in ("done", "skipped"))
    known_of = f"{f', {done} of them done in {out}' if done else ''}{f', {skipped} skipped' if skipped else ''}"
    typer.echo(f"{format_count(len(rows), 'point')}{known_of}{about}{spread}")
    if assumed := _describe_default_modes(asked):
        typer.echo(assumed)


def _describe_default_modes(asked: ResolvedPlan) -> str:
    """Describe the mode used if the plan names none; empty if it names one or modes cannot be set."""
    modes = {knob_values.device_name(name) or name: own.get(MAXN) for name, own in asked.modes.items()}
    shown = ", ".join(f"{mode} on {name}" for name, mode in modes.items() if mode is not None)
    return f"the plan names no mode: every point is at MAXN ({shown})" if shown and not asked.has_modes else ""


def build_rigs(plan: CharacterisationPlan, folder: Path, path: Path) -> dict[str, MeasurementRig]:
    """Build a measurement rig for every board of a plan.

    Args:
        plan: The plan.
        folder: The sweep's folder.
        path: The plan's file, for messages.

    Returns:
        Rigs by board name.

    Raises:
        BadInput: If a board cannot apply a setting of the plan.
    """
    own = any(":" in workload.model for workload in plan.workloads.values())
    if own and str(Path.cwd()) not in sys.path:  # where the worker looks for the user's own networks too
        sys.path.append(str(Path.cwd()))
    with _prefix_errors(str(path)):
        rigs = {board: _build_rig(plan, board, folder) for board in plan.boards}
    first = {(point.board, point.workload): point for point in plan.points}
    for (board, name), point in first.items():
        with _prefix_errors(f"{path}: workloads.{name}"):
            rigs[board].refusal_reason(point, plan.workloads[name])
    return rigs


@contextmanager
def _prefix_errors(place: str) -> Iterator[None]:
    """Prefix errors raised in the block with the plan's file or a location in it."""
    try:
        yield
    except BadInput as error:
        dot = "." if ": " in place else ": "
        raise BadInput(f"{place}{dot}{error.where}", error.got, error.right) from error


def _build_rig(plan: CharacterisationPlan, board: str, folder: Path) -> MeasurementRig:
    if board == knob_values.HERE:
        from fedge.characterisation.local_rig import build_local_rig

        return build_local_rig(plan, folder)
    from fedge.characterisation.emulated_rig import build_emulated_rig

    return build_emulated_rig(plan, board)


# The course -----------------------------------------------------------------------------------------------------------


def _measure_points(
    plan: CharacterisationPlan, rigs: Mapping[str, MeasurementRig], journal: SweepJournal, out: Path
) -> None:
    campaign = SweepRun(plan, rigs, journal)
    if journal.past.done and campaign.remaining_count:
        _say(f"going on: {campaign.remaining_count} of {format_count(len(plan.points), 'point')} are left")
    reasons: set[str] = set()
    try:
        with _show_progress(campaign) as told:
            while (point := campaign.next_point()) is not None:
                words = describe_point(point)
                told(words, "")
                seen = campaign.run_next(lambda text, words=words: told(words, text))  # type: ignore[misc]
                if isinstance(seen, UnmeasuredPoint) and seen.failed and seen.reason not in reasons:
                    reasons.add(seen.reason)
                    _say(f"{words} failed and is left out: {seen.reason}")
    except KeyboardInterrupt:
        done = format_count(len(journal.past.done), "point")
        _say(f"{out} holds the {done} done so far; the same command goes on")
        if journal.past.done:
            _say(f"what they say: fedge characterise-report {out}")
        raise


@contextmanager
def _show_progress(campaign: SweepRun) -> Iterator[Callable[[str, str], None]]:
    """Show a progress line: point i of n, minutes left, current step, and the point as far as it fits.

    Without a terminal, one line is printed per point measured on this machine; emulated points take no time.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(stderr=True)
    fitted = Column(no_wrap=True, overflow="ellipsis")
    columns = (BarColumn(bar_width=10), TextColumn("{task.description}", table_column=fitted))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        total = len(campaign.plan.points)
        task = progress.add_task("starting", total=total)

        def told(words: str, doing: str) -> None:
            tried = total - campaign.remaining_count
            place = f"point {min(tried + 1, total)} of {total}{_remaining_time(campaign)}"
            within = f", {doing}" if doing else ""
            progress.update(task, completed=tried, description=escape(f"{place}{within}: {words}"))
            point = campaign.next_point()
            if not (console.is_terminal or doing) and point is not None and point.board == knob_values.HERE:
                _say(f"{place}: {words}")

        yield told


def _remaining_time(campaign: SweepRun) -> str:
    """Estimate the remaining minutes on this machine; emulated boards take almost none."""
    done = [one for one in campaign.journal.past.done.values() if one.point.board == knob_values.HERE]
    rest = [point for point in campaign.remaining_points if point.board == knob_values.HERE]
    if not done:
        return ""
    seconds = estimate_remaining_s([one.seconds for one in done], rest, campaign.plan.course)
    return f", {seconds / 60:.0f} min left" if seconds >= 60 else ", < 1 min left"


# What follows ---------------------------------------------------------------------------------------------------------


def _write_results(result: SweepResult) -> list[Path]:
    """Write all results: epochs, tables and report."""
    written = [output.write_epochs(result)]
    if result.points:
        from experiments.cli.characterise_report import write_report
        from fedge.characterisation.sweep_tables import write_tables

        written += write_tables(result)
        write_report(result)
        written += [result.folder / "report.html", result.folder / "findings.json"]
    return written


def _to_json(result: SweepResult, before: int, written: list[Path], board_s: float) -> dict[str, Any]:
    def reasons(gone: tuple[tuple[SweepPoint, str], ...]) -> list[dict[str, Any]]:
        return [{"key": point.key, "point": describe_point(point), "reason": reason} for point, reason in gone]

    return {
        "folder": str(result.folder),
        "points": len(result.plan.points),
        "done": len(result.points),
        "new": len(result.points) - before,
        "skipped": reasons(result.skipped),
        "failed": reasons(result.failed),
        "board_s": board_s,
        "report": str(result.folder / "report.html") if result.points else None,
        "written": [str(path) for path in written],
    }


# The list -------------------------------------------------------------------------------------------------------------


def _describe_point(
    asked: ResolvedPlan, point: SweepPoint, rig: MeasurementRig | None, state: Mapping[str, str]
) -> dict[str, Any]:
    """Return a row of the list; for emulated boards, the duration is extrapolated from a few steps."""
    workload = asked.plan.workloads[point.workload]
    reason = None if rig is None else rig.refusal_reason(point, workload)
    timed = rig is not None and not reason and point.board != knob_values.HERE
    seconds = estimate_point_s(rig, point, workload, asked.plan.course) if rig is not None and timed else None
    shown = state.get(point.key, "skipped" if reason else "left")
    return {"key": point.key, "state": shown, "seconds": seconds, "point": describe_point(point), "reason": reason}


def _read_point_states(out: Path, plan: CharacterisationPlan) -> dict[str, str]:
    """Return the state (done, skipped or failed) by point key of an existing sweep in ``out``.

    Raises:
        BadInput: If the folder holds the sweep of another plan.
    """
    if not (out / JOURNAL_FILE).exists():
        return {}
    result = read_result(out)
    if result.points:
        check_plan_extends(out / JOURNAL_FILE, result.plan, plan)
    gone = {point.key: "skipped" for point, _ in result.skipped} | {point.key: "failed" for point, _ in result.failed}
    return {point.point.key: "done" for point in result.points} | gone


def _format_time(seconds: float | None) -> str:
    if seconds is None:
        return f"{'-':>9}"
    return (
        f"{seconds:7.0f} s"
        if seconds < 600
        else f"{seconds / 60:5.0f} min"
        if seconds < 36_000
        else f"{seconds / 3600:7.1f} h"
    )


def _say(text: str) -> None:
    sys.stderr.write(f"fedge: {text}\n")
