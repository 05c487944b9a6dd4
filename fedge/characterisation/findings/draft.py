"""A finding before it is written: what it is about and its clauses with figures, so that like ones can be joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedge.characterisation.findings.finding import Finding
from fedge.characterisation.findings.words import Change, changes, listed, shares
from fedge.characterisation.judging.setting import kind_of_board
from fedge.types import Label

MOST_NAMES = 3
"""Boards or workloads that are named; more are counted. Chosen by us."""


@dataclass(frozen=True, slots=True)
class Clause:
    """``subject``, then its figures, else ``said``; ``aside`` is told only where all that are joined have the same."""

    subject: str
    """May hold ``{aside}``, as ``said`` may."""
    figures: tuple[Change, ...] = ()
    said: str = ""
    aside: str = ""
    form: Literal["change", "share"] = "change"
    general: str = ""
    """The subject where others with another one are joined to it, such as boards with other clocks."""

    @property
    def words(self) -> str:
        """Without a full stop."""
        told = (changes if self.form == "change" else shares)(self.figures) if self.figures else self.said
        return f"{self.subject} {told}".replace("{aside}", self.aside)


@dataclass(frozen=True, slots=True)
class Draft:
    """A finding about some boards and workloads; the fields without a word here are those of ``Finding``."""

    clauses: tuple[Clause, ...]
    evidence: tuple[str, ...]
    strength: float
    kind: str
    points: tuple[str, ...]
    label: Label
    boards: tuple[str, ...]
    workloads: tuple[str, ...]
    work: str
    """``train``, ``infer``; empty where it is about both."""


@dataclass(frozen=True, slots=True)
class Everything:
    """What a sweep has; of what is about all of it, that is said."""

    boards: frozenset[str]
    workloads: frozenset[str]


def finding_of(draft: Draft, everything: Everything) -> Finding:
    """Written out."""
    return Finding(
        title=f"{title(draft, everything)}.",
        evidence=draft.evidence,
        strength=draft.strength,
        kind=draft.kind,
        points=draft.points,
        board=draft.boards[0] if len(draft.boards) == 1 else "",
        workload=draft.workloads[0] if len(draft.workloads) == 1 else "",
        label=draft.label,
    )


def title(draft: Draft, everything: Everything) -> str:
    """One sentence without its full stop, that ends in what it is about."""
    first, *others = (clause.words for clause in draft.clauses)
    return "; ".join([first, *map(uncapital, others)]) + _about(draft, everything)


def uncapital(words: str) -> str:
    """As in the middle of a sentence; abbreviations stay as they are."""
    return words if words[:2].isupper() else f"{words[:1].lower()}{words[1:]}"


def _about(draft: Draft, everything: Everything) -> str:
    workloads = _counted(draft.workloads, everything.workloads, "workloads")
    work = {"train": ", training", "infer": ", inference", "": ""}[draft.work]
    return f" ({workloads} on {_boards(draft.boards, everything.boards)}{work}, {draft.label})"


def _boards(names: Sequence[str], every: frozenset[str]) -> str:
    own = {board for board in every if board in names or kind_of_board(board) in names}
    if own == every or len(names) == 1:
        return names[0] if len(names) == 1 else _all(len(every), "boards")
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind_of_board(name), []).append(name)
    words = [some[0] if len(some) == 1 else f"{kind} ({len(some)} boards)" for kind, some in kinds.items()]
    return listed(words) if len(words) <= MOST_NAMES else f"{len(own) or len(names)} boards"


def _counted(names: Sequence[str], every: frozenset[str], what: str) -> str:
    if len(names) == 1:
        return names[0]
    if set(names) == every:
        return _all(len(names), what)
    return listed(list(names)) if len(names) <= MOST_NAMES else f"{len(names)} {what}"


def _all(count: int, what: str) -> str:
    return f"both {what}" if count == 2 else f"all {count} {what}"
