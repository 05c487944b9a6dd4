"""Every classifier of torchvision: pruned and trained, or refused with a reason."""

from __future__ import annotations

import pytest
import torch

from fedge.errors import BadInput
from fedge.layers.source import module_of
from fedge.topology.cutting import cut
from fedge.topology.pruning import LEAST_CHANNELS, UNPROVEN, prunable
from fedge.topology.training import train
from fedge.worker.vision import models

pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")

REFUSED = {
    **dict.fromkeys((f"shufflenet_v2_x{width}" for width in ("0_5", "1_0", "1_5", "2_0")), "shuffles"),
    **dict.fromkeys(("swin_s", "swin_b"), "cannot follow"),
}
"""ShuffleNet mixes channels between groups; the library looks no deeper than 500 operators for a width."""
HUGE = ("vit_h_14", "regnet_y_128gf")
"""More than 600 M parameters: several copies of them take more memory than a test should."""
SIDES = {"inception_v3": 299, "vit_h_14": 56, "maxvit_t": 224}
"""Images as small as the network takes, else of 64 pixels."""
WHOLE_WIDTHS = ("vit_", "swin_", "maxvit", "convnext")
"""Networks whose width between layers stays, since attention or LayerNorm reads it; their hidden layers are cut."""
EVERY = sorted(set(models.list_models(module=models)) - set(HUGE))


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_classifier_is_pruned_and_trains_or_is_refused_with_a_reason(name: str) -> None:
    torch.manual_seed(0)
    side = SIDES.get(name, 64)
    module, shape = module_of(name, (3, side, side))
    if name in REFUSED:
        with pytest.raises(BadInput, match=REFUSED[name]):
            prunable(module, name, shape)
        return
    network = prunable(module, name, shape, round_to=8)
    reasons = {one.reason for one in network.coupling.kept}
    assert UNPROVEN not in reasons, [one.root for one in network.coupling.kept if one.reason == UNPROVEN]
    assert (reasons == {"the network's output"}) is not name.startswith(WHOLE_WIDTHS)
    half = network.by_channels(0.5)
    assert network.by_channels(LEAST_CHANNELS).parameter_share < half.parameter_share < 0.75
    assert train(cut(module, half.plan), shape, steps=3).falls
