"""What every device does, emulated or real; a test class inherits it and gives ``device`` and two of its modes."""

import pytest

from fedge.types import PowerMode, Workload

WORK = Workload("resnet18-imagenet", 16)


class DeviceContract:
    """A test class's ``device`` fixture gives a fresh board."""

    modes: tuple[PowerMode, PowerMode]

    def test_work_is_metered_in_the_mode_that_is_set(self, device):
        with device.use_mode(self.modes[1]):
            measured = device.measure(WORK, 7, lambda _: None)

        assert (measured.mode, measured.steps) == (self.modes[1], 7)
        assert measured.step_s > 0
        assert measured.power_w > 0

    def test_the_work_is_told_how_many_minibatches_to_do(self, device):
        done: list[int] = []

        measured = device.measure(WORK, 5, done.append)

        assert sum(done) == measured.steps == 5
        assert min(done) > 0

    @pytest.mark.parametrize("limit_s", [-1.0, 0.0])
    def test_without_time_one_minibatch_is_done(self, device, limit_s):
        done: list[int] = []

        measured = device.measure(WORK, 5, done.append, limit_s)

        assert done == [1]
        assert measured.steps == 1

    def test_a_limit_is_kept_or_one_minibatch_is_done(self, device):
        whole = device.measure(WORK, 8, lambda _: None)
        limit_s = whole.work_s / 2

        done: list[int] = []
        measured = device.measure(WORK, 8, done.append, limit_s)

        assert sum(done) == measured.steps < 8
        assert measured.work_s <= limit_s * (1 + 1e-9) or measured.steps == 1

    def test_the_mode_found_is_restored_after_an_error(self, device):
        before = device.measure(WORK, 3, lambda _: None)
        with pytest.raises(RuntimeError, match="boom"), device.use_mode(self.modes[1]):
            raise RuntimeError("boom")

        after = device.measure(WORK, 3, lambda _: None)
        assert after.mode == before.mode != self.modes[1]

    def test_idling_draws_less_than_working(self, device):
        with device.use_mode(self.modes[0]):
            measured = device.measure(WORK, 3, lambda _: None)
            assert 0 < device.idle_w(self.modes[0]) < measured.power_w

    def test_its_spec_has_its_modes(self, device):
        for mode in self.modes:
            assert mode.cores in device.spec.cores
            assert mode.gpu_mhz in device.spec.gpu_mhz
