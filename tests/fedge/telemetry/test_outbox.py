"""What a board has to send leaves in the order in which it was seen, whatever fails, is killed or is full."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from contracts.crashing import disk_full
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.telemetry.outbox import MAX_BATCH_STRETCHES, MAX_UNSAVED_S, Outbox
from fedge.telemetry.spool import Spool
from fedge.types import EMPTY_TRACE, Trace

T0 = 1_790_000_000.0


def seconds(first: int, count: int = 1) -> Trace:
    columns = ((None,) * count,) * 7
    return Trace(tuple(T0 + first + i for i in range(count)), (1.0,) * count, (5.0,) * count, *columns)


def box_in(folder: Path, stream: str = "s", most_bytes: int = 10**7) -> Outbox:
    return Outbox("nano-1", stream, Spool(folder, most_bytes, 1e9))


def drained(box: Outbox, now_s: float) -> list[tuple[str, int, list[int]]]:
    """Everything, as somebody takes it: stream, number, seconds."""
    found = []
    while (given := box.next_batch(now_s)) is not None:
        number, batch = given
        found.append((batch.stream, batch.seq, [round(at_s - T0) for at_s in batch.trace.start_s]))
        box.mark_done(number)
    return found


def test_what_is_taken_at_once_never_touches_the_disk(tmp_path: Path) -> None:
    box = box_in(tmp_path / "spool")
    for second in range(20):
        box.add(seconds(second), T0 + second)
        box.save(T0 + second)
        assert drained(box, T0 + second) == [("s", second + 1, [second])]
    assert not (tmp_path / "spool").exists()


def test_what_waits_is_on_disk_soon_and_leaves_as_larger_batches(tmp_path: Path) -> None:
    box = box_in(tmp_path)
    for second in range(2 * MAX_BATCH_STRETCHES + 50):
        box.add(seconds(second), T0 + second)
        box.save(T0 + second)
        on_disk = sum(int(path.name.split(".")[1]) for path in tmp_path.iterdir())
        assert second + 1 - on_disk <= MAX_UNSAVED_S + 2
    found = drained(box, T0 + 400)
    assert [len(times) for _, _, times in found] == [MAX_BATCH_STRETCHES, MAX_BATCH_STRETCHES, 50]
    assert [each for _, _, times in found for each in times] == list(range(2 * MAX_BATCH_STRETCHES + 50))
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_was_given_out_stays_as_it_was(tmp_path: Path) -> None:
    box = box_in(tmp_path)
    box.add(seconds(0), T0)
    first = box.next_batch(T0)
    for second in range(1, 30):
        box.add(seconds(second), T0 + second)
        box.save(T0 + second)
        assert box.next_batch(T0 + second) == first
    assert [times for _, _, times in drained(box, T0 + 40)] == [[0], list(range(1, 30))]


def test_with_nothing_to_send_an_empty_batch_can_be_had_that_is_kept_nowhere(tmp_path: Path) -> None:
    box = box_in(tmp_path)
    assert box.next_batch(T0) is None
    numbered = [box.make_empty_batch() for _ in range(3)]
    assert [(batch.seq, batch.trace) for _, batch in numbered] == [(i, EMPTY_TRACE) for i in (1, 2, 3)]
    box.add(seconds(1), T0)
    assert drained(box, T0) == [("s", 4, [1])]


def test_a_full_disk_loses_the_newest_once_memory_holds_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = box_in(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", disk_full)
        for second in range(1000):
            box.add(seconds(second), T0 + second)
            box.save(T0 + second)
    found = [each for _, _, times in drained(box, T0 + 1000) for each in times]
    assert found == list(range(len(found)))
    assert len(found) == 2 * MAX_BATCH_STRETCHES
    assert box.lost_stretches == 1000 - 2 * MAX_BATCH_STRETCHES


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["add", "add", "add", "take", "peek", "save", "beat", "kill", "stop"]), max_size=60))
def test_whatever_happens_everything_that_was_saved_leaves_once_and_in_order(story: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, now_s, starts = Path(name), T0, 0
        box = box_in(folder)
        taken: list[tuple[str, int, list[int]]] = []
        added: list[int] = []
        killed = False
        for step, event in enumerate(story):
            now_s += 1.0
            if event == "add":
                box.add(seconds(step), now_s)
                added.append(step)
            elif event == "peek":
                box.next_batch(now_s)
            elif event == "beat":
                _ = box.next_batch(now_s) or box.make_empty_batch()
            elif event == "take" and (given_out := box.next_batch(now_s)) is not None:
                number, batch = given_out
                taken.append((batch.stream, batch.seq, [round(at_s - T0) for at_s in batch.trace.start_s]))
                box.mark_done(number)
            elif event == "save":
                box.save(now_s)
            elif event in {"kill", "stop"}:
                if event == "stop":
                    box.save(now_s, at_once=True)
                killed |= event == "kill"
                starts += 1
                box = box_in(folder, f"s{starts}")
        taken += drained(box, now_s)
    times = [at for _, _, times in taken for at in times]
    assert times == sorted(set(times))
    assert len({(stream, seq) for stream, seq, _ in taken}) == len(taken)
    assert box.lost_stretches == 0
    if not killed:
        assert times == added
