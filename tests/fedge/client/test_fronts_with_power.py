"""A board's front holds the modes of low power only under the policy that plans with watts."""

import pytest

from fedge.client.emulated import answer_request
from fedge.experiment import Experiment, FleetEntry, WorkloadSpec
from fedge.types import Front
from fedge.wire import RequestMessage

pytest.importorskip("torch", reason="a client trains")
EXPERIMENT = Experiment(fleet=(FleetEntry(device="nano"),), workload=WorkloadSpec(local_epochs=0.2))


def front_under(policy: str) -> Front:
    told, _ = answer_request(EXPERIMENT, 0, RequestMessage("front", policy=policy, model_bytes=1_000), None)
    assert told.front is not None, told.error
    return told.front


def least_w(front: Front, within_s: float) -> float:
    return min(point.work_j / point.work_s for point in front.points if point.work_s <= within_s)


def test_a_plan_that_limits_watts_is_offered_the_modes_that_draw_least_for_their_speed():
    plain, with_power = front_under("balanced"), front_under("fastest")

    assert set(plain.points) < set(with_power.points)
    saved = [1.0 - least_w(with_power, p.work_s) / least_w(plain, p.work_s) for p in with_power.points]
    assert min(saved) == 0.0
    assert max(saved) > 0.02
    times_s = [point.work_s for point in with_power.points]
    assert times_s == sorted(times_s)


@pytest.mark.parametrize("policy", ["least-energy", "energy-budget"])
def test_other_policies_get_the_same_front_as_ever(policy):
    assert {point.mode for point in front_under(policy).points} == {p.mode for p in front_under("balanced").points}
