"""An epoch is simulated as PyTorch's own DataLoader runs it; the clock jumps to the next end."""

import json
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from contracts.pipelines import PLAIN, by_recursion, by_ticks, pipelines, scattered, uncontended
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.costs.input_pipeline.epoch_simulation import Activity, SimulationClock, simulate_epoch
from fedge.costs.input_pipeline.pipeline_model import HostCores, Loader, SampleCost, StepCost


def test_waiting_has_no_end_of_its_own():
    clock = SimulationClock(HostCores(1.0), served=1.0, most=1)
    with pytest.raises(ValueError, match="WAITS"):
        clock.begin(0, Activity.WAITS, 1.0)
    with pytest.raises(RuntimeError, match="waits for another"):
        clock.advance_to_next_end()


STEPS = 12


@given(pipelines(), st.integers(0, 1000))
def test_where_nobody_waits_for_anybody_an_epoch_is_what_the_recursion_says(pipeline, seed):
    free, jitter = uncontended(pipeline), scattered(STEPS, seed)
    played = simulate_epoch(free, STEPS, jitter)
    begins = by_recursion(free, STEPS, jitter)
    np.testing.assert_allclose(played.start_s, begins[:-1], rtol=1e-7, atol=1e-12)
    assert played.e2e_s == pytest.approx(begins[-1], rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(pipelines(most_workers=3))
def test_shared_cores_and_storage_take_as_long_as_when_played_in_small_ticks(pipeline):
    tick_s = 2e-5
    assert simulate_epoch(pipeline, 6).e2e_s == pytest.approx(by_ticks(pipeline, 6, tick_s), rel=0.02, abs=60 * tick_s)


@given(pipelines(), st.integers(0, 1000))
def test_the_parts_of_the_minibatches_add_up_to_the_epoch(pipeline, seed):
    played = simulate_epoch(pipeline, STEPS, scattered(STEPS, seed))
    ends = np.append(played.start_s[1:], played.e2e_s)
    np.testing.assert_allclose(played.start_s + played.step_s, ends, rtol=1e-7, atol=1e-12)
    for column in (played.stall_s, played.copy_s, played.compute_s, played.overhead_s, played.cpu_busy):
        assert (column >= 0).all()
    assert (played.cpu_busy <= pipeline.host.cores + 1e-9).all()


@given(pipelines())
def test_without_workers_the_stall_is_the_making_and_with_them_never_longer(pipeline):
    inline = simulate_epoch(replace(pipeline, loader=Loader(0)), STEPS)
    np.testing.assert_allclose(inline.stall_s, inline.fetch_s + inline.preprocess_s, rtol=1e-7, atol=1e-12)
    beside = simulate_epoch(replace(uncontended(pipeline), loader=Loader(2)), STEPS)
    alone = simulate_epoch(replace(uncontended(pipeline), loader=Loader(0)), STEPS)
    collate_s = pipeline.step.collate_s
    assert (beside.stall_s <= alone.stall_s + collate_s + 1e-12).all()


def test_starting_the_workers_takes_the_training_s_time_before_the_first_batch():
    quick = simulate_epoch(PLAIN, STEPS)
    slow = simulate_epoch(replace(PLAIN, start_s=0.05), STEPS)
    assert slow.stall_s[0] - quick.stall_s[0] == pytest.approx(2 * 0.05, rel=1e-6)
    np.testing.assert_allclose(slow.step_s[1:], quick.step_s[1:], rtol=1e-6)


def test_an_epoch_without_minibatches_and_workers_without_batches_are_refused():
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
def test_odd_settings_are_played_as_well(workers, batch_size, steps):
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


def test_cores_are_busy_as_long_as_there_is_work_on_them():
    free = replace(PLAIN, host=HostCores(1000.0, spins=False), cached=1.0)
    played = simulate_epoch(free, STEPS)
    making_s = free.batch_size * (free.samples.fetch_s + free.samples.preprocess_s) + free.step.collate_s
    step = free.step
    training_s = step.handover_s + step.copy_s + step.overhead_s + step.compute_s * step.host_share
    assert float(played.cpu_busy @ played.step_s) == pytest.approx(STEPS * (making_s + training_s))
    spinning = simulate_epoch(replace(free, host=HostCores(1000.0)), STEPS)
    waiting_s = STEPS * step.compute_s * (1.0 - step.host_share)
    assert float(spinning.cpu_busy @ spinning.step_s) == pytest.approx(STEPS * (making_s + training_s) + waiting_s)


PROGRAM = textwrap.dedent(
    """
    import json, sys, torch
    from torch.utils.data import DataLoader, Dataset, get_worker_info

    class Names(Dataset):
        def __len__(self):
            return 9

        def __getitem__(self, i):
            return torch.tensor([i, get_worker_info().id])

    loader = DataLoader(Names(), batch_size=1, num_workers=2, prefetch_factor=2, multiprocessing_context="fork")
    json.dump([batch[0].tolist() for batch in loader], sys.stdout)
    """
)


@pytest.mark.slow
def test_pytorch_s_loader_gives_batch_i_to_worker_i_modulo_their_number_and_keeps_the_order():
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[i, i % 2] for i in range(9)]
