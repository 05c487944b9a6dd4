"""An epoch is played as a DataLoader would play it."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import numpy as np
import pytest
from contracts.pipelines import PLAIN, by_recursion, by_ticks, pipelines, scattered, uncontended
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.costs.input_pipeline.epoch_simulation import simulate_epoch
from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Loader, SampleCost, StepCost

STEPS = 12


@given(pipelines(), st.integers(0, 1000))
def test_where_nobody_waits_for_anybody_an_epoch_is_what_the_recursion_says(pipeline: InputPipeline, seed: int) -> None:
    free, jitter = uncontended(pipeline), scattered(STEPS, seed)
    played = simulate_epoch(free, STEPS, jitter)
    begins = by_recursion(free, STEPS, jitter)
    np.testing.assert_allclose(played.start_s, begins[:-1], rtol=1e-9, atol=1e-12)
    assert played.e2e_s == pytest.approx(begins[-1], rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(pipelines(most_workers=3))
def test_shared_cores_and_storage_take_as_long_as_when_played_in_small_ticks(pipeline: InputPipeline) -> None:
    tick_s = 2e-5
    assert simulate_epoch(pipeline, 6).e2e_s == pytest.approx(by_ticks(pipeline, 6, tick_s), rel=0.02, abs=60 * tick_s)


@given(pipelines(), st.integers(0, 1000))
def test_the_parts_of_the_minibatches_add_up_to_the_epoch(pipeline: InputPipeline, seed: int) -> None:
    played = simulate_epoch(pipeline, STEPS, scattered(STEPS, seed))
    ends = np.append(played.start_s[1:], played.e2e_s)
    np.testing.assert_allclose(played.start_s + played.step_s, ends, rtol=1e-9, atol=1e-12)
    for column in (played.stall_s, played.copy_s, played.compute_s, played.overhead_s, played.cpu_busy):
        assert (column >= 0).all()
    assert (played.cpu_busy <= pipeline.host.cores + 1e-9).all()


@given(pipelines())
def test_without_workers_the_stall_is_the_making_and_with_them_never_longer(pipeline: InputPipeline) -> None:
    inline = simulate_epoch(replace(pipeline, loader=Loader(0)), STEPS)
    np.testing.assert_allclose(inline.stall_s, inline.fetch_s + inline.preprocess_s, rtol=1e-9, atol=1e-12)
    beside = simulate_epoch(replace(uncontended(pipeline), loader=Loader(2)), STEPS)
    alone = simulate_epoch(replace(uncontended(pipeline), loader=Loader(0)), STEPS)
    collate_s = pipeline.step.collate_s
    assert (beside.stall_s <= alone.stall_s + collate_s + 1e-12).all()


def test_starting_the_workers_takes_the_training_s_time_before_the_first_batch() -> None:
    quick = simulate_epoch(PLAIN, STEPS)
    slow = simulate_epoch(replace(PLAIN, start_s=0.05), STEPS)
    assert slow.stall_s[0] - quick.stall_s[0] == pytest.approx(2 * 0.05, rel=1e-6)
    np.testing.assert_allclose(slow.step_s[1:], quick.step_s[1:], rtol=1e-6)


def test_a_queue_that_is_longer_evens_out_a_slow_batch() -> None:
    jitter = scattered(200, 3)
    slower = replace(PLAIN.samples, preprocess_s=0.0027)
    bare = replace(PLAIN, host=HostCores(1000.0), samples=slower, step=replace(PLAIN.step, compute_s=0.005))
    waits = [simulate_epoch(replace(bare, loader=Loader(2, ahead)), 200, jitter).stall_s.sum() for ahead in (1, 2, 8)]
    assert waits[0] > waits[1] > waits[2]


def test_an_epoch_without_minibatches_and_workers_without_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="0 minibatches"):
        simulate_epoch(PLAIN, 0)
    with pytest.raises(ValueError, match="prefetch 0"):
        simulate_epoch(replace(PLAIN, loader=Loader(2, 0)), STEPS)
    assert simulate_epoch(replace(PLAIN, loader=Loader(0, 0)), STEPS).e2e_s > 0


NOTHING = replace(
    PLAIN,
    storage=replace(PLAIN.storage, latency_s=0.0),
    samples=SampleCost(0.0, 0.0, 0.0),
    step=StepCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
)


@pytest.mark.parametrize("workers", [0, 2, 64])
@pytest.mark.parametrize("batch_size", [1, 1024])
@pytest.mark.parametrize("steps", [1, 5])
def test_odd_settings_are_played_as_well(workers: int, batch_size: int, steps: int) -> None:
    odd = replace(PLAIN, loader=Loader(workers, 1), batch_size=batch_size, host=HostCores(1.0, 1.0, 0.5), cached=0.0)
    for pipeline in (odd, replace(odd, storage=replace(odd.storage, latency_s=0.0, at_once=1))):
        played = simulate_epoch(pipeline, steps)
        work_s = batch_size * (pipeline.samples.fetch_s + pipeline.samples.preprocess_s)
        assert (played.fetch_s + played.preprocess_s >= work_s).all()
        assert played.e2e_s >= steps * work_s
        assert (played.cpu_busy <= 1.0 + 1e-9).all()
    nothing = simulate_epoch(replace(NOTHING, loader=Loader(workers)), steps)
    assert nothing.e2e_s == 0.0
    assert (nothing.cpu_busy == 0.0).all()


def test_cores_are_busy_as_long_as_there_is_work_on_them() -> None:
    free = replace(PLAIN, host=HostCores(1000.0, spins=False), cached=1.0)
    played = simulate_epoch(free, STEPS)
    making_s = free.batch_size * (free.samples.fetch_s + free.samples.preprocess_s) + free.step.collate_s
    step = free.step
    training_s = step.handover_s + step.copy_s + step.overhead_s + step.compute_s * step.host_share
    assert float(played.cpu_busy @ played.step_s) == pytest.approx(STEPS * (making_s + training_s))
    spinning = simulate_epoch(replace(free, host=HostCores(1000.0)), STEPS)
    waiting_s = STEPS * step.compute_s * (1.0 - step.host_share)
    assert float(spinning.cpu_busy @ spinning.step_s) == pytest.approx(STEPS * (making_s + training_s) + waiting_s)


def test_a_long_epoch_is_played_in_less_than_half_a_second() -> None:
    begun_s = process_time()
    simulate_epoch(replace(PLAIN, loader=Loader(4), cached=0.0), 3750)
    assert process_time() - begun_s < 0.5
