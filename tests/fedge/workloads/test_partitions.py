"""Partitions: every sample exactly once, nobody empty, the same for the same seed, and as uneven as asked for."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.experiment import DataSpec
from fedge.workloads.partitions import (
    MIN_CLIENT_SAMPLES,
    NATURAL,
    PARTITIONS,
    split_data,
    split_samples,
    split_test,
)

BY_CLASS = sorted({*PARTITIONS} - {NATURAL})
"""Partitions that cut classes; test_free_tasks.py has that of natural groups."""


def labels_of(n: int, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, n)


def parts_of(labels: np.ndarray, n_clients: int, seed: int = 0, **settings: Any) -> list[np.ndarray]:
    return split_samples(DataSpec(**settings), labels, n_clients, np.random.default_rng(seed))


def classes_seen(labels: np.ndarray, parts: list[np.ndarray]) -> float:
    return float(np.mean([len(np.unique(labels[part])) for part in parts]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[DataSpec, np.ndarray, int, int]:
    n_clients = draw(st.integers(1, 40))
    per_client = draw(st.integers(1, 4))
    n = draw(st.integers(n_clients * per_client, 400))
    labels = labels_of(n, draw(st.integers(1, 12)), draw(st.integers(0, 9)))
    alpha = draw(st.floats(1e-9, 1e9))
    name = draw(st.sampled_from(BY_CLASS))
    chosen = DataSpec(partition=name, alpha=alpha, shards_per_client=per_client)
    return chosen, labels, n_clients, draw(st.integers(0))


@given(cases())
@settings(max_examples=200)
def test_every_sample_belongs_to_exactly_one_client_and_no_client_is_empty(case):
    chosen, labels, n_clients, seed = case
    parts = split_samples(chosen, labels, n_clients, np.random.default_rng(seed))
    assert len(parts) == n_clients
    assert all(part.dtype == np.int64 and len(part) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@given(cases(), st.integers(1, 300), st.integers(0, 9))
@settings(max_examples=100)
def test_test_samples_follow_the_classes_of_the_training_samples_and_each_has_one_client(case, n_test, seed):
    chosen, labels, n_clients, seed = case
    shares = split_samples(chosen, labels, n_clients, np.random.default_rng(seed))
    test_labels = labels_of(n_test, 14, seed % 10)
    parts = split_test(shares, labels, test_labels)

    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n_test))
    for label in np.unique(labels):
        held = np.array([np.count_nonzero(labels[share] == label) for share in shares])
        tested = np.array([np.count_nonzero(test_labels[part] == label) for part in parts])
        assert np.all(np.abs(tested - held / held.sum() * tested.sum()) <= 1.0)


@given(cases())
@settings(max_examples=50)
def test_the_same_seed_gives_the_same_parts(case):
    chosen, labels, n_clients, seed = case
    once, again = (split_samples(chosen, labels, n_clients, np.random.default_rng(seed)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("name", BY_CLASS)
def test_another_seed_gives_other_parts(name):
    labels = labels_of(500)
    one, other = (parts_of(labels, 5, seed, partition=name) for seed in (1, 2))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_iid_parts_are_equal_up_to_one_sample():
    sizes = [len(part) for part in parts_of(labels_of(1003), 8, partition="iid")]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.1])
def test_a_skewed_draw_leaves_every_client_the_smallest_share(alpha):
    for seed in range(20):
        parts = split_samples(
            DataSpec(partition="dirichlet", alpha=alpha), labels_of(1000), 30, np.random.default_rng(seed)
        )
        assert min(len(part) for part in parts) >= MIN_CLIENT_SAMPLES


def test_with_few_samples_the_smallest_share_is_an_even_one():
    parts = parts_of(labels_of(50), 10, partition="dirichlet", alpha=0.01)
    assert [len(part) for part in parts] == [5] * 10


def test_a_smaller_alpha_shows_a_client_fewer_classes():
    labels = labels_of(2000)
    seen = [classes_seen(labels, parts_of(labels, 8, 3, partition="dirichlet", alpha=a)) for a in (0.05, 0.5, 100.0)]
    assert seen[0] < seen[1] < seen[2] == 10


def test_shards_show_a_client_about_as_many_classes_as_shards():
    labels = np.repeat(np.arange(10), 100)
    parts = parts_of(labels, 10, partition="shards", shards_per_client=2)
    assert all(len(part) == 100 for part in parts)
    assert all(len(np.unique(labels[part])) <= 2 for part in parts)


def test_more_shards_than_samples_are_refused_with_the_most_that_fit():
    with pytest.raises(BadInput, match="from 1 to 5 for 50 samples on 10 clients"):
        parts_of(labels_of(50), 10, partition="shards", shards_per_client=6)


@pytest.mark.parametrize("name", sorted(PARTITIONS))
@pytest.mark.parametrize("n_clients", [0, 21])
def test_a_fleet_without_a_sample_for_everyone_is_refused(name, n_clients):
    with pytest.raises(BadInput, match="from 1 to 20"):
        split_samples(DataSpec(partition=name), labels_of(20), n_clients, np.random.default_rng(0))


def halves(labels, groups, clients, rng, first=0.5, only=None):
    """A share of the samples for the first client, the others evenly for the rest; perhaps of one group alone."""
    chosen = np.arange(len(labels)) if only is None else np.flatnonzero(groups == only)
    order = rng.permutation(chosen)
    cut = int(first * len(order))
    return [order[:cut], *np.array_split(order[cut:], clients - 1)]


def empty(labels, groups, clients, rng):
    return [[]] * clients


def outside(labels, groups, clients, rng):
    return [[len(labels)]] * clients


def fractions(labels, groups, clients, rng):
    return [[0.5]] * clients


def repeated(labels, groups, clients, rng):
    return [[0, 7], [1, 7], [2]]


class Seeded:
    """A partitioner in the manner of flwr-datasets, whose first sample is its seed modulo the samples."""

    dataset: dict[str, Any]

    def __init__(self, num_partitions: int, seed: int | None = 42) -> None:
        self.seed = seed

    def load_partition(self, number: int) -> dict[str, Any]:
        return {"sample": [(self.seed or 0) % len(self.dataset["sample"])]}


def seeds_of(options: dict[str, Any], seed: int) -> int:
    spec = DataSpec(partition=f"{__name__}:Seeded", options=options)
    (part,) = split_data(spec, labels_of(2**12), groups=None, n_clients=1, rng=np.random.default_rng(seed))
    return int(part[0])


def own_parts(name: str, module: str = __name__, **options: Any) -> list[np.ndarray]:
    labels, groups = labels_of(60), np.repeat([3, 5], 30)
    spec = DataSpec(partition=f"{module}:{name}", options=options)
    return split_data(spec, labels, groups=groups, n_clients=3, rng=np.random.default_rng(1))


def test_a_partition_of_ones_own_gets_groups_and_options():
    assert [len(part) for part in own_parts("halves", first=0.8)] == [48, 6, 6]
    assert np.array_equal(np.sort(np.concatenate(own_parts("halves", only=5))), np.arange(30, 60))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "gives 3 clients .0, 0, 0. samples; .*some for each of 3 clients"),
        ("outside", "indices from 0 to 59, some for each of 3 clients"),
        ("fractions", "TypeError"),
        ("repeated", "which gives sample 7 twice; every sample once at most"),
        ("absent", "an importable module:NAME"),
        ("labels_of", "TypeError: labels_of.. got an unexpected keyword"),
    ],
)
def test_a_partition_of_ones_own_that_does_not_work_is_one_clear_line(name, message):
    with pytest.raises(BadInput, match=message) as caught:
        own_parts(name)
    assert "\n" not in str(caught.value)


def test_a_partitioner_draws_from_the_experiments_seed_unless_it_has_its_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(Dataset=SimpleNamespace(from_dict=dict)))

    assert seeds_of({}, 1) == seeds_of({}, 1) != seeds_of({}, 2)
    assert seeds_of({"seed": 3}, 1) == seeds_of({"seed": 3}, 2) == 3
    with pytest.raises(BadInput, match=r"unexpected keyword.*; a partitioner of flwr-datasets over the columns"):
        seeds_of({"alpha": 3}, 1)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"no datasets; `pip install datasets`"):
        seeds_of({}, 1)


def test_options_are_for_ones_own_partition_alone():
    with pytest.raises(BadInput, match=r"data.options: got alpha; none"):
        split_data(
            DataSpec(partition="iid", options={"alpha": 1}),
            labels_of(9),
            groups=None,
            n_clients=3,
            rng=np.random.default_rng(1),
        )


@pytest.mark.parametrize(
    ("name", "options", "groups"),
    [
        ("NaturalIdPartitioner", {"partition_by": "group"}, 1),
        ("DirichletPartitioner", {"partition_by": "label", "alpha": 1.0, "min_partition_size": 1}, 2),
        ("ShardPartitioner", {"partition_by": "label", "num_shards_per_partition": 2}, 2),
    ],
)
def test_partitioners_of_flower_work_on_the_tasks_data(name, options, groups):
    pytest.importorskip("flwr_datasets.partitioner", reason="needs flwr-datasets")
    labels, writers = labels_of(60), np.repeat([3, 5, 9], 20)

    spec = DataSpec(partition=f"flwr_datasets.partitioner:{name}", options=options)
    parts = split_data(spec, labels, groups=writers, n_clients=3, rng=np.random.default_rng(1))

    assert len(np.unique(np.concatenate(parts))) == sum(len(part) for part in parts)
    assert all(len(part) for part in parts)
    assert {len(np.unique(writers[part])) for part in parts} <= set(range(1, 4 if groups > 1 else 2))
