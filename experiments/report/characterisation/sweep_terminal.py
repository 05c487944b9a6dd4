"""Terminal view of a characterisation: the summary of a sweep, the list of its points, and predicted epochs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.report.quantities import duration, energy, percent
from experiments.report.tables import Column, Table, build_table, number_cell, text_cell, value_cell
from fedge.characterisation import sweep_plan
from fedge.characterisation.findings import describe_step
from fedge.characterisation.sweep_plan import KIND_NAMES, SweepPoint, describe_point
from fedge.characterisation.sweep_prediction import EpochPrediction
from fedge.characterisation.sweep_run import SweepListing, SweepOutcome
from fedge.characterisation.sweep_store import FINDINGS_FILE, JOURNAL_FILE, MAX_ATTEMPTS, SweepResult
from fedge.errors import format_count
from fedge.groups import group_pairs
from fedge.json_reader import read_json
from fedge.telemetry import run_folder

MOST_REASONS, MOST_NOTES, MOST_FINDINGS = 8, 4, 3
"""Default numbers of items printed, so that the summary fits on one screen."""
NUMBER = re.compile(r"\d+(\.\d+)?")
MissingPoints = Sequence[tuple[SweepPoint, str]]


def describe_outcome(outcome: SweepOutcome) -> list[str]:
    """Return the lines of a sweep's summary."""
    result = outcome.result
    lines = [*_list_missing("skipped", result.skipped), *_list_missing("failed", result.failed)]
    once = sum(outcome.attempts.get(point.key, 0) < MAX_ATTEMPTS for point, _ in result.failed)
    if once:
        lines.append(f"the same command tries {'it' if once == 1 else 'them'} once more")
    elif result.failed:
        lines.append("failed twice: --again tries once more")
    lines += _list_notes(result)
    if result.points:
        lines += _list_findings(read_json(result.folder / FINDINGS_FILE, "the findings of the sweep", finite=False))
    odd = [f"{len(gone)} {word}" for word, gone in (("skipped", result.skipped), ("failed", result.failed)) if gone]
    counts = f"{len(result.points)} of {format_count(len(result.plan.points), 'point')}"
    omitted = f" ({', '.join(odd)})" if odd else ""
    kinds = {board == sweep_plan.HERE for board in result.plan.boards}
    whose = "this machine's" if kinds == {True} else "the emulated boards'" if kinds == {False} else "the boards'"
    lines.append(f"{counts}{omitted}; {duration(outcome.board_s)} of {whose} time")
    if result.points:
        lines.append(f"report: {result.folder / run_folder.REPORT}")
    return lines


def _list_missing(word: str, gone: MissingPoints) -> Iterator[str]:
    reasons = group_pairs((reason, point) for point, reason in gone)
    for reason, points in list(reasons.items())[:MOST_REASONS]:
        more = f" and {len(points) - 1} more" if len(points) > 1 else ""
        yield f"{word}: {describe_point(points[0])}{more}: {reason}"
    if len(reasons) > MOST_REASONS:
        yield (
            f"{word} for {format_count(len(reasons) - MOST_REASONS, 'other reason')}: see the journal's lines "
            f"({JOURNAL_FILE})"
        )


def _list_notes(result: SweepResult) -> Iterator[str]:
    """Yield the remarks on points, most frequent first; remarks that differ only in numbers count as one."""
    alike: dict[str, list[str]] = {}
    for point in result.points:
        for note in dict.fromkeys(point.notes):
            alike.setdefault(NUMBER.sub("#", note), []).append(note)
    for notes in sorted(alike.values(), key=len, reverse=True)[:MOST_NOTES]:
        example = ", for example" if len(set(notes)) > 1 else ""
        yield f"note at {len(notes)} of {format_count(len(result.points), 'point')}{example}: {notes[0]}"


def _list_findings(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first findings and the advice with the largest saving, as in the report."""
    findings = summary["findings"]
    for one in findings[:MOST_FINDINGS]:
        yield f"found: {one['title']}"
    if len(findings) > MOST_FINDINGS:
        yield f"found: {len(findings) - MOST_FINDINGS} more, in the report"
    if summary["advice"]:
        yield f"turn next: {_describe_advice(max(summary['advice'], key=lambda one: one['saving'] or 0.0))}"


def _describe_advice(one: Mapping[str, Any]) -> str:
    timed = one["quantity"] == "e2e_s"
    present, expected = (
        duration(one[f"{name}_s"]) if timed else energy(one[f"{name}_j"]) for name in ("present", "expected")
    )
    saved = f"{percent(one['saving'], 0)} less {'time' if timed else 'energy'} of an epoch ({present} → {expected})"
    where = f"{one['workload']} on {one['board']}, {KIND_NAMES[one['kind']]}, {one['label']}"
    step = describe_step(one["knob"], one["now"], one["then"]).replace("->", "→")
    return f"{step}: {saved}, {where}"


def describe_listing(listing: SweepListing) -> Iterator[str]:
    """Yield a line per point in the order of measurement, then the totals."""
    for row in listing.points:
        why = f" ({row.reason})" if row.reason and row.state != "done" else ""
        yield "  ".join([row.key, f"{row.state:7}", f"{duration(row.seconds):>12}", row.point + why])
    times_s = [row.seconds for row in listing.points if row.seconds is not None]
    about = f", about {duration(sum(times_s))} of the emulated boards' time" if times_s else ""
    between_s = listing.repeats_s
    spread = f"; at least {duration(between_s)} from the first repeat to the last" if between_s else ""
    done, skipped = (sum(row.state == state for row in listing.points) for state in ("done", "skipped"))
    known = f"{f', {done} of them done in {listing.folder}' if done else ''}{f', {skipped} skipped' if skipped else ''}"
    yield f"{format_count(len(listing.points), 'point')}{known}{about}{spread}"
    if listing.default_modes:
        yield listing.default_modes


def build_prediction_table(predictions: Sequence[EpochPrediction]) -> Table:
    """Build a table of predicted epochs beside the measured ones."""
    first = predictions[0]
    loader = f"prefetch {first.prefetch}, {first.storage}, {percent(first.cached, 0)} in the page cache"
    title = f"{first.board}: an epoch; {loader}; method {first.method}, {first.label}"
    columns: tuple[Column[EpochPrediction], ...] = (
        ("workload", lambda one: text_cell(one.workload)),
        ("mode", lambda one: text_cell(one.mode)),
        ("batch", lambda one: value_cell(one.batch_size)),
        ("workers", lambda one: value_cell(one.workers)),
        ("epoch", lambda one: number_cell(f"{duration(one.e2e_s)}{_format_spread(one.e2e_spread)}", one.e2e_s, "s")),
        ("measured", lambda one: value_cell(one.seen_s, duration, "s")),
        ("stall", lambda one: value_cell(one.stall_s, duration, "s")),
        (
            "energy",
            lambda one: number_cell(f"{energy(one.energy_j)}{_format_spread(one.energy_spread)}", one.energy_j, "J"),
        ),
        ("measured", lambda one: value_cell(one.seen_j, energy, "J")),
    )
    return build_table("epochs", columns, predictions, title)


def _format_spread(share: float | None) -> str:
    return "" if share is None else f" ± {percent(share, 0)}"
