"""A pruned network: the channels that it keeps of the whole network, and its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedge.analysis.topology.channel_plan import ChannelPlan
from fedge.costs.layers.network_cost import NetworkCost, Shape

SizeMeasure = Literal["parameters", "flop"]
"""The measure of a network's size."""


@dataclass(frozen=True, slots=True)
class NetworkVariant:
    """A network without some of its channels, as a plan of those kept; the weights are stored separately."""

    model: str
    """Name of the whole network, as a user gives it."""
    input_shape: Shape
    method: str
    """How its channels were ranked."""
    round_to: int
    """Channels are multiples of this if the layer has as many."""
    channel_share: float
    """Share of every group's channels that is kept."""
    parameter_share: float
    flop_share: float
    plan: ChannelPlan
    cost: NetworkCost

    @property
    def name(self) -> str:
        """A name with the share of the parameters, such as ``resnet50 at 62 %``."""
        return f"{self.model} at {100 * self.parameter_share:.3g} %"

    def kept_share(self, of: SizeMeasure) -> float:
        """Return the share of the network's parameters or FLOP that is kept, 0 to 1."""
        return self.parameter_share if of == "parameters" else self.flop_share
