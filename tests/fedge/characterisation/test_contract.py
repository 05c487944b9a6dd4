"""This machine does what every rig does."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch")

from contracts.rig import COURSE, RigContract

from fedge.characterisation.local_rig import build_local_rig
from fedge.characterisation.point_measurement import MeasurementRig, PointMeasurement
from fedge.characterisation.sweep_plan import CharacterisationPlan, Images, SweepPoint, WorkloadPlan

pytestmark = pytest.mark.slow
TINY = WorkloadPlan("tiny", "digits-cnn", (3, 32, 32), 10, Images(32, 64, 48))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> MeasurementRig:
    plan = CharacterisationPlan("p", ("here",), {"tiny": TINY}, {}, COURSE, ())
    return build_local_rig(plan, tmp_path_factory.mktemp("rig"))


@pytest.fixture(scope="module")
def point() -> SweepPoint:
    return SweepPoint("here", "tiny", batch_size=8)


@pytest.fixture(scope="module")
def workload() -> WorkloadPlan:
    return TINY


@pytest.fixture(scope="module")
def seen(rig: MeasurementRig, point: SweepPoint) -> PointMeasurement:
    return rig.measure(point, TINY, COURSE, lambda _: None)


class TestRigHere(RigContract):
    pass
