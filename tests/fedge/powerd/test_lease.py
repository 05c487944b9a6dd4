"""The lease: one holder, renewed in time, told apart by a secret."""

import pytest

from fedge.powerd.lease import LONGEST_S, PowerdLease, begin_or_renew, check_holder, has_ended, remaining_s
from fedge.powerd.mode_records import PowerdRefusal

HELD = PowerdLease("ann", "secret", 100.0)


@pytest.mark.parametrize(
    ("token", "kind"), [(None, "held"), ("guess", "not-holder"), ("gu\u00e9ss \ud800", "not-holder")]
)
def test_the_text_for_others_names_the_holder_and_hides_the_token(token, kind) -> None:
    check_holder(HELD, "secret", 50.0)
    with pytest.raises(PowerdRefusal, match="ann") as caught:
        check_holder(HELD, token, 50.0)
    assert caught.value.kind == kind
    assert "secret" not in caught.value.text


def test_a_lease_ends_at_its_time() -> None:
    assert not has_ended(HELD, 99.9)
    assert has_ended(HELD, 100.0)
    assert not has_ended(None, 1e9)
    assert remaining_s(HELD, 90.0) == 10.0
    assert remaining_s(HELD, 200.0) == 0.0


@pytest.mark.parametrize("seconds", [-1, LONGEST_S + 0.001, 0, 1e9])
def test_a_wrong_time_is_refused(seconds: float) -> None:
    with pytest.raises(PowerdRefusal) as caught:
        begin_or_renew(None, "ann", seconds, None, "secret", 0.0)
    assert caught.value.kind == "bad-request"
