"""An epoch is simulated as PyTorch's own DataLoader runs it; the clock jumps to the next end."""

from __future__ import annotations

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

from fedge.costs.input_pipeline.epoch_simulation import Activity, Jitter, SimulationClock, simulate_epoch
from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Loader, SampleCost, StepCost, Storage
from fedge.types import Floats


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


WORKERS, PREFETCH = 2, 2
MAKING_S = 0.03
"""Of a batch; times how much longer each one takes."""
SLOWER = (1.0, 0.5, 5.0, 1.0, 0.5, 1.0, 1.5, 0.5, 1.0, 0.5, 0.5, 4.0, 0.5, 1.0, 1.0, 1.5, 1.0, 0.5, 1.5, 1.0)
TRAINING_S = (0.005, 0.03, 0.06)
"""Of a minibatch: bound by the workers, by either, by the training."""
WITHIN_S = 0.003
"""Of a batch's wait, in the mean; a batch takes about a millisecond from a worker to the training."""
PROGRAM = textwrap.dedent(
    """
    import json, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    asked = json.load(sys.stdin)

    class Sleeping(Dataset):
        def __len__(self):
            return len(asked["making_s"])

        def __getitem__(self, i):
            time.sleep(asked["making_s"][i])
            return torch.tensor([i, torch.utils.data.get_worker_info().id])

    torch.set_num_threads(1)
    told = []
    for training_s in asked["training_s"]:
        batches = iter(DataLoader(Sleeping(), batch_size=1, num_workers=asked["workers"],
                                  prefetch_factor=asked["prefetch"], multiprocessing_context="fork"))
        for _ in asked["making_s"]:
            start = time.monotonic()
            which, worker = next(batches)[0].tolist()
            told.append([which, worker, time.monotonic() - start, start])
            time.sleep(training_s)
    json.dump(told, sys.stdout)
    """
)


def slept() -> Floats:
    """What PyTorch's loader does, shape (training times, batches, 4): number, worker, seconds of waiting, start."""
    asked = {
        "making_s": [MAKING_S * slower for slower in SLOWER],
        "training_s": TRAINING_S,
        "workers": WORKERS,
        "prefetch": PREFETCH,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=60
    )
    return np.array(json.loads(done.stdout)).reshape(len(TRAINING_S), len(SLOWER), 4)


def pipeline(training_s: float, prefetch: int = PREFETCH) -> InputPipeline:
    """The same as a model: whatever sleeps asks for no core."""
    return InputPipeline(
        batch_size=1,
        loader=Loader(WORKERS, prefetch),
        storage=Storage("none", 1.0, 0.0, 1.0),
        samples=SampleCost(0.0, 0.0, MAKING_S),
        step=StepCost(training_s, host_share=0.0, copy_s=0.0, collate_s=0.0, handover_s=0.0, overhead_s=0.0),
        host=HostCores(1000.0, spins=False),
    )


def waits(prefetch: int = PREFETCH) -> Floats:
    """What is played, shape (training times, batches): seconds of waiting."""
    ones = np.ones(len(SLOWER))
    jitter = Jitter(ones, np.array(SLOWER), ones)
    return np.array([simulate_epoch(pipeline(s, prefetch), len(SLOWER), jitter).stall_s for s in TRAINING_S])


@pytest.mark.slow
def test_batches_come_in_pytorch_s_order_and_the_training_waits_as_long():
    pytest.importorskip("torch")

    def off_s(played: Floats) -> Floats:
        # The first batch waits for the workers' start as well, which takes as long as it takes on this machine.
        mean: Floats = np.abs(seen[:, :, 2] - played)[:, 1:].mean(axis=1)
        return mean

    for _ in range(6):  # where the machine is busy with something else, sleeps get longer
        seen = slept()
        np.testing.assert_array_equal(seen[:, :, 0], [range(len(SLOWER))] * 3)
        np.testing.assert_array_equal(seen[:, :, 1], [np.arange(len(SLOWER)) % WORKERS] * 3)
        if off_s(waits()).max() < WITHIN_S:
            break
    assert off_s(waits()).max() < WITHIN_S
    assert off_s(waits(prefetch=1)).max() > 1.5 * WITHIN_S
