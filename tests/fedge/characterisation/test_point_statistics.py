"""What a finished point says, and the repeats of a setting as one: intervals, labels, power, what nobody metered."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.characterised_points import COURSE, Noise, Truth, finished, stats, sweep, varied

from fedge.characterisation.point_measurement import PART_FIELDS
from fedge.characterisation.point_statistics import compute_point_stats, pool_repeats
from fedge.characterisation.sweep_plan import MeasurementSchedule, SweepPoint

POINT = SweepPoint("here", "net")


def test_first_epochs_are_left_out_unless_none_would_be_left():
    seen = finished(POINT, Truth(first_stall_s=0.02), epochs=3)
    assert compute_point_stats(seen, MeasurementSchedule(discard=1)).epochs == (1, 2)
    assert compute_point_stats(seen, MeasurementSchedule(discard=0)).epochs == (0, 1, 2)
    assert compute_point_stats(seen, MeasurementSchedule(discard=3)).epochs == (0, 1, 2)


def test_means_are_those_of_the_epochs_and_the_first_epoch_is_told_apart():
    seen = finished(POINT, Truth(first_stall_s=0.02), epochs=3)
    found = compute_point_stats(seen, COURSE)
    late = seen.epochs[1:]
    for name in ("e2e_s", *PART_FIELDS, "energy_j", "power_w"):
        assert getattr(found, name).value == pytest.approx(np.mean([getattr(one, name) for one in late])), name
    assert found.first_stall_s.value == pytest.approx(seen.epochs[0].stall_s)
    assert found.first_e2e_s.value == pytest.approx(seen.epochs[0].e2e_s)
    assert (found.minibatches, found.steps, found.samples) == (200, 100.0, 1600.0)
    assert found.untimed_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("noise", [Noise(), Noise(phi=0.5), Noise(start=3)])
def test_intervals_hold_the_truth_nearly_as_often_as_they_say(noise):
    truth = Truth()
    extra = noise.start * (noise.start_factor - 1.0)  # the start belongs to the epoch
    held = [
        one.e2e_s.low <= truth.step_s * (100 + extra) <= one.e2e_s.high
        for one in (stats(POINT, truth, noise, seed=seed, epochs=2) for seed in range(150))
    ]
    assert np.mean(held) >= 0.9


def test_outliers_are_counted_and_stay_in_the_sums():
    seen = finished(POINT, Truth())
    minibatches = seen.read_minibatches()
    minibatches.step_s[150] += 5.0
    changed = compute_point_stats(seen, COURSE)
    assert changed.outliers == 1
    assert changed.settled
    assert changed.e2e_s.value == pytest.approx(np.mean([one.e2e_s for one in seen.epochs[1:]]))


def test_without_a_meter_there_is_no_power_and_the_rest_is_there():
    found = stats(POINT, Truth(), metered=False)
    assert (found.energy_j, found.power_w, found.power_label) == (None, None, None)
    assert found.by_epoch["energy_j"] == ()
    assert found.e2e_s.is_bounded


def test_a_point_whose_times_drift_is_not_settled():
    seen = finished(POINT, Truth())
    seen.read_minibatches().step_s[100:] *= np.linspace(1.0, 1.5, 200)
    found = compute_point_stats(seen, COURSE)
    assert not found.settled
    assert "more time" in found.unsettled_reason


def test_a_point_without_epochs_is_refused():
    with pytest.raises(ValueError, match="no epochs"):
        compute_point_stats(replace(finished(POINT, Truth()), epochs=()), COURSE)


POINTS = varied(POINT, "batch_size", [1, 2, 4, 8, 16, 32]) + varied(POINT, "workers", [1, 2, 3])


def test_repeats_of_a_setting_become_one_and_boards_stay_apart():
    points = [*varied(POINT, "repeat", [2, 0, 1]), replace(POINT, board="nano-1"), replace(POINT, workers=1)]
    found = pool_repeats(sweep(points, lambda _: Truth()))
    assert [len(one.points) for one in found] == [3, 1, 1]
    assert found[0].point.repeat == 0
    assert found[0].points == tuple(one.key for one in varied(POINT, "repeat", [0, 1, 2]))


def test_the_mean_over_repeats_is_that_of_their_means():
    own = sweep(varied(POINT, "repeat", range(3)), lambda _: Truth(), Noise(epoch=0.03))
    (found,) = pool_repeats(own)
    assert found.stats.e2e_s.value == pytest.approx(np.mean([one.e2e_s.value for one in own]))
    assert found.stats.minibatches == sum(one.minibatches for one in own)


@pytest.mark.parametrize("epoch", [0.0, 0.01, 0.03])
def test_two_epochs_a_point_are_enough_where_there_are_several_points(epoch):
    """The scatter of epochs is that of all points; the truth is held as often as it should, by short intervals."""
    found = [
        one.stats.e2e_s
        for seed in range(12)
        for one in pool_repeats(sweep(POINTS, lambda _: Truth(), Noise(epoch=epoch), seed=seed))
    ]
    assert np.mean([one.low <= 1.2 <= one.high for one in found]) >= 0.92
    assert np.median([one.high - one.low for one in found]) / 1.2 <= 0.015 + 4.5 * epoch


def test_what_repeats_differ_beyond_their_minibatches_widens_every_setting_of_the_board():
    points = [replace(one, repeat=repeat) for one in POINTS[:3] for repeat in range(2)]

    def slow(point: SweepPoint) -> Truth:
        return Truth(compute_s=0.007 * (1.0 + 0.1 * (point.repeat - 0.5) * (-1) ** point.batch_size))

    alone, repeated = pool_repeats(sweep(points[::2], slow)), pool_repeats(sweep(points, slow))
    for before, after in zip(alone, repeated, strict=True):
        assert after.stats.compute_s.standard_error > 2 * before.stats.compute_s.standard_error
