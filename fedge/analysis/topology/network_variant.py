"""A smaller network: which channels it keeps of which network, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedge.analysis.topology.channel_plan import ChannelPlan
from fedge.costs.layers.network_cost import NetworkCost, Shape

SizeMeasure = Literal["parameters", "flop"]
"""What a share of a network is counted in."""


@dataclass(frozen=True, slots=True)
class NetworkVariant:
    """A network without some of its channels; the plan says which channels stay, the weights are kept beside it."""

    model: str
    """What the whole network is called, as a user names it."""
    input_shape: Shape
    method: str
    """How its channels were ranked."""
    round_to: int
    """Channels are multiples of this where the layer has as many."""
    channel_share: float
    """Of every group's channels."""
    parameter_share: float
    flop_share: float
    plan: ChannelPlan
    cost: NetworkCost

    @property
    def name(self) -> str:
        """Such as ``resnet50 at 62 %``: of its parameters."""
        return f"{self.model} at {100 * self.parameter_share:.3g} %"

    def kept_share(self, of: SizeMeasure) -> float:
        """What is kept of the network's parameters or FLOP, 0 to 1."""
        return self.parameter_share if of == "parameters" else self.flop_share
