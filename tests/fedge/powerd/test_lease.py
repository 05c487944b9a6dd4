"""The lease: one holder, renewed in time, told apart by a secret."""

import pytest

from fedge.powerd.lease import LONGEST_S, PowerdLease, begin_or_renew, check_holder, has_ended, remaining_s
from fedge.powerd.mode_records import PowerdRefusal

HELD = PowerdLease("ann", "secret", 100.0)


def kind_of(lease, token, now_s=50.0) -> str:
    with pytest.raises(PowerdRefusal) as caught:
        check_holder(lease, token, now_s)
    return caught.value.kind


def test_without_a_lease_anybody_may_change_the_mode() -> None:
    check_holder(None, None, 0.0)


def test_with_a_lease_only_its_holder_may() -> None:
    check_holder(HELD, "secret", 50.0)
    assert kind_of(HELD, None) == "held"
    assert kind_of(HELD, "guess") == "not-holder"
    assert kind_of(HELD, "gu\u00e9ss \ud800") == "not-holder"


def test_the_text_for_others_names_the_holder_and_hides_the_token() -> None:
    for token in (None, "guess"):
        with pytest.raises(PowerdRefusal, match="ann") as caught:
            check_holder(HELD, token, 50.0)
        assert "secret" not in caught.value.text


def test_a_token_of_a_lease_that_ended_is_refused_so_that_nobody_sets_by_mistake() -> None:
    assert kind_of(None, "secret") == "not-holder"


def test_a_lease_ends_at_its_time() -> None:
    assert not has_ended(HELD, 99.9)
    assert has_ended(HELD, 100.0)
    assert not has_ended(None, 1e9)
    assert remaining_s(HELD, 90.0) == 10.0
    assert remaining_s(HELD, 200.0) == 0.0


def test_holding_begins_renews_and_gives_back() -> None:
    begun = begin_or_renew(None, "ann", 15, None, "secret", 0.0)
    assert begun == PowerdLease("ann", "secret", 15.0)
    renewed = begin_or_renew(begun, "another name", 15, "secret", "unused", 10.0)
    assert renewed == PowerdLease("ann", "secret", 25.0)
    assert begin_or_renew(renewed, "ann", 0, "secret", "unused", 11.0) is None


@pytest.mark.parametrize("seconds", [-1, LONGEST_S + 0.001, 0, 1e9])
def test_a_wrong_time_is_refused(seconds: float) -> None:
    with pytest.raises(PowerdRefusal) as caught:
        begin_or_renew(None, "ann", seconds, None, "secret", 0.0)
    assert caught.value.kind == "bad-request"


def test_a_second_holder_is_told_the_name_of_the_first() -> None:
    with pytest.raises(PowerdRefusal, match="ann") as caught:
        begin_or_renew(HELD, "ben", 15, None, "other", 50.0)
    assert caught.value.kind == "held"
