"""Which network a board's minibatches are of, as far as its layers are known."""

from __future__ import annotations

from fedge.costs.layered import network_of_spec
from fedge.experiment import Experiment
from fedge.layers.known import known_network
from fedge.layers.network import NetworkCost


def network_for(experiment: Experiment, cost: str) -> NetworkCost | None:
    """The network behind a cost's name: the experiment's own, or that of a known workload; None where nobody knows."""
    own = experiment.workload.network
    if own is not None and cost == experiment.workload.cost:
        return network_of_spec(own)
    return known_network(cost)
