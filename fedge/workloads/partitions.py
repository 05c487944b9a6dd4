"""Partitions of the training samples over the clients: IID, Dirichlet per class, or shards of a class.

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
"""``partition(labels, n_clients, rng)``; raises ``BadInput`` if there are fewer samples than clients."""

MIN_CLIENT_SAMPLES = 16
# Smallest number of samples per client after a Dirichlet draw (the default batch size), or an even share if that is
# less.


class PartitionSettings(Protocol):
    """The settings of a partition, e.g. ``fedge.experiment.DataSpec``."""

    @property
    def partition(self) -> str: ...

    @property
    def alpha(self) -> float: ...

    @property
    def shards_per_client(self) -> int: ...


def iid() -> Partition:
    """Return a partition into random, equal parts; sizes differ by at most one."""

    def partition(labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        _check_clients(len(labels), n_clients)
        return _sort_parts(np.array_split(rng.permutation(len(labels)), n_clients))

    return partition


def dirichlet(alpha: float) -> Partition:
    """Return a partition that divides each class in proportions drawn from a Dirichlet distribution.

    A client with fewer than ``MIN_CLIENT_SAMPLES`` samples receives samples from the client that has most at that
    moment,
    so the draw never has to be repeated.

    Args:
        alpha: Concentration: small values (0.1) give each client few classes, large ones (100) make all clients alike.

    Raises:
        BadInput: If ``alpha`` is not a finite number above 0.

    References:
        Hsu et al. (2019).
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
    """Return a partition that sorts samples by label, cuts them into equal shards and deals them to the clients.

    Raises:
        BadInput: If ``per_client`` is below 1; the partition raises it if there are fewer samples than shards.

    References:
        McMahan et al. (2017), section 3.
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
"""Factories of the partitions by name; each reads an experiment's settings."""


def split_samples(
    settings: PartitionSettings, labels: Indices, n_clients: int, rng: np.random.Generator
) -> list[Indices]:
    """Return the sample indices of every client under the experiment's partition.

    Raises:
        UnknownName: If the partition is unknown.
        BadInput: If a parameter is invalid or there are fewer samples than clients.
    """
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
