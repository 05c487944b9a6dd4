"""The chosen mode is the cheapest that is fast enough, lowers nothing for nothing, and says why it was chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from contracts.roofline_boards import HEAVY, SPEC, TRUTH, modes
from hypothesis import given
from hypothesis import strategies as st

from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.board_constants_fit import activation_intensity
from fedge.analysis.roofline.roofline_model import batch_energy_j, build_roofline_batch, compute_batch_times
from fedge.analysis.roofline.slowdown_choice import MIN_KNOB_SAVING, choose_within_slowdown, explain_choice, parse_mode
from fedge.errors import BadInput
from fedge.modes import find_mode_index
from fedge.types import PowerMode

MODES = modes()
MAXN = find_mode_index(MODES, SPEC.maxn)
assert MAXN is not None
COUNT = len(MODES)
random = st.integers(0, 10_000).map(np.random.default_rng)


@given(random, st.floats(1.0, 2.0), st.floats(0.0, 0.2))
def test_no_mode_that_is_fast_enough_is_cheaper_by_more_than_its_lowered_knobs_must_save(rng, allowed, margin):
    seconds, joules = rng.uniform(1.0, 3.0, COUNT), rng.uniform(1.0, 3.0, COUNT)
    found = choose_within_slowdown(MODES, seconds, joules, MAXN, allowed, margin)
    assert found.row == MAXN or seconds[found.row] * math.exp(margin) <= allowed * seconds[MAXN]
    for row in range(COUNT):
        if seconds[row] * math.exp(margin) <= allowed * seconds[MAXN]:
            assert joules[found.row] <= joules[row] * (1 + MIN_KNOB_SAVING) ** 4
    assert found.slowdown == pytest.approx(seconds[found.row] / seconds[MAXN])
    assert found.saving == pytest.approx(1 - joules[found.row] / joules[MAXN])


def test_a_knob_that_saves_next_to_nothing_stays_at_its_top():
    joules = np.full(COUNT, 1.0)
    joules[0] = 0.99  # every knob lowered, for one percent
    assert choose_within_slowdown(MODES, np.ones(COUNT), joules, MAXN).row == MAXN
    joules[0] = 0.9
    assert choose_within_slowdown(MODES, np.ones(COUNT), joules, MAXN).row == 0


@pytest.mark.parametrize("allowed", [0.95, 0.0, math.nan, math.inf])
def test_a_slowdown_that_cannot_be_meant_is_refused(allowed):
    with pytest.raises(BadInput, match="--max-slowdown"):
        choose_within_slowdown(MODES, np.ones(COUNT), np.ones(COUNT), MAXN, allowed)


def reason(batch_size: int, allowed: float = 1.05) -> str:
    lines, batch = compute_rooflines(TRUTH, MODES, activation_intensity(HEAVY)), build_roofline_batch(HEAVY, batch_size)
    spent = compute_batch_times(lines, batch)
    choice = choose_within_slowdown(MODES, spent.total_s, batch_energy_j(lines, batch, spent.total_s), MAXN, allowed)
    return explain_choice(choice, MODES, lines.mode_roofline(MAXN), batch, spent)


def test_the_reason_names_what_sets_the_pace_and_what_was_lowered():
    small, large = reason(1), reason(64)
    assert "launching on the CPU sets the pace" in small
    assert "as it does not set the pace: GPU clock from 1300.5 to 726.75 MHz" in small
    assert "the GPU sets the pace" in large
    assert "FLOP per byte" in large
    assert "% slower" in small
    assert "% less energy (predicted)" in small
    assert reason(64, 1.0).endswith("MAXN stays.")
    assert "as far as the slowdown allows" in reason(64, 1.9)


def test_a_mode_is_read_from_its_four_knobs():
    assert parse_mode("12/2201.6/1300.5/3199") == PowerMode(12, 2201.6, 1300.5, 3199.0)


WRONG = ("", "12", "12/2201.6/1300.5", "a/b/c/d", "1.5/1/1/1", "0/1/1/1", "1/inf/1/1", "1/2/3/4/5")


@pytest.mark.parametrize("text", WRONG)
def test_a_mode_that_is_none_is_refused(text):
    with pytest.raises(BadInput, match="cores/CPU/GPU/memory in MHz"):
        parse_mode(text)
