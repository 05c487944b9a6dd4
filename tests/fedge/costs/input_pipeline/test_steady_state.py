"""The closed form says what playing shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts.pipelines import PLAIN, pipelines, uncontended
from hypothesis import given, settings

from fedge.costs.input_pipeline.epoch_simulation import simulate_epoch
from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Loader, Storage
from fedge.costs.input_pipeline.pipeline_modes import ClockShares, compute_host_factor, scale_to_clocks, solve_modes
from fedge.costs.input_pipeline.steady_state import solve_steady_state


@given(pipelines())
def test_where_nobody_waits_for_anybody_the_pace_is_exact(pipeline: InputPipeline) -> None:
    free = uncontended(pipeline)
    played, found = simulate_epoch(free, 60), solve_steady_state(free)
    assert found.step_s == pytest.approx(played.step_s[20:].mean(), rel=0.02)


@settings(deadline=None)
@given(pipelines(most_workers=4))
def test_on_shared_cores_and_storage_it_is_near(pipeline: InputPipeline) -> None:
    played, found = simulate_epoch(pipeline, 60), solve_steady_state(pipeline)
    assert found.step_s == pytest.approx(played.step_s[20:].mean(), rel=0.35)
    parts = pipeline.step.copy_s + pipeline.step.overhead_s
    assert found.step_s >= found.stall_s + found.compute_s + parts * (1 - 1e-9) - 1e-12


def test_loading_sets_the_pace_by_the_workers_or_by_the_storage() -> None:
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
def test_many_workers_share_the_cores_and_nothing_overflows(workers: int) -> None:
    host = HostCores(4.0, background=0.5, crowding=0.5)
    crowd = replace(PLAIN, samples=replace(PLAIN.samples, preprocess_s=0.02), host=host, loader=Loader(workers))
    found = solve_steady_state(crowd)
    work_s = (4 * (0.0001 + 0.02) + 0.0003) * (1.0 + host.crowding)
    assert found.step_s >= work_s / host.cores * (1.0 - 1e-9)
    if workers == 64:
        assert found.step_s == pytest.approx(simulate_epoch(crowd, 1000).step_s[300:800].mean(), rel=0.05)


@given(pipelines())
def test_many_modes_at_once_are_each_mode_by_itself(pipeline: InputPipeline) -> None:
    shares = np.array([[1.0, 1.0, 1.0, 1.0], [0.5, 0.4, 0.3, 0.5], [0.5, 1.0, 0.1, 0.2]])
    cores, compute_s, host_share = np.array([8.0, 4.0, 2.0]), np.array([0.01, 0.03, 0.02]), np.array([0.1, 0.5, 0.9])
    top = replace(pipeline, host=replace(pipeline.host, cores=8.0))
    found = solve_modes(top, shares, cores, compute_s, host_share)
    for i in range(3):
        clocks = ClockShares(int(cores[i]), float(shares[i, 1]), float(shares[i, 3]))
        one = solve_steady_state(scale_to_clocks(top, clocks, float(compute_s[i]), float(host_share[i])))
        assert found.step_s[i] == pytest.approx(one.step_s, rel=1e-6)
        assert found.stall_s[i] == pytest.approx(one.stall_s, rel=1e-4, abs=1e-7)


def test_the_host_is_slower_at_lower_clocks_of_cpu_and_memory() -> None:
    factors = compute_host_factor(np.array([1.0, 0.5, 1.0]), np.array([1.0, 1.0, 0.5]))
    assert factors[0] == pytest.approx(1.0)
    assert factors[1] > factors[2] > 1.0
