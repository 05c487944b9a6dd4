"""A finding: one plain sentence with its figure, the evidence for it, and how much it matters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedge.characterisation.finding_text import (
    TOTAL_QUANTITIES,
    QuantityChange,
    describe_changes,
    describe_shares,
    join_words,
)
from fedge.characterisation.knob_effects import weakest_label
from fedge.characterisation.point_knobs import kind_of_board
from fedge.types import Label

FINDING_KINDS = (
    *("workers", "prefetch", "batch_size", "pinned", "storage", "cache", "runtime", "dvfs", "inference"),
    *("cores", "cpu", "gpu", "memory"),
    *("bound", "energy", "plane", "pipelining"),
    *("varies-within", "varies-between", "throttled", "unsettled", "disturbed"),
)
"""What a finding can be about: a knob, a clock of the power mode, a sweep as a whole, how far it may be trusted."""


@dataclass(frozen=True, slots=True)
class SweepFinding:
    """What a sweep shows, in words."""

    title: str
    """One plain sentence with its figure."""
    evidence: tuple[str, ...]
    """Sentences with figures, intervals, and the keys of points."""
    strength: float
    """How much it matters, for the order: about the share of an epoch's time or energy that it is about."""
    kind: str
    """One of ``FINDING_KINDS``."""
    points: tuple[str, ...]
    """Keys."""
    board: str = ""
    workload: str = ""
    """Empty where it is about all of them."""
    label: Label = "estimated"


MAX_NAMES = 3
"""Boards or workloads that are named; more are counted. Chosen by us."""


@dataclass(frozen=True, slots=True)
class Clause:
    """``subject``, then its figures, else ``said``; ``aside`` is told only where all that are joined have the same."""

    subject: str
    """May hold ``{aside}``, as ``said`` may."""
    figures: tuple[QuantityChange, ...] = ()
    statement: str = ""
    aside: str = ""
    form: Literal["change", "share"] = "change"
    general: str = ""
    """The subject where others with another one are joined to it, such as boards with other clocks."""

    @property
    def text(self) -> str:
        """Without a full stop."""
        told = (
            (describe_changes if self.form == "change" else describe_shares)(self.figures)
            if self.figures
            else self.statement
        )
        return f"{self.subject} {told}".replace("{aside}", self.aside)


@dataclass(frozen=True, slots=True)
class FindingDraft:
    """A finding about some boards and workloads; the fields without a word here are those of ``SweepFinding``."""

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
class SweepScope:
    """What a sweep has; of what is about all of it, that is said."""

    boards: frozenset[str]
    workloads: frozenset[str]


def write_finding(draft: FindingDraft, everything: SweepScope) -> SweepFinding:
    """Written out."""
    return SweepFinding(
        title=f"{write_title(draft, everything)}.",
        evidence=draft.evidence,
        strength=draft.strength,
        kind=draft.kind,
        points=draft.points,
        board=draft.boards[0] if len(draft.boards) == 1 else "",
        workload=draft.workloads[0] if len(draft.workloads) == 1 else "",
        label=draft.label,
    )


def write_title(draft: FindingDraft, everything: SweepScope) -> str:
    """One sentence without its full stop, that ends in what it is about."""
    first, *others = (clause.text for clause in draft.clauses)
    return "; ".join([first, *map(lower_first, others)]) + _describe_scope(draft, everything)


def lower_first(words: str) -> str:
    """As in the middle of a sentence; abbreviations stay as they are."""
    return words if words[:2].isupper() else f"{words[:1].lower()}{words[1:]}"


def _describe_scope(draft: FindingDraft, everything: SweepScope) -> str:
    workloads = _describe_names(draft.workloads, everything.workloads, "workloads")
    work = {"train": ", training", "infer": ", inference", "": ""}[draft.work]
    return f" ({workloads} on {_describe_boards(draft.boards, everything.boards)}{work}, {draft.label})"


def _describe_boards(names: Sequence[str], every: frozenset[str]) -> str:
    own = {board for board in every if board in names or kind_of_board(board) in names}
    if own == every or len(names) == 1:
        return names[0] if len(names) == 1 else _describe_all(len(every), "boards")
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind_of_board(name), []).append(name)
    words = [some[0] if len(some) == 1 else f"{kind} ({len(some)} boards)" for kind, some in kinds.items()]
    return join_words(words) if len(words) <= MAX_NAMES else f"{len(own) or len(names)} boards"


def _describe_names(names: Sequence[str], every: frozenset[str], what: str) -> str:
    if len(names) == 1:
        return names[0]
    if set(names) == every:
        return _describe_all(len(names), what)
    return join_words(list(names)) if len(names) <= MAX_NAMES else f"{len(names)} {what}"


def _describe_all(count: int, what: str) -> str:
    return f"both {what}" if count == 2 else f"all {count} {what}"


