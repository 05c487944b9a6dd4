"""What is new of a board's messages is taken once and in order, and nobody else's books are touched."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.json_reader import MalformedJson
from fedge.telemetry import intake
from fedge.telemetry.intake import AHEAD_S, EMPTY_LEDGER, STREAMS, Intake
from fedge.telemetry.live_records import BoardProgress, TelemetryBatch
from fedge.telemetry.store_records import SampleRow
from fedge.types import EMPTY_TRACE, Trace

NOW = 1_790_000_000.0


def message(board: str, stream: str, seq: int, start_s: float, stretches: int = 1, **more: Any) -> TelemetryBatch:
    n, nobody = stretches, (None,) * stretches
    powers = tuple(float(seq + i / 10) for i in range(n))
    times = tuple(start_s + i for i in range(n))
    trace = Trace(times, (1.0,) * n, powers, nobody, nobody, nobody, nobody, nobody, nobody, nobody, {"IN": powers})
    return TelemetryBatch(1, board, stream, seq, trace if n else EMPTY_TRACE, **more)


def give(
    books: Intake, speaker: str, sent: TelemetryBatch, now_s: float = NOW
) -> tuple[str, tuple[SampleRow, ...], int]:
    verdict = books.judge(speaker, sent, now_s)
    books.accept(verdict)
    return verdict.kind, verdict.rows, verdict.seq


def test_a_message_is_taken_once():
    books, sent = Intake(), message("a", "s", 1, NOW - 10, 3)

    kind, rows, seq = give(books, "a", sent)
    again = give(books, "a", sent)

    assert (kind, seq, [row.power_w for row in rows]) == ("taken", 1, [1.0, 1.1, 1.2])
    assert again == ("duplicate", (), 1)
    assert rows[0] == SampleRow(NOW - 10, 1.0, 0, "a", 1.0, rails_w={"IN": 1.0})


def test_nothing_is_taken_before_its_rows_are_kept():
    books, sent = Intake(), message("a", "s", 1, NOW - 10)

    books.judge("a", sent, NOW)

    assert give(books, "a", sent)[0] == "taken"


def test_rows_stored_just_before_a_crash_are_not_taken_again_also_of_a_board_without_saved_books():
    books = intake.decode_intake(intake.encode_intake(Intake()), {"a": NOW - 5.0})

    assert give(books, "a", message("a", "s", 1, NOW - 10, 3))[:2] == ("out-of-order", ())
    assert give(books, "a", message("a", "s", 2, NOW - 5))[0] == "taken"


@pytest.mark.parametrize(
    ("speaker", "sent", "kind"),
    [
        ("b", message("a", "s", 9, NOW - 1), "foreign"),
        ("a", message("a", "s", 3, NOW - 1), "duplicate"),
        ("a", message("a", "s", 9, NOW - 50), "out-of-order"),
        ("a", message("a", "new", 1, NOW - 50), "out-of-order"),
        ("a", message("a", "s", 9, NOW + AHEAD_S), "future"),
        ("a", message("a", "s", 9, NOW, 0, progress=BoardProgress("a", NOW + 999, "idle")), "future"),
        ("a", message("a", "s", 9, NOW, 0), "taken"),
        ("a", message("a", "new", 1, NOW - 5), "taken"),
    ],
)
def test_every_message_is_what_it_is(speaker, sent, kind):
    books = Intake()
    give(books, "a", message("a", "s", 5, NOW - 20, 3))
    before = books.boards()["a"]

    assert give(books, speaker, sent)[0] == kind

    assert books.boards()[speaker].counts[kind] >= 1
    if speaker == "b":
        assert books.boards()["a"] == before


def test_a_message_that_cannot_be_read_is_counted():
    books = Intake()
    books.refuse("a", "malformed")
    books.refuse("a", "huge")
    assert books.boards()["a"].counts == {"malformed": 1, "huge": 1}


def test_of_many_boards_and_streams_the_newest_are_remembered(monkeypatch):
    monkeypatch.setattr(intake, "MOST_BOARDS", 3)
    books = Intake()
    for number in range(9):
        give(books, f"b{number}", message(f"b{number}", "s", 1, NOW - 5))
    assert list(books.boards()) == ["b6", "b7", "b8"]
    for number in range(50):
        give(books, "b8", message("b8", f"s{number}", 1, NOW + number / 100, 0))
    assert len(books.boards()["b8"].streams) == STREAMS


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version":9,"boards":{}}', b'{"version":1,"boards":{"a":3}}'])
def test_broken_books_are_refused(data):
    with pytest.raises(MalformedJson):
        intake.decode_intake(data)


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[TelemetryBatch], list[tuple[str, TelemetryBatch]]]:
    """What three boards sent, each over two starts, and how it was delivered: dropped, doubled, overtaken, forged."""
    sent: list[TelemetryBatch] = []
    for board in ("a", "b", "c"):
        at_s = NOW - 10_000
        for stream in ("first", "second"):
            for seq in range(1, draw(st.integers(0, 6)) + 1):
                stretches, progress = draw(st.integers(0, 3)), BoardProgress(board, at_s, "idle")
                more = {"progress": draw(st.sampled_from([None, progress]))}
                sent.append(message(board, f"{board}-{stream}", seq, at_s, stretches, **more))
                at_s += stretches + draw(st.integers(0, 2))
    indices = draw(st.lists(st.integers(0, len(sent) - 1), max_size=40)) if sent else []
    in_order = draw(st.booleans())
    order = sorted(indices) if in_order else indices
    speakers = [draw(st.sampled_from(["", "", "", "a", "b", "c"])) for _ in order]
    return sent, [(speaker or sent[i].board, sent[i]) for i, speaker in zip(order, speakers, strict=True)]


def oracle(delivered: list[tuple[str, TelemetryBatch]]) -> list[tuple[str, list[float]]]:
    """The same decisions from the whole past, by brute force."""
    taken: list[TelemetryBatch] = []
    said = []
    for speaker, sent in delivered:
        own = [batch for batch in taken if batch.board == speaker]
        end_s = max((t + 1.0 for batch in own for t in batch.trace.start_s), default=0.0)
        if sent.board != speaker:
            kind = "foreign"
        elif any(batch.stream == sent.stream and batch.seq >= sent.seq for batch in own):
            kind = "duplicate"
        elif any(t < end_s for t in sent.trace.start_s):
            kind = "out-of-order"
        else:
            kind = "taken"
            taken.append(sent)
        said.append((kind, list(sent.trace.start_s) if kind == "taken" else []))
    return said


@settings(max_examples=300)
@given(deliveries())
def test_every_delivery_is_judged_as_the_whole_past_says(case):
    _, delivered = case
    books = Intake()
    verdicts = [give(books, speaker, sent) for speaker, sent in delivered]

    assert [(kind, [row.at_s for row in rows]) for kind, rows, _ in verdicts] == oracle(delivered)
    rows = [row for _, found, _ in verdicts for row in found]
    assert len({(row.board, row.at_s) for row in rows}) == len(rows)
    for board in "abc":
        own = [row for row in rows if row.board == board]
        assert [row.at_s for row in own] == sorted(row.at_s for row in own)
        taken = [sent for (_, sent), (kind, _, _) in zip(delivered, verdicts, strict=True) if kind == "taken"]
        told = [sent.progress for sent in taken if sent.board == board and sent.progress is not None]
        ledger = books.boards().get(board, EMPTY_LEDGER)
        assert (ledger.progress, ledger.latest) == ([None, *told][-1], [None, *own][-1])
        assert sum(ledger.counts.values()) == sum(speaker == board for speaker, _ in delivered)


@given(deliveries(), st.integers(0, 40))
def test_a_restart_of_the_server_takes_nothing_twice_and_misses_nothing_that_comes_in_order(case, crash):
    """What an empty message overtook is refused, except by a server that forgot the empty one in a crash."""
    sent_first, delivered = case
    order = [sent_first.index(sent) for _, sent in delivered]
    plain, books, kept = Intake(), Intake(), intake.encode_intake(Intake())
    ends_s: dict[str, float] = {}
    for number, (speaker, sent) in enumerate(delivered):
        if number == crash % len(delivered):
            books = intake.decode_intake(kept, ends_s)
        expected, found = give(plain, speaker, sent), give(books, speaker, sent)
        assert found[1] == expected[1] or order != sorted(order)
        for row in found[1]:
            assert row.at_s >= ends_s.get(row.board, 0.0)
            ends_s[row.board] = row.at_s + row.span_s
        if number % 3 == 0:
            kept = intake.encode_intake(books)


@given(deliveries())
def test_no_board_touches_the_books_of_another(case):
    _, delivered = case
    together = Intake()
    for speaker, sent in delivered:
        give(together, speaker, sent)
    for board in "abc":
        alone = Intake()
        for speaker, sent in delivered:
            if speaker == board:
                give(alone, speaker, sent)
        assert together.boards().get(board) == alone.boards().get(board)
