"""An emulated board as a rig: the same epochs for the same seed, and the effects that make a board worth studying."""

import hashlib
import os
import subprocess
import sys
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from contracts.rig import COURSE, RigContract

from fedge.characterisation.emulated_rig import LOADING_SHARE, WORKER_MB, build_emulated_rig, estimate_costs
from fedge.characterisation.point_measurement import (
    EpochSummary,
    MeasurementRig,
    PointMeasurement,
)
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.costs.input_pipeline.emulated_pipeline import find_pipeline_kind
from fedge.costs.input_pipeline.pipeline_model import SimulatedEpoch
from fedge.devices import catalogue
from fedge.errors import BadInput, UnknownName
from fedge.types import PowerMode

FILES = WorkloadPlan(
    name="files", model="digits-cnn", input=(3, 32, 32), classes=10, images=Images(count=640, width=400, height=300)
)
MEMORY = WorkloadPlan(
    name="memory",
    model="digits-cnn",
    input=(3, 32, 32),
    classes=10,
    images=Images(count=4000, width=32, height=32, source="memory"),
)
WORKLOADS = {one.name: one for one in (FILES, MEMORY)}
BOARD = "agx-xavier-1"


def rig_of(board: str = BOARD, seed: int = 1, model: str | None = None) -> MeasurementRig:
    storages = {"default": StoragePlan(name="default", model=model), "hdd": StoragePlan(name="hdd")}
    return build_emulated_rig(CharacterisationPlan("plan", (board,), WORKLOADS, storages, COURSE, (), seed), board)


@cache
def epochs(point: SweepPoint, seed: int = 1) -> tuple[EpochSummary, ...]:
    course = MeasurementSchedule(epochs=2, minibatches=40)  # of files the whole epoch
    return rig_of(point.board, seed).measure(point, WORKLOADS[point.workload], course, lambda _: None).epochs


def second(point: SweepPoint) -> EpochSummary:
    return epochs(point)[1]


@pytest.fixture(scope="module")
def rig() -> MeasurementRig:
    return rig_of()


@pytest.fixture(scope="module")
def point() -> SweepPoint:
    return SweepPoint(BOARD, "files", workers=1)


@pytest.fixture(scope="module")
def workload() -> WorkloadPlan:
    return FILES


@pytest.fixture(scope="module")
def seen(rig: MeasurementRig, point: SweepPoint) -> PointMeasurement:
    return rig.measure(point, FILES, COURSE, lambda _: None)


class TestEmulatedRig(RigContract):
    pass


POINT = SweepPoint(BOARD, "files")


def test_the_same_seed_gives_the_same_epochs_whatever_was_measured_before():
    first, other = rig_of(), rig_of()
    other.measure(replace(POINT, workers=2), FILES, COURSE, lambda _: None)
    one, two = (rig.measure(POINT, FILES, COURSE, lambda _: None) for rig in (first, other))
    np.testing.assert_array_equal(one.read_minibatches().start_s, two.read_minibatches().start_s)
    assert one.epochs == two.epochs
    assert one.epochs != rig_of(seed=2).measure(POINT, FILES, COURSE, lambda _: None).epochs


SEEN_ELSEWHERE = """
from test_emulated_rig import measure_digest
print(measure_digest())
"""


def measure_digest() -> str:
    """Of everything that is seen of a point, to the last bit."""
    seen = rig_of().measure(replace(POINT, workers=3, storage="hdd"), FILES, COURSE, lambda _: None)
    tables = (seen.read_minibatches(), seen.read_sensor_trace())
    columns = b"".join(getattr(table, one.name).tobytes() for table in tables for one in fields(table))
    return hashlib.sha256(columns + repr(seen.epochs).encode()).hexdigest()


@pytest.mark.slow
def test_another_process_sees_the_same():
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, (here, here.parents[1], here.parents[2])))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1"}
    program = [sys.executable, "-c", SEEN_ELSEWHERE]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    assert found.strip() == measure_digest()


