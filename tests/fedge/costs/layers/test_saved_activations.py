"""What autograd keeps is counted to the byte, in mixed precision never too low."""

import pytest
import torch
from contracts.measured_memory import FUSED, NETWORKS, Attention, build_network, kept_bytes_per_sample
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedge.costs.layers.network_cost import narrow_network
from fedge.costs.layers.network_record import format_layers, network_from_dict, network_to_dict, parse_layers
from fedge.costs.layers.torch_trace import trace_module


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bytes_of_a_further_sample_are_those_that_autograd_keeps(name):
    module, shape = build_network(name)
    counted = trace_module(module, shape, name).saved_bytes(mixed=False)
    real = kept_bytes_per_sample(module, shape, mixed=False)
    assert counted >= real if name in FUSED else counted == real


ACTIVATIONS = {
    "relu": lambda _: nn.ReLU(), "relu in place": lambda _: nn.ReLU(inplace=True), "tanh": lambda _: nn.Tanh(),
    "gelu": lambda _: nn.GELU(), "silu in place": lambda _: nn.SiLU(inplace=True), "sigmoid": lambda _: nn.Sigmoid(),
    "hard swish in place": lambda _: nn.Hardswish(inplace=True), "dropout": lambda _: nn.Dropout(0.2),
    "batch": nn.BatchNorm2d, "group": lambda width: nn.GroupNorm(1, width), "max": lambda _: nn.MaxPool2d(3, 1, 1),
    "mean": lambda _: nn.AvgPool2d(3, 1, 1), "softmax": lambda _: nn.Softmax(1), "identity": lambda _: nn.Identity(),
}  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(sorted(ACTIVATIONS)), st.integers(1, 9), st.booleans()), min_size=1, max_size=6)
)
def test_any_stack_of_layers_keeps_what_is_counted(layers):
    parts, width = [], 3
    for kind, channels, frozen in layers:
        convolution = nn.Conv2d(width, channels, 3, padding=1)
        parts += [convolution.requires_grad_(not frozen), ACTIVATIONS[kind](channels)]
        width = channels
    module = nn.Sequential(*parts, nn.Flatten(), nn.Linear(width * 36, 2)).train()
    network = trace_module(module, (3, 6, 6), "stack")
    with torch.random.fork_rng():
        assert network.saved_bytes(mixed=False) == kept_bytes_per_sample(module, (3, 6, 6), mixed=False)
        assert network.saved_bytes(mixed=True) >= kept_bytes_per_sample(module, (3, 6, 6), mixed=True)


@given(st.integers(2, 24), st.sampled_from([0.0, 0.3]), st.booleans())
def test_attention_of_any_length_keeps_its_scores(tokens, dropout, explicit):
    module = Attention(explicit, dropout).train()
    network = trace_module(module, (tokens, 32), "attention")
    with torch.random.fork_rng():
        real, mixed = (kept_bytes_per_sample(module, (tokens, 32), mixed=mixed) for mixed in (False, True))
    counted = network.saved_bytes(mixed=False)
    assert counted == real if explicit or dropout else counted >= real
    assert network.saved_bytes(mixed=True) >= mixed
    assert counted >= 4 * 4 * tokens**2


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
