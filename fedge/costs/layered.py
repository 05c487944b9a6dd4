"""Work as its layers: of the known workloads, and of an experiment's own network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fedge.costs.forward import load_forward
from fedge.costs.record import CostProfile, Kind
from fedge.costs.workloads import load_workloads
from fedge.errors import BadInput, UnknownName
from fedge.experiment import FleetEntry, NetworkSpec, WorkloadSpec
from fedge.layers.counted import counted
from fedge.layers.known import known_network, layers_of
from fedge.layers.network import NetworkCost
from fedge.types import LayerWork, Workload


@dataclass(frozen=True, slots=True)
class Batch:
    """A minibatch that is priced by its layers."""

    layers: LayerWork
    size: int
    kind: Kind = "train"


@lru_cache(maxsize=64)
def known_layers(workload: str, kind: Kind = "train") -> LayerWork | None:
    """What a known workload's minibatches are made of; None for a workload whose network is not known."""
    network, training = known_network(workload), load_workloads().get(workload)
    if network is None:
        return None
    name = load_forward()[workload].network if workload in load_forward() else workload
    if training is None or kind == "infer":
        return LayerWork(name, counted(network), loading="cached")
    return LayerWork(name, counted(network), training.mixed, training.loading, training.image_mpixel)


def batch_of(profile: CostProfile) -> Batch | None:
    """The minibatch that a profile is of; None where its network is not known."""
    layers = known_layers(profile.workload, profile.kind)
    return None if layers is None else Batch(layers, profile.batch_size, profile.kind)


def network_of(profile: CostProfile) -> str | None:
    """The network that a profile is of, where it is known."""
    batch = batch_of(profile)
    return None if batch is None else batch.layers.network


def work_of(entry: FleetEntry, workload: WorkloadSpec) -> Workload:
    """What a minibatch is on an entry's boards: of the entry's own ``cost``, at that workload's batch size, if given.

    Such an entry's measured table is replayed at its one batch size, whatever that is. The layers are there where they
    are needed: for an experiment's own network, and for a known workload at another batch size than its own. Raises
    ``UnknownName`` for a cost of its own that nobody knows.
    """
    sizes = load_workloads()
    if entry.cost is not None:
        if entry.cost not in sizes:
            raise UnknownName("fleet.cost", entry.cost, tuple(sizes))
        return Workload(entry.cost, sizes[entry.cost].batch_size)
    if workload.network is not None:
        return Workload(workload.cost, workload.batch_size, layers=layers_of_spec(workload.network))
    known = sizes.get(workload.cost)
    same = known is None or known.batch_size == workload.batch_size
    return Workload(workload.cost, workload.batch_size, layers=None if same else known_layers(workload.cost))


def layers_of_spec(spec: NetworkSpec) -> LayerWork:
    """What minibatches of an experiment's own network are made of; its layers must have been counted."""
    name = spec.model.rpartition("/")[2].partition(".")[0]
    return LayerWork(name, counted(network_of_spec(spec)), spec.mixed, spec.loading, spec.image_mpixel)


def network_of_spec(spec: NetworkSpec) -> NetworkCost:
    """The counted network of an experiment. Raises ``BadInput`` for one that was not counted."""
    if not spec.layers:
        raise BadInput("workload.network.layers", "nothing", "an experiment that was read from its file, with layers")
    return _counted_before(spec.model, spec.input or (), spec.layers)


@lru_cache(maxsize=4)
def _counted_before(model: str, input_shape: tuple[int, ...], layers: str) -> NetworkCost:
    try:
        return NetworkCost(model, input_shape, layers_of(layers), "counted when the experiment was launched")
    except ValueError as error:
        raise BadInput("workload.network.layers", f"text that cannot be read ({error})", "what was counted") from error
