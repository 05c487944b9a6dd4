"""The networks with the batch size among their inputs learn a smooth surface from a few dozen readings."""

from __future__ import annotations

import numpy as np
import pytest

from fedge.serving.strategies.active_learning import fit_network_surface
from fedge.types import Floats


def surface(inputs: Floats) -> Floats:
    """Made-up ln(seconds, watts): a quick part that saturates, a slow one that grows with the batch."""
    cores, cpu, gpu, mem, batch = inputs.T
    seconds = 5.0 / cpu + batch * (0.4 / gpu + 0.3 / mem) + 0.01 / cores
    return np.log(np.stack([seconds, 6 + 0.005 * gpu * batch / (batch + 4) + 0.002 * cpu * cores]))


def drawn(count: int, rng: np.random.Generator) -> Floats:
    knobs = rng.uniform([2, 400, 100, 600], [12, 2200, 1300, 3200], (count, 4))
    return np.column_stack([knobs, rng.choice([1.0, 4.0, 16.0, 64.0], count)])


@pytest.mark.slow
def test_a_hundred_readings_tell_the_rest_within_a_tenth_and_going_on_does_not_harm() -> None:
    rng = np.random.default_rng(0)
    inputs, others = drawn(100, rng), drawn(500, rng)
    first = fit_network_surface(inputs, surface(inputs), np.random.default_rng(1))
    second = fit_network_surface(inputs, surface(inputs), np.random.default_rng(2), first)

    for fitted in (first, second):
        errors = np.abs(fitted.predict_logs(others) - surface(others)).mean(axis=1)
        assert (errors < 0.1).all()


def test_a_single_reading_is_said_everywhere() -> None:
    inputs = np.array([[4.0, 1000.0, 500.0, 1600.0]])
    fitted = fit_network_surface(inputs, np.log([[0.1], [20.0]]), np.random.default_rng(0))

    np.testing.assert_allclose(np.exp(fitted.predict_logs(inputs)), [[0.1], [20.0]], rtol=1e-3)


def test_the_same_generator_learns_the_same_and_what_it_started_from_is_left_as_it_was() -> None:
    inputs = drawn(20, np.random.default_rng(0))
    first, again = (fit_network_surface(inputs, surface(inputs), np.random.default_rng(1)) for _ in range(2))
    before = first.networks.flat.copy()
    fit_network_surface(inputs, surface(inputs), np.random.default_rng(2), first)

    np.testing.assert_array_equal(first.predict_logs(inputs), again.predict_logs(inputs))
    np.testing.assert_array_equal(first.networks.flat, before)
