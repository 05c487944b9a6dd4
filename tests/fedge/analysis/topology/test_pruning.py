"""Networks pruned to a share of their parameters: what is cut, what stays, and that nothing else changes."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedge.analysis.topology.channel_removal import cut_module, is_cut_equivalent, randomize_weights
from fedge.analysis.topology.dependency_graph import find_coupling
from fedge.analysis.topology.pruning import UNVERIFIED_REASON, PrunableNetwork, build_prunable
from fedge.errors import BadInput

pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")
SHAPE = (3, 16, 16)


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
def test_whatever_is_cut_the_rest_computes_what_it_did(
    channels: float, round_to: int, residual: PrunableNetwork
) -> None:
    made = PrunableNetwork("test", SHAPE, residual.coupling, "l1", round_to, residual.empty, residual.cost)
    sample = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(2))
    assert is_cut_equivalent(randomize_weights(_Residual()), made.build_variant(channels).plan, sample)


@settings(max_examples=25)
@given(shares=st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0)))
def test_more_channels_never_mean_fewer_parameters_or_less_work(
    shares: tuple[float, float], residual: PrunableNetwork
) -> None:
    small, large = (residual.build_variant(share) for share in sorted(shares))
    assert small.parameter_share <= large.parameter_share
    assert small.flop_share <= large.flop_share


@pytest.mark.parametrize("of", ["parameters", "flop"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_share_that_was_asked_for_is_kept_and_never_more(share: float, of: str, residual: PrunableNetwork) -> None:
    kept = residual.find_largest_variant(share, of).kept_share(of)  # type: ignore[arg-type]
    assert share - 0.12 < kept <= share


def test_the_whole_network_is_the_variant_of_share_one(residual: PrunableNetwork) -> None:
    whole = residual.find_largest_variant(1.0)
    assert whole.plan == {}
    assert whole.parameter_share == whole.flop_share == 1.0


def test_input_and_output_stay(residual: PrunableNetwork) -> None:
    plan = residual.build_variant(0.3).plan
    assert plan["stem.0"].inputs is None
    assert plan["head"].outputs is None
    assert cut_module(_Residual(), plan)(torch.randn(2, *SHAPE)).shape == (2, 10)


def test_channels_that_are_summed_stay_the_same_ones(residual: PrunableNetwork) -> None:
    plan = residual.build_variant(0.5).plan
    assert plan["stem.0"].outputs == plan["outer"].outputs == plan["inner"].inputs == plan["stem.1"].outputs


def test_a_share_that_no_variant_is_as_small_as_is_refused_with_the_least(residual: PrunableNetwork) -> None:
    with pytest.raises(BadInput, match="at least"):
        residual.find_largest_variant(0.001)


def test_channels_are_multiples_where_asked(residual: PrunableNetwork) -> None:
    made = PrunableNetwork("test", SHAPE, residual.coupling, "l1", 8, residual.empty, residual.cost)
    widths = [len(one.outputs) for one in made.build_variant(0.6).plan.values() if one.outputs is not None]
    assert widths
    assert all(width % 8 == 0 for width in widths)


class _Grouped(nn.Module):
    """GroupNorms of few groups, and one with a group for every channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 32, 1), nn.GroupNorm(4, 32), nn.Conv2d(32, 16, 1)
        self.each, self.head = nn.GroupNorm(16, 16), nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.b(torch.relu(self.norm(self.a(images))))
        return self.head(torch.relu(self.each(x)).amax(dim=(2, 3)))


def test_group_norms_keep_as_many_channels_in_every_group() -> None:
    made = _made(_Grouped())
    assert {group.root for group in made.coupling.groups} == {"a", "b"}
    small = cut_module(_Grouped(), made.build_variant(0.6).plan)
    assert (small.norm.num_groups, small.norm.num_channels) == (4, 16)
    assert (small.each.num_groups, small.each.num_channels) == (9, 9)
    assert small(torch.randn(2, *SHAPE)).shape == (2, 5)


def test_groups_that_a_dependency_graph_misjudges_are_found_and_kept() -> None:
    made = _made(_Flipped())
    assert {one.root for one in made.coupling.kept if one.reason == UNVERIFIED_REASON} == {"first"}
    assert {group.root for group in made.coupling.groups} == {"free", "second"}


def test_of_an_attention_only_the_hidden_layer_is_cut() -> None:
    made = _made(_Attention())
    assert [group.root for group in made.coupling.groups] == ["hidden.0"]
    assert any("attention" in one.reason or "LayerNorm" in one.reason for one in made.coupling.kept)


def test_a_network_without_hidden_channels_is_refused_with_the_reason() -> None:
    with pytest.raises(BadInput, match="output"):
        _made(nn.Sequential(nn.Flatten(), nn.Linear(768, 10)))


def test_the_largest_weights_stay_and_chance_follows_the_seed() -> None:
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


def test_an_auxiliary_head_of_training_is_cut_as_well() -> None:
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


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="l1, l2, random"):
        find_coupling(nn.Conv2d(3, 3, 1), SHAPE, "taylor")


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(BadInput, match=r"fedge\[pruning\]"):
        find_coupling(nn.Conv2d(3, 3, 1), SHAPE)


def test_a_network_that_does_not_take_the_input_is_refused() -> None:
    with pytest.raises(BadInput, match="3x16x16"):
        _made(nn.Sequential(nn.Linear(7, 8), nn.Linear(8, 2)))
