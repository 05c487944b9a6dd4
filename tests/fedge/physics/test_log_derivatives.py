"""The closed-form slopes are those of the model."""

from __future__ import annotations

import numpy as np
from contracts.boards import MAXN, another_workload, grid
from hypothesis import given
from hypothesis import strategies as st

from fedge.physics import log_derivatives
from fedge.physics.log_derivatives import LinearizedCurve
from fedge.physics.model_fit import make_fed_power_curve
from fedge.physics.time_power_model import compute_power_terms, compute_time_parts, knob_shares, tabulate_shares
from fedge.types import Floats

STEP = 1e-6


def test_the_slopes_of_log_time_are_its_differences():
    x = knob_shares(MAXN, grid())
    time = another_workload(np.random.default_rng(3)).time

    linear = log_derivatives.linearize_log_time(time, x)

    np.testing.assert_allclose(linear.values, np.log(compute_time_parts(time, x).total_s))
    for i, direction in enumerate(np.eye(len(time))):
        seen = (
            (
                log_derivatives.linearize_log_time(time + STEP * direction, x).values
                - log_derivatives.linearize_log_time(time - STEP * direction, x).values
            )
            / STEP
            / 2
        )
        np.testing.assert_allclose(linear.stack_slopes()[i], seen, atol=1e-7)


def test_the_slopes_of_log_power_are_its_differences():
    x = knob_shares(MAXN, grid())
    other = another_workload(np.random.default_rng(4))
    parts = compute_time_parts(other.time, x)

    linear = log_derivatives.linearize_log_power(other.power, parts)

    np.testing.assert_allclose(linear.values, np.log(compute_power_terms(other.power, parts).sum(axis=0)))
    for i, direction in enumerate(np.eye(len(other.power))):
        ahead = log_derivatives.linearize_log_power(other.power + STEP * direction, parts).values
        behind = log_derivatives.linearize_log_power(other.power - STEP * direction, parts).values
        np.testing.assert_allclose(linear.stack_slopes()[i], (ahead - behind) / STEP / 2, atol=1e-7)


def test_inference_whose_batches_are_loaded_late_takes_less_power_by_slopes_that_are_its_differences():
    x = knob_shares(MAXN, grid())
    other = another_workload(np.random.default_rng(4))
    curve = make_fed_power_curve(other.time)

    def with_share(share: float) -> Floats:
        return np.append(other.power, np.log(share))

    linear = curve(with_share(0.5), x)
    for i, direction in enumerate(np.eye(len(other.power) + 1)):
        ahead, behind = (curve(with_share(0.5) + step * direction, x).values for step in (STEP, -STEP))
        np.testing.assert_allclose(linear.stack_slopes()[i], (ahead - behind) / STEP / 2, atol=1e-7)
    unfed = log_derivatives.linearize_log_power(other.power, compute_time_parts(other.time, x)).values
    np.testing.assert_allclose(curve(with_share(1e-4), x).values, unfed, atol=1e-9)
    assert (linear.values < unfed).all()


@given(seed=st.integers(0, 999), members=st.integers(0, 3), tabulated=st.booleans())
def test_the_slope_along_a_direction_is_the_contraction_of_all_slopes(seed, members, tabulated):
    curves, directions = linear_and_direction(seed, members, tabulated)

    for linear, along in zip(curves, directions, strict=True):
        expected = np.einsum("...k,...kn->...n", along, linear.stack_slopes())
        scale = np.einsum("...k,...kn->...n", np.abs(along), np.abs(linear.stack_slopes())).max()
        exact = np.finfo(linear.values.dtype).eps  # tables are in single precision
        np.testing.assert_allclose(linear.slope_along(along), expected, rtol=100 * exact, atol=20 * exact * scale)


def linear_and_direction(
    seed: int, members: int, tabulated: bool
) -> tuple[tuple[LinearizedCurve, LinearizedCurve], tuple[Floats, Floats]]:
    """Log time and log power of one workload, or of some with a leading axis, and a direction for each."""
    rng = np.random.default_rng(seed)
    shares = knob_shares(MAXN, grid())[rng.permutation(630)[:50]]
    knobs = tabulate_shares(shares) if tabulated else shares
    workloads = [another_workload(rng) for _ in range(max(members, 1))]
    time, power = np.stack([one.time for one in workloads]), np.stack([one.power for one in workloads])
    if not members:
        time, power = time[0], power[0]
    curves = (
        log_derivatives.linearize_log_time(time, knobs),
        log_derivatives.linearize_log_power(power, compute_time_parts(workloads[0].time, knobs)),
    )
    return curves, (rng.standard_normal(time.shape), rng.standard_normal(power.shape))


@given(seed=st.integers(0, 999), tabulated=st.booleans())
def test_slopes_in_single_precision_and_those_of_some_curves_are_the_same_slopes(seed, tabulated):
    for linear in linear_and_direction(seed, 3, tabulated)[0]:
        slopes = linear.stack_slopes()

        np.testing.assert_array_equal(linear.stack_slopes_single(), slopes.astype(np.float32))
        some = linear.select([2, 0])
        np.testing.assert_array_equal(some.values, linear.values[[2, 0]])
        np.testing.assert_array_equal(some.stack_slopes(), slopes[[2, 0]])


@given(seed=st.integers(0, 999), members=st.integers(2, 5))
def test_workloads_that_are_computed_together_have_the_bits_of_each_alone(seed, members):
    rng = np.random.default_rng(seed)
    x = knob_shares(MAXN, grid())[rng.integers(0, 630, (members, 8))]
    workloads = [another_workload(rng) for _ in range(members)]
    time, power = np.stack([one.time for one in workloads]), np.stack([one.power for one in workloads])

    together = (
        log_derivatives.linearize_log_time(time, x),
        log_derivatives.linearize_log_power(power, compute_time_parts(time, x)),
    )

    for i in range(members):
        alone = (
            log_derivatives.linearize_log_time(time[i : i + 1], x[i : i + 1]),
            log_derivatives.linearize_log_power(power[i : i + 1], compute_time_parts(time[i : i + 1], x[i : i + 1])),
        )
        for every, one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(every.values[i], one.values[0])
            np.testing.assert_array_equal(every.stack_slopes()[i], one.stack_slopes()[0])
