"""Workloads with their layers: known workloads, and an experiment's own network.

The work of a step that a user names: a known workload, or any network that can be counted by its layers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from fedge.costs.cost_profile import CostProfile, WorkloadKind, find_user_batch_size
from fedge.costs.cost_scaling import load_forward_sizes, load_workload_sizes
from fedge.costs.layers.network_cost import ELEMENT_BYTES, NetworkCost, sum_layers
from fedge.costs.layers.network_record import find_known_network, parse_layers
from fedge.costs.layers.network_source import load_network_cost, parse_input_shape
from fedge.errors import BadInput, UnknownName
from fedge.experiment import FleetEntry, NetworkSpec, WorkloadSpec, label_network
from fedge.types import LayerWork, Workload


@dataclass(frozen=True, slots=True)
class LayeredBatch:
    """A minibatch whose cost is estimated from its layers."""

    layers: LayerWork
    size: int
    kind: WorkloadKind = "train"


@lru_cache(maxsize=64)
def find_known_layers(workload: str, kind: WorkloadKind = "train") -> LayerWork | None:
    """Return the layers of a known workload, or None; for inference without loading and mixed precision."""
    network, training = find_known_network(workload), load_workload_sizes().get(workload)
    if network is None:
        return None
    name = load_forward_sizes()[workload].network if workload in load_forward_sizes() else workload
    if training is None or kind == "infer":
        return LayerWork(name, sum_layers(network), loading="cached")
    return LayerWork(
        name,
        counted=sum_layers(network),
        mixed=training.mixed,
        loading=training.loading,
        image_mpixel=training.image_mpixel,
    )


def build_profile_batch(profile: CostProfile) -> LayeredBatch | None:
    """Return the minibatch that a profile describes, or None if its network is not known."""
    layers = find_known_layers(profile.workload, profile.kind)
    return None if layers is None else LayeredBatch(layers, profile.batch_size, profile.kind)


def find_profile_network(profile: CostProfile) -> str | None:
    """Return the name of a profile's network, or None if it is not known."""
    batch = build_profile_batch(profile)
    return None if batch is None else batch.layers.network


def find_family(network: str) -> str:
    """Return the family of a network: the letters before its version or size, as ``resnet`` of ``resnet18``."""
    found = re.match(r"[a-z]+?(?=_|-|\d|v\d|$)", network.lower())
    return found.group() if found else network


def build_workload(entry: FleetEntry, workload: WorkloadSpec) -> Workload:
    """Return the workload of a fleet entry's boards.

    An entry with its own ``cost`` replays a measured table at that workload's batch size. Layers are set only where
    they are needed: for an experiment's own network, and for a known workload at an unusual batch size.

    Raises:
        UnknownName: The entry's own ``cost`` is not a known workload.
        BadInput: The experiment's own network has no layer counts.
    """
    sizes = load_workload_sizes()
    if entry.cost is not None:
        own = find_user_batch_size(entry.cost)
        if entry.cost not in sizes and own is None:
            raise UnknownName("fleet.cost", entry.cost, tuple(sizes))
        return Workload(entry.cost, sizes[entry.cost].batch_size if own is None else own)
    if workload.network is not None:
        state = 1.0 if workload.optimizer_state is None else workload.optimizer_state
        layers = layer_work_from_spec(workload.network, state)
        return Workload(workload.cost, workload.batch_size, layers=layers)
    known = sizes.get(workload.cost)
    same = known is None or known.batch_size == workload.batch_size
    return Workload(workload.cost, workload.batch_size, layers=None if same else find_known_layers(workload.cost))


def find_priced_network(entry: FleetEntry, workload: WorkloadSpec) -> NetworkCost | None:
    """Return the network whose steps an entry's boards are charged for, or None if its layers are not known."""
    if entry.cost is None and workload.network is not None:
        return network_from_spec(workload.network)
    return find_known_network(entry.cost or workload.cost)


def count_priced_bytes(entry: FleetEntry, workload: WorkloadSpec) -> float | None:
    """Return the bytes of the model that an entry's emulated links move, or None if its size is not known.

    It is the model whose steps are charged for, not the one that is trained in its place. Frozen parameters stay where
    they are.
    """
    if workload.model_mb is not None:
        return 1e6 * workload.model_mb
    network = find_priced_network(entry, workload)
    return None if network is None else float(ELEMENT_BYTES * network.trained_parameters)


def layer_work_from_spec(spec: NetworkSpec, optimizer_state: float = 1.0) -> LayerWork:
    """Return the layers of an experiment's own network.

    Raises:
        BadInput: The specification has no layer counts, or they cannot be parsed.
    """
    return LayerWork(
        label_network(spec.model).partition(".py")[0],
        counted=sum_layers(network_from_spec(spec), training=True, optimizer_state=optimizer_state),
        mixed=spec.mixed,
        loading=spec.loading,
        image_mpixel=spec.image_mpixel,
        optimizer_state=optimizer_state,
    )


def network_from_spec(spec: NetworkSpec) -> NetworkCost:
    """Return the counted network of an experiment.

    Raises:
        BadInput: The specification has no layer counts, or they cannot be parsed.
    """
    if not spec.layers:
        raise BadInput("workload.network.layers", "nothing", "an experiment that was read from its file, with layers")
    return _parse_counted_network(spec.model, spec.input or (), spec.layers)


@lru_cache(maxsize=4)
def _parse_counted_network(model: str, input_shape: tuple[int, ...], layers: str) -> NetworkCost:
    try:
        return NetworkCost(model, input_shape, parse_layers(layers), "counted when the experiment was launched")
    except ValueError as error:
        raise BadInput("workload.network.layers", f"text that cannot be read ({error})", "what was counted") from error


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

    The batch size is by default the workload's own, or ``DEFAULT_BATCH_SIZE``. The shape of one sample, as
    ``3x224x224``, is needed for the user's own network. ``option`` names the workload in errors.

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
    stem = label_network(name)
    if stem in load_workload_sizes():  # another network or other images than those that were measured by this name
        stem = f"{stem} {'x'.join(map(str, network.input_shape))}"
    layers = LayerWork(stem, sum_layers(network), loading="cached" if kind == "infer" else "workers")
    return Workload(stem, batch_size or DEFAULT_BATCH_SIZE, kind, layers), network
