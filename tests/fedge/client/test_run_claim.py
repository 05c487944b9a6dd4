"""A board works for one run at a time; a claim ends by itself, and only its own run releases it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.client.run_claim import (
    RunClaim,
    claim_left_s,
    explain_refusal,
    hold_claim,
    read_claim,
    release_claim,
    write_claim,
)

TIMES = st.floats(0.0, 4e9)
LENGTHS = st.floats(1.0, 1e5)


@given(TIMES, LENGTHS, st.floats(0.0, 1e5))
def test_a_claim_stands_against_another_run_for_its_length_and_no_longer(made_s, stands_s, after_s):
    claim = RunClaim("mine", made_s + stands_s, stands_s)
    left = claim_left_s(claim, "other", made_s + after_s)

    assert left >= 0.0
    if after_s < 0.99 * stands_s - 1e-3:
        assert left > 0.0
    if after_s > 1.01 * stands_s + 1e-3:
        assert left == 0.0


@given(LENGTHS, TIMES, TIMES)
def test_whatever_the_clock_does_nobody_waits_for_longer_than_twice_the_length(stands_s, made_s, now_s):
    assert claim_left_s(RunClaim("mine", made_s + stands_s, stands_s), "other", now_s) <= 2 * stands_s


def test_it_is_kept_in_a_file_that_says_the_run_and_until_when(tmp_path):
    path = tmp_path / "state" / "claim.json"
    write_claim(path, "mine", 60.0, 1000.0)

    assert read_claim(path) == RunClaim("mine", 1060.0, 60.0)
    assert {key: json.loads(path.read_text())[key] for key in ("run", "until_s")} == {"run": "mine", "until_s": 1060.0}
    assert list(path.parent.iterdir()) == [path]


def test_only_the_run_that_made_it_releases_it(tmp_path):
    path = tmp_path / "claim.json"
    write_claim(path, "mine", 60.0, 1000.0)
    release_claim(path, "other")
    assert read_claim(path) is not None
    release_claim(path, "mine")
    assert read_claim(path) is None
    release_claim(path, "mine")


def test_a_file_that_makes_no_sense_is_nobodys_claim(tmp_path):
    path = tmp_path / "claim.json"
    for text in ("", "[]", '{"run": "mine"}', '{"run": "mine", "until_s": "soon", "stands_s": 1}'):
        path.write_text(text, encoding="utf-8")
        assert read_claim(path) is None


def test_the_refusal_names_the_board_the_run_and_what_to_do():
    said = explain_refusal("nano-1", RunClaim("digits (run-1, abcd)", 0.0, 60.0), 41.6)

    assert said == 'nano-1 works for run "digits (run-1, abcd)" (for 42 s more); wait, or stop that run'


def test_work_is_kept_for_its_run_also_when_it_fails_and_the_claim_counts_from_its_end(tmp_path):
    path, times = tmp_path / "claim.json", iter([1000.0, 1500.0])

    def fails() -> None:
        with hold_claim(path, "mine", 60.0, lambda: next(times)):
            assert read_claim(path) == RunClaim("mine", 1060.0, 60.0)
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fails()
    assert read_claim(path) == RunClaim("mine", 1560.0, 60.0)


def test_a_question_in_nobodys_name_claims_nothing(tmp_path):
    with hold_claim(tmp_path / "claim.json", "", 60.0, lambda: 1000.0):
        pass

    assert list(tmp_path.iterdir()) == []
