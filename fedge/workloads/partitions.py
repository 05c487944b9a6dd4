"""Partitions of the training samples over the clients: IID, Dirichlet per class, shards of a class, natural groups.

Every sample belongs to exactly one client and no client is empty. A partition of the user's own may leave samples out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge import registry
from fedge.errors import BadInput, describe_error
from fedge.experiment import DataSpec
from fedge.protocols import LearningTask

Indices = NDArray[np.int64]
Partition = Callable[[DataSpec, Indices, int, np.random.Generator], list[Indices]]
"""``partition(settings, labels, n_clients, rng)``; returns the sample indices of every client."""

MIN_CLIENT_SAMPLES = 16
# Smallest number of samples per client after a Dirichlet draw (the default batch size), or an even share if that is
# less.


def split_task(settings: DataSpec, task: LearningTask, n_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Return the sample indices of every client of a task; see ``split_data``."""
    return split_data(settings, task.labels, groups=getattr(task, "groups", None), n_clients=n_clients, rng=rng)


def split_data(
    settings: DataSpec, labels: Indices, groups: Indices | None, n_clients: int, rng: np.random.Generator
) -> list[Indices]:
    """Return the sample indices of every client, by the samples' groups or labels; see ``split_samples``.

    Raises:
        BadInput: Also if the partition is ``natural`` and there are no groups.
    """
    if settings.partition not in PARTITIONS:
        return _split_by_own_partition(settings, labels, groups=groups, clients=n_clients, rng=rng)
    if settings.options:
        raise BadInput("data.options", ", ".join(settings.options), "none: they are for a partition of your own")
    if settings.partition == NATURAL and groups is None:
        raise BadInput("data.partition", repr(NATURAL), "iid, dirichlet or shards: the task's data names no groups")
    decides = labels if settings.partition != NATURAL or groups is None else groups
    return split_samples(settings, decides, n_clients, rng)


def split_samples(settings: DataSpec, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Return the sorted sample indices of every client under the experiment's partition.

    ``labels`` are the classes of the samples, or their groups for the partition ``natural``.

    Raises:
        BadInput: There are fewer samples than clients or shards, or fewer groups than clients.
    """
    if not 1 <= n_clients <= len(labels):
        raise BadInput("fleet", f"{n_clients} clients", f"from 1 to {len(labels)}, one training sample each at least")
    parts = PARTITIONS[settings.partition](settings, labels, n_clients, rng)
    return [np.sort(part).astype(np.int64) for part in parts]


def split_test(shares: Sequence[Indices], labels: Indices, test_labels: Indices) -> list[Indices]:
    """Return the indices of every client's test samples, so that its classes are as in its training samples.

    The test samples of a class are divided in proportion to the clients' training samples of it, of a class without any
    in proportion to all of their samples. Every test sample belongs to one client; a client may have none.
    """
    parts: list[list[Indices]] = [[] for _ in shares]
    for label in np.unique(test_labels):
        members = np.flatnonzero(test_labels == label)
        counts = np.array([np.count_nonzero(labels[share] == label) for share in shares], dtype=np.float64)
        weights = counts if counts.any() else np.array([len(share) for share in shares], dtype=np.float64)
        cuts = np.rint(np.cumsum(weights)[:-1] / weights.sum() * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)).astype(np.int64) for part in parts]


def _split_evenly(settings: DataSpec, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Split into random, equal parts; sizes differ by at most one."""
    return np.array_split(rng.permutation(len(labels)), n_clients)


def _split_by_dirichlet(settings: DataSpec, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Divide each class in proportions drawn from a Dirichlet distribution.

    Small values of ``alpha`` (0.1) give each client few classes, large ones (100) make all clients alike. A client with
    fewer than ``MIN_CLIENT_SAMPLES`` samples receives samples from the client that has most at that moment, so the draw
    never has to be repeated.

    References:
        Hsu et al. (2019).
    """
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(rng.dirichlet(np.full(n_clients, settings.alpha)))[:-1]
        cuts = np.rint(np.clip(ends, 0, 1) * len(members)).astype(np.int64)
        for client, part in enumerate(np.split(members, cuts)):
            owner[part] = client
    parts = [rng.permutation(np.flatnonzero(owner == client)) for client in range(n_clients)]
    return _fill_up(parts, min(MIN_CLIENT_SAMPLES, len(labels) // n_clients))


def _split_by_shards(settings: DataSpec, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Sort samples by label, cut them into equal shards and deal those to the clients.

    References:
        McMahan et al. (2017), section 3.
    """
    per_client = settings.shards_per_client
    n_shards = n_clients * per_client
    if n_shards > len(labels):
        right = f"from 1 to {len(labels) // n_clients} for {len(labels)} samples on {n_clients} clients"
        raise BadInput("data.shards_per_client", str(per_client), right)
    shuffled = rng.permutation(len(labels))
    pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], n_shards)
    dealt = rng.permutation(n_shards).reshape(n_clients, per_client)
    return [np.concatenate([pieces[i] for i in hand]) for hand in dealt]


