"""What travels between server and client comes back as it was, and nothing else is taken."""

import math

import pytest

from fedge.types import Front, FrontPoint, Measurement, PowerMode, RoundGoal
from fedge.wire import ClientState, InvalidMessage, ReplyMessage, RequestMessage, from_json, to_json

MODE = PowerMode(4, 1479.0, 921.6, 1600.0)


def test_an_ask_with_a_state_and_a_goal_survives_the_journey():
    state = ClientState((Measurement(MODE, 12, 0.5, 7.25, 41.0, throttled=True),), 40.5, 123.0)
    ask = RequestMessage(
        "train", 3, 99.5, "balanced", state, RoundGoal("balanced", 12, 30.0, {"power_w": 9.0}), 4096, 0.1
    )

    assert from_json(RequestMessage, to_json(ask)) == ask


def test_a_front_survives_the_journey():
    point = FrontPoint(MODE, 10.0, 70.0)
    answer = ReplyMessage("nano-1", Front((point, point), point, 1.3, 0.2, 1.6))

    assert from_json(ReplyMessage, to_json(answer)) == answer


def test_a_loss_that_is_not_a_number_survives_the_journey():
    measured = from_json(Measurement, to_json(Measurement(MODE, 1, math.nan, 1.0)))

    assert math.isnan(measured.step_s)


def test_a_reason_that_is_no_utf8_arrives_with_question_marks():
    answer = ReplyMessage("nano-1", error="no file a\udc80b")

    assert from_json(ReplyMessage, to_json(answer)).error == "no file a?b"


@pytest.mark.parametrize("text", ["", "{", '{"kind": "obey"}', '{"kind": "train", "round": "many"}', "[]"])
def test_a_text_that_is_not_the_record_is_refused(text):
    with pytest.raises(InvalidMessage, match="not a RequestMessage"):
        from_json(RequestMessage, text)
