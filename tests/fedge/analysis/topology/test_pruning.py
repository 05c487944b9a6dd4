"""Networks pruned to a share of their parameters: what is cut, what stays, and that nothing else changes."""

import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedge.analysis.topology.channel_plan import is_cut_equivalent, randomize_weights
from fedge.analysis.topology.pruning import (
    MIN_CHANNEL_SHARE,
    UNVERIFIED_REASON,
    PrunableNetwork,
    build_prunable,
    find_coupling,
)
from fedge.analysis.topology.variant_files import train_on_noise
from fedge.costs.layers.network_source import build_module
from fedge.errors import BadInput
from fedge.worker.channel_cuts import cut_module
from fedge.worker.torchvision_shim import models

pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")
SHAPE = (3, 16, 16)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The networks' initial weights, which may by chance hide what a cut changes, are the same in every run."""
    torch.manual_seed(0)


class _Residual(nn.Module):
    """Two branches, a sum, a depthwise and a grouped convolution, a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.inner = nn.Conv2d(16, 24, 1)
        self.deep = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.outer = nn.Conv2d(24, 16, 1)
        self.grouped = nn.Conv2d(16, 32, 3, padding=1, groups=4)
        self.side = nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(40, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = torch.relu(x + self.outer(torch.relu(self.deep(self.inner(x)))))
        joined = torch.cat([torch.relu(self.grouped(x)), torch.relu(self.side(x))], dim=1)
        return self.head(joined.mean(dim=(2, 3)))


class _Flipped(nn.Module):
    """Reads its hidden channels in two orders, which a dependency graph does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)
        self.head = nn.Linear(4, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.first(torch.relu(self.free(images))))
        return self.head((self.second(x) + self.second(x.flip(1))).mean(dim=(2, 3)))


class _Attention(nn.Module):
    """Tokens through an attention and a hidden layer, each beside a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.hidden = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head((x + self.hidden(x)).mean(dim=1))


def _made(module: nn.Module, **more: object) -> PrunableNetwork:
    return build_prunable(module, "test", SHAPE, **more)


@pytest.fixture(scope="module")
def residual() -> PrunableNetwork:
    torch.manual_seed(0)
    return _made(_Residual())


@settings(max_examples=25)
@given(channels=st.floats(0.1, 1.0), round_to=st.sampled_from([1, 4, 8]))
def test_whatever_is_cut_the_rest_computes_what_it_did(channels, round_to, residual):
    made = PrunableNetwork("test", SHAPE, residual.coupling, "l1", round_to, residual.empty, residual.cost)
    sample = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(2))
    assert is_cut_equivalent(randomize_weights(_Residual()), made.build_variant(channels).plan, sample)


@settings(max_examples=25)
@given(shares=st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0)))
def test_more_channels_never_mean_fewer_parameters_or_less_work(shares, residual):
    small, large = (residual.build_variant(share) for share in sorted(shares))
    assert small.parameter_share <= large.parameter_share
    assert small.flop_share <= large.flop_share


class _Grouped(nn.Module):
    """GroupNorms of few groups, and one with a group for every channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 32, 1), nn.GroupNorm(4, 32), nn.Conv2d(32, 16, 1)
        self.each, self.head = nn.GroupNorm(16, 16), nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.b(torch.relu(self.norm(self.a(images))))
        return self.head(torch.relu(self.each(x)).amax(dim=(2, 3)))


def test_group_norms_keep_as_many_channels_in_every_group():
    made = _made(_Grouped())
    assert {group.root for group in made.coupling.groups} == {"a", "b"}
    small = cut_module(_Grouped(), made.build_variant(0.6).plan)
    assert (small.norm.num_groups, small.norm.num_channels) == (4, 16)
    assert (small.each.num_groups, small.each.num_channels) == (9, 9)
    assert small(torch.randn(2, *SHAPE)).shape == (2, 5)


def test_groups_that_a_dependency_graph_misjudges_are_found_and_kept():
    made = _made(_Flipped())
    assert {one.root for one in made.coupling.kept if one.reason == UNVERIFIED_REASON} == {"first"}
    assert {group.root for group in made.coupling.groups} == {"free", "second"}


def test_of_an_attention_only_the_hidden_layer_is_cut():
    made = _made(_Attention())
    assert [group.root for group in made.coupling.groups] == ["hidden.0"]
    assert any("attention" in one.reason or "LayerNorm" in one.reason for one in made.coupling.kept)