def _split_by_group(settings: DataSpec, labels: Indices, n_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Deal whole groups, the largest first, each to the client that has fewest samples; equal groups in random order.

    With as many groups as clients, every client is one group.
    """
    groups, sizes = np.unique(labels, return_counts=True)
    if len(groups) < n_clients:
        raise BadInput(
            "data.partition", f"{len(groups)} groups for {n_clients} clients", "at most one client per group"
        )
    shuffled = rng.permutation(len(groups))
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    held, owner = np.zeros(n_clients, dtype=np.int64), {}
    for group in order.tolist():
        client = int(held.argmin())
        owner[int(groups[group])] = client
        held[client] += sizes[group]
    owners = np.array([owner[int(label)] for label in labels])
    return [np.flatnonzero(owners == client) for client in range(n_clients)]


NATURAL = "natural"
PARTITIONS: Mapping[str, Partition] = {
    NATURAL: _split_by_group,
    "iid": _split_evenly,
    "dirichlet": _split_by_dirichlet,
    "shards": _split_by_shards,
}


def _split_by_own_partition(
    settings: DataSpec, labels: Indices, groups: Indices | None, clients: int, rng: np.random.Generator
) -> list[Indices]:
    """Return the samples of every client by the user's function, or by a class of flwr-datasets."""
    name, options = settings.partition, settings.options
    own = registry.load_named("data.partition", name, dict.fromkeys(PARTITIONS, ""))
    right = "a function (labels, groups, clients, rng, **options) that returns the indices of each client's samples"
    if inspect.isclass(own):
        right = "a partitioner of flwr-datasets over the columns sample, label and group, with its arguments as options"
    try:
        if inspect.isclass(own):
            parts = _load_partitions(own, options, labels, groups=groups, clients=clients, rng=rng)
        else:
            parts = own(labels=labels, groups=groups, clients=clients, rng=rng, **options)
        found = [np.sort(_to_indices(part)) for part in parts]
    except ImportError as error:
        missing = (error.name or "").partition(".")[0] or "a package"
        raise BadInput("data.partition", f"{name}, but no {missing}", f"`pip install {missing}`") from error
    except Exception as error:  # the user's code can raise anything
        reason = describe_error(error)
        raise BadInput("data.partition", f"{name} ({reason})", right) from error
    outside = any(part.ndim != 1 or not len(part) or part[0] < 0 or part[-1] >= len(labels) for part in found)
    if not outside and (repeated := _find_repeated(found)) is not None:
        raise BadInput("data.partition", f"{name}, which gives sample {repeated} twice", "every sample once at most")
    if len(found) != clients or outside:
        got = f"{name}, which gives {len(found)} clients {[len(part) for part in found][:5]} samples"
        raise BadInput(
            "data.partition", got, f"indices from 0 to {len(labels) - 1}, some for each of {clients} clients"
        )
    return found


def _find_repeated(parts: Sequence[Indices]) -> int | None:
    numbers, counts = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *parts]), return_counts=True)
    return int(numbers[counts.argmax()]) if counts.size and counts.max() > 1 else None


def _to_indices(part: Any) -> Indices:
    indices = np.asarray(part)
    return indices.astype(np.int64, casting="safe" if indices.size else "unsafe")


def _load_partitions(
    kind: Any,
    options: Mapping[str, Any],
    labels: Indices,
    groups: Indices | None,
    clients: int,
    rng: np.random.Generator,
) -> list[Any]:
    """Split by a partitioner of flwr-datasets over a table in memory with the columns sample, label and group."""
    from datasets import Dataset

    columns = {"sample": np.arange(len(labels)), "label": labels, **({} if groups is None else {"group": groups})}
    own = {"num_partitions": clients, "seed": int(rng.integers(2**31))}
    accepted = inspect.signature(kind).parameters
    partitioner = kind(**{**{key: value for key, value in own.items() if key in accepted}, **options})
    partitioner.dataset = Dataset.from_dict(columns)
    return [partitioner.load_partition(number)["sample"] for number in range(clients)]


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
