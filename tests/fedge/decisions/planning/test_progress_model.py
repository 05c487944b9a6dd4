"""What local steps are worth, and what the losses of rounds show of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.planning.progress_model import (
    NO_ROUNDS,
    PAIRS,
    PRIOR,
    ProgressFit,
    RoundShare,
    find_pair,
    step_worth,
    update_fit,
)
from fedge.wire import from_json, to_json

SHARES = (0.25, 0.5, 1.0, 2.0)


def play(pair: tuple[float, float], rounds: int, noise: float = 0.0) -> ProgressFit:
    """The fit after rounds of two clients with unlike shares, whose losses fall as ``pair`` says."""
    rng, fit, loss = np.random.default_rng(5), update_fit(NO_ROUNDS, (), 2.0), 2.0
    for _ in range(rounds):
        parts = [RoundShare(0.5, float(rng.choice(SHARES))) for _ in range(2)]
        made = sum(part.weight * step_worth(part.share, pair) for part in parts)
        loss *= math.exp(-0.3 * made + noise * float(rng.normal()))
        fit = update_fit(fit, parts, loss)
    return fit


@pytest.mark.parametrize("pair", PAIRS)
def test_a_whole_share_is_worth_one_and_none_nothing(pair):
    assert step_worth(1.0, pair) == pytest.approx(1.0)
    assert step_worth(0.0, pair) == 0.0
    a, c = pair
    assert step_worth(0.5, pair) == pytest.approx(0.5 / (a + 0.5 * (1.0 - a - c) + 0.25 * c))


@given(st.sampled_from(PAIRS), st.floats(0.05, 0.95))
def test_less_steps_are_worth_less_but_more_per_step_where_steps_are_superfluous(pair, share):
    worth = step_worth(share, pair)
    assert share - 1e-12 <= worth or pair[1] > 0.0
    assert worth <= 1.0 or pair[1] > pair[0]


@pytest.mark.parametrize("pair", [(0.05, 0.0), (0.2, 0.0), (1.0, 0.0), (0.1, 0.2)])
def test_the_rounds_show_what_steps_are_worth(pair):
    found = find_pair(play(pair, rounds=40))
    worth = [step_worth(share, found) for share in SHARES]
    assert worth == pytest.approx([step_worth(share, pair) for share in SHARES], rel=0.05)


def test_before_any_round_and_where_all_rounds_are_alike_the_prior_decides():
    alike = update_fit(NO_ROUNDS, (), 2.0)
    for number in range(20):
        alike = update_fit(alike, [RoundShare(1.0, 1.0)], 2.0 * 0.7 ** (number + 1))
    assert find_pair(NO_ROUNDS) == find_pair(alike)
    assert find_pair(NO_ROUNDS) == min(PAIRS, key=lambda pair: abs(pair[0] - PRIOR[0]) + abs(pair[1] - PRIOR[1]))


def test_noise_in_the_losses_leaves_the_worth_of_steps_within_a_tenth():
    found = find_pair(play((0.7, 0.0), rounds=60, noise=0.05))
    assert step_worth(0.5, found) == pytest.approx(step_worth(0.5, (0.7, 0.0)), rel=0.1)


def test_a_loss_that_is_unknown_or_not_finite_changes_nothing():
    fit = play((0.2, 0.0), rounds=3)
    assert update_fit(fit, [RoundShare(1.0, 1.0)], None) == fit
    assert update_fit(fit, [RoundShare(1.0, 1.0)], math.nan) == fit


def test_a_fit_survives_its_json():
    fit = play((0.2, 0.05), rounds=5)
    assert from_json(ProgressFit, to_json(fit)) == fit
