"""The findings in plain sentences, the strongest first, each with its evidence behind a small unfold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from experiments.report.cells import badge
from experiments.report.characterisation.links import links
from experiments.report.chart import Section
from fedge.characterisation.findings import Finding

FIRST_SHOWN = 10
"""The others are behind an unfold. Chosen by us, as is the next."""
MOST = 60


def section(found: Sequence[Finding], names: Mapping[str, str], points: int) -> Section:
    """``names``: short names of the points by key; ``points``: how many are finished."""
    title = "What was found"
    if not found:
        why = (
            "No point is finished yet."
            if not points
            else (
                "Nothing stands out: findings come of points that differ in one knob alone"
                + (", and there is one point." if points == 1 else ".")
            )
        )
        return Section(title, why, ())
    ordered = sorted(found, key=lambda one: -one.strength)
    first = _items(ordered[:FIRST_SHOWN], names)
    rest = ordered[FIRST_SHOWN:MOST]
    cut = f"<p class='caption'>{len(found) - MOST:,} weaker ones are in findings.json.</p>" if len(found) > MOST else ""
    unfolded = f"{_items(rest, names, FIRST_SHOWN + 1)}{cut}"
    more = f"<details class='more'><summary>{len(rest)} more</summary>{unfolded}</details>" if rest else ""
    return Section(title, "The strongest first. Unfold one for its evidence and its points.", (), first + more)


def _items(found: Sequence[Finding], names: Mapping[str, str], start: int = 1) -> str:
    items = "".join(f"<li>{_finding(one, names)}</li>" for one in found)
    return f'<ol class="findings" start="{start}">{items}</ol>'


def _finding(one: Finding, names: Mapping[str, str]) -> str:
    evidence = "".join(f"<li>{escape(sentence)}</li>" for sentence in one.evidence)
    about = ", ".join(word for word in (one.workload, one.board) if word)
    aside = f'<p class="caption">{badge(one.label)} {escape(about)}</p>'
    return (
        f"<details><summary>{escape(one.title)}</summary><ul>{evidence}</ul>{links(one.points, names)}{aside}</details>"
    )
