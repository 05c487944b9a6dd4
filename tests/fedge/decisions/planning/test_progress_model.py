"""What local steps are worth, and what the losses of rounds show of it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.planning.progress_model import (
    NO_ROUNDS,
    PRIOR,
    SHAPES,
    ProgressFit,
    ProgressShape,
    RoundShare,
    _log_prior,
    find_shape,
    step_worth,
    update_fit,
    width_worth,
)
from fedge.wire import from_json, to_json

SHARES = (0.25, 0.5, 1.0, 2.0)
START = update_fit(NO_ROUNDS, (), 2.0)


def shape_of(steps_use: float, drift: float, narrow_loss: float = PRIOR.narrow_loss) -> ProgressShape:
    return ProgressShape(steps_use, drift, narrow_loss)


def play(shape: ProgressShape, rounds: int, noise: float = 0.0, widths: tuple[float, ...] = (1.0,)) -> ProgressFit:
    """The fit after rounds of two clients with unlike parts, whose losses fall as ``shape`` says."""
    rng, fit, loss = np.random.default_rng(5), update_fit(NO_ROUNDS, (), 2.0), 2.0
    for _ in range(rounds):
        parts = [RoundShare(0.5, float(rng.choice(SHARES)), width=float(rng.choice(widths))) for _ in range(2)]
        made = sum(part.weight * step_worth(part.share, shape) * width_worth(part.width, shape) for part in parts)
        loss *= math.exp(-0.3 * made + noise * float(rng.normal()))
        fit = update_fit(fit, parts, loss)
    return fit


@pytest.mark.parametrize("shape", SHAPES)
def test_a_whole_share_of_all_channels_is_worth_one_and_none_nothing(shape):
    assert step_worth(1.0, shape) == pytest.approx(1.0)
    assert step_worth(0.0, shape) == 0.0
    assert width_worth(1.0, shape) == 1.0
    assert 0.0 < width_worth(0.5, shape) < width_worth(0.75, shape) < 1.0
    a, c = shape.steps_use, shape.drift
    assert step_worth(0.5, shape) == pytest.approx(0.5 / (a + 0.5 * (1.0 - a - c) + 0.25 * c))


@given(st.sampled_from(SHAPES), st.floats(0.05, 0.95))
def test_less_steps_are_worth_less_but_more_per_step_where_steps_are_superfluous(shape, share):
    worth = step_worth(share, shape)
    assert share - 1e-12 <= worth or shape.drift > 0.0
    assert worth <= 1.0 or shape.drift > shape.steps_use


@pytest.mark.parametrize("pair", [(0.05, 0.0), (0.2, 0.0), (1.0, 0.0), (0.1, 0.2)])
def test_the_rounds_show_what_steps_are_worth(pair):
    found = find_shape(play(shape_of(*pair), rounds=40))
    worth = [step_worth(share, found) for share in SHARES]
    assert worth == pytest.approx([step_worth(share, shape_of(*pair)) for share in SHARES], rel=0.08)


@pytest.mark.parametrize("narrow_loss", sorted({shape.narrow_loss for shape in SHAPES}))
def test_the_rounds_show_what_narrow_networks_are_worth(narrow_loss):
    shape = shape_of(0.5, 0.05, narrow_loss)
    assert find_shape(play(shape, rounds=40, widths=(1.0, 0.5))).narrow_loss == pytest.approx(narrow_loss, rel=0.1)


def test_before_any_round_and_where_all_rounds_are_alike_the_prior_decides():
    alike = update_fit(NO_ROUNDS, (), 2.0)
    for number in range(20):
        alike = update_fit(alike, [RoundShare(1.0, 1.0)], 2.0 * 0.7 ** (number + 1))
    for fit in (NO_ROUNDS, alike):
        assert dataclasses.astuple(find_shape(fit)) == pytest.approx((0.5, 0.05, 0.75), rel=0.05)


@pytest.mark.parametrize("pair", [(0.05, 0.0), (1.0, 0.0), (0.5, 0.05)])
def test_rounds_without_narrow_clients_leave_their_worth_to_the_prior(pair):
    found = find_shape(play(shape_of(*pair), rounds=30, noise=0.05))
    assert found.narrow_loss == pytest.approx(find_shape(NO_ROUNDS).narrow_loss, rel=0.05)


def test_noise_in_the_losses_leaves_the_worth_of_steps_within_a_tenth():
    found = find_shape(play(shape_of(0.7, 0.0), rounds=60, noise=0.05))
    assert step_worth(0.5, found) == pytest.approx(step_worth(0.5, shape_of(0.7, 0.0)), rel=0.1)


def play_from_prior(noise: float, runs: int = 40) -> dict[int, tuple[float, float]]:
    """Errors of fit and prior in the log worth of 2.5 shares, by rounds, where the shape is drawn from the prior."""
    rng = np.random.default_rng(1)
    odds = np.exp([_log_prior(shape) for shape in SHAPES])
    errors: dict[int, list[tuple[float, float]]] = {2: [], 4: [], 8: [], 20: []}
    for _ in range(runs):
        shape = SHAPES[int(rng.choice(len(SHAPES), p=odds / odds.sum()))]
        fit, loss = START, 2.0
        for number in range(1, 21):
            shares = (1.0, float(rng.choice((1.0, 1.5, 2.5))), float(rng.choice((0.5, 1.0, 2.5))))
            parts = [RoundShare(weight, share) for weight, share in zip((0.5, 0.3, 0.2), shares, strict=True)]
            made = sum(part.weight * step_worth(part.share, shape) for part in parts)
            loss *= math.exp(-0.3 * made * (1.0 + noise * float(rng.normal())))
            fit = update_fit(fit, parts, loss)
            if number in errors:
                worth = (step_worth(2.5, guess) for guess in (find_shape(fit), find_shape(NO_ROUNDS)))
                of_fit, of_prior = (math.log(guess / step_worth(2.5, shape)) ** 2 for guess in worth)
                errors[number].append((of_fit, of_prior))
    return {number: tuple(np.sqrt(np.mean(pairs, axis=0)).tolist()) for number, pairs in errors.items()}


@pytest.mark.parametrize("noise", [0.4, 0.8])
def test_few_noisy_rounds_do_not_make_the_worth_of_steps_less_certain_than_the_prior(noise):
    assert all(of_fit < 1.1 * of_prior for of_fit, of_prior in play_from_prior(noise).values())


def test_rounds_of_little_noise_show_the_worth_of_steps():
    of_fit, of_prior = play_from_prior(noise=0.05)[20]
    assert of_fit < 0.6 * of_prior


def test_a_loss_that_is_unknown_or_not_finite_changes_nothing():
    fit = play(shape_of(0.2, 0.0), rounds=3)
    assert update_fit(fit, [RoundShare(1.0, 1.0)], None) == fit
    assert update_fit(fit, [RoundShare(1.0, 1.0)], math.nan) == fit


def test_a_fit_survives_its_json():
    fit = play(shape_of(0.2, 0.05), rounds=5)
    assert from_json(ProgressFit, to_json(fit)) == fit
