"""A traced module's costs are the published ones, torch's own counter agrees, and nothing is lost in silence."""

import re
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fedge.costs.layers.aten import RECURRENT
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_source import build_module, load_network_cost
from fedge.costs.layers.torch_trace import trace_module
from fedge.errors import BadInput

PRINTED = {
    # GFLOP and MB of activations per image, MB of weights
    "resnet50": (8.2063, 234.66, 102.01),
    "mobilenet_v3_large": (0.4491, 81.17, 21.81),
}

AGREEING = ("resnet18", "mobilenet_v2", "googlenet", "swin_t", "vit_b_32", "shufflenet_v2_x0_5")
AGREEING_TOO = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "inception_v3", "maxvit_t",
    "mnasnet0_5", "mobilenet_v3_small", "regnet_y_400mf", "resnext50_32x4d", "squeezenet1_1", "swin_v2_t", "vgg11",
    "wide_resnet50_2",
)  # fmt: skip
"""The smallest of every other family."""


def classifiers() -> list[str]:
    from fedge.worker.torchvision_shim import models

    return list(models.list_models(module=models))


def products(cost: NetworkCost) -> float:
    """FLOP of convolutions (without their bias) and of matrix products alone."""
    kinds = ("conv", "conv_transpose", "linear", "matmul")
    bias = sum(layer.activations for layer in cost.layers if layer.kind.startswith("conv"))
    return sum(layer.flop for layer in cost.layers if layer.kind in kinds) - bias


def counted_by_torch(module: nn.Module, shape: tuple[int, ...]) -> int:
    counter = FlopCounterMode(display=False)
    meta = module.to("meta").eval()
    with torch.no_grad(), torch.device("meta"), counter:
        meta(torch.zeros(1, *shape))
    return counter.get_total_flops()


@pytest.mark.parametrize("name", PRINTED)
def test_totals_are_the_printed_constants(name):
    cost = load_network_cost(name)
    gflop, activation_mb, weight_mb = PRINTED[name]
    assert cost.flop / 1e9 == pytest.approx(gflop, abs=0.5e-4)
    assert cost.activation_bytes / 1e6 == pytest.approx(activation_mb, rel=1e-4)
    assert cost.weight_bytes / 1e6 == pytest.approx(weight_mb, rel=0.004)
    assert cost.unknown == ()


@pytest.mark.parametrize("name", AGREEING)
def test_products_agree_exactly_with_torchs_own_counter(name):
    module, shape = build_module(name)
    assert products(trace_module(module, shape, name)) == counted_by_torch(module, shape)


def family(name: str) -> str:
    """``swin_v2`` of ``swin_v2_b``, ``resnet`` of ``resnet50``."""
    found = re.match(r"[a-z]+(_v\d)?", name)
    return found[0]


@pytest.mark.slow
@pytest.mark.long
def test_one_classifier_of_every_family_computes_what_torch_counts():
    from fedge.costs.layers.network_source import _build, _find_builder

    assert {family(name) for name in (*AGREEING, *AGREEING_TOO)} == {family(name) for name in classifiers()}
    for name in AGREEING_TOO:
        builder, shape = _find_builder(name, None)
        module = _build(builder, empty=True)
        assert products(trace_module(module, shape, name)) == counted_by_torch(module, shape), name


def test_a_batch_normalisation_behind_a_convolution_is_folded_unless_it_is_asked_for():
    module = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8))
    folded = trace_module(module, (3, 6, 6), "net").layers
    apart = trace_module(module, (3, 6, 6), "net", fold_batch_norm=False).layers
    elements = 8 * 4 * 4
    assert [layer.kind for layer in folded] == ["conv", "batch_norm", "relu", "batch_norm"]
    assert (folded[1].flop, folded[1].read_bytes, folded[1].weight_bytes, folded[1].parameters) == (0, 0, 32, 16)
    assert folded[3].flop == 2 * elements, "behind a ReLU it cannot be folded"
    assert (apart[1].flop, apart[1].read_bytes, apart[1].weight_bytes) == (2 * elements, 4 * elements, 128)


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(torch.linalg.qr(x)[0])


def test_an_operator_without_a_rule_is_named_and_what_can_be_counted_is():
    cost = trace_module(Odd(), (4, 4), "odd")
    assert cost.unknown == ("linalg_qr",)
    assert [layer.kind for layer in cost.layers] == ["relu"]


class Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() >= 0 else x


def test_a_module_that_looks_at_its_numbers_is_run_for_real():
    assert [layer.kind for layer in trace_module(Asks(), (8,), "asks").layers] == ["sum", "mul"]


class Two(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right


def test_a_module_with_two_inputs_is_refused_by_their_names():
    with pytest.raises(BadInput, match=r"2 inputs \(left, right\); networks with one input are supported"):
        trace_module(Two(), (8,), "two")


def test_a_module_is_left_as_it_was_found():
    module, shape = build_module("digits-cnn")
    module.train()
    next(module.children()).eval()
    before = {name: (id(value), value.clone()) for name, value in module.named_parameters()}
    modes = [part.training for part in module.modules()]
    trace_module(module, shape, "net")
    assert [part.training for part in module.modules()] == modes
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    for name, value in module.named_parameters():
        assert id(value) == before[name][0]
        assert torch.equal(value, before[name][1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.dense(x))


def test_a_weight_used_twice_is_read_twice_and_learnt_once():
    cost = trace_module(Tied(), (6,), "tied")
    assert (cost.weight_bytes, cost.parameters) == (2 * 4 * 36, 36)


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(9))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sigmoid(self.table) * 2


def test_what_depends_on_no_sample_moves_once_per_batch():
    cost = trace_module(Bias(), (9,), "bias")
    assert cost.activation_bytes == 4 * 18, "the sum alone reads and writes what belongs to a sample"
    assert cost.weight_bytes == 4 * (18 + 18 + 9)
    assert cost.batch_work(10).bytes == cost.weight_bytes + 10 * cost.activation_bytes


class Text(nn.Module):
    def __init__(self, both_ways: bool, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.memory = kind(16, 32, num_layers=2, batch_first=True, bidirectional=both_ways)
        self.out = nn.Linear(64 if both_ways else 32, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.memory(self.embedding(words))[0][:, -1])


@pytest.mark.parametrize(("cell", "whole"), [(nn.LSTMCell, nn.LSTM), (nn.GRUCell, nn.GRU), (nn.RNNCell, nn.RNN)])
def test_a_cell_in_a_loop_of_the_networks_own_costs_what_the_recurrent_network_does(cell, whole):
    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = cell(4, 8)

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for k in range(x.shape[1]):
                state = self.memory(x[:, k], state)
            return state[0] if isinstance(state, tuple) else state

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = whole(4, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.memory(x)[0]

    unrolled, one = trace_module(Unrolled(), (5, 4), "cells"), trace_module(Whole(), (5, 4), "net")
    (layer,) = [layer for layer in one.layers if layer.kind in RECURRENT]
    steps = [part for part in unrolled.layers if part.kind in RECURRENT]
    assert [part.kind for part in steps] == [layer.kind] * 5
    assert sum(part.flop for part in unrolled.layers) == pytest.approx(layer.flop)
    assert unrolled.unknown == ()
    assert unrolled.trained_parameters == one.trained_parameters


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_recurrent_network_over_words_is_counted_by_its_steps(kind, gates, both_ways):
    module = Text(both_ways, kind)
    cost = trace_module(module, (12,), "text")
    memory = next(layer for layer in cost.layers if layer.name == "memory" and layer.flop)
    matrices = sum(p.numel() for p in module.memory.parameters() if p.ndim == 2)
    gate_flop = {4: 30, 3: 20}[gates] * 32 * 2 * (2 if both_ways else 1)
    assert memory.flop == 12 * (2 * matrices + gate_flop)
    assert memory.weight_bytes == 4 * sum(p.numel() for p in module.memory.parameters())
    assert cost.parameters == sum(p.numel() for p in module.parameters())
    assert cost.unknown == ()


def test_packed_or_projected_recurrences_are_named_as_not_counted():
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.LSTM(4, 8, proj_size=2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.memory(x)[0]

    assert trace_module(Projected(), (5, 4), "net").unknown == ("lstm (packed, or with projections)",)


def test_attention_on_the_processor_costs_the_same_as_taken_apart():
    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.sum().item()
            return functional.scaled_dot_product_attention(x, x, x)

    class Blind(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, x, x)

    whole, apart = (trace_module(module, (2, 5, 4), "net") for module in (Looks(), Blind()))
    assert [layer.kind for layer in whole.layers] == ["sum", "attention"]
    assert whole.layers[1].flop == apart.flop
    assert whole.layers[1].read_bytes == sum(layer.read_bytes for layer in apart.layers)
    assert whole.layers[1].written_bytes == apart.activations * 4


PARTS = [
    *(nn.ReLU(), nn.ReLU6(), nn.Sigmoid(), nn.Tanh(), nn.Hardsigmoid(), nn.Hardswish(), nn.SiLU(), nn.GELU(), nn.ELU()),
    *(nn.SELU(), nn.CELU(), nn.LeakyReLU(), nn.PReLU(), nn.Softplus(), nn.Softsign(), nn.Mish(), nn.LogSigmoid()),
    *(nn.Hardtanh(), nn.Tanhshrink(), nn.Softshrink(0.5), nn.Hardshrink(), nn.GLU(1), nn.Threshold(0.0, 0.0)),
    *(nn.Softmax(1), nn.LogSoftmax(1), nn.LPPool2d(2, 2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3)),
    *(nn.AdaptiveMaxPool2d(3), nn.LayerNorm(8), nn.RMSNorm(8), nn.GroupNorm(2, 4), nn.LocalResponseNorm(2)),
    *(nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.PixelShuffle(2), nn.Unfold(2)),
    *(nn.ReflectionPad2d(1), nn.ZeroPad2d(1), nn.ReplicationPad2d(1), nn.CircularPad2d(1), nn.ConvTranspose2d(4, 8, 3)),
]


@pytest.mark.parametrize("module", PARTS, ids=lambda module: type(module).__name__)
def test_a_usual_part_of_networks_has_a_rule(module):
    cost = trace_module(module, (4, 8, 8), "net")
    assert cost.unknown == ()
    assert cost.activation_bytes > 0


@pytest.mark.parametrize("module", [nn.Flatten(), nn.Dropout(), nn.Dropout2d(), nn.Identity()], ids=str)
def test_what_only_looks_at_elements_or_does_nothing_is_free(module):
    cost = trace_module(module, (4, 8, 8), "net")
    assert (cost.layers, cost.unknown) == ((), ())


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(4, 8, 3), (4, 16)),
        (nn.Conv3d(4, 8, 3, groups=2), (4, 8, 8, 8)),
        (nn.ConvTranspose2d(4, 8, 3, stride=2, groups=2), (4, 8, 8)),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 2), (5, 16)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_products_agree_with_torchs_own_counter_too(module, shape):
    assert products(trace_module(module, shape, "net")) == counted_by_torch(module, shape)


def test_a_normalisation_with_the_samples_own_statistics_is_never_folded():
    module = nn.Sequential(nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False))
    cost = trace_module(module, (4, 8, 8), "net")
    assert [(layer.kind, layer.flop > 0) for layer in cost.layers[1:]] == [("instance_norm", True)] * 2


class Masks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mask = x.new_zeros((8, 8))
        mask[:4] = 1
        return x * mask


def test_a_mask_that_is_made_anew_belongs_to_no_sample():
    cost = trace_module(Masks(), (8, 8), "net")
    assert cost.activation_bytes == 4 * 2 * 64
    assert cost.unknown == ()


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out[:, 1:] = x[:, :-1]
        return torch.relu(out)


def test_a_tensor_that_a_sample_was_written_into_belongs_to_the_sample():
    cost = trace_module(Writes(), (4, 8), "net")
    assert [(layer.kind, layer.read_bytes) for layer in cost.layers] == [("fill", 0), ("copy", 96), ("relu", 128)]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, (1, 7), padding=(0, 3)),
        nn.Conv2d(4, 8, 3, dilation=2),
        nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=4),
        nn.Conv2d(4, 8, 3, padding="same"),
    ],
)
def test_the_geometry_of_a_convolution_gives_its_output(layer):
    cost = trace_module(nn.Sequential(layer), (4, 17, 17), "net")
    (found,) = cost.convolutions
    (traced,) = (each for each in cost.layers if each.kind == "conv")
    assert found.output_size == traced.output[-1]
    assert found.kernel**2 == pytest.approx(prod(layer.kernel_size))
    assert (found.in_channels, found.out_channels, found.groups) == (4, 8, layer.groups)
