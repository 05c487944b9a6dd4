"""What every rig does; a test class inherits it and gives a rig, a point that it can measure, and its workload."""

from dataclasses import replace

import numpy as np

from fedge.characterisation.sweep_plan import MeasurementSchedule

COURSE = MeasurementSchedule(epochs=2, discard=1, minibatches=4, sample_hz=20.0)


class RigContract:
    """``seen`` is one measurement of ``point`` for ``COURSE``, made once."""

    def test_a_point_that_can_be_measured_is_not_refused(self, rig, point, workload):
        assert rig.refusal_reason(point, workload) is None

    def test_a_storage_that_nobody_knows_is_refused_with_a_reason(self, rig, point, workload):
        reason = rig.refusal_reason(replace(point, storage="cupboard"), workload)
        assert "cupboard" in reason

    def test_a_measurement_says_what_was_measured_and_by_whom(self, seen, point):
        assert seen.point == point
        assert seen.label in {"measured", "calibrated", "estimated"}
        assert seen.source
        assert seen.seconds > 0

    def test_every_epoch_has_its_minibatches_in_order(self, seen):
        batches = seen.read_minibatches()
        assert [epoch.epoch for epoch in seen.epochs] == list(range(COURSE.epochs))
        for epoch in seen.epochs:
            own = batches.select(batches.epoch == epoch.epoch)
            assert own.step.tolist() == list(range(epoch.steps))
        assert (np.diff(batches.start_s) > 0).all()

    def test_the_parts_of_a_minibatch_add_up_to_it(self, seen):
        batches = seen.read_minibatches()
        parts = batches.stall_s + batches.copy_s + batches.compute_s + batches.overhead_s
        assert abs(parts.sum() / batches.step_s.sum() - 1.0) < 0.05
        for column in (batches.fetch_s, batches.preprocess_s, batches.stall_s, batches.compute_s):
            assert (column >= 0).all()

    def test_an_epoch_holds_the_sums_of_its_minibatches(self, seen):
        for epoch in seen.epochs:
            own = seen.read_minibatches().select(seen.read_minibatches().epoch == epoch.epoch)
            np.testing.assert_allclose(epoch.compute_s, own.compute_s.sum(), rtol=1e-6)
            np.testing.assert_allclose(epoch.stall_s, own.stall_s.sum(), rtol=1e-6)
            assert epoch.e2e_s >= own.step_s.sum() * (1 - 1e-6)

    def test_power_without_a_label_is_not_there(self, seen):
        metered = [epoch.energy_j is not None for epoch in seen.epochs]
        assert any(metered) == (seen.power_label is not None)

    def test_the_strip_lies_within_the_point_s_time(self, seen):
        assert len(seen.read_sensor_trace().at_s) > 0
        assert (np.diff(seen.read_sensor_trace().at_s) > 0).all()
        assert seen.read_sensor_trace().at_s[-1] <= seen.seconds + 5.0
        known = seen.read_sensor_trace().cpu_load[~np.isnan(seen.read_sensor_trace().cpu_load)]
        assert ((known >= 0) & (known <= 1)).all()
