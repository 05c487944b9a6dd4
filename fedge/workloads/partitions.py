"""How the training samples are split over the clients: evenly, by a Dirichlet draw per class, or in shards of a class.

A partition is a function of the labels, the number of clients and a random generator. It returns one sorted int64 array
of sample indices per client; every sample belongs to exactly one client and no client is empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput, UnknownName

Indices = NDArray[np.int64]
Partition = Callable[[Indices, int, np.random.Generator], list[Indices]]
"""``partition(labels, n_clients, rng)``; raises ``BadInput`` when there are fewer samples than clients."""

MIN_CLIENT_SAMPLES = 16
"""A Dirichlet draw leaves no client fewer samples than this (the default minibatch), or than an even share if less."""


class PartitionSettings(Protocol):
    """What a partition's numbers are read from, e.g. ``fedge.experiment.DataSpec``."""

    @property
    def partition(self) -> str: ...

    @property
    def alpha(self) -> float: ...

    @property
    def shards_per_client(self) -> int: ...


def iid() -> Partition:
    """Shuffled and cut into equal parts: sizes differ by one at most."""

    def partition(labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        _check_clients(len(labels), n_clients)
        return _sort_parts(np.array_split(rng.permutation(len(labels)), n_clients))

    return partition


def dirichlet(alpha: float) -> Partition:
    """Each class is divided among the clients in proportions drawn from Dirichlet(alpha) (Hsu et al. 2019).

    Small ``alpha`` (0.1): a client sees few classes; large (100): all alike. Sizes differ between clients as well. A
    client that gets fewer than ``MIN_CLIENT_SAMPLES`` is filled up by whoever has most at that moment, so the draw is
    never repeated. Raises ``BadInput`` unless ``alpha`` is a finite number above 0.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise BadInput("data.alpha", str(alpha), "a number above 0, such as 0.1 (few classes per client) or 100")

    def partition(labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        _check_clients(len(labels), n_clients)
        owner = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            ends = np.cumsum(rng.dirichlet(np.full(n_clients, alpha)))[:-1]
            cuts = np.rint(np.clip(ends, 0, 1) * len(members)).astype(np.int64)
            for client, part in enumerate(np.split(members, cuts)):
                owner[part] = client
        parts = [rng.permutation(np.flatnonzero(owner == client)) for client in range(n_clients)]
        return _sort_parts(_fill_up(parts, min(MIN_CLIENT_SAMPLES, len(labels) // n_clients)))

    return partition


def shards(per_client: int) -> Partition:
    """Sorted by label, cut into equal shards, ``per_client`` dealt to each client (McMahan et al. 2017, section 3).

    Raises ``BadInput`` unless ``per_client`` is at least 1 and there is a sample for every shard.
    """
    if per_client < 1:
        raise BadInput("data.shards_per_client", str(per_client), "a whole number of at least 1")

    def partition(labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        _check_clients(len(labels), n_clients)
        n_shards = n_clients * per_client
        if n_shards > len(labels):
            right = f"at most {len(labels) // n_clients} for {len(labels)} samples on {n_clients} clients"
            raise BadInput("data.shards_per_client", str(per_client), right)
        shuffled = rng.permutation(len(labels))
        pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], n_shards)
        dealt = rng.permutation(n_shards).reshape(n_clients, per_client)
        return _sort_parts([np.concatenate([pieces[i] for i in hand]) for hand in dealt])

    return partition


PARTITIONS: Mapping[str, Callable[[PartitionSettings], Partition]] = {
    "iid": lambda _: iid(),
    "dirichlet": lambda settings: dirichlet(settings.alpha),
    "shards": lambda settings: shards(settings.shards_per_client),
}
"""Every partition by name, made from an experiment's settings."""


def split_samples(
    settings: PartitionSettings, labels: Indices, n_clients: int, rng: np.random.Generator
) -> list[Indices]:
    """The shares of ``n_clients`` under the experiment's own partition; raises ``UnknownName`` or ``BadInput``."""
    if settings.partition not in PARTITIONS:
        raise UnknownName("data.partition", settings.partition, tuple(PARTITIONS))
    return PARTITIONS[settings.partition](settings)(labels, n_clients, rng)


def _check_clients(n_samples: int, n_clients: int) -> None:
    if not 1 <= n_clients <= n_samples:
        raise BadInput("fleet", f"{n_clients} clients", f"from 1 to {n_samples}, one training sample each at least")


def _fill_up(parts: list[Indices], smallest: int) -> list[Indices]:
    """Move samples one by one from the largest share to every share below ``smallest``."""
    sizes = np.array([len(part) for part in parts])
    stacks = [part.tolist() for part in parts]
    for poor in np.flatnonzero(sizes < smallest):
        while sizes[poor] < smallest:
            rich = int(sizes.argmax())
            stacks[poor].append(stacks[rich].pop())
            sizes[rich] -= 1
            sizes[poor] += 1
    return [np.array(stack, dtype=np.int64) for stack in stacks]


def _sort_parts(parts: list[Indices]) -> list[Indices]:
    return [np.sort(part).astype(np.int64) for part in parts]
