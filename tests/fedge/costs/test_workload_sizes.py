"""A forward pass is a third of a training step, by the same counting."""

from __future__ import annotations

import pytest

from fedge.costs.cost_profile import load_calibrated_inference
from fedge.costs.workload_sizes import forward_size_of_batch, load_forward_sizes, load_workload_sizes


@pytest.mark.parametrize("name", sorted(load_workload_sizes()))
def test_three_forward_passes_are_a_training_step(name):
    step = load_workload_sizes()[name]
    forward = forward_size_of_batch(load_forward_sizes()[name], step.batch_size)

    assert 3 * forward.gflop_per_step == pytest.approx(step.gflop_per_step, rel=1e-3)
    assert 3 * forward.gbyte_per_step == pytest.approx(step.gbyte_per_step, rel=1e-3)


def test_every_workload_with_inference_costs_has_its_size():
    assert {profile.workload for profile in load_calibrated_inference()} <= load_forward_sizes().keys()


def test_weights_are_read_once_per_batch():
    size = load_forward_sizes()["vit-b16-cifar10"]

    assert forward_size_of_batch(size, 2).gflop_per_step == 2 * forward_size_of_batch(size, 1).gflop_per_step
    assert forward_size_of_batch(size, 2).gbyte_per_step - forward_size_of_batch(
        size, 1
    ).gbyte_per_step == pytest.approx(size.sample_mb / 1e3)