MAX_STRENGTH_RATIO = 3.0
"""Findings are joined where the strongest is at most so many times as strong as the weakest; chosen by us."""
MAX_EVIDENCE = 8
"""So much of the evidence of each finding that is joined is kept: as many figures as a title may have; by us."""


def merge_drafts(drafts: Sequence[FindingDraft], everything: SweepScope) -> list[FindingDraft]:
    """Those of boards first, then, of the same boards, those of workloads."""
    boards = _merge_similar(drafts, lambda one: (one.workloads, _general_subject(one)), everything)
    return _merge_similar(boards, lambda one: (tuple(sorted(one.boards)), one.clauses[0].subject), everything)


def _general_subject(draft: FindingDraft) -> str:
    """Boards have clocks of their own; workloads on a board must have been turned alike."""
    return draft.clauses[0].general or draft.clauses[0].subject


def _merge_similar(
    drafts: Sequence[FindingDraft], same: Callable[[FindingDraft], Hashable], everything: SweepScope
) -> list[FindingDraft]:
    groups: dict[Hashable, list[FindingDraft]] = defaultdict(list)
    for one in drafts:
        groups[one.kind, one.work, one.label, same(one)].append(one)
    found: list[FindingDraft] = []
    for group in groups.values():
        left = sorted(group, key=lambda one: -one.strength)
        while left:
            first = left[0]
            like = [
                each
                for each in left
                if MAX_STRENGTH_RATIO * each.strength >= first.strength and _have_common_clause(first, each)
            ]
            whole = _merge_group(like, everything) if len(like) > 1 else None
            found.append(first if whole is None else whole)
            gone = [first] if whole is None else like
            left = [each for each in left if not any(each is other for other in gone)]
    return found


def _have_common_clause(first: FindingDraft, other: FindingDraft) -> bool:
    """Whether their first clauses have anything in common; of workers, every step."""
    if first.kind == "workers":
        clauses = zip(first.clauses, other.clauses, strict=False)
        return len(first.clauses) == len(other.clauses) and all(_merge_clauses(two) is not None for two in clauses)
    both = _merge_clauses([first.clauses[0], other.clauses[0]])
    return both is not None and _total_quantities(first.clauses[0]) == _total_quantities(both)


def _total_quantities(clause: Clause) -> set[str]:
    """Those of its figures that must not get lost in joining: time and energy."""
    return {one.quantity for one in clause.figures if one.quantity in (*TOTAL_QUANTITIES, "first_e2e_s")}


def _merge_group(drafts: Sequence[FindingDraft], everything: SweepScope) -> FindingDraft | None:
    """All of them in one; None where not all have something in common."""
    clauses = [_merge_clauses(list(own)) for own in zip(*(one.clauses for one in drafts), strict=False)]
    if clauses[0] is None:
        return None
    return replace(
        drafts[0],
        clauses=tuple(clause for clause in clauses if clause is not None),
        evidence=tuple(line for one in drafts for line in _collect_evidence(one, everything)),
        strength=max(one.strength for one in drafts),
        points=tuple(dict.fromkeys(key for one in drafts for key in one.points)),
        label=weakest_label([one.label for one in drafts]),
        boards=tuple(dict.fromkeys(board for one in drafts for board in one.boards)),
        workloads=tuple(dict.fromkeys(workload for one in drafts for workload in one.workloads)),
    )


def _collect_evidence(draft: FindingDraft, everything: SweepScope) -> tuple[str, ...]:
    """Of one that was joined already, what it was joined of; of another its title and its own."""
    if len(draft.boards) * len(draft.workloads) > 1:
        return draft.evidence
    return (f"{write_title(draft, everything)}.", *draft.evidence[:MAX_EVIDENCE])


def _merge_clauses(clauses: Sequence[Clause]) -> Clause | None:
    """What all of them say: figures that go in the same direction, as ranges; None where there is nothing."""
    first = clauses[0]
    alike = all(one.subject == first.subject for one in clauses)
    if any(one.statement != first.statement for one in clauses) or not (alike or _share_general_subject(clauses)):
        return None
    aside = first.aside if all(one.aside == first.aside for one in clauses) else ""
    figures = tuple(change for own in first.figures if (change := _merge_ranges(own, clauses)) is not None)
    if first.figures and not figures:
        return None
    return replace(first, subject=first.subject if alike else first.general, figures=figures, aside=aside)


def _share_general_subject(clauses: Sequence[Clause]) -> bool:
    """Whether all have one subject if they are told in general."""
    return bool(clauses[0].general) and len({one.general for one in clauses}) == 1


def _merge_ranges(own: QuantityChange, clauses: Sequence[Clause]) -> QuantityChange | None:
    every = [next((one for one in clause.figures if one.quantity == own.quantity), None) for clause in clauses]
    known = [one for one in every if one is not None]
    if len(known) < len(every) or len({one.low > 1.0 for one in known}) > 1:
        return None
    return QuantityChange(own.quantity, min(one.low for one in known), max(one.high for one in known))
