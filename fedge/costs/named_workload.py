"""The work of a step that a user names: a known workload, or any network that can be counted by its layers."""

from __future__ import annotations

from pathlib import Path

from fedge.costs.cost_profile import WorkloadKind, find_user_batch_size
from fedge.costs.layered_work import find_known_layers
from fedge.costs.layers.network_cost import NetworkCost, sum_layers
from fedge.costs.layers.network_record import find_known_network
from fedge.costs.layers.network_source import load_network_cost, parse_input_shape
from fedge.costs.workload_sizes import load_workload_sizes
from fedge.errors import BadInput
from fedge.types import LayerWork, Workload

DEFAULT_BATCH_SIZE = 16
"""Default batch size of a network that is not a known workload."""


def find_named_workload(
    name: str,
    *,
    batch_size: int | None = None,
    kind: WorkloadKind = "train",
    input_shape: str | None = None,
    option: str = "--workload",
) -> tuple[Workload, NetworkCost | None]:
    """Find a known workload by name, or any network by its layers.

    Args:
        name: A known workload, or any network as ``load_network_cost`` takes it.
        batch_size: Samples per step; by default the workload's own, or ``DEFAULT_BATCH_SIZE``.
        kind: Training or inference.
        input_shape: Shape of one sample, as ``3x224x224``; needed for the user's own network.
        option: The option that names the workload, for error messages.

    Returns:
        The workload and its network; the network is None if its layers are not known.

    Raises:
        BadInput: If the network cannot be loaded or counted.
    """
    if batch_size is not None and batch_size < 1:
        raise BadInput("--batch-size", str(batch_size), "a whole number above 0")
    known = load_workload_sizes().get(name)
    layers = find_known_layers(name, kind)
    if layers is not None and input_shape is None:
        size = batch_size or (known.batch_size if known else DEFAULT_BATCH_SIZE)
        return Workload(name, size, kind, layers), find_known_network(name)
    if layers is None and input_shape is None and (own := find_user_batch_size(name, kind)) is not None:
        return Workload(name, batch_size or own, kind), None
    try:
        network = load_network_cost(name, parse_input_shape(input_shape))
    except BadInput as error:
        raise BadInput(option if error.where == "NETWORK" else error.where, error.got, error.right) from error
    if network.unknown:
        raise BadInput(option, f"operators that no rule counts ({', '.join(network.unknown[:5])})", "another one")
    if not network.flop:
        raise BadInput(option, f"{name}, which computes nothing", "a network with layers")
    stem = Path(name).stem
    if stem in load_workload_sizes():  # another network or other images than those that were measured by this name
        stem = f"{stem} {'x'.join(map(str, network.input_shape))}"
    layers = LayerWork(stem, sum_layers(network), loading="cached" if kind == "infer" else "workers")
    return Workload(stem, batch_size or DEFAULT_BATCH_SIZE, kind, layers), network
