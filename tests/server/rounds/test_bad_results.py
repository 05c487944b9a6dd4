"""Results that would break the model, or decide it alone, cost their own client its part and nobody else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
from contracts.reports import MAXN, answer, front, report
from hypothesis import given
from hypothesis import strategies as st

from fedge.experiment import Experiment, FleetEntry
from fedge.telemetry.client_rows import describe_impossible_front
from fedge.telemetry.trace_operations import make_constant_trace
from fedge.types import FrontPoint, NarrowOffer, TrainResult
from fedge.wire import ReplyMessage
from server.rounds.client_requests import (
    MAX_NORM_RATIO,
    FleetRequests,
    compute_change_norm,
    refuse_outliers,
    validate_reply,
)
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


@pytest.mark.parametrize("figure", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["step_s", "power_w", "warm_up_s", "link", "idle_w", "steps", "samples"])
def test_a_report_of_which_no_row_can_be_made_is_refused_without_its_figures(name, figure):
    said = report("a", 5.0)
    if name in {"steps", "samples"}:
        figure = -1
    if name == "link":
        said = dataclasses.replace(said, link=dataclasses.replace(said.link, up_s=figure))
    elif name in {"idle_w", "samples"}:
        said = dataclasses.replace(said, **{name: figure})
    else:
        said = dataclasses.replace(said, measured=dataclasses.replace(said.measured, **{name: figure}))

    for trained in (TrainResult(changed(1.0), 1.0, 0.5), None):  # a board that was cut off sends no result
        answer = validate_reply("a", IncomingReply(ReplyMessage("a", report=said), trained), MODEL).answer
        assert (answer.error or "").startswith("refused: impossible ")
        assert answer.report is None


@pytest.mark.parametrize(
    "changes",
    [
        {"points": ()},
        {"idle_w": float("nan")},
        {"link_s": -1.0},
        {"maxn": FrontPoint(MAXN, float("inf"), 1.0)},
        {"narrow": (NarrowOffer(0.5, work=float("nan"), sent=0.3),)},
    ],
)
def test_a_front_of_which_no_plan_can_be_made_is_refused(changes):
    offer = dataclasses.replace(front(), **changes)
    sent = IncomingReply(ReplyMessage("a", offer, report("a", 5.0)), TrainResult(changed(1.0), 1.0, 0.5))

    assert (validate_reply("a", sent, MODEL).answer.error or "").startswith("refused: impossible ")
    assert describe_impossible_front(front()) == ""


def test_of_a_refused_first_offer_all_else_that_the_board_said_is_kept():
    """Otherwise a recorded folder would pass for hardware in what the run gives back."""

    class Port:
        def ask(self, questions: Mapping[str, object], _timeout_s: float, _enough: object = None) -> object:
            offer = dataclasses.replace(front(), idle_w=float("nan"))
            return {name: IncomingReply(ReplyMessage(name, offer, samples=7, recorded=True)) for name in questions}

    requests = FleetRequests(Experiment(fleet=(FleetEntry(device="nano"),)), Port())
    said = requests.request_fronts(["nano-1"], {"w": MODEL["w"]})["nano-1"].answer

    assert (said.error or "").startswith("refused: impossible offer")
    assert (said.front, said.samples, said.recorded) == (None, 7, True)


def test_of_a_refused_result_only_what_it_cost_is_kept():
    sent = dataclasses.replace(answer("a", 5.0), trace=make_constant_trace(0.0, 5.0, 9.0))
    kept = validate_reply("a", IncomingReply(sent, TrainResult({"w": MODEL["w"]}, 1.0, 0.5)), MODEL)

    assert kept.trained is None
    assert kept.answer.is_refused
    assert (kept.answer.report, kept.answer.trace) == (sent.report, sent.trace)
    assert kept.answer.state is kept.answer.front is None


def test_a_narrow_result_is_compared_with_the_part_that_it_has():
    assert compute_change_norm(MODEL, {"w": MODEL["w"][:1, :2] + 3.0}) == pytest.approx(3.0 * 2**0.5)