def test_a_board_with_little_memory_forgets_a_large_data_set():
    large = FILES.model_copy(update={"images": FILES.images.model_copy(update={"count": 60_000, "kb": 100.0})})
    course = MeasurementSchedule(epochs=2, minibatches=20)
    nano, xavier = (
        rig_of(board).measure(replace(POINT, board=board, cache="warm"), large, course, lambda _: None).epochs[1]
        for board in ("nano-1", BOARD)
    )
    assert nano.disk_read_mb > 0
    assert nano.resident_after < 1.0
    assert xavier.disk_read_mb == 0.0


def test_workers_take_the_stall_away_and_energy_with_it():
    none, one, two = (second(replace(POINT, workers=count)) for count in (0, 1, 2))
    assert none.stall_s > one.stall_s > 1.5 * two.stall_s
    assert none.energy_j > two.energy_j
    assert none.cpu_load < two.cpu_load


def test_a_lower_gpu_clock_computes_longer_at_less_power():
    spec = catalogue.find("agx-xavier")
    slow = second(replace(POINT, mode=replace(spec.maxn, gpu_mhz=min(spec.gpu_mhz))))
    fast = second(replace(POINT, mode=spec.maxn))
    assert slow.compute_s > fast.compute_s
    assert slow.power_w < fast.power_w
    assert slow.stall_s == pytest.approx(fast.stall_s, rel=0.1)


@pytest.mark.parametrize(
    ("point", "said"),
    [
        (replace(POINT, mode=PowerMode(8, 1.0, 2.0, 3.0)), "no mode of the Jetson AGX Xavier"),
        (replace(POINT, workload="memory", batch_size=4001), "more than the 4000 images of an epoch"),
        (replace(POINT, board="nano-1", workers=64), "MB of memory"),
    ],
)
def test_what_a_board_cannot_do_is_refused_with_the_reason(point, said):
    assert said in (rig_of(point.board).refusal_reason(point, WORKLOADS[point.workload]) or "")


def test_a_container_is_told_to_make_no_difference():
    seen = rig_of().measure(replace(POINT, runtime="docker:torch"), FILES, COURSE, lambda _: None)
    assert any("container" in note for note in seen.notes)


def test_an_unknown_board_and_storage_are_named():
    with pytest.raises(BadInput, match="agx-xavier-1"):
        rig_of("toaster")
    with pytest.raises(UnknownName, match="toaster"):
        rig_of("toaster-1")
    with pytest.raises(UnknownName, match="drum"):
        rig_of(model="drum")


def test_a_cut_epoch_leaves_a_part_of_the_data_set_in_the_cache():
    course = MeasurementSchedule(epochs=3, minibatches=20)
    cold, second, third = rig_of().measure(POINT, FILES, course, lambda _: None).epochs
    assert (cold.resident_before, second.resident_before, third.resident_before) == pytest.approx((0.0, 0.5, 0.75))
    assert second.disk_read_mb == pytest.approx(0.5 * cold.disk_read_mb)
    assert third.disk_read_mb == pytest.approx(0.25 * cold.disk_read_mb)


def test_inference_needs_less_memory_than_training_and_workers_need_their_own():
    network = WorkloadPlan(
        name="large", model="resnet18", input=(3, 224, 224), classes=10, images=Images(count=640, width=400, height=300)
    )
    small, large = (estimate_costs("agx-xavier", network, "infer", size).memory_mb for size in (16, 256))
    assert small < large < estimate_costs("agx-xavier", network, "train", 256).memory_mb / 2
    assert second(replace(POINT, workers=2)).memory_mb == second(POINT).memory_mb + 2 * WORKER_MB


def test_pinning_without_workers_is_the_training_s_own_work():
    assert second(replace(POINT, pinned=True)).overhead_s > 1.02 * second(POINT).overhead_s
    beside = replace(POINT, workers=1)
    assert second(replace(beside, pinned=True)).overhead_s == pytest.approx(second(beside).overhead_s, rel=1e-6)


def test_the_gpu_is_busy_no_longer_beside_loading():
    alone, beside = (second(replace(POINT, workload="memory", workers=count)) for count in (0, 8))
    assert alone.disk_read_mb == alone.fetch_s == 0.0
    assert beside.compute_s > 1.02 * alone.compute_s
    assert beside.gpu_load * beside.e2e_s == pytest.approx(alone.gpu_load * alone.e2e_s, rel=1e-3)


