"""What autograd keeps is counted to the byte, in mixed precision never too low."""

import pytest
from contracts.measured_memory import FUSED, NETWORKS, build_network, kept_bytes_per_sample

from fedge.costs.layers.network_cost import narrow_network
from fedge.costs.layers.network_record import format_layers, network_from_dict, network_to_dict, parse_layers
from fedge.costs.layers.torch_trace import trace_module


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bytes_of_a_further_sample_are_those_that_autograd_keeps(name):
    module, shape = build_network(name)
    counted = trace_module(module, shape, name).saved_bytes(mixed=False)
    real = kept_bytes_per_sample(module, shape, mixed=False)
    assert counted >= real if name in FUSED else counted == real


@pytest.mark.parametrize("name", NETWORKS)
def test_mixed_precision_is_never_counted_too_low(name):
    module, shape = build_network(name)
    counted = trace_module(module, shape, name).saved_bytes(mixed=True)
    real = kept_bytes_per_sample(module, shape, mixed=True)
    assert counted >= real
    if name in {"convolutions", "adapted"}:
        assert counted == real


def test_the_module_is_in_its_own_modes_again():
    module, shape = build_network("convolutions")
    module[1].eval()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    trace_module(module, shape, "net")
    assert module.training
    assert not module[1].training
    assert all((buffer == before[name]).all() for name, buffer in module.named_buffers())


def test_a_network_that_fails_in_training_mode_keeps_an_unknown_amount():
    module, shape = build_network("perceptron")

    def refuse_training(part, _):
        if part.training:
            raise RuntimeError("inference only")

    module.register_forward_pre_hook(refuse_training)
    counted = trace_module(module, shape, "net")
    assert counted.flop
    assert counted.saved_bytes(mixed=False) is None


def test_half_the_channels_keep_half_the_bytes():
    network = trace_module(*build_network("convolutions"), "net")
    whole, half = (one.saved_bytes(mixed=False) for one in (network, narrow_network(network, 0.5)))
    assert 0.45 < half / whole < 0.6


def test_records_keep_the_bytes():
    network = trace_module(*build_network("encoder"), "net")
    assert parse_layers(format_layers(network)) == network.layers
    assert network_from_dict(network_to_dict(network), "a test").layers == network.layers
