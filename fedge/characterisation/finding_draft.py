"""Findings of a sweep: a sentence with its value, its evidence and its strength; drafts of them, and their merging."""

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
"""Topics of findings: a knob, a clock of the power mode, the sweep as a whole, or the reliability of its points."""


@dataclass(frozen=True, slots=True)
class SweepFinding:
    """One result of a sweep in words."""

    title: str
    """One sentence with its value."""
    evidence: tuple[str, ...]
    """Sentences with values, intervals, and the keys of points."""
    strength: float
    """Importance, for ranking: roughly the share of an epoch's time or energy that it concerns."""
    kind: str
    """One of ``FINDING_KINDS``."""
    points: tuple[str, ...]
    """Keys of the points behind it."""
    board: str = ""
    workload: str = ""
    """Empty if it concerns all of them, as is ``board``."""
    label: Label = "estimated"


MAX_NAMES = 3
"""Maximum number of boards or workloads that a title names; a default that keeps a title on about one line."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a title: ``subject``, then its figures, or ``statement`` if there are none."""

    subject: str
    """May contain ``{aside}``, as ``statement`` may."""
    figures: tuple[QuantityChange, ...] = ()
    statement: str = ""
    aside: str = ""
    """Remark in parentheses; kept in a merged clause only if all merged clauses have the same one."""
    form: Literal["change", "share"] = "change"
    general: str = ""
    """Subject to use when clauses with different subjects are merged, such as those of boards with different clocks."""

    @property
    def text(self) -> str:
        """The clause without a full stop."""
        told = (
            (describe_changes if self.form == "change" else describe_shares)(self.figures)
            if self.figures
            else self.statement
        )
        return f"{self.subject} {told}".replace("{aside}", self.aside)


@dataclass(frozen=True, slots=True)
class FindingDraft:
    """A finding about some boards and workloads; fields without a description are those of ``SweepFinding``."""

    clauses: tuple[Clause, ...]
    evidence: tuple[str, ...]
    strength: float
    kind: str
    points: tuple[str, ...]
    label: Label
    boards: tuple[str, ...]
    workloads: tuple[str, ...]
    work: str
    """``train`` or ``infer``; empty if it concerns both."""


@dataclass(frozen=True, slots=True)
class SweepScope:
    """All boards and workloads of a sweep, for wording that covers all of them."""

    boards: frozenset[str]
    workloads: frozenset[str]


def write_finding(draft: FindingDraft, everything: SweepScope) -> SweepFinding:
    """Format a draft as a finding.

    Args:
        draft: The draft.
        everything: All boards and workloads of the sweep.
    """
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
    """Format a draft's title as one sentence without a full stop, ending with the boards and workloads concerned.

    Args:
        draft: The draft.
        everything: All boards and workloads of the sweep.
    """
    first, *others = (clause.text for clause in draft.clauses)
    return "; ".join([first, *map(lower_first, others)]) + _describe_scope(draft, everything)


def lower_first(words: str) -> str:
    """Return the words with a lower-case first letter, unless they start with an abbreviation."""
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
"""Findings are merged if the strongest is at most this many times as strong as the weakest; a default that keeps
small effects from hiding in the range of a large one."""
MAX_EVIDENCE = 8
"""Maximum number of sentences of evidence kept from each merged finding, as many as a title may have figures."""


def merge_drafts(drafts: Sequence[FindingDraft], everything: SweepScope) -> list[FindingDraft]:
    """Merge similar drafts, first across boards, then across workloads of the same boards.

    Args:
        drafts: Drafts about one board and workload each.
        everything: All boards and workloads of the sweep.
    """
    boards = _merge_similar(drafts, lambda one: (one.workloads, _general_subject(one)), everything)
    return _merge_similar(boards, lambda one: (tuple(sorted(one.boards)), one.clauses[0].subject), everything)


def _general_subject(draft: FindingDraft) -> str:
    """Return the subject to group boards by: they have clocks of their own, while a board's workloads share them."""
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
    """Return whether the first clauses can be merged; for workers, whether all clauses can."""
    if first.kind == "workers":
        clauses = zip(first.clauses, other.clauses, strict=False)
        return len(first.clauses) == len(other.clauses) and all(_merge_clauses(two) is not None for two in clauses)
    both = _merge_clauses([first.clauses[0], other.clauses[0]])
    return both is not None and _total_quantities(first.clauses[0]) == _total_quantities(both)


def _total_quantities(clause: Clause) -> set[str]:
    """Return the quantities of a clause that merging must not lose: time and energy."""
    return {one.quantity for one in clause.figures if one.quantity in (*TOTAL_QUANTITIES, "first_e2e_s")}


def _merge_group(drafts: Sequence[FindingDraft], everything: SweepScope) -> FindingDraft | None:
    """Merge all drafts into one; None if they have nothing in common."""
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
    """Return a merged draft's evidence as it is, and that of another draft after its title."""
    if len(draft.boards) * len(draft.workloads) > 1:
        return draft.evidence
    return (f"{write_title(draft, everything)}.", *draft.evidence[:MAX_EVIDENCE])


def _merge_clauses(clauses: Sequence[Clause]) -> Clause | None:
    """Merge clauses to the figures that change in the same direction, as ranges; None if there are none."""
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
    """Return whether all clauses have the same general subject."""
    return bool(clauses[0].general) and len({one.general for one in clauses}) == 1


def _merge_ranges(own: QuantityChange, clauses: Sequence[Clause]) -> QuantityChange | None:
    every = [next((one for one in clause.figures if one.quantity == own.quantity), None) for clause in clauses]
    known = [one for one in every if one is not None]
    if len(known) < len(every) or len({one.low > 1.0 for one in known}) > 1:
        return None
    return QuantityChange(own.quantity, min(one.low for one in known), max(one.high for one in known))
