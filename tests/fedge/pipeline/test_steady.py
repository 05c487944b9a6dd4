"""The closed form says what playing shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts.pipelines import PLAIN, pipelines, uncontended
from hypothesis import given, settings

from fedge.pipeline.modes import Clocks, at_clocks, host_factor, paces_at
from fedge.pipeline.records import Host, Loader, Pipeline, Storage
from fedge.pipeline.simulate import play
from fedge.pipeline.steady import steady


@given(pipelines())
def test_where_nobody_waits_for_anybody_the_pace_is_exact(pipeline: Pipeline) -> None:
    free = uncontended(pipeline)
    played, found = play(free, 60), steady(free)
    assert found.step_s == pytest.approx(played.step_s[20:].mean(), rel=0.02)


@settings(deadline=None)
@given(pipelines(most_workers=4))
def test_on_shared_cores_and_storage_it_is_near(pipeline: Pipeline) -> None:
    played, found = play(pipeline, 60), steady(pipeline)
    assert found.step_s == pytest.approx(played.step_s[20:].mean(), rel=0.35)
    parts = pipeline.step.copy_s + pipeline.step.overhead_s
    assert found.step_s >= found.stall_s + found.compute_s + parts * (1 - 1e-9) - 1e-12


def test_loading_sets_the_pace_by_the_workers_or_by_the_storage() -> None:
    alone = Host(1000.0)
    loading = replace(PLAIN, samples=replace(PLAIN.samples, preprocess_s=0.02), host=alone, cached=1.0)
    making_s = 4 * (0.0001 + 0.02) + 0.0003
    assert steady(loading).step_s == pytest.approx(making_s / 2, rel=1e-3)
    assert steady(replace(loading, loader=Loader(64))).stall_s == 0.0
    slow = Storage("tape", mb_per_s=1.0, latency_s=0.0, at_once=1)
    reading = replace(PLAIN, storage=slow, cached=0.0, host=alone)
    assert steady(reading).step_s == pytest.approx(4 * 0.1 / 1.0, rel=1e-3)
    assert steady(replace(reading, loader=Loader(64))).step_s == pytest.approx(0.4, rel=1e-3)


@pytest.mark.parametrize("workers", [64, 300])
def test_many_workers_share_the_cores_and_nothing_overflows(workers: int) -> None:
    host = Host(4.0, background=0.5, crowding=0.5)
    crowd = replace(PLAIN, samples=replace(PLAIN.samples, preprocess_s=0.02), host=host, loader=Loader(workers))
    found = steady(crowd)
    work_s = (4 * (0.0001 + 0.02) + 0.0003) * (1.0 + host.crowding)
    assert found.step_s >= work_s / host.cores * (1.0 - 1e-9)
    if workers == 64:
        assert found.step_s == pytest.approx(play(crowd, 1000).step_s[300:800].mean(), rel=0.05)


@given(pipelines())
def test_many_modes_at_once_are_each_mode_by_itself(pipeline: Pipeline) -> None:
    shares = np.array([[1.0, 1.0, 1.0, 1.0], [0.5, 0.4, 0.3, 0.5], [0.5, 1.0, 0.1, 0.2]])
    cores, compute_s, host_share = np.array([8.0, 4.0, 2.0]), np.array([0.01, 0.03, 0.02]), np.array([0.1, 0.5, 0.9])
    top = replace(pipeline, host=replace(pipeline.host, cores=8.0))
    found = paces_at(top, shares, cores, compute_s, host_share)
    for i in range(3):
        clocks = Clocks(int(cores[i]), float(shares[i, 1]), float(shares[i, 3]))
        one = steady(at_clocks(top, clocks, float(compute_s[i]), float(host_share[i])))
        assert found.step_s[i] == pytest.approx(one.step_s, rel=1e-6)
        assert found.stall_s[i] == pytest.approx(one.stall_s, rel=1e-4, abs=1e-7)


def test_the_host_is_slower_at_lower_clocks_of_cpu_and_memory() -> None:
    factors = host_factor(np.array([1.0, 0.5, 1.0]), np.array([1.0, 1.0, 0.5]))
    assert factors[0] == pytest.approx(1.0)
    assert factors[1] > factors[2] > 1.0
