"""A board is there or away at any time asked, in any order, from the seed or from a trace; a bad trace is named."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.availability import (
    Availability,
    build_availabilities,
    build_availability,
    read_availability_trace,
)
from fedge.errors import BadInput
from fedge.experiment import AvailabilitySpec, Experiment, FleetEntry, list_boards

TIMES = st.lists(st.floats(0.0, 5_000.0), min_size=1, max_size=20)


def flickering(board: str = "nano-1", seed: int = 1, on_s: float = 60.0, off_s: float = 20.0) -> Availability:
    return build_availability(AvailabilitySpec(on_s=on_s, off_s=off_s), board, seed)


def there(board: Availability, at_s: float) -> bool:
    return board.available_until_s(at_s) > at_s


def pattern(board: Availability) -> tuple[bool, ...]:
    """Whether it is there at many times."""
    return tuple(there(board, 10.0 * i) for i in range(100))


def trace(tmp_path: Path, *lines: str, head: str = "board,on_s,off_s") -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join((head, *lines)) + "\n", encoding="utf-8")
    return path


def traced(tmp_path: Path, *lines: str) -> Availability:
    return build_availability(AvailabilitySpec(trace=str(trace(tmp_path, *lines))), "nano-1", 1)


def test_a_board_without_availability_is_always_there():
    board = build_availability(None, "nano-1", 1)

    assert (board.available_until_s(7.0), board.next_available_s(7.0)) == (math.inf, 7.0)


@given(TIMES, st.integers(0, 50))
def test_the_order_of_questions_does_not_matter(times, seed):
    forwards, backwards = flickering(seed=seed), flickering(seed=seed)
    want = [(forwards.available_until_s(t), forwards.next_available_s(t)) for t in sorted(times)]
    got = [(backwards.available_until_s(t), backwards.next_available_s(t)) for t in sorted(times, reverse=True)]

    assert got[::-1] == want


@given(st.floats(0.0, 5_000.0), st.integers(0, 50))
def test_a_board_is_there_from_its_next_time_on_and_away_from_its_end_on(at_s, seed):
    board = flickering(seed=seed)
    next_s = board.next_available_s(at_s)
    end_s = board.available_until_s(next_s)

    assert next_s >= at_s
    assert there(board, next_s)
    assert there(board, at_s) == (next_s == at_s)
    assert not there(board, end_s)
    assert there(board, (next_s + end_s) / 2)


def test_boards_and_seeds_differ():
    seen = {pattern(flickering(board, seed)) for board in ("nano-1", "nano-2") for seed in (1, 2)}

    assert len(seen) == 4


def test_a_board_is_there_for_its_share_of_the_time():
    on = [there(flickering(seed=seed), t) for seed in range(40) for t in range(0, 20_000, 500)]
    first = [there(flickering(seed=seed), 0.0) for seed in range(400)]

    assert sum(on) / len(on) == pytest.approx(0.75, abs=0.05)
    assert sum(first) / len(first) == pytest.approx(0.75, abs=0.06)


def test_a_trace_tells_from_when_until_when(tmp_path):
    board = traced(tmp_path, "nano-1,10,20", "nano-2,0,5", "nano-1,30,", "nano-1,20,25")

    assert [there(board, t) for t in (0.0, 10.0, 19.9, 20.0, 25.0, 30.0, 1e9)] == [
        False,
        True,
        True,
        True,
        False,
        True,
        True,
    ]
    assert board.available_until_s(10.0) == 25.0
    assert (board.next_available_s(0.0), board.next_available_s(12.0), board.next_available_s(25.0)) == (
        10.0,
        12.0,
        30.0,
    )
    assert board.available_until_s(31.0) == math.inf


def test_a_board_that_the_trace_does_not_name_is_never_there(tmp_path):
    assert traced(tmp_path, "nano-2,10,20").next_available_s(0.0) is None


@given(st.lists(st.floats(0.5, 50.0), min_size=2, max_size=12), st.floats(0.0, 400.0))
def test_a_trace_agrees_with_looking_through_its_lines(tmp_path_factory, lengths, at_s):
    marks = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    intervals = list(zip(marks[::2], marks[1::2], strict=False))
    lines = [f"nano-1,{on_s!r},{off_s!r}" for on_s, off_s in intervals]
    board = traced(tmp_path_factory.mktemp("trace"), *reversed(lines))

    holding = [off_s for on_s, off_s in intervals if on_s <= at_s < off_s]
    later = [on_s for on_s, _ in intervals if on_s > at_s]
    assert board.available_until_s(at_s) == (holding[0] if holding else at_s)
    assert board.next_available_s(at_s) == (at_s if holding else min(later, default=None))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("nano-1,5,5",), r"trace.csv: line 2: got on_s 5, off_s 5; 0 <= on_s < off_s"),
        (("nano-1,-1,5",), r"line 2: got on_s -1, off_s 5"),
        (("nano-1,1,2", "nano-1,x,5"), r"line 3, on_s: got 'x'; a number of seconds"),
        (("nano-1,nan,5",), r"line 2, on_s: got 'nan'"),
        ((",1,5",), r"line 2: got no board"),
        (("nano-1,0,10", "nano-1,5,20"), r"line 3: got nano-1 on at 5 s; a time after it went off, 10 s"),
    ],
)
def test_a_bad_line_is_named(tmp_path, lines, message):
    with pytest.raises(BadInput, match=message):
        read_availability_trace(trace(tmp_path, *lines))


def test_a_missing_column_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(BadInput, match=r"got no column on_s, off_s; columns board,on_s,off_s"):
        read_availability_trace(trace(tmp_path, "nano-1,0", head="board,from"))
    with pytest.raises(BadInput, match=r"missing.csv: got no such file; the path of a CSV file of board,on_s,off_s$"):
        read_availability_trace(tmp_path / "missing.csv")


def test_every_board_of_a_fleet_has_its_own_presence():
    entry = FleetEntry(device="nano", count=2, availability=AvailabilitySpec(on_s=10.0, off_s=10.0))
    experiment = Experiment(fleet=(entry, FleetEntry(device="tx2")))
    found = build_availabilities(experiment, list_boards(experiment))

    assert list(found) == ["nano-1", "nano-2", "tx2-1"]
    assert pattern(found["nano-1"]) != pattern(found["nano-2"])
    assert all(pattern(found["tx2-1"]))
