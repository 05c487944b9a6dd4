"""An epoch is played as PyTorch's own DataLoader goes, whose samples sleep, so that cores do not matter."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

from fedge.costs.input_pipeline.epoch_simulation import Jitter, simulate_epoch
from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Loader, SampleCost, StepCost, Storage
from fedge.costs.input_pipeline.steady_state import solve_steady_state
from fedge.types import Floats

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
def test_batches_come_in_pytorch_s_order_and_the_training_waits_as_long() -> None:
    pytest.importorskip("torch")

    def off_s(played: Floats) -> Floats:
        # The first batch waits for the workers' start as well, which takes as long as it takes on this machine.
        mean: Floats = np.abs(seen[:, :, 2] - played)[:, 1:].mean(axis=1)
        return mean

    for _ in range(3):  # where the machine is busy with something else, sleeps get longer
        seen = slept()
        np.testing.assert_array_equal(seen[:, :, 0], [range(len(SLOWER))] * 3)
        np.testing.assert_array_equal(seen[:, :, 1], [np.arange(len(SLOWER)) % WORKERS] * 3)
        if off_s(waits()).max() < WITHIN_S:
            break
    assert off_s(waits()).max() < WITHIN_S
    assert off_s(waits(prefetch=1)).max() > 1.5 * WITHIN_S


def test_the_closed_form_knows_the_same_pace() -> None:
    for training_s in TRAINING_S:
        model = pipeline(training_s)
        assert solve_steady_state(model).step_s == pytest.approx(max(training_s, MAKING_S / WORKERS), rel=1e-6)
        assert solve_steady_state(replace(model, loader=Loader(0))).step_s == pytest.approx(
            training_s + MAKING_S, rel=1e-6
        )
