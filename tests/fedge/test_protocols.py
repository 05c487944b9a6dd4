"""Clocks count as their owner says."""

import pytest

from fedge.clock import RealClock, SimulatedClock
from fedge.protocols import Clock


class ClockContract:
    """What every clock does."""

    clock: Clock

    def test_it_never_goes_back(self):
        times = [self.clock.now_s() for _ in range(20)]

        assert times == sorted(times)

    def test_sleeping_moves_it_on_by_that_much_at_least(self):
        before = self.clock.now_s()
        self.clock.sleep_s(0.001)

        assert self.clock.now_s() - before >= 0.001


class TestVirtualClock(ClockContract):
    clock = SimulatedClock()

    def test_it_moves_only_when_told(self):
        clock = SimulatedClock(5.0)
        clock.sleep_s(2.5)

        assert clock.now_s() == 7.5

    def test_it_refuses_to_go_back(self):
        with pytest.raises(ValueError, match="cannot go back"):
            SimulatedClock().sleep_s(-1.0)


class TestRealClock(ClockContract):
    clock = RealClock()
