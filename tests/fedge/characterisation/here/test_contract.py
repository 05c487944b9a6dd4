"""This machine does what every rig does."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch")

from contracts.rig import COURSE, RigContract

from fedge.characterisation.here import rig_here
from fedge.characterisation.plans.plan import Images, Plan, WorkloadPlan
from fedge.characterisation.point import Point
from fedge.characterisation.rig import Rig
from fedge.characterisation.seen import Seen

pytestmark = pytest.mark.slow
TINY = WorkloadPlan("tiny", "digits-cnn", (3, 32, 32), 10, Images(32, 64, 48))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    plan = Plan("p", ("here",), {"tiny": TINY}, {}, COURSE, ())
    return rig_here(plan, tmp_path_factory.mktemp("rig"))


@pytest.fixture(scope="module")
def point() -> Point:
    return Point("here", "tiny", batch_size=8)


@pytest.fixture(scope="module")
def workload() -> WorkloadPlan:
    return TINY


@pytest.fixture(scope="module")
def seen(rig: Rig, point: Point) -> Seen:
    return rig.measure(point, TINY, COURSE, lambda _: None)


class TestRigHere(RigContract):
    pass
