"""What a board has to send leaves in the order in which it was seen, whatever fails, is killed or is full."""

import os
import tempfile
from pathlib import Path

from contracts.crashing import disk_full, every_crash
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.telemetry.live_records import TelemetryBatch, encode_batch
from fedge.telemetry.outbox import MAX_BATCH_STRETCHES, MAX_UNSAVED_S, Outbox, Spool
from fedge.types import Trace

T0 = 1_790_000_000.0


def seconds(first: int, count: int = 1) -> Trace:
    columns = ((None,) * count,) * 7
    return Trace(tuple(T0 + first + i for i in range(count)), (1.0,) * count, (5.0,) * count, *columns)


def box_in(folder: Path, stream: str = "s", most_bytes: int = 10**7) -> Outbox:
    return Outbox("nano-1", stream, Spool(folder, most_bytes, 1e9))


def drained(box: Outbox, now_s: float) -> list[tuple[str, int, list[int]]]:
    """Everything, as somebody takes it: stream, number, seconds."""
    found = []
    while True:
        number, batch = box.next_batch(now_s)
        if not batch.trace:
            return found
        found.append((batch.stream, batch.seq, [round(at_s - T0) for at_s in batch.trace.start_s]))
        box.mark_done(number)


def test_what_is_taken_at_once_never_touches_the_disk(tmp_path):
    box = box_in(tmp_path / "spool")
    for second in range(20):
        box.add(seconds(second), T0 + second)
        box.save(T0 + second)
        assert drained(box, T0 + second) == [("s", 2 * second + 1, [second])]
    assert not (tmp_path / "spool").exists()


def test_what_waits_is_on_disk_soon_and_leaves_as_larger_batches(tmp_path):
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


def test_a_batch_that_was_given_out_stays_as_it_was(tmp_path):
    box = box_in(tmp_path)
    box.add(seconds(0), T0)
    first = box.next_batch(T0)
    for second in range(1, 30):
        box.add(seconds(second), T0 + second)
        box.save(T0 + second)
        assert box.next_batch(T0 + second) == first
    assert [times for _, _, times in drained(box, T0 + 40)] == [[0], list(range(1, 30))]


def test_a_full_disk_loses_the_newest_once_memory_holds_its_share(tmp_path, monkeypatch):
    box, count = box_in(tmp_path), 3 * MAX_BATCH_STRETCHES
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", disk_full)
        for second in range(count):
            box.add(seconds(second), T0 + second)
            box.save(T0 + second)
    found = [each for _, _, times in drained(box, T0 + count) for each in times]
    assert found == list(range(len(found)))
    assert len(found) == 2 * MAX_BATCH_STRETCHES
    assert box.lost_stretches == count - 2 * MAX_BATCH_STRETCHES


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["add", "add", "add", "take", "peek", "save", "beat", "kill", "stop"]), max_size=60))
def test_whatever_happens_everything_that_was_saved_leaves_once_and_in_order(story):
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
                number, batch = box.next_batch(now_s)
                if not batch.trace:
                    box.mark_done(number)
            elif event == "take":
                number, batch = box.next_batch(now_s)
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


HOUR = 3600.0


def batch(seq: int, stretches: int = 2, start_s: float | None = None) -> TelemetryBatch:
    n, nobody, first = stretches, (None,) * stretches, T0 + 10 * seq if start_s is None else start_s
    times = tuple(first + i for i in range(n))
    columns = (nobody,) * 7
    return TelemetryBatch(1, "nano-1", "s", seq, Trace(times, (1.0,) * n, (float(seq),) * n, *columns))


def everything(spool: Spool) -> list[TelemetryBatch]:
    found = [spool.read(number) for number in spool.numbers]
    return [each for each in found if each is not None]


def test_what_was_put_is_there_for_the_next_start(tmp_path):
    spool = Spool(tmp_path / "spool", 10**6, HOUR)
    assert spool.next_number == 1
    for seq in (1, 2, 3):
        assert spool.put(seq, batch(seq), T0)
    spool.drop(2)

    again = Spool(tmp_path / "spool", 10**6, HOUR)

    assert everything(again) == [batch(1), batch(3)]
    assert again.next_number == 4
    assert again.lost == 0


