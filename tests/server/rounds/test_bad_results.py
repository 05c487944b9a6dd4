"""Results that would break the model, or decide it alone, cost their own client its part and nobody else."""

import numpy as np
import pytest
from contracts.reports import report
from hypothesis import given
from hypothesis import strategies as st

from fedge.types import TrainResult
from fedge.wire import ReplyMessage
from server.rounds.client_requests import MAX_NORM_RATIO, compute_change_norm, refuse_outliers, validate_reply
from server.transport.client_port import IncomingReply

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array(4)}


def reply(board: str, arrays: dict[str, np.ndarray]) -> IncomingReply:
    return IncomingReply(ReplyMessage(board, report=report(board, 5.0)), TrainResult(arrays, 1.0, 0.5))


def changed(by: float) -> dict[str, np.ndarray]:
    return {"w": (MODEL["w"] + np.float32(by)).astype(np.float32), "count": np.array(5)}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({**changed(1.0), "w": np.full((2, 3), np.nan, np.float32)}, "not finite"),
        ({**changed(1.0), "w": np.full((2, 3), np.inf, np.float32)}, "not finite"),
        ({**changed(1.0), "w": np.zeros((3, 2), np.float32)}, "got shape (3, 2)"),
        ({**changed(1.0), "w": np.zeros((2, 3), np.int64)}, "got int64; the model has float32"),
        ({**changed(1.0), "w": np.zeros((2, 3), np.complex64)}, "got complex64"),
        ({**changed(1.0), "w": np.full((2, 3), "1")}, "the model has float32"),
        ({**changed(1.0), "w": np.full((2, 3), None)}, "got object"),
        ({"w": MODEL["w"]}, "'count': got shape None"),
    ],
)
def test_a_result_of_another_form_is_refused_with_the_reason(arrays, reason):
    error = validate_reply("a", reply("a", arrays), MODEL).answer.error

    assert error.startswith("refused: ")
    assert reason in error


def test_an_encoded_result_of_another_form_is_refused_like_any_other():
    arrays = {"update:fp16": np.full(6, "x"), "count": MODEL["count"]}
    error = validate_reply("a", reply("a", arrays), MODEL, trainable=("w",)).answer.error

    assert error == "refused: an update of 6 values: got 'fp16' of <U1"


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9))
def test_a_result_is_refused_exactly_if_it_is_out_of_all_proportion(changes):
    replies = {f"b{n}": reply(f"b{n}", changed(by)) for n, by in enumerate(changes)}
    norms = {board: compute_change_norm(MODEL, one.trained.arrays) for board, one in replies.items() if one.trained}
    ordered = sorted(norms.values())
    middle = (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2

    refused = {board for board, one in refuse_outliers(replies, MODEL).items() if one.answer.error}

    large = {board for board, norm in norms.items() if norm > MAX_NORM_RATIO * middle}
    assert refused == (large if len(changes) >= 3 else set())
    assert len(refused) <= len(changes) // 2


def test_a_narrow_result_is_compared_with_the_part_that_it_has():
    assert compute_change_norm(MODEL, {"w": MODEL["w"][:1, :2] + 3.0}) == pytest.approx(3.0 * 2**0.5)
