"""Prune a network to any share of its parameters or FLOP, from one analysis of its coupled channels.

The channels, their structure and importance come from torch-pruning's dependency graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedge.analysis.topology.channel_plan import (
    ChannelCoupling,
    ChannelGroup,
    GroupMember,
    LayerSide,
    LayerWidth,
    NetworkVariant,
    UncutGroup,
    flatten_tensors,
    is_cut_equivalent,
    is_evenly_grouped,
    is_norm,
    list_layer_widths,
    plan_channels,
    randomize_weights,
    rank_units,
)
from fedge.costs.layers.network_cost import NetworkCost, Shape
from fedge.errors import BadInput, check_known
from fedge.extras import build_install_command
from fedge.worker.channel_cuts import LayerCut, cut_module

if TYPE_CHECKING:
    from torch import Tensor, nn


IMPORTANCE_METHODS = ("l1", "l2", "random")
"""Rankings of channels: by the norm of the weights that are removed with them, or random."""
TRACED_BATCH = 2
"""Samples in the traced step: the fewest with which BatchNorm can train."""


def find_coupling(
    module: nn.Module, input_shape: tuple[int, ...], method: str = "l1", seed: int = 0
) -> ChannelCoupling:
    """Return the coupled channels of a module, which is not changed.

    Raises:
        BadInput: For an unknown method, a missing library, and a network that cannot be traced.
    """
    pruning = _import_torch_pruning()
    check_known("--ranking", method, IMPORTANCE_METHODS)
    copied = deepcopy(module).cpu()
    graph = _trace_dependencies(pruning, copied, input_shape)
    return _build_coupling(pruning, graph, copied, _build_importance(pruning, method, seed))


def _import_torch_pruning() -> Any:
    try:
        import torch_pruning
    except ImportError as error:
        raise BadInput(
            "fedge topology", "no torch-pruning", f"install it: {build_install_command('pruning')}"
        ) from error
    return torch_pruning


def _trace_dependencies(pruning: Any, module: nn.Module, input_shape: tuple[int, ...]) -> Any:
    """Return the graph of a forward pass, including heads that exist in training only."""
    import torch

    def step(network: nn.Module, sample: Tensor) -> Any:
        network.training = True  # its own flag alone: auxiliary heads answer, nothing is dropped
        return flatten_tensors(network(sample))

    with torch.enable_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for parameter in module.parameters():
            parameter.requires_grad_(True)
        sample = torch.randn(TRACED_BATCH, *input_shape)
        try:
            return pruning.DependencyGraph().build_dependency(module, sample, forward_fn=step, verbose=False)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            shape = "x".join(map(str, input_shape))
            raise BadInput(
                "NETWORK",
                f"a network that torch-pruning cannot follow ({reason})",
                f"one that takes samples of {shape} and shuffles no channels",
            ) from error


def _build_importance(pruning: Any, method: str, seed: int) -> Callable[[Any], Any]:
    if method == "random":
        chance = np.random.default_rng(seed)
        return lambda group: chance.random(len(group[0].idxs))
    return pruning.importance.GroupMagnitudeImportance(p=1 if method == "l1" else 2)  # type: ignore[no-any-return]


def _build_coupling(pruning: Any, graph: Any, module: nn.Module, importance: Callable[[Any], Any]) -> ChannelCoupling:
    names = {id(part): name for name, part in module.named_modules()}
    widths = dict(list_layer_widths(module))
    groups: list[ChannelGroup] = []
    kept: list[UncutGroup] = []
    seen: set[str] = set()
    for part in list(graph.module2node):
        root = names.get(id(part), "")
        if root in seen or root not in widths or is_norm(part):
            continue
        reached = _find_reachable(graph, part)
        reason = _find_obstacle(pruning, reached)
        group = None if reason else _build_group(graph, root=part, names=names, widths=widths, importance=importance)
        if group is None:
            kept.append(UncutGroup(root, reason or "its channels cannot be followed"))
        else:
            groups.append(group)
            seen.update(member.layer for member in group.members if member.side == "out")
    return ChannelCoupling(tuple(groups), tuple(kept), widths)


def _find_reachable(graph: Any, root: nn.Module) -> list[tuple[Any, LayerSide]]:
    """Return everything that removing channels of ``root`` could affect, without following single channels.

    This is quick and complete; following the channels themselves through an attention's reshapes can take hours.
    """
    first = graph.get_pruner_of_module(root).prune_out_channels
    found, left = [(graph.module2node[root], first)], [(graph.module2node[root], first)]
    while left:
        node, handler = left.pop()
        for dep in node.dependencies:
            if dep.is_triggered_by(handler) and (dep.target, dep.handler) not in found:
                found.append((dep.target, dep.handler))
                left.append((dep.target, dep.handler))
    return [(node, _layer_side(graph, handler)) for node, handler in found]


def _layer_side(graph: Any, handler: Any) -> LayerSide:
    return "out" if graph.is_out_channel_pruning_fn(handler) else "in"


def _find_obstacle(pruning: Any, reached: Sequence[tuple[Any, LayerSide]]) -> str | None:
    """Return why a group cannot be cut, or None if it can."""
    kinds = pruning.ops.OPTYPE
    reasons = {
        kinds.OUTPUT: "the network's output",
        kinds.MHA: "an attention reads it",
        kinds.LN: "a LayerNorm reads it",
        kinds.IN: "an InstanceNorm reads it",
        kinds.PARAMETER: "a parameter of its own stands beside it",
        kinds.LSTM: "an LSTM reads it",
        kinds.EMBED: "an embedding makes it",
        kinds.PRELU: "a PReLU reads it",
        kinds.UNBIND: "an attention reads it",
    }
    found = [reasons[node.type] for node, _ in reached if node.type in reasons]
    read = any(node.type in (kinds.CONV, kinds.LINEAR) and side == "in" for node, side in reached)
    return found[0] if found else None if read else reasons[kinds.OUTPUT]


def _build_group(
    graph: Any, root: nn.Module, names: dict[int, str], widths: dict[str, LayerWidth], importance: Callable[[Any], Any]
) -> ChannelGroup | None:
    handler = graph.get_pruner_of_module(root).prune_out_channels
    channels = widths[names[id(root)]].outputs
    raw = graph.get_pruning_group(root, handler, list(range(channels)))
    cut = [item for item in raw if id(item.dep.target.module) in names]
    layers = [names[id(item.dep.target.module)] for item in cut]
    if any(layer not in widths for layer in layers):
        return None
    several = max([w.groups for layer in layers if not (w := widths[layer]).is_depthwise], default=1)
    if channels % several or any(unit is None for item in raw for unit in item.root_idxs):
        return None
    units = channels // several
    members = []
    for layer, item in zip(layers, cut, strict=True):
        unit_of = np.asarray(item.root_idxs, dtype=np.int64) % units
        indices = np.asarray(item.idxs, dtype=np.int64)
        members.append(GroupMember(layer, _layer_side(graph, item.dep.handler), unit_of, indices))
    if not all(is_evenly_grouped(member, widths[member.layer]) for member in members):
        return None
    return ChannelGroup(layers[0], rank_units(importance(raw), units), tuple(members))


MIN_CHANNEL_SHARE = 0.1
"""Default lower bound of a variant's channel share: about 1 % of the parameters."""
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

    Raises:
        BadInput: For a network without removable channels, with the reasons.
    """
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
        raise BadInput("NETWORK", f"{model}, of which no channel can go ({reasons})", "a network with hidden channels")
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