def test_every_epoch_scatters_in_its_own_way_and_the_very_first_minibatch_warms_up():
    seen = rig_of().measure(replace(POINT, cache="warm"), FILES, MeasurementSchedule(epochs=3), lambda _: None)
    assert len({epoch.preprocess_s for epoch in seen.epochs}) == 3
    compute_s, first = seen.read_minibatches().compute_s, seen.read_minibatches().step == 0
    usual_s = np.median(compute_s)
    np.testing.assert_allclose(compute_s[first] / usual_s, [2.5, 1.0, 1.0], rtol=0.15)


def spread(device: str, quantity: str, boards: range, repeats: range) -> float:
    """Standard deviation of the logarithm."""
    point = SweepPoint("", "memory")
    seen = [second(replace(point, board=f"{device}-{b}", repeat=r)) for b in boards for r in repeats]
    return float(np.std(np.log([getattr(epoch, quantity) for epoch in seen]), ddof=1))


def test_boards_differ_in_power_and_repeats_in_time_as_far_as_the_paper_saw():
    eight, one = range(1, 9), range(1)
    assert 0.015 < spread("agx-xavier", "power_w", eight, one) < 0.06  # 5.9 % from least to most
    assert spread("agx-xavier", "e2e_s", eight, one) < 0.012  # 1 %
    assert 0.01 < spread("xavier-nx", "e2e_s", range(1, 2), range(8)) < 0.05  # 5 %
    assert spread("agx-xavier", "e2e_s", range(1, 2), range(8)) < 0.012  # 1 %


def test_the_strip_shows_the_loads_and_watts_of_the_epochs():
    seen = rig_of().measure(
        replace(POINT, workers=1), FILES, MeasurementSchedule(epochs=2, sample_hz=100.0), lambda _: None
    )
    long_s = sum(epoch.e2e_s for epoch in seen.epochs)
    for name in ("cpu_load", "gpu_load", "power_w"):
        mean = sum(getattr(epoch, name) * epoch.e2e_s for epoch in seen.epochs) / long_s
        assert getattr(seen.read_sensor_trace(), name).mean() == pytest.approx(mean, rel=0.05)
    read_mb = seen.read_sensor_trace().disk_mb_per_s.mean() * long_s
    assert read_mb == pytest.approx(sum(epoch.disk_read_mb for epoch in seen.epochs), rel=0.05)


NETWORK = WorkloadPlan(
    name="network", model="resnet18", input=(3, 64, 64), classes=10, images=Images(count=640, width=400, height=300)
)


def test_slower_launches_slow_computing_by_the_host_s_share():
    costs = estimate_costs("agx-xavier", NETWORK, "train", 4)
    does, norm = costs.compute_cost(costs.spec.maxn), find_pipeline_kind("agx-xavier").overlap
    slower_s = (does.gpu_s**norm + (1.001 * does.launch_s) ** norm) ** (1.0 / norm)
    assert slower_s / does.compute_s - 1.0 == pytest.approx(0.001 * does.host_share, rel=0.01)
    assert 0.02 < does.host_share < 0.98


def test_watts_come_of_computing_and_of_loading_cores_and_waiting_draws_least():
    costs = estimate_costs("agx-xavier", NETWORK, "train", 16)
    mode = costs.spec.maxn
    does = costs.compute_cost(mode)

    def watts(stall_s: float, cores: float) -> float:
        none, stall = np.zeros(1), np.array([stall_s])
        compute_s = np.array([does.compute_s])
        step = SimulatedEpoch(none, none, none, stall, none, compute_s, none, np.array([cores]))
        return float(costs.power_w(mode, step)[0])

    training = does.compute_s / (does.compute_s + 9 * does.compute_s)
    assert watts(0.0, 1.0) == pytest.approx(watts(0.0, 0.5))
    core_w = LOADING_SHARE * costs.spec.max_w.value / max(costs.spec.cores)
    assert watts(0.0, 5.0) - watts(0.0, 3.0) > 2 * core_w * 0.99
    assert watts(0.0, 3.0) - watts(0.0, 1.0) == pytest.approx(watts(0.0, 5.0) - watts(0.0, 3.0))
    assert watts(9 * does.compute_s, training) < 0.7 * watts(0.0, 1.0)
