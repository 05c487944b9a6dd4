"""``fedge characterise-report``: writes the page and the findings of a sweep, finished or not."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from experiments.report.quantities import duration, energy, percent
from fedge.characterisation import knob_values
from fedge.characterisation.point_knobs import describe_point
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.characterisation.sweep_store import JOURNAL_FILE, MAX_ATTEMPTS, SweepResult, read_result, to_write_error
from fedge.telemetry import run_folder

FINDINGS_FILE = "findings.json"


def rewrite_report(folder: Path) -> None:
    """Rewrite page and findings from the sweep's folder, and print the page's path.

    Raises:
        BadInput: If the folder holds no sweep or cannot be written.
    """
    result = read_result(folder)
    write_report(result)
    sys.stdout.write(f"{(result.folder / run_folder.REPORT).resolve()}\n")


def write_report(result: SweepResult) -> None:
    """Write ``report.html`` and ``findings.json`` into the sweep's folder, each atomically.

    Raises:
        BadInput: If the sweep's files cannot be read or the reports cannot be written.
    """
    from experiments.report.characterisation.characterisation_page import write_page
    from experiments.report.characterisation.characterisation_summary import summarise_result, summary_to_json

    told = summarise_result(result)
    path = result.folder / run_folder.REPORT
    try:
        write_page(told, path)
        run_folder.write_json(result.folder / FINDINGS_FILE, summary_to_json(told))
    except OSError as error:
        raise to_write_error(path, error) from error


MOST_REASONS, MOST_NOTES, MOST_FINDINGS = 8, 4, 3
"""Default numbers of items printed, so that the summary fits on one screen."""
NUMBER = re.compile(r"\d+(\.\d+)?")
MissingPoints = Sequence[tuple[SweepPoint, str]]


def print_summary(result: SweepResult, board_s: float, tries: Mapping[str, int]) -> None:
    """Print a summary of a sweep.

    Args:
        result: The sweep's measurements.
        board_s: Board time spent, in seconds.
        tries: Number of failed attempts by point key.
    """
    lines = [*_list_missing("skipped", result.skipped), *_list_missing("failed", result.failed)]
    lines += _suggest_retry(result.failed, tries)
    lines += _list_notes(result)
    if result.points:
        lines += _list_findings(json.loads((result.folder / FINDINGS_FILE).read_text(encoding="utf-8")))
    odd = [f"{len(gone)} {word}" for word, gone in (("skipped", result.skipped), ("failed", result.failed)) if gone]
    counts = f"{len(result.points)} of {format_count(len(result.plan.points), 'point')}"
    lines.append(
        f"{counts}{' (' + ', '.join(odd) + ')' if odd else ''}; {duration(board_s)} of {_time_owner(result)} time"
    )
    if result.points:
        lines.append(f"report: {result.folder / 'report.html'}")
    for line in lines:
        typer.echo(line)


def format_count(number: int, noun: str) -> str:
    """Format a count with its noun: ``1 point``, ``2 points``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _list_missing(word: str, gone: MissingPoints) -> Iterator[str]:
    """Yield a line per reason for missing points, with the first of them."""
    reasons: dict[str, list[SweepPoint]] = {}
    for point, reason in gone:
        reasons.setdefault(reason, []).append(point)
    for reason, points in list(reasons.items())[:MOST_REASONS]:
        more = f" and {len(points) - 1} more" if len(points) > 1 else ""
        yield f"{word}: {describe_point(points[0])}{more}: {reason}"
    if len(reasons) > MOST_REASONS:
        yield (
            f"{word} for {format_count(len(reasons) - MOST_REASONS, 'other reason')}: see the journal's lines "
            f"({JOURNAL_FILE})"
        )


def _suggest_retry(failed: MissingPoints, tries: Mapping[str, int]) -> Iterator[str]:
    once = sum(tries.get(point.key, 0) < MAX_ATTEMPTS for point, _ in failed)
    if once:
        yield f"the same command tries {'it' if once == 1 else 'them'} once more"
    elif failed:
        yield "failed twice: --again tries once more"


def _list_notes(result: SweepResult) -> Iterator[str]:
    """Yield the remarks on points, most frequent first; remarks that differ only in numbers count as one."""
    alike: dict[str, list[str]] = {}
    for point in result.points:
        for note in dict.fromkeys(point.notes):
            alike.setdefault(NUMBER.sub("#", note), []).append(note)
    for notes in sorted(alike.values(), key=len, reverse=True)[:MOST_NOTES]:
        example = ", for example" if len(set(notes)) > 1 else ""
        yield f"note at {len(notes)} of {format_count(len(result.points), 'point')}{example}: {notes[0]}"


def _list_findings(said: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first findings and the advice with the largest saving, as in the report."""
    findings = said["findings"]
    for one in findings[:MOST_FINDINGS]:
        yield f"found: {one['title']}"
    if len(findings) > MOST_FINDINGS:
        yield f"found: {len(findings) - MOST_FINDINGS} more, in the report"
    if said["advice"]:
        yield f"turn next: {_describe_advice(max(said['advice'], key=lambda one: one['saving'] or 0.0))}"


def _describe_advice(one: Mapping[str, Any]) -> str:
    from experiments.report.characterisation.knob_labels import KIND_NAMES, KNOB_TITLES, format_knob_value

    knob = one["knob"]
    turned = (
        f"{KNOB_TITLES.get(knob, knob)} {format_knob_value(knob, one['now'])} -> {format_knob_value(knob, one['then'])}"
    )
    timed = one["quantity"] == "e2e_s"
    present, then = (
        duration(one[f"{name}_s"]) if timed else energy(one[f"{name}_j"]) for name in ("present", "expected")
    )
    saved = f"{percent(one['saving'], 0)} less {'time' if timed else 'energy'} of an epoch ({present} -> {then})"
    where = f"{one['workload']} on {one['board']}, {KIND_NAMES.get(one['kind'], one['kind'])}, {one['label']}"
    return f"{turned}: {saved}, {where}"


def _time_owner(result: SweepResult) -> str:
    kinds = {board == knob_values.HERE for board in result.plan.boards}
    return "this machine's" if kinds == {True} else "the emulated boards'" if kinds == {False} else "the boards'"
