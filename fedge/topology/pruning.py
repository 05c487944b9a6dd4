"""Prunes a network to any share of its parameters or FLOP: asked once which channels go together, then arithmetic."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fedge.errors import BadInput
from fedge.layers.network import NetworkCost, Shape
from fedge.topology.coupling import Coupling, Group, Kept
from fedge.topology.cutting import agrees, cut, drawn
from fedge.topology.plan import Cut, plan_of
from fedge.topology.variant import Measure, Variant

if TYPE_CHECKING:
    from torch import nn

LEAST_CHANNELS = 0.1
"""No variant keeps fewer of its channels: about 1 % of the parameters. Chosen by us."""
STEPS = 12
"""Halvings in the search for a share: a channel in four thousand."""
TRIED_SHARE = 0.5
"""What is kept when it is proven that a group can be cut."""
TRIED_BATCH = 4
UNPROVEN = "cutting it would change what the others compute"


@dataclass(frozen=True, slots=True, eq=False)
class Prunable:
    """A network, its coupled channels, and its variants as far as they were asked for.

    ``empty`` is the module without numbers: enough for costs.
    """

    model: str
    input_shape: Shape
    coupling: Coupling
    method: str
    round_to: int
    empty: nn.Module
    cost: NetworkCost
    _made: dict[float, Variant] = field(default_factory=dict)

    def by_channels(self, share: float) -> Variant:
        """The variant with this share of every group's channels; 1.0 is the whole network."""
        if share not in self._made:
            plan = plan_of(self.coupling, share, self.round_to)
            self._made[share] = self._variant(share, plan)
        return self._made[share]

    def at(self, share: float, of: Measure = "parameters") -> Variant:
        """The largest variant with at most ``share`` (0 to 1) of the network's parameters or FLOP.

        Raises ``BadInput`` for a share below that of the smallest variant.
        """
        if share >= 1.0:
            return self.by_channels(1.0)
        low, high = LEAST_CHANNELS, 1.0
        if self.by_channels(low).share(of) > share:
            least = 100 * self.by_channels(low).share(of)
            raise BadInput("share", f"{100 * share:.3g} %", f"at least {least:.3g} % of the {of} of {self.model} stay")
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._share(middle, of) <= share else (low, middle)
        return self.by_channels(low)

    def _share(self, channels: float, of: Measure) -> float:
        """Parameters are counted without a trace."""
        if of == "flop":
            return self.by_channels(channels).flop_share
        small = cut(self.empty, plan_of(self.coupling, channels, self.round_to))
        return parameters(small) / parameters(self.empty)

    def _variant(self, share: float, plan: dict[str, Cut]) -> Variant:
        from fedge.layers.trace import trace

        small = cut(self.empty, plan)
        cost = trace(small, self.input_shape, self.model)
        return Variant(
            model=self.model,
            input_shape=self.input_shape,
            method=self.method,
            round_to=self.round_to,
            channel_share=share,
            parameter_share=parameters(small) / parameters(self.empty),
            flop_share=cost.flop / self.cost.flop,
            plan=plan,
            cost=cost,
        )


def parameters(module: nn.Module) -> int:
    """How many numbers a module learns."""
    return sum(one.numel() for one in module.parameters())


def prunable(
    module: nn.Module, model: str, input_shape: Shape, method: str = "l1", round_to: int = 1, seed: int = 0
) -> Prunable:
    """Find and prove what can be cut of ``module``, which is not changed.

    Every group is cut by way of trial: what is left must compute what the whole network does with those channels at
    zero. Raises ``BadInput`` for a network of which nothing can be cut, with the reasons.
    """
    from fedge.layers.trace import trace
    from fedge.topology.graph import coupling_of

    if round_to < 1:
        raise BadInput("--round-to", str(round_to), "1 or more channels")
    empty = deepcopy(module).to("meta")
    cost = trace(empty, input_shape, model)  # the first to run the network: says plainly if it takes no such samples
    coupling = proven(module, coupling_of(module, input_shape, method, seed), input_shape)
    if not coupling.groups:
        reasons = ", ".join(dict.fromkeys(one.reason for one in coupling.kept)) or "it has no convolution or Linear"
        raise BadInput("MODEL", f"{model}, of which no channel can go ({reasons})", "a network with hidden channels")
    return Prunable(model, input_shape, coupling, method, round_to, empty, cost)


def proven(module: nn.Module, coupling: Coupling, input_shape: Shape) -> Coupling:
    """The groups that can be cut without harm to anything else; the others are added to those that are kept."""
    import torch

    chance = torch.Generator().manual_seed(0)
    sample = torch.randn(TRIED_BATCH, *input_shape, generator=chance)
    random = drawn(module)
    if agrees(random, plan_of(coupling, TRIED_SHARE), sample):
        return coupling
    good: list[Group] = []
    bad: list[Group] = []
    for group in coupling.groups:
        alone = replace(coupling, groups=(group,))
        (good if agrees(random, plan_of(alone, TRIED_SHARE), sample) else bad).append(group)
    kept = (*coupling.kept, *(Kept(group.root, UNPROVEN) for group in bad))
    return replace(coupling, groups=tuple(good), kept=kept)
