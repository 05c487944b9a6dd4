"""Workloads with their layers: known workloads, and an experiment's own network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from fedge.costs.cost_profile import CostProfile, WorkloadKind, find_user_batch_size
from fedge.costs.layers.network_cost import ELEMENT_BYTES, NetworkCost, sum_layers
from fedge.costs.layers.network_record import find_known_network, parse_layers
from fedge.costs.workload_sizes import load_forward_sizes, load_workload_sizes
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
        return Workload(workload.cost, workload.batch_size, layers=layer_work_from_spec(workload.network))
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


def layer_work_from_spec(spec: NetworkSpec) -> LayerWork:
    """Return the layers of an experiment's own network.

    Raises:
        BadInput: The specification has no layer counts, or they cannot be parsed.
    """
    return LayerWork(
        label_network(spec.model).partition(".py")[0],
        counted=sum_layers(network_from_spec(spec), training=True),
        mixed=spec.mixed,
        loading=spec.loading,
        image_mpixel=spec.image_mpixel,
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
