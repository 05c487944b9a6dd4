"""A round's model comes of what is in by its end; what is not waits, and nothing at all leaves the model alone."""

import logging

import numpy as np
import pytest
from contracts.reports import answer

from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetEntry, LateReplySpec, StrategySpec
from fedge.telemetry.client_rows import RoundStart
from fedge.telemetry.settlement import RoundSettlement, settle_round
from fedge.types import TrainResult
from server.aggregation.aggregator import Aggregator, build_strategy
from server.aggregation.result_merger import MAX_NAMED_BOARDS, MergedModel, describe_failures, merge_replies
from server.rounds.client_requests import RoundTask
from server.state.checkpoint import PendingResult
from server.transport.client_port import IncomingReply

logging.getLogger("flwr").setLevel(logging.ERROR)
TASK = RoundTask(3, 100.0, {"w": np.full(2, 5.0, np.float32)})
DISCOUNT = LateReplySpec(action="discount", grace=0.0, staleness_exponent=1.0)


def reply(board: str, work_s: float, change: float) -> IncomingReply:
    return IncomingReply(answer(board, work_s), TrainResult({"w": np.full(2, 5.0 + change, np.float32)}, 0.5, 0.8))


def merge(late: LateReplySpec, replies: dict[str, IncomingReply], pending: list[PendingResult]) -> MergedModel:
    spec = StrategySpec(name="FedAvg")
    aggregator = Aggregator(build_strategy(spec), 1)
    aggregator.configure(TASK.round, TASK.arrays, 2)
    experiment = Experiment(fleet=(FleetEntry(device="nano"),), late=late, strategy=spec)
    return merge_replies(experiment, aggregator, TASK, settled=settled(replies, late), replies=replies, pending=pending)


def settled(replies: dict[str, IncomingReply], late: LateReplySpec) -> RoundSettlement:
    return settle_round(RoundStart(3, 100.0, 20.0, {}), {name: one.answer for name, one in replies.items()}, late)


def test_a_late_result_waits_as_the_change_that_it_learnt():
    replies = {"a": reply("a", 10.0, 1.0), "b": reply("b", 40.0, 3.0)}
    merged = merge(DISCOUNT, replies, [])
    (kept,) = merged.pending

    assert merged.arrays["w"].tolist() == [6.0, 6.0]
    assert (kept.round, kept.start_s, kept.end_s, kept.answer.board) == (3, 100.0, 142.0, "b")
    assert kept.trained.arrays["w"].tolist() == [3.0, 3.0]


def test_it_joins_by_its_samples_and_its_rounds_and_those_still_under_way_wait_on():
    replies = {"a": reply("a", 10.0, 1.0)}
    earlier = [
        PendingResult(2, 80.0, end_s, answer(board, 30.0), TrainResult({"w": np.full(2, 4.0, np.float32)}, 0.5, 0.8))
        for board, end_s in (("b", 111.0), ("c", 113.0))
    ]
    merged = merge(DISCOUNT, replies, earlier)

    # The round ends at 112 s: a moves the model by 1 at weight 1, b by 4 at weight 1/2.
    assert merged.arrays["w"].tolist() == pytest.approx([7.0, 7.0])
    assert (merged.stale, merged.pending) == (1, (earlier[1],))
    assert merged.events[0].message == "its result of round 2 joined, 1 round late, weighed by 0.50"


@pytest.mark.parametrize(("change", "joins"), [(99.0, True), (101.0, False)])
def test_a_late_result_that_changes_the_model_out_of_all_proportion_is_refused(change, joins):
    replies = {name: reply(name, 10.0, 1.0) for name in "abc"}
    late = PendingResult(2, 80.0, 111.0, answer("d", 30.0), TrainResult({"w": np.full(2, change, "f4")}, 0.5, 0.8))
    merged = merge(DISCOUNT, replies, [late])

    assert (merged.stale, merged.pending) == (int(joins), ())
    assert (merged.arrays["w"][0] == 6.0) is not joins
    told = "its result of round 2 was refused: it changes the model 101 times as much as is usual in the round"
    assert (merged.events[0].kind, merged.events[0].message.startswith(told)) == (
        ("joined", False) if joins else ("refused", True)
    )


def test_a_strategy_that_fails_is_named():
    replies = {"a": reply("a", 10.0, 1.0)}
    spec = StrategySpec(name="QFedAvg", options={"client_learning_rate": 0.1})
    fleet = (FleetEntry(device="nano"),)
    experiment, unready = Experiment(fleet=fleet, strategy=spec), Aggregator(build_strategy(spec), 1)
    done = settled(replies, LateReplySpec())
    with pytest.raises(RunFailed, match="round 3: strategy QFedAvg failed"):
        merge_replies(experiment, unready, TASK, settled=done, replies=replies, pending=())


def test_of_many_boards_that_failed_the_first_are_told_by_name_each_reason_once_and_the_others_counted():
    errors = {f"b{i}": "boom" for i in range(MAX_NAMED_BOARDS + 2)} | {"b1": "b1 works for another run"}

    said = describe_failures(errors)

    assert said.startswith("b0, b2, ")
    assert said.endswith(f"b{MAX_NAMED_BOARDS - 1}: boom; b1 works for another run; and 2 more")
