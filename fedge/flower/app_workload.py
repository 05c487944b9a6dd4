"""Price of the steps of a plain Flower app: a cost profile, or the layers of the app's own network."""

from __future__ import annotations

from typing import cast

from flwr.app import ConfigRecord, Context

from fedge.costs.cost_scaling import load_workload_sizes
from fedge.costs.layered_work import find_named_workload
from fedge.costs.layers.network_record import format_layers
from fedge.errors import BadInput
from fedge.experiment import NetworkSpec, WorkloadSpec
from fedge.flower.node_memory import log_once

NETWORK = "fedge-network"
"""Record in the node's context: the layers of the app's network, because tracing takes longer than reading them."""


def price_app(work: WorkloadSpec, context: Context, *, assumed: bool) -> WorkloadSpec:
    """Return the workload with the layers of the app's network counted, or log once which network is assumed.

    Raises:
        BadInput: The network cannot be loaded or counted.
    """
    if assumed:
        log_once(
            context,
            f"every step is priced as one of {work.cost}: name your own network with "
            'power_mode(network="module:function", input_shape=(3, 224, 224)), or a profile with cost=',
        )
    if work.network is None:
        return work
    if NETWORK not in context.state:
        context.state[NETWORK] = _count_network(work.network)
    found = context.state.config_records[NETWORK]
    update: dict[str, object] = {"cost": found["cost"], "network": None}
    if found["cost"] not in load_workload_sizes():
        counted = {"input": tuple(cast("list[int]", found["input"])), "layers": found["layers"]}
        update["network"] = work.network.model_copy(update=counted)
    return work.model_copy(update=update)


def _count_network(network: NetworkSpec) -> ConfigRecord:
    """Return name, input and layers of the app's network."""
    shape = None if network.input is None else "x".join(map(str, network.input))
    work, counted = find_named_workload(network.model, input_shape=shape, option="network")
    if counted is None:
        raise BadInput("network", network.model, "a network whose layers are known; cost= names a cost profile")
    return ConfigRecord({"cost": work.name, "input": [*counted.input_shape], "layers": format_layers(counted)})
