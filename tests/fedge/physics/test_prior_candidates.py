"""Every prior and reference becomes candidates whose slopes, priors and credibility are what the module says."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from contracts.boards import MAXN, another_workload, coefficients, grid, made_up_table
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.physics.misfit_process import KnobCurve
from fedge.physics.model_fit import idle_w_at_maxn
from fedge.physics.prior_candidates import (
    MAX_PRIORS_WITH_RESIDUALS,
    PRIOR_WIDTHS,
    RATED_LOSS,
    WEIGHT,
    WEIGHT_SD,
    PriorCandidate,
    fit_reference,
    list_power_candidates,
    list_prior_sources,
    list_time_candidates,
    make_power_curve_with,
    make_time_curve,
)
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s, knob_shares
from fedge.types import Floats, Modes, ProfileTable

PRIORS = tuple(another_workload(np.random.default_rng(seed)) for seed in range(4))
X = knob_shares(MAXN, Modes(grid().knobs[::23]))
STEP = 1e-6


def rough(seed: int, sd: float = 0.05) -> ProfileTable:
    rng = np.random.default_rng(seed)
    table = made_up_table(another_workload(rng))
    off = sd * rng.standard_normal((2, len(table.modes)))
    return dataclasses.replace(table, step_s=table.step_s * np.exp(off[0]), power_w=table.power_w * np.exp(off[1]))


REFERENCES = (rough(11), rough(12))


def knowledge(priors: int, references: int, idle_w: float | None = None) -> PriorKnowledge:
    return PriorKnowledge(MAXN, PRIORS[:priors], REFERENCES[:references], idle_w=idle_w)


def candidates(known: PriorKnowledge) -> tuple[list[PriorCandidate], list[PriorCandidate]]:
    found = list_prior_sources(known)
    return list_time_candidates(found), list_power_candidates(found)


def curves(known: PriorKnowledge) -> list[list[tuple[PriorCandidate, KnobCurve]]]:
    """Every candidate for time and for power with its curve."""
    times, powers = candidates(known)
    return [
        [(time, make_time_curve(time.reference)) for time in times],
        [(power, make_power_curve_with(power.reference, PRIORS[0].time)) for power in powers],
    ]


def differences(curve: KnobCurve, parameters: Floats) -> Floats:
    return np.stack([
        (curve(parameters + step, X).values - curve(parameters - step, X).values) / (2 * STEP)
        for step in STEP * np.eye(len(parameters))
    ])  # fmt: skip


def test_without_a_prior_and_a_reference_there_is_nothing_to_believe():
    with pytest.raises(BadInput, match="got nothing; at least one calibrated workload or one reference table"):
        list_prior_sources(PriorKnowledge(MAXN))


@pytest.mark.parametrize(("priors", "references"), [*itertools.product((0, 1, 3), (0, 1, 2))][1:])
def test_priors_references_and_both_together_are_believed_the_most_credible_first(priors, references):
    found = list_prior_sources(knowledge(priors, references))

    credibility = [source.log_credibility for source in found]
    assert len(found) == priors + references * (1 + min(priors, MAX_PRIORS_WITH_RESIDUALS))
    assert sum(source.reference is None for source in found) == priors
    assert credibility == sorted(credibility, reverse=True)


def test_a_prior_that_comes_later_is_less_credible_and_so_is_a_reference():
    alone = [s.log_credibility for s in list_prior_sources(knowledge(3, 0))]
    referred = [s.log_credibility for s in list_prior_sources(knowledge(0, 2))]

    assert (np.diff(alone) < 0).all()
    assert (np.diff(referred) < 0).all()


def test_priors_with_known_errors_count_by_them_time_and_power_apart():
    errors = ((0.2, 0.4), (0.6, 0.1), (0.6, 0.1))
    found = list_prior_sources(PriorKnowledge(MAXN, PRIORS[:3], errors=errors))

    weights = np.exp([(source.log_credibility, source.log_power_credibility) for source in found])
    ranks = np.exp(-RATED_LOSS * np.arange(3.0))[:, None]
    np.testing.assert_allclose(weights / ranks, [[1.0, 1 / 64], [1 / 27, 1.0], [1 / 27, 1.0]])


def test_a_smooth_reference_comes_before_every_prior_and_a_rough_one_after():
    smooth, bad = (PriorKnowledge(MAXN, PRIORS[:2], (table,)) for table in (rough(13, 0.02), rough(13, 0.3)))

    assert list_prior_sources(smooth)[0].reference is not None
    assert [source.reference is None for source in list_prior_sources(bad)][:2] == [True, True]


def test_a_reference_of_another_kind_of_board_lends_its_coefficients_after_all_priors_and_no_residuals():
    knobs = grid().knobs * np.array([1.0, 0.5, 0.5, 0.5])
    elsewhere = dataclasses.replace(rough(14), modes=Modes(knobs))

    found = list_prior_sources(PriorKnowledge(MAXN, PRIORS[:2], (elsewhere,)))

    assert [source.reference for source in found] == [None] * 3
    np.testing.assert_array_equal(found[-1].coefficients.time, fit_reference(elsewhere, MAXN).coefficients.time)
    assert found[-1].log_credibility < found[-2].log_credibility


def test_a_prior_below_the_boards_idle_power_is_raised_and_one_above_is_left():
    own = idle_w_at_maxn(PRIORS[0])

    raised, left = (list_prior_sources(knowledge(1, 0, idle_w=own + more))[0].coefficients for more in (5.0, -5.0))

    assert idle_w_at_maxn(raised) == pytest.approx(own + 5.0)
    np.testing.assert_allclose(left.power, PRIORS[0].power)
    np.testing.assert_array_equal(raised.time, PRIORS[0].time)


def test_every_source_is_held_in_every_width_and_the_wider_is_less_credible():
    for listed in candidates(knowledge(1, 0)):
        assert len(listed) == len(PRIOR_WIDTHS)
        for candidate, width in zip(listed, PRIOR_WIDTHS, strict=True):
            np.testing.assert_allclose(candidate.prior.precision * width**2, listed[0].prior.precision)
            np.testing.assert_array_equal(candidate.prior.mean, listed[0].prior.mean)
        assert (np.diff([candidate.log_credibility for candidate in listed]) < 0).all()


def test_a_prior_alone_predicts_its_workload():
    (time, time_curve), (power, power_curve) = (listed[0] for listed in curves(knowledge(1, 0)))
    modes = Modes(grid().knobs[::23])

    step_s, power_w = (np.exp(curve(x.prior.mean, X).values) for x, curve in ((time, time_curve), (power, power_curve)))

    np.testing.assert_allclose(step_s, compute_step_s(PRIORS[0], MAXN, modes))
    np.testing.assert_allclose(power_w, compute_power_w(PRIORS[0], MAXN, modes))


def test_a_reference_adds_its_weighted_residuals():
    time, power = (listed[0] for listed in curves(knowledge(0, 1)))
    left = fit_reference(REFERENCES[0], MAXN).residuals(X)

    for (candidate, curve), residuals in ((time, left[0]), (power, left[1])):
        none, full = (np.append(candidate.prior.mean[:-1], weight) for weight in (0.0, 1.0))
        np.testing.assert_allclose(curve(full, X).values - curve(none, X).values, residuals, atol=1e-12)
        assert np.abs(residuals).max() > 0.05


def test_the_weight_of_residuals_has_a_prior_of_its_own():
    for listed in candidates(knowledge(1, 1)):
        for candidate in listed:
            plain = len(candidate.prior.mean) in {11, 13}
            if plain:
                continue
            assert candidate.prior.mean[-1] == WEIGHT
            assert candidate.prior.precision[-1, -1] == pytest.approx(WEIGHT_SD**-2)
            assert (candidate.prior.precision[-1, :-1] == 0).all()
            assert (candidate.prior.precision[:-1, -1] == 0).all()


@given(seed=st.integers(0, 1000), place=st.integers(0, 11))
@settings(max_examples=20)
def test_the_slopes_of_every_candidate_are_its_differences(seed, place):
    for listed in curves(knowledge(1, 1)):
        candidate, curve = listed[place % len(listed)]
        parameters = candidate.prior.mean + 0.3 * np.random.default_rng(seed).standard_normal(len(candidate.prior.mean))

        by = curve(parameters, X).stack_slopes()

        np.testing.assert_allclose(by, differences(curve, parameters), atol=1e-6)


def test_a_curve_that_is_asked_at_other_modes_in_between_answers_as_before():
    for listed in curves(knowledge(1, 1)):
        for candidate, curve in listed:
            first = curve(candidate.prior.mean, X)
            elsewhere = curve(candidate.prior.mean, X[::-1].copy())
            again = curve(candidate.prior.mean, X)

            np.testing.assert_array_equal(again.values, first.values)
            np.testing.assert_array_equal(again.stack_slopes(), first.stack_slopes())
            np.testing.assert_allclose(elsewhere.values[::-1], first.values, rtol=1e-12)


def test_power_is_believed_at_the_time_parameters_that_are_given():
    found = list_prior_sources(knowledge(1, 0))
    modes = Modes(grid().knobs[::23])

    for time in (PRIORS[0].time, coefficients().time):
        candidate = list_power_candidates(found)[0]

        said = np.exp(make_power_curve_with(candidate.reference, time)(candidate.prior.mean, X).values)

        np.testing.assert_allclose(said, compute_power_w(Coefficients(time, PRIORS[0].power), MAXN, modes))