def test_beyond_its_size_the_oldest_are_dropped_and_counted(tmp_path):
    size = len(encode_batch(batch(10, 4)))
    spool = Spool(tmp_path, 3 * size, HOUR)
    for seq in range(10, 20):
        assert spool.put(seq, batch(seq, 4), T0)
    assert [each.seq for each in everything(spool)] == [17, 18, 19]
    assert spool.lost == 7 * 4
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == spool.size <= 3 * size


def test_every_trouble_with_the_disk_is_logged_once(tmp_path, monkeypatch, caplog):
    spool = Spool(tmp_path, 10**6, HOUR)
    for trouble in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", disk_full)
            assert not any(spool.put(seq, batch(seq), T0) for seq in (4 * trouble + 1, 4 * trouble + 2))
        assert spool.put(4 * trouble + 3, batch(4 * trouble + 3), T0)
    assert caplog.text.count("the spool cannot be written") == 2


def test_what_is_too_old_is_dropped_and_counted(tmp_path):
    spool = Spool(tmp_path, 10**6, 60.0)
    for seq in range(5):
        spool.put(seq + 1, batch(seq), T0 + 10 * seq)
    spool.trim(T0 + 85)
    assert [each.seq for each in everything(spool)] == [3, 4]
    assert spool.lost == 6


def test_a_file_that_cannot_be_read_is_lost_alone(tmp_path):
    spool = Spool(tmp_path, 10**6, HOUR)
    for seq in (1, 2, 3):
        spool.put(seq, batch(seq), T0)
    victim = sorted(tmp_path.iterdir())[1]
    victim.write_bytes(victim.read_bytes()[:50])
    assert [each.seq for each in everything(Spool(tmp_path, 10**6, HOUR))] == [1, 3]
    assert [each.seq for each in everything(spool)] == [1, 3]
    assert spool.lost == 2


def test_strange_files_are_left_alone(tmp_path):
    for name in (".lock", "notes.txt", "1.json"):
        (tmp_path / name).write_text("x")
    spool = Spool(tmp_path, 10**6, HOUR)
    spool.put(1, batch(1), T0)
    assert everything(spool) == [batch(1)]
    assert (tmp_path / "notes.txt").exists()


def test_killed_at_any_step_it_holds_all_that_was_kept_and_not_dropped(tmp_path, monkeypatch):
    certain: dict[int, int] = {}
    """What must be there: stretches by number."""

    def work(stop: int, how: str) -> None:
        certain.clear()
        spool = Spool(tmp_path / f"{how}-{stop}", 10**6, HOUR)
        for number, stretches in ((1, 2), (2, 1), (2, 3), (3, 4), (2, 5)):
            spool.put(number, batch(number, stretches), T0)
            certain[number] = stretches
        assert certain.pop(1) == 2
        spool.drop(1)

    def check(stop: int, how: str) -> None:
        folder = tmp_path / f"{how}-{stop}"
        found = Spool(folder, 10**6, HOUR)
        there = {each.seq: len(each.trace) for each in everything(found)}
        assert found.lost == 0
        for number, stretches in certain.items():
            assert there[number] >= stretches
        assert len(list(folder.glob("*"))) == len(there)

    assert every_crash(monkeypatch, work, check) > 3 * 10


def test_a_full_disk_loses_the_newest_and_raises_nothing(tmp_path, monkeypatch):
    spool = Spool(tmp_path, 10**6, HOUR)
    spool.put(1, batch(1), T0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", disk_full)
        assert not spool.put(2, batch(2), T0)
        assert not spool.put(1, batch(1, 9), T0)
    assert everything(spool) == [batch(1)]
    assert len(list(tmp_path.iterdir())) == 1
    assert spool.put(2, batch(2), T0)


@given(puts=st.lists(st.integers(1, 6), max_size=30), most_bytes=st.integers(300, 3000))
def test_whatever_is_put_what_is_there_and_what_is_lost_are_all(puts, most_bytes):
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), most_bytes, HOUR)
        refused = 0
        for seq, stretches in enumerate(puts, start=1):
            refused += 0 if spool.put(seq, batch(seq, stretches), T0) else stretches
        there = sum(len(each.trace) for each in everything(spool))
        assert spool.size <= most_bytes
        assert there + spool.lost + refused == sum(puts)
        assert [each.seq for each in everything(spool)] == spool.numbers == sorted(spool.numbers)
