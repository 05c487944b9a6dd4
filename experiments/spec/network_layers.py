"""Counts the layers of an experiment's own network, so that no board needs the network to predict its step cost."""

from __future__ import annotations

from fedge.costs.layers.network_record import format_layers
from fedge.costs.layers.network_source import load_network_cost
from fedge.costs.workload_sizes import load_workload_sizes
from fedge.errors import BadInput
from fedge.experiment import Experiment


def add_network_layers(experiment: Experiment, where: str) -> Experiment:
    """Return the experiment with its network's layers filled in; unchanged without a network or if they are present.

    An error names the file ``where``.

    Raises:
        BadInput: If the network cannot be loaded or has operators without a counting rule.
    """
    spec = experiment.workload.network
    if spec is None:
        return experiment
    field = f"{where}: workload.network"
    _check_cost_name(experiment.workload.cost, spec.model, where)
    if spec.layers is not None:
        return experiment
    try:
        network = load_network_cost(spec.model, spec.input)
    except BadInput as error:
        option = {"MODEL": ".model", "--input": ".input"}.get(error.where, f".model ({error.where})")
        raise BadInput(f"{field}{option}", error.got, _in_yaml_terms(error.right)) from error
    if network.unknown:
        names = ", ".join(sorted(set(network.unknown))[:5])
        raise BadInput(
            f"{field}.model", f"{spec.model} with operators that no rule counts ({names})", "another network"
        )
    if not network.flop:
        raise BadInput(f"{field}.model", f"{spec.model}, which computes nothing", "a network with layers")
    counted = spec.model_copy(update={"layers": format_layers(network), "input": network.input_shape})
    return experiment.model_copy(update={"workload": experiment.workload.model_copy(update={"network": counted})})


def _check_cost_name(cost: str, model: str, where: str) -> None:
    """Raise ``BadInput`` if a network without measurements is named like a measured workload."""
    if cost not in load_workload_sizes():
        return
    if model == cost:
        right = f"workload.cost: {cost}, without a network: it was measured"
        raise BadInput(f"{where}: workload.network.model", repr(model), right)
    right = "no cost beside a network, or one that is no measured workload's name"
    raise BadInput(f"{where}: workload.cost", repr(cost), right)


def _in_yaml_terms(right: str) -> str:
    """Rephrase a command's advice in terms of the YAML's fields."""
    return right.replace("--input 3x224x224", "[3, 224, 224]").replace("--input", "workload.network.input")
