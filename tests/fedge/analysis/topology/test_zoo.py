"""One classifier of each kind of block that torchvision has: pruned and trained, or refused with a reason.

All of them, and what the largest ones need, is `benchmarks/topology_search.py zoo`: it takes some twenty minutes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedge.analysis.topology.channel_removal import cut_module
from fedge.analysis.topology.pruning import MIN_CHANNEL_SHARE, UNVERIFIED_REASON, build_prunable
from fedge.analysis.topology.variant_training import train_on_noise
from fedge.costs.layers.network_source import build_module
from fedge.errors import BadInput
from fedge.worker.torchvision_shim import models

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
    "googlenet",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "swin_s",
    "swin_of_two_blocks",
    "vit_of_two_blocks",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_classifier_is_pruned_and_trains_or_is_refused_with_a_reason(name: str) -> None:
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
