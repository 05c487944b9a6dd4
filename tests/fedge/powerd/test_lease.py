"""The lease: one holder, renewed in time, told apart by a secret."""

import pytest

from fedge.powerd.lease import LONGEST_S, Lease, allow, ended, hold, left_s
from fedge.powerd.mode import Refused

HELD = Lease("ann", "secret", 100.0)


def kind_of(lease, token, now_s=50.0) -> str:
    with pytest.raises(Refused) as caught:
        allow(lease, token, now_s)
    return caught.value.kind


def test_without_a_lease_anybody_may_change_the_mode() -> None:
    allow(None, None, 0.0)


def test_with_a_lease_only_its_holder_may() -> None:
    allow(HELD, "secret", 50.0)
    assert kind_of(HELD, None) == "held"
    assert kind_of(HELD, "guess") == "not-holder"
    assert kind_of(HELD, "gu\u00e9ss \ud800") == "not-holder"


def test_the_text_for_others_names_the_holder_and_hides_the_token() -> None:
    for token in (None, "guess"):
        with pytest.raises(Refused, match="ann") as caught:
            allow(HELD, token, 50.0)
        assert "secret" not in caught.value.text


def test_a_token_of_a_lease_that_ended_is_refused_so_that_nobody_sets_by_mistake() -> None:
    assert kind_of(None, "secret") == "not-holder"


def test_a_lease_ends_at_its_time() -> None:
    assert not ended(HELD, 99.9)
    assert ended(HELD, 100.0)
    assert not ended(None, 1e9)
    assert left_s(HELD, 90.0) == 10.0
    assert left_s(HELD, 200.0) == 0.0


def test_holding_begins_renews_and_gives_back() -> None:
    begun = hold(None, "ann", 15, None, "secret", 0.0)
    assert begun == Lease("ann", "secret", 15.0)
    renewed = hold(begun, "another name", 15, "secret", "unused", 10.0)
    assert renewed == Lease("ann", "secret", 25.0)
    assert hold(renewed, "ann", 0, "secret", "unused", 11.0) is None


@pytest.mark.parametrize("seconds", [-1, LONGEST_S + 0.001, 0, 1e9])
def test_a_wrong_time_is_refused(seconds: float) -> None:
    with pytest.raises(Refused) as caught:
        hold(None, "ann", seconds, None, "secret", 0.0)
    assert caught.value.kind == "bad-request"


def test_a_second_holder_is_told_the_name_of_the_first() -> None:
    with pytest.raises(Refused, match="ann") as caught:
        hold(HELD, "ben", 15, None, "other", 50.0)
    assert caught.value.kind == "held"
