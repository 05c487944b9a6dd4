"""The clock jumps to the next end: work shares cores, readers are served in order, the device waits for nobody."""

from __future__ import annotations

import pytest

from fedge.costs.input_pipeline.pipeline_model import HostCores
from fedge.costs.input_pipeline.simulation_clock import Activity, SimulationClock


def test_work_takes_turns_and_is_quicker_again_when_others_are_done() -> None:
    clock = SimulationClock(HostCores(1.0), served=1.0, most=3)
    clock.begin(1, Activity.WORKS, 1.0)
    clock.begin(2, Activity.WORKS, 3.0)
    assert clock.advance_to_next_end() == [1]
    assert clock.now_s == pytest.approx(2.0)
    assert clock.advance_to_next_end() == [2]
    assert clock.now_s == pytest.approx(4.0)
    assert clock.busy_s == pytest.approx(4.0)


def test_readers_are_served_in_the_order_in_which_they_came() -> None:
    clock = SimulationClock(HostCores(8.0), served=1.5, most=3)
    for process in (2, 0, 1):
        clock.begin(process, Activity.READS, 1.0)
    ends = []
    for _ in range(3):
        (done,) = clock.advance_to_next_end()
        ends.append((done, clock.now_s))
    # The second at half its pace beside the first, the third likewise beside the second.
    assert ends == [(2, pytest.approx(1.0)), (0, pytest.approx(1.5)), (1, pytest.approx(2.25))]
    assert clock.busy_s == 0.0


def test_a_spinning_training_keeps_a_core_from_others_and_the_device_goes_on() -> None:
    for spins, worked_s in ((True, 2.0), (False, 1.0)):
        clock = SimulationClock(HostCores(1.0, spins=spins), served=1.0, most=2)
        clock.begin(0, Activity.DEVICE, 5.0)
        clock.begin(1, Activity.WORKS, 1.0)
        assert clock.advance_to_next_end() == [1]
        assert clock.now_s == pytest.approx(worked_s)
        assert clock.advance_to_next_end() == [0]
        assert clock.now_s == pytest.approx(5.0)


def test_those_who_are_done_at_once_are_named_in_order() -> None:
    clock = SimulationClock(HostCores(8.0), served=4.0, most=3)
    clock.begin(2, Activity.WORKS, 1.0)
    clock.begin(1, Activity.READS, 1.0)
    clock.begin(0, Activity.DEVICE, 1.0)
    assert clock.advance_to_next_end() == [0, 1, 2]


def test_waiting_has_no_end_of_its_own() -> None:
    clock = SimulationClock(HostCores(1.0), served=1.0, most=1)
    with pytest.raises(ValueError, match="WAITS"):
        clock.begin(0, Activity.WAITS, 1.0)
    with pytest.raises(RuntimeError, match="waits for another"):
        clock.advance_to_next_end()
