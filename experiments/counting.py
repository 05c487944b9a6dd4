"""Counts the layers of an experiment's own network, so that no board needs the network to price its minibatches."""

from __future__ import annotations

from fedge.costs.workloads import load_workloads
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.layers.known import lines_of
from fedge.layers.source import network_of


def counted(experiment: Experiment, where: str) -> Experiment:
    """The experiment with its network's layers; as it is where it has no network, or one that was counted before.

    Raises ``BadInput``, below ``where`` (the file), for a network that cannot be counted or is not counted in full.
    """
    spec = experiment.workload.network
    if spec is None:
        return experiment
    field = f"{where}: workload.network"
    if experiment.workload.cost in load_workloads():
        right = "no cost beside a network, or one that is no measured workload's name"
        raise BadInput(f"{where}: workload.cost", repr(experiment.workload.cost), right)
    if spec.layers is not None:
        return experiment
    try:
        network = network_of(spec.model, spec.input)
    except BadInput as error:
        option = {"MODEL": ".model", "--input": ".input"}.get(error.where, f".model ({error.where})")
        raise BadInput(f"{field}{option}", error.got, error.right) from error
    if network.unknown:
        names = ", ".join(sorted(set(network.unknown))[:5])
        raise BadInput(
            f"{field}.model", f"{spec.model} with operators that no rule counts ({names})", "another network"
        )
    told = spec.model_copy(update={"layers": lines_of(network), "input": network.input_shape})
    return experiment.model_copy(update={"workload": experiment.workload.model_copy(update={"network": told})})
