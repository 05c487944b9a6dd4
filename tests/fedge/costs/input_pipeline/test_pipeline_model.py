"""The closed form agrees with the simulation, and work slows down beside other work."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.pipelines import PLAIN, pipelines, uncontended
from hypothesis import given, settings

from fedge.costs.input_pipeline.epoch_simulation import simulate_epoch
from fedge.costs.input_pipeline.pipeline_model import (
    ClockShares,
    HostCores,
    Loader,
    Storage,
    compute_slowdown,
    compute_slowdowns,
    count_served_readers,
    file_read_s,
    scale_to_clocks,
    solve_modes,
    solve_steady_state,
)


def test_turns_and_crowding_multiply_and_the_background_counts():
    host = HostCores(4.0, background=1.0, crowding=0.6)
    assert compute_slowdown(host, 1) == pytest.approx(1.0 + 0.6 * 1 / 3)
    assert compute_slowdown(host, 3) == pytest.approx(1.6)
    assert compute_slowdown(host, 5) == pytest.approx(6 / 4 * 1.6)
    assert compute_slowdown(HostCores(1.0, crowding=0.5), 2) == pytest.approx(2 * 1.5)
    assert compute_slowdown(HostCores(1.0, crowding=0.5), 1) == 1.0
    cores = np.array([1.0, 2.0, 4.0])
    each = [compute_slowdown(replace(host, cores=float(one)), 3) for one in cores]
    np.testing.assert_array_equal(compute_slowdowns(cores, host, 3), each)


def test_a_storage_moves_one_reader_s_bytes_at_a_time():
    disk = Storage("disk", mb_per_s=100.0, latency_s=0.003, at_once=8)
    assert file_read_s(disk, 0.1) == pytest.approx(0.004)
    assert count_served_readers(disk, 0.1) == pytest.approx(4.0)
    assert count_served_readers(replace(disk, at_once=2), 0.1) == 2.0
    assert count_served_readers(replace(disk, latency_s=0.0), 0.1) == 1.0
    assert count_served_readers(disk, 0.0) == 8.0
    assert count_served_readers(replace(disk, latency_s=0.0), 0.0) == 8.0


@given(pipelines())
def test_where_nobody_waits_for_anybody_the_pace_is_exact(pipeline):
    free = uncontended(pipeline)
    played, found = simulate_epoch(free, 60), solve_steady_state(free)
    assert found.step_s == pytest.approx(played.step_s[20:].mean(), rel=0.02)


@settings(deadline=None)
@given(pipelines(most_workers=4))
def test_on_shared_cores_and_storage_it_is_near(pipeline):
    played, found = simulate_epoch(pipeline, 60), solve_steady_state(pipeline)
    assert found.step_s == pytest.approx(played.step_s[20:].mean(), rel=0.35)
    parts = pipeline.step.copy_s + pipeline.step.overhead_s
    assert found.step_s >= found.stall_s + found.compute_s + parts * (1 - 1e-9) - 1e-12


def test_loading_sets_the_pace_by_the_workers_or_by_the_storage():
    alone = HostCores(1000.0)
    loading = replace(PLAIN, samples=replace(PLAIN.samples, preprocess_s=0.02), host=alone, cached=1.0)
    making_s = 4 * (0.0001 + 0.02) + 0.0003
    assert solve_steady_state(loading).step_s == pytest.approx(making_s / 2, rel=1e-3)
    assert solve_steady_state(replace(loading, loader=Loader(64))).stall_s == 0.0
    slow = Storage("tape", mb_per_s=1.0, latency_s=0.0, at_once=1)
    reading = replace(PLAIN, storage=slow, cached=0.0, host=alone)
    assert solve_steady_state(reading).step_s == pytest.approx(4 * 0.1 / 1.0, rel=1e-3)
    assert solve_steady_state(replace(reading, loader=Loader(64))).step_s == pytest.approx(0.4, rel=1e-3)


@pytest.mark.parametrize("workers", [64, 300])
def test_many_workers_share_the_cores_and_nothing_overflows(workers):
    host = HostCores(4.0, background=0.5, crowding=0.5)
    crowd = replace(PLAIN, samples=replace(PLAIN.samples, preprocess_s=0.02), host=host, loader=Loader(workers))
    found = solve_steady_state(crowd)
    work_s = (4 * (0.0001 + 0.02) + 0.0003) * (1.0 + host.crowding)
    assert found.step_s >= work_s / host.cores * (1.0 - 1e-9)
    if workers == 64:
        assert found.step_s == pytest.approx(simulate_epoch(crowd, 1000).step_s[300:800].mean(), rel=0.05)


@given(pipelines())
def test_many_modes_at_once_are_each_mode_by_itself(pipeline):
    shares = np.array([[1.0, 1.0, 1.0, 1.0], [0.5, 0.4, 0.3, 0.5], [0.5, 1.0, 0.1, 0.2]])
    cores, compute_s, host_share = np.array([8.0, 4.0, 2.0]), np.array([0.01, 0.03, 0.02]), np.array([0.1, 0.5, 0.9])
    top = replace(pipeline, host=replace(pipeline.host, cores=8.0))
    found = solve_modes(top, shares, cores, compute_s, host_share)
    for i in range(3):
        clocks = ClockShares(int(cores[i]), float(shares[i, 1]), float(shares[i, 3]))
        one = solve_steady_state(scale_to_clocks(top, clocks, float(compute_s[i]), float(host_share[i])))
        assert found.step_s[i] == pytest.approx(one.step_s, rel=1e-6)
        assert found.stall_s[i] == pytest.approx(one.stall_s, rel=1e-4, abs=1e-7)
