"""What a sweep came to, on the terminal: what has no figures and why, the first findings, what to turn next."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from experiments.commands.characterise_report import FINDINGS
from experiments.report.quantities import duration, energy, percent
from fedge.characterisation.plans import boards
from fedge.characterisation.plans.naming import described
from fedge.characterisation.point import Point
from fedge.characterisation.result import Result
from fedge.characterisation.sweep.journal import FILE, MOST_TRIES

MOST_REASONS, MOST_NOTES, MOST_FINDINGS = 8, 4, 3
"""So many are told; chosen by us."""
FIGURE = re.compile(r"\d+(\.\d+)?")
Gone = Sequence[tuple[Point, str]]


def tell(result: Result, board_s: float, tries: Mapping[str, int]) -> None:
    """Print it; ``tries`` is how often each point failed, by its key."""
    lines = [*_without_figures("skipped", result.skipped), *_without_figures("failed", result.failed)]
    lines += _what_to_do(result.failed, tries)
    lines += _notes(result)
    if result.points:
        lines += _found(json.loads((result.folder / FINDINGS).read_text(encoding="utf-8")))
    odd = [f"{len(gone)} {word}" for word, gone in (("skipped", result.skipped), ("failed", result.failed)) if gone]
    counts = f"{len(result.points)} of {count(len(result.plan.points), 'point')}"
    lines.append(f"{counts}{' (' + ', '.join(odd) + ')' if odd else ''}; {duration(board_s)} of {_whose(result)} time")
    if result.points:
        lines.append(f"report: {result.folder / 'report.html'}")
    for line in lines:
        typer.echo(line)


def count(number: int, noun: str) -> str:
    """``1 point``, ``2 points``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _without_figures(word: str, gone: Gone) -> Iterator[str]:
    """A line for each reason, with the first of its points."""
    reasons: dict[str, list[Point]] = {}
    for point, reason in gone:
        reasons.setdefault(reason, []).append(point)
    for reason, points in list(reasons.items())[:MOST_REASONS]:
        more = f" and {len(points) - 1} more" if len(points) > 1 else ""
        yield f"{word}: {described(points[0])}{more}: {reason}"
    if len(reasons) > MOST_REASONS:
        yield f"{word} for {count(len(reasons) - MOST_REASONS, 'other reason')}: see the journal's lines ({FILE})"


def _what_to_do(failed: Gone, tries: Mapping[str, int]) -> Iterator[str]:
    once = sum(tries.get(point.key, 0) < MOST_TRIES for point, _ in failed)
    if once:
        yield f"the same command tries {'it' if once == 1 else 'them'} once more"
    elif failed:
        yield "failed twice: --again tries once more"


def _notes(result: Result) -> Iterator[str]:
    """What was odd about points, most frequent first; notes that differ in their figures alone are one."""
    alike: dict[str, list[str]] = {}
    for point in result.points:
        for note in dict.fromkeys(point.notes):
            alike.setdefault(FIGURE.sub("#", note), []).append(note)
    for notes in sorted(alike.values(), key=len, reverse=True)[:MOST_NOTES]:
        example = ", for example" if len(set(notes)) > 1 else ""
        yield f"note at {len(notes)} of {count(len(result.points), 'point')}{example}: {notes[0]}"


def _found(said: Mapping[str, Any]) -> Iterator[str]:
    """The first findings and the advice that saves most, as the report has them."""
    findings = said["findings"]
    for one in findings[:MOST_FINDINGS]:
        yield f"found: {one['title']}"
    if len(findings) > MOST_FINDINGS:
        yield f"found: {len(findings) - MOST_FINDINGS} more, in the report"
    if said["advice"]:
        yield f"turn next: {_advised(max(said['advice'], key=lambda one: one['saving'] or 0.0))}"


def _advised(one: Mapping[str, Any]) -> str:
    from experiments.report.characterisation.names import KINDS, TITLES, value_word

    knob = one["knob"]
    turned = f"{TITLES.get(knob, knob)} {value_word(knob, one['now'])} -> {value_word(knob, one['then'])}"
    timed = one["quantity"] == "e2e_s"
    present, then = (
        duration(one[f"{name}_s"]) if timed else energy(one[f"{name}_j"]) for name in ("present", "expected")
    )
    saved = f"{percent(one['saving'], 0)} less {'time' if timed else 'energy'} of an epoch ({present} -> {then})"
    where = f"{one['workload']} on {one['board']}, {KINDS.get(one['kind'], one['kind'])}, {one['label']}"
    return f"{turned}: {saved}, {where}"


def _whose(result: Result) -> str:
    kinds = {board == boards.HERE for board in result.plan.boards}
    return "this machine's" if kinds == {True} else "the emulated boards'" if kinds == {False} else "the boards'"