def test_a_network_without_hidden_channels_is_refused_with_the_reason():
    with pytest.raises(BadInput, match="output"):
        _made(nn.Sequential(nn.Flatten(), nn.Linear(768, 10)))


def test_the_largest_weights_stay_and_chance_follows_the_seed():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.Flatten(), nn.Linear(512, 3))
    with torch.no_grad():
        for layer, dim in ((module[0], 0), (module[2], 1)):
            for channel, size in enumerate((3.0, 1.0, 4.0, 2.0)):
                layer.weight.select(dim, channel).fill_(size)
    assert _made(module).build_variant(0.5).plan["0"].outputs == (0, 2)
    assert _made(module, method="l2").build_variant(0.5).plan["0"].outputs == (0, 2)
    by_lot = [
        _made(module, method="random", seed=seed).build_variant(0.5).plan["0"].outputs for seed in (0, 0, 1, 2, 3)
    ]
    assert by_lot[0] == by_lot[1]
    assert len(set(by_lot)) > 1


def test_an_auxiliary_head_of_training_is_cut_as_well():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.main, self.aux = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 5, 1), nn.Conv2d(8, 5, 1)

        def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            x = torch.relu(self.stem(images))
            main = self.main(x).mean(dim=(2, 3))
            return (main, self.aux(x).mean(dim=(2, 3))) if self.training else main

    plan = _made(Two()).build_variant(0.5).plan
    assert plan["aux"].inputs == plan["main"].inputs == plan["stem"].outputs


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(BadInput, match=r"fedge\[pruning\]"):
        find_coupling(nn.Conv2d(3, 3, 1), SHAPE)


pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")

REFUSED = {
    **dict.fromkeys((f"shufflenet_v2_x{width}" for width in ("0_5", "1_0", "1_5", "2_0")), "shuffles"),
    **dict.fromkeys(("swin_s", "swin_b"), "cannot follow"),
}
"""ShuffleNet mixes channels between groups; the library looks no deeper than 500 operators for a width."""
SIDES = {"inception_v3": 299, "vit_h_14": 56, "maxvit_t": 224}
"""Images as small as the network takes, else of 64 pixels."""
WHOLE_WIDTHS = ("vit_", "swin_", "maxvit", "convnext")
"""Networks whose width between layers stays, since attention or LayerNorm reads it; their hidden layers are cut."""
SHALLOW: dict[str, Callable[[], nn.Module]] = {
    "swin_of_two_blocks": lambda: models.SwinTransformer(
        [4, 4], 32, [1, 1], [2, 4], [7, 7], mlp_ratio=8.0, num_classes=10
    ),
    "vit_of_two_blocks": lambda: models.VisionTransformer(64, 16, 2, 4, 64, 1024, num_classes=10),
}
"""The same blocks as in the networks of that name, which are deep and slow."""
FAMILIES = [
    "alexnet",
    "convnext_tiny",
    pytest.param("densenet121", marks=pytest.mark.long),
    "efficientnet_b0",
    pytest.param("googlenet", marks=pytest.mark.long),
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    pytest.param("resnext50_32x4d", marks=pytest.mark.long),
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    pytest.param("swin_s", marks=pytest.mark.long),
    "swin_of_two_blocks",
    "vit_of_two_blocks",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_classifier_is_pruned_and_trains_or_is_refused_with_a_reason(name):
    torch.manual_seed(0)
    side = SIDES.get(name, 64)
    made = SHALLOW.get(name)
    module, shape = (made(), (3, side, side)) if made else build_module(name, (3, side, side))
    if name in REFUSED:
        with pytest.raises(BadInput, match=REFUSED[name]):
            build_prunable(module, name, shape)
        return
    network = build_prunable(module, name, shape, round_to=8)
    reasons = {one.reason for one in network.coupling.kept}
    assert UNVERIFIED_REASON not in reasons, [
        one.root for one in network.coupling.kept if one.reason == UNVERIFIED_REASON
    ]
    assert (reasons == {"the network's output"}) is not name.startswith(WHOLE_WIDTHS)
    half = network.build_variant(0.5)
    assert network.build_variant(MIN_CHANNEL_SHARE).parameter_share < half.parameter_share < 0.75
    assert train_on_noise(cut_module(module, half.plan), shape, steps=3).is_loss_falling
