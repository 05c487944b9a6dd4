"""Prune a network to any share of its parameters or FLOP, from one analysis of its coupled channels."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fedge.analysis.topology.channel_coupling import ChannelCoupling, ChannelGroup, UncutGroup
from fedge.analysis.topology.channel_plan import LayerCut, plan_channels
from fedge.analysis.topology.channel_removal import cut_module, is_cut_equivalent, randomize_weights
from fedge.analysis.topology.network_variant import NetworkVariant, SizeMeasure
from fedge.costs.layers.network_cost import NetworkCost, Shape
from fedge.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

MIN_CHANNEL_SHARE = 0.1
"""Default lower bound of a variant's channel share: about 1 % of the parameters."""
BISECTION_STEPS = 12
"""Bisections in the search for a share: a resolution of one channel in four thousand."""
TRIAL_SHARE = 0.5
"""Share that is kept when a group's cut is verified."""
TRIAL_BATCH_SIZE = 4
UNVERIFIED_REASON = "cutting it would change what the others compute"


@dataclass(frozen=True, slots=True, eq=False)
class PrunableNetwork:
    """A network, its coupled channels, and the variants built so far; ``empty`` is the module without weights."""

    model: str
    input_shape: Shape
    coupling: ChannelCoupling
    method: str
    round_to: int
    empty: nn.Module
    cost: NetworkCost
    _made: dict[float, NetworkVariant] = field(default_factory=dict)

    def build_variant(self, share: float) -> NetworkVariant:
        """Return the variant with this share of every group's channels; 1.0 is the whole network."""
        if share not in self._made:
            plan = plan_channels(self.coupling, share, self.round_to)
            self._made[share] = self._trace_variant(share, plan)
        return self._made[share]

    def find_largest_variant(self, share: float, of: SizeMeasure = "parameters") -> NetworkVariant:
        """Return the largest variant with at most a share of the network's parameters or FLOP.

        Args:
            share: The share, 0 to 1.
            of: The measure of size.

        Raises:
            BadInput: For a share below that of the smallest variant.
        """
        if share >= 1.0:
            return self.build_variant(1.0)
        low, high = MIN_CHANNEL_SHARE, 1.0
        if self.build_variant(low).kept_share(of) > share:
            least = 100 * self.build_variant(low).kept_share(of)
            raise BadInput("share", f"{100 * share:.3g} %", f"at least {least:.3g} % of the {of} of {self.model} stay")
        for _ in range(BISECTION_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._kept_share(middle, of) <= share else (low, middle)
        return self.build_variant(low)

    def _kept_share(self, channels: float, of: SizeMeasure) -> float:
        """Return the kept share; parameters are counted without a trace."""
        if of == "flop":
            return self.build_variant(channels).flop_share
        small = cut_module(self.empty, plan_channels(self.coupling, channels, self.round_to))
        return count_parameters(small) / count_parameters(self.empty)

    def _trace_variant(self, share: float, plan: dict[str, LayerCut]) -> NetworkVariant:
        from fedge.costs.layers.torch_trace import trace_module

        small = cut_module(self.empty, plan)
        cost = trace_module(small, self.input_shape, self.model)
        return NetworkVariant(
            model=self.model,
            input_shape=self.input_shape,
            method=self.method,
            round_to=self.round_to,
            channel_share=share,
            parameter_share=count_parameters(small) / count_parameters(self.empty),
            flop_share=cost.flop / self.cost.flop,
            plan=plan,
            cost=cost,
        )


def count_parameters(module: nn.Module) -> int:
    """Return the number of a module's parameters."""
    return sum(one.numel() for one in module.parameters())


def build_prunable(
    module: nn.Module, model: str, input_shape: Shape, method: str = "l1", round_to: int = 1, seed: int = 0
) -> PrunableNetwork:
    """Find and verify the removable channels of a module, which is not changed.

    Args:
        module: The network.
        model: Its name.
        input_shape: Shape of one sample.
        method: Ranking of the channels.
        round_to: Layers keep multiples of this number of channels where possible.
        seed: Seed of a random ranking.

    Raises:
        BadInput: For a network without removable channels, with the reasons.
    """
    from fedge.analysis.topology.dependency_graph import find_coupling
    from fedge.costs.layers.torch_trace import trace_module

    if round_to < 1:
        raise BadInput("--round-to", str(round_to), "1 or more channels")
    empty = deepcopy(module).to("meta")
    cost = trace_module(
        empty, input_shape, model
    )  # the first to run the network: says plainly if it takes no such samples
    coupling = verify_groups(module, find_coupling(module, input_shape, method, seed), input_shape)
    if not coupling.groups:
        reasons = ", ".join(dict.fromkeys(one.reason for one in coupling.kept)) or "it has no convolution or Linear"
        raise BadInput("MODEL", f"{model}, of which no channel can go ({reasons})", "a network with hidden channels")
    return PrunableNetwork(
        model, input_shape=input_shape, coupling=coupling, method=method, round_to=round_to, empty=empty, cost=cost
    )


def verify_groups(module: nn.Module, coupling: ChannelCoupling, input_shape: Shape) -> ChannelCoupling:
    """Return the coupling with only those groups that can be cut without changing other outputs.

    Groups that fail are added to the groups that are not cut.
    """
    import torch

    chance = torch.Generator().manual_seed(0)
    sample = torch.randn(TRIAL_BATCH_SIZE, *input_shape, generator=chance)
    random = randomize_weights(module)
    if is_cut_equivalent(random, plan_channels(coupling, TRIAL_SHARE), sample):
        return coupling
    good: list[ChannelGroup] = []
    bad: list[ChannelGroup] = []
    for group in coupling.groups:
        alone = replace(coupling, groups=(group,))
        (good if is_cut_equivalent(random, plan_channels(alone, TRIAL_SHARE), sample) else bad).append(group)
    kept = (*coupling.kept, *(UncutGroup(group.root, UNVERIFIED_REASON) for group in bad))
    return replace(coupling, groups=tuple(good), kept=kept)
