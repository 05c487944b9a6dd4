"""Work as its layers: of the known workloads, and of an experiment's own network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fedge.costs.cost_profile import CostProfile, WorkloadKind
from fedge.costs.layers.known_networks import find_known_network, parse_layers
from fedge.costs.layers.layer_sums import sum_layers
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.workload_sizes import load_forward_sizes, load_workload_sizes
from fedge.errors import BadInput, UnknownName
from fedge.experiment import FleetEntry, NetworkSpec, WorkloadSpec
from fedge.types import LayerWork, Workload


@dataclass(frozen=True, slots=True)
class LayeredBatch:
    """A minibatch that is priced by its layers."""

    layers: LayerWork
    size: int
    kind: WorkloadKind = "train"


@lru_cache(maxsize=64)
def find_known_layers(workload: str, kind: WorkloadKind = "train") -> LayerWork | None:
    """What a known workload's minibatches are made of; None for a workload whose network is not known."""
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
    """The minibatch that a profile is of; None where its network is not known."""
    layers = find_known_layers(profile.workload, profile.kind)
    return None if layers is None else LayeredBatch(layers, profile.batch_size, profile.kind)


def find_profile_network(profile: CostProfile) -> str | None:
    """The network that a profile is of, where it is known."""
    batch = build_profile_batch(profile)
    return None if batch is None else batch.layers.network


def build_workload(entry: FleetEntry, workload: WorkloadSpec) -> Workload:
    """What a minibatch is on an entry's boards: of the entry's own ``cost``, at that workload's batch size, if given.

    Such an entry's measured table is replayed at its one batch size, whatever that is. The layers are there where they
    are needed: for an experiment's own network, and for a known workload at another batch size than its own. Raises
    ``UnknownName`` for a cost of its own that nobody knows.
    """
    sizes = load_workload_sizes()
    if entry.cost is not None:
        if entry.cost not in sizes:
            raise UnknownName("fleet.cost", entry.cost, tuple(sizes))
        return Workload(entry.cost, sizes[entry.cost].batch_size)
    if workload.network is not None:
        return Workload(workload.cost, workload.batch_size, layers=layer_work_from_spec(workload.network))
    known = sizes.get(workload.cost)
    same = known is None or known.batch_size == workload.batch_size
    return Workload(workload.cost, workload.batch_size, layers=None if same else find_known_layers(workload.cost))


def layer_work_from_spec(spec: NetworkSpec) -> LayerWork:
    """What minibatches of an experiment's own network are made of; its layers must have been counted."""
    name = spec.model.rpartition("/")[2].partition(".")[0]
    return LayerWork(
        name,
        counted=sum_layers(network_from_spec(spec)),
        mixed=spec.mixed,
        loading=spec.loading,
        image_mpixel=spec.image_mpixel,
    )


def network_from_spec(spec: NetworkSpec) -> NetworkCost:
    """The counted network of an experiment. Raises ``BadInput`` for one that was not counted."""
    if not spec.layers:
        raise BadInput("workload.network.layers", "nothing", "an experiment that was read from its file, with layers")
    return _parse_counted_network(spec.model, spec.input or (), spec.layers)


@lru_cache(maxsize=4)
def _parse_counted_network(model: str, input_shape: tuple[int, ...], layers: str) -> NetworkCost:
    try:
        return NetworkCost(model, input_shape, parse_layers(layers), "counted when the experiment was launched")
    except ValueError as error:
        raise BadInput("workload.network.layers", f"text that cannot be read ({error})", "what was counted") from error
