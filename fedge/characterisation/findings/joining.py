"""The same finding of several boards and workloads becomes one, with the range of its figures; each is its evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from fedge.characterisation.findings.draft import Clause, Draft, Everything, title
from fedge.characterisation.findings.words import WHOLE, Change
from fedge.characterisation.judging.effects import worst

ALIKE = 3.0
"""Findings are joined where the strongest is at most so many times as strong as the weakest; chosen by us."""
EVIDENCE = 8
"""So much of the evidence of each finding that is joined is kept: as many figures as a title may have; by us."""


def joined(drafts: Sequence[Draft], everything: Everything) -> list[Draft]:
    """Those of boards first, then, of the same boards, those of workloads."""
    boards = _joined(drafts, lambda one: (one.workloads, _general_subject(one)), everything)
    return _joined(boards, lambda one: (tuple(sorted(one.boards)), one.clauses[0].subject), everything)


def _general_subject(draft: Draft) -> str:
    """Boards have clocks of their own; workloads on a board must have been turned alike."""
    return draft.clauses[0].general or draft.clauses[0].subject


def _joined(drafts: Sequence[Draft], same: Callable[[Draft], Hashable], everything: Everything) -> list[Draft]:
    groups: dict[Hashable, list[Draft]] = defaultdict(list)
    for one in drafts:
        groups[one.kind, one.work, one.label, same(one)].append(one)
    found: list[Draft] = []
    for group in groups.values():
        left = sorted(group, key=lambda one: -one.strength)
        while left:
            first = left[0]
            like = [each for each in left if ALIKE * each.strength >= first.strength and _common(first, each)]
            whole = _one(like, everything) if len(like) > 1 else None
            found.append(first if whole is None else whole)
            gone = [first] if whole is None else like
            left = [each for each in left if not any(each is other for other in gone)]
    return found


def _common(first: Draft, other: Draft) -> bool:
    """Whether their first clauses have anything in common; of workers, every step."""
    if first.kind == "workers":
        clauses = zip(first.clauses, other.clauses, strict=False)
        return len(first.clauses) == len(other.clauses) and all(_clause(two) is not None for two in clauses)
    both = _clause([first.clauses[0], other.clauses[0]])
    return both is not None and _whole(first.clauses[0]) == _whole(both)


def _whole(clause: Clause) -> set[str]:
    """Those of its figures that must not get lost in joining: time and energy."""
    return {one.quantity for one in clause.figures if one.quantity in (*WHOLE, "first_e2e_s")}


def _one(drafts: Sequence[Draft], everything: Everything) -> Draft | None:
    """All of them in one; None where not all have something in common."""
    clauses = [_clause(list(own)) for own in zip(*(one.clauses for one in drafts), strict=False)]
    if clauses[0] is None:
        return None
    return replace(
        drafts[0],
        clauses=tuple(clause for clause in clauses if clause is not None),
        evidence=tuple(line for one in drafts for line in _evidence(one, everything)),
        strength=max(one.strength for one in drafts),
        points=tuple(dict.fromkeys(key for one in drafts for key in one.points)),
        label=worst([one.label for one in drafts]),
        boards=tuple(dict.fromkeys(board for one in drafts for board in one.boards)),
        workloads=tuple(dict.fromkeys(workload for one in drafts for workload in one.workloads)),
    )


def _evidence(draft: Draft, everything: Everything) -> tuple[str, ...]:
    """Of one that was joined already, what it was joined of; of another its title and its own."""
    if len(draft.boards) * len(draft.workloads) > 1:
        return draft.evidence
    return (f"{title(draft, everything)}.", *draft.evidence[:EVIDENCE])


def _clause(clauses: Sequence[Clause]) -> Clause | None:
    """What all of them say: figures that go in the same direction, as ranges; None where there is nothing."""
    first = clauses[0]
    alike = all(one.subject == first.subject for one in clauses)
    if any(one.said != first.said for one in clauses) or not (alike or _general(clauses)):
        return None
    aside = first.aside if all(one.aside == first.aside for one in clauses) else ""
    figures = tuple(change for own in first.figures if (change := _range(own, clauses)) is not None)
    if first.figures and not figures:
        return None
    return replace(first, subject=first.subject if alike else first.general, figures=figures, aside=aside)


def _general(clauses: Sequence[Clause]) -> bool:
    """Whether all have one subject if they are told in general."""
    return bool(clauses[0].general) and len({one.general for one in clauses}) == 1


def _range(own: Change, clauses: Sequence[Clause]) -> Change | None:
    every = [next((one for one in clause.figures if one.quantity == own.quantity), None) for clause in clauses]
    known = [one for one in every if one is not None]
    if len(known) < len(every) or len({one.low > 1.0 for one in known}) > 1:
        return None
    return Change(own.quantity, min(one.low for one in known), max(one.high for one in known))
