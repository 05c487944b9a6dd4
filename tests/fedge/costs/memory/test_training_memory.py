"""The predicted need covers what torch allocates: every optimiser, both precisions, networks with attention."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from contracts.measured_memory import FUSED, NETWORKS, build_network, measure_peak_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.costs.layers.network_record import find_known_network
from fedge.costs.layers.torch_trace import trace_module
from fedge.costs.memory import step_need
from fedge.costs.memory.optimizer_state import count_optimizer_state, count_torch_optimizer
from fedge.costs.memory.step_need import TrainingSetup, predict_step_need
from fedge.devices.catalogue import find
from fedge.errors import UnknownName

TX2 = find("tx2")
OPTIMIZERS = {
    "plain SGD": (0.0, lambda weights, rate, _: torch.optim.SGD(weights, lr=rate)),
    "momentum": (1.0, lambda weights, rate, momentum: torch.optim.SGD(weights, lr=rate, momentum=momentum)),
    "Adam": (2.0, lambda weights, rate, _: torch.optim.Adam(weights, lr=rate)),
    "AdamW": (2.0, lambda weights, rate, _: torch.optim.AdamW(weights, lr=rate, foreach=True)),
    "AMSGrad": (3.0, lambda weights, rate, _: torch.optim.Adam(weights, lr=rate, amsgrad=True, foreach=True)),
    "Adagrad": (1.0, lambda weights, rate, _: torch.optim.Adagrad(weights, lr=rate)),
}


@pytest.fixture
def without_cuda(monkeypatch):
    """Let predictions be those of the network alone, without CUDA's context and libraries."""
    stock = step_need.load_stock_calibration()
    coefficients = np.where(np.arange(6) == 0, 0.0, stock.memory.coefficients)
    own = replace(stock, memory=replace(stock.memory, coefficients=coefficients, floor_mb=0.0))
    monkeypatch.setattr(step_need, "load_stock_calibration", lambda: own)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_step_allocates_more_than_is_predicted(name, optimizer, mixed, without_cuda):
    module, shape = build_network(name)
    state, make = OPTIMIZERS[optimizer]
    need = predict_step_need(trace_module(module, shape, name), TX2, 32, TrainingSetup(state, mixed))
    real_mb = measure_peak_bytes(module, shape, 32, make, mixed=mixed) / 1e6
    assert real_mb <= 1.05 * need.memory_mb
    assert real_mb <= need.upper_mb
    assert need.memory_mb <= (3.5 if name in FUSED else 2.0) * real_mb


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_of_an_optimiser_is_counted_exactly(optimizer):
    state, make = OPTIMIZERS[optimizer]
    assert count_optimizer_state(make) == state


def test_an_optimiser_that_a_plain_step_does_not_show_is_not_counted():
    assert count_optimizer_state(lambda weights, *_: torch.optim.LBFGS(weights)) is None


def test_optimisers_of_torch_are_counted_by_name():
    assert [count_torch_optimizer(name, "--optimizer") for name in ("SGD", "adamw", "RMSprop")] == [1.0, 2.0, 1.0]
    assert count_torch_optimizer("Adafactor", "--optimizer") < 0.5
    with pytest.raises(UnknownName, match=r"--optimizer: got 'adamant'.*known: SGD, Adam"):
        count_torch_optimizer("adamant", "--optimizer")


@given(st.sampled_from(["resnet18-imagenet", "vit-b16-cifar10"]), st.integers(8, 64), st.floats(1.01, 4))
@settings(deadline=None)
def test_a_state_needs_its_bytes_and_time_and_is_no_measurement(name, batch, state):
    network = find_known_network(name)
    own, more = (predict_step_need(network, TX2, batch, TrainingSetup(one)) for one in (state, state + 1))
    assert more.memory_mb - own.memory_mb == pytest.approx(4e-6 * network.trained_parameters)
    assert more.step_s >= own.step_s
    assert more.label == "estimated"
    assert "optimiser's state" in more.source


def test_mixed_precision_takes_half_the_activations_and_is_less_certain():
    network = find_known_network("resnet50-imagenet")
    single, mixed = (predict_step_need(network, TX2, 32, TrainingSetup(mixed=mixed)) for mixed in (False, True))
    assert 0.5 < mixed.memory_mb / single.memory_mb < 0.75
    assert mixed.memory_sd_log > single.memory_sd_log
    assert (single.label, mixed.label) == ("calibrated", "estimated")


def test_arithmetic_in_halves_is_faster_on_tensor_cores_only():
    network = find_known_network("resnet50-imagenet")
    gains = [
        predict_step_need(network, board, 32).step_s
        / predict_step_need(network, board, 32, TrainingSetup(mixed=True)).step_s
        for board in (TX2, find("agx-orin"))
    ]
    assert 1.0 < gains[0] < 1.6 < gains[1]


def test_a_network_without_counts_is_not_taken_to_need_less_in_mixed_precision():
    network = find_known_network("yolov8n-coco")
    assert network.saved_bytes(mixed=True) is None
    single, mixed = (predict_step_need(network, TX2, 8, TrainingSetup(mixed=mixed)) for mixed in (False, True))
    assert mixed.memory_mb >= single.memory_mb
