"""A checkpoint holds all that the next round needs, appears whole, and only the newest are kept."""

import dataclasses

import numpy as np
import pytest
from contracts.reports import answer, front, report
from safetensors import safe_open
from safetensors.numpy import save_file

from fedge.errors import BadInput
from fedge.types import EMPTY_TRACE, Trace, TrainResult
from fedge.wire import ClientState
from server.state import checkpoint
from server.state.checkpoint import ClientHistory, FleetState, PendingResult, RunState


def state(number: int) -> RunState:
    fleet = FleetState(
        12.345678901234567,
        states={"nano-1": ClientState((report("nano-1", 3.0).measured,), 41.5, 9.0)},
        fronts={"nano-1": front()},
        histories={"nano-1": ClientHistory(100, 0.5, 0.8, 12.0, number, 2, 34.5, 1_234.5, links_mbps=(9.5, 11.0))},
    )
    return RunState(
        number,
        fleet,
        {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array(number, np.int64)},
        {"m_t/dict/000000/b": np.ones(3)},
        {"pacer_s": 7.25},
        89.0625,
        (
            PendingResult(
                number,
                3.0,
                45.0,
                answer("nano-1", 40.0),
                TrainResult({"b": np.ones(2, np.float32)}, 0.4, 0.9, metrics={"norm": 1.5}),
            ),
        ),
        12.5,
        3.25,
    )


def test_what_was_saved_is_loaded(tmp_path):
    checkpoint.save(tmp_path, state(3))
    loaded = checkpoint.load_latest(tmp_path)

    assert (loaded.round, loaded.fleet.clock_s) == (3, 12.345678901234567)
    assert list(loaded.arrays) == ["b", "a"]
    assert loaded.arrays["b"].tolist() == state(3).arrays["b"].tolist()
    assert (loaded.arrays["a"].shape, loaded.arrays["a"].dtype) == ((), np.int64)
    assert loaded.memory["m_t/dict/000000/b"].tolist() == [1.0, 1.0, 1.0]
    assert loaded.fleet.states == state(3).fleet.states
    assert loaded.fleet.fronts == state(3).fleet.fronts
    assert loaded.fleet.histories == state(3).fleet.histories
    assert (loaded.selection, loaded.spent_j) == ({"pacer_s": 7.25}, 89.0625)
    assert (loaded.last_j, loaded.evaluation_j) == (12.5, 3.25)
    assert loaded.pending[0].trained.metrics == {"norm": 1.5}


def test_a_file_s_header_has_no_records_of_boards(tmp_path):
    before = state(1)
    measured = dataclasses.replace(report("nano-1", 3.0).measured, board="b\u2028\x85x")
    fleet = dataclasses.replace(before.fleet, states={"nano-1": ClientState((measured,), 41.5, 9.0)})
    path = checkpoint.save(tmp_path, dataclasses.replace(before, fleet=fleet))
    with safe_open(path, framework="numpy") as opened:
        notes = opened.metadata()

    assert not any("nano-1" in text for name, text in notes.items() if name != "pending")
    assert checkpoint.load_latest(tmp_path).fleet.states == fleet.states


def test_a_result_under_way_is_kept_with_its_trace_to_the_last_bit(tmp_path):
    trace = Trace(
        (0.0, 0.1 + 0.2),
        (0.25, 1 / 3),
        (7.1, 8.2),
        (None, 41.37),
        *((None, None),) * 6,
        rails_w={"GPU": (3.1, None), "CPU": (None, 1.7)},
    )
    before = state(3)
    asked = [
        dataclasses.replace(before.pending[0], answer=dataclasses.replace(before.pending[0].answer, trace=each))
        for each in (trace, EMPTY_TRACE)
    ]
    path = checkpoint.save(tmp_path, dataclasses.replace(before, pending=tuple(asked)))
    loaded = checkpoint.load_latest(tmp_path)

    assert [one.answer for one in loaded.pending] == [one.answer for one in asked]
    with safe_open(path, framework="numpy") as opened:
        assert "7.1" not in opened.metadata()["pending"]


def test_the_newest_counts_and_old_ones_go(tmp_path):
    for number in range(1, 6):
        checkpoint.save(tmp_path, state(number))

    loaded = checkpoint.load_latest(tmp_path)
    assert loaded.round == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000004.safetensors", "round-000005.safetensors"]


@pytest.mark.parametrize("content", [b"", b"half a file"])
def test_a_broken_file_is_named(tmp_path, content):
    (tmp_path / "round-000001.safetensors").write_bytes(content)

    with pytest.raises(BadInput, match=r"round-000001.safetensors: got a file that cannot be read"):
        checkpoint.load_latest(tmp_path)


def test_a_damaged_newest_file_is_passed_over_for_the_one_before(tmp_path):
    for number in (1, 2):
        checkpoint.save(tmp_path, state(number))
    newest = tmp_path / "round-000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])

    loaded = checkpoint.load_latest(tmp_path)
    assert loaded.round == 1


def test_a_file_of_arrays_alone_is_passed_over_too(tmp_path):
    checkpoint.save(tmp_path, state(1))
    save_file({"w": np.zeros(2)}, tmp_path / "round-000002.safetensors")

    loaded = checkpoint.load_latest(tmp_path)
    assert loaded.round == 1


@pytest.mark.parametrize("change", [{"order": "3"}, {"pending": "[1]"}, {"round": "one"}])
def test_a_file_whose_notes_are_not_a_checkpoint_s_is_named(tmp_path, change):
    path = checkpoint.save(tmp_path, state(1))
    with safe_open(path, framework="numpy") as opened:
        notes = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 -- not a mapping
    save_file(tensors, path, metadata=notes | change)

    with pytest.raises(BadInput, match=r"round-000001.safetensors: got a file that cannot be read"):
        checkpoint.load_latest(tmp_path)


def test_a_trace_of_millions_of_empty_rows_is_refused_before_they_are_made(tmp_path):
    path = checkpoint.save(tmp_path, state(1))
    with safe_open(path, framework="numpy") as opened:
        notes = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 -- not a mapping
    save_file({**tensors, "trace/0": np.zeros((10**8, 0))}, path, metadata=notes)

    with pytest.raises(BadInput, match="a trace of 100000000 rows"):
        checkpoint.load_latest(tmp_path)
