"""The same finding of several boards and workloads is told once; what differs is told apart; nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedge.characterisation.finding_draft import (
    Clause,
    FindingDraft,
    SweepFinding,
    SweepScope,
    merge_drafts,
    write_title,
)
from fedge.characterisation.finding_text import make_change
from fedge.characterisation.sweep_findings import rank_findings

ALL = SweepScope(frozenset({"nano-1", "tx2-1", "here"}), frozenset({"lenet", "resnet"}))


def _draft(
    board: str, time: float, *, workload: str = "lenet", strength: float = 0.5, aside: str = "", kind: str = "cpu"
) -> FindingDraft:
    clause = Clause("Turning it{aside}", (make_change(time, "e2e_s"),), aside=aside)
    return FindingDraft(
        (clause,), (f"the figures of {board}",), strength, kind, (f"{board}{workload}",), "estimated", (board,),
        (workload,), "train",
    )  # fmt: skip


def test_all_boards_are_said_once_with_the_range_and_each_in_the_evidence() -> None:
    (one,) = merge_drafts(
        [_draft(board, time) for board, time in (("nano-1", 0.6), ("tx2-1", 0.8), ("here", 0.7))], ALL
    )
    said = "Turning it cuts the epoch's time by 20 to 40 % (lenet on all 3 boards, training, estimated)"
    assert write_title(one, ALL) == said
    assert "Turning it cuts the epoch's time by 40 % (lenet on nano-1, training, estimated)." in one.evidence
    assert {f"the figures of {board}" for board in ("nano-1", "tx2-1", "here")} <= set(one.evidence)
    assert len(one.points) == 3


def test_workloads_are_joined_on_the_same_boards_alone() -> None:
    drafts = [_draft("nano-1", 0.6), _draft("nano-1", 0.5, workload="resnet"), _draft("tx2-1", 0.7, workload="resnet")]
    titles = {write_title(one, ALL) for one in merge_drafts(drafts, ALL)}
    assert titles == {
        "Turning it cuts the epoch's time by 40 % (lenet on nano-1, training, estimated)",
        "Turning it cuts the epoch's time by 30 to 50 % (resnet on nano-1 and tx2-1, training, estimated)",
    }
    (both,) = merge_drafts(drafts[:2], ALL)
    assert write_title(both, ALL).endswith("(both workloads on nano-1, training, estimated)")


@pytest.mark.parametrize(
    "other",
    [
        _draft("tx2-1", 1.4),
        _draft("tx2-1", 0.6, strength=0.1),
        _draft("tx2-1", 0.6, kind="gpu"),
    ],
)
def test_what_goes_the_other_way_or_matters_far_less_stays_apart(other: FindingDraft) -> None:
    assert len(merge_drafts([_draft("nano-1", 0.6), other], ALL)) == 2


def test_the_energy_does_not_get_lost_in_joining() -> None:
    one, other = (_draft(board, 0.5) for board in ("nano-1", "tx2-1"))
    clause = one.clauses[0]
    cheaper = replace(one, clauses=(replace(clause, figures=(*clause.figures, make_change(0.6, "energy_j"))),))
    assert len(merge_drafts([replace(cheaper, strength=0.6), other], ALL)) == 2


def test_workloads_on_a_board_are_not_joined_under_a_general_subject() -> None:
    one, other = (_draft("nano-1", 0.5, workload=name) for name in ("lenet", "resnet"))
    clauses = [Clause(f"At {mhz}", one.clauses[0].figures, general="At the top") for mhz in (900, 1300)]
    drafts = [replace(draft, clauses=(clause,)) for draft, clause in zip((one, other), clauses, strict=True)]
    assert len(merge_drafts(drafts, ALL)) == 2


def test_an_aside_is_told_where_all_have_the_same() -> None:
    same = merge_drafts([_draft(board, 0.5, aside=" (2 workers)") for board in ("nano-1", "tx2-1")], ALL)
    assert write_title(same[0], ALL).startswith(
        "Turning it (2 workers) cuts the epoch's time by 50 % (lenet on nano-1 and"
    )
    (differ,) = merge_drafts(
        [_draft("nano-1", 0.5, aside=" (1 worker)"), _draft("tx2-1", 0.5, aside=" (2 workers)")], ALL
    )
    assert write_title(differ, ALL).startswith("Turning it cuts the epoch's time by 50 % (")


def test_boards_with_other_clocks_are_joined_under_a_general_subject() -> None:
    def clocked(board: str, mhz: int) -> FindingDraft:
        clause = Clause(f"The GPU at {mhz} MHz", (make_change(0.5, "e2e_s"),), general="The GPU at its top")
        return replace(_draft(board, 0.5), clauses=(clause,))

    (both,) = merge_drafts([clocked("nano-1", 921), clocked("tx2-1", 1300)], ALL)
    assert write_title(both, ALL).startswith(
        "The GPU at its top cuts the epoch's time by 50 % (lenet on nano-1 and tx2-1"
    )
    (same,) = merge_drafts([clocked("nano-1", 921), clocked("tx2-1", 921)], ALL)
    assert write_title(same, ALL).startswith("The GPU at 921 MHz cuts")


def test_of_workers_every_step_must_be_alike() -> None:
    nothing = Clause("adding another", statement="changes nothing")
    one, other = (_draft(board, 0.6, kind="workers") for board in ("nano-1", "tx2-1"))
    two = FindingDraft((*other.clauses, nothing), *(getattr(other, name) for name in (
        "evidence", "strength", "kind", "points", "label", "boards", "workloads", "work"
    )))  # fmt: skip
    assert len(merge_drafts([one, two], ALL)) == 2
    assert len(merge_drafts([one, other], ALL)) == 1


def test_a_second_finding_of_a_kind_comes_after_a_weaker_one_of_another() -> None:
    found = [
        SweepFinding("a", (), 0.5, "gpu", ()),
        SweepFinding("b", (), 0.45, "gpu", ()),
        SweepFinding("c", (), 0.4, "cache", ()),
    ]
    order = rank_findings(found)
    assert [one.title for one in order] == ["a", "c", "b"]
    assert [one.strength for one in order] == sorted((one.strength for one in order), reverse=True)
