"""What a page cache answers when every epoch reads the data set in another order."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from fedge.costs.input_pipeline.emulated_pipeline import cache_hit_share, ever_read_share


def answered(room: int, items: int, seed: int, part: float = 1.0, before: int = 1) -> float:
    """The share of an epoch's reads that a least-recently-used cache of ``room`` items answers, after others."""
    rng = np.random.default_rng(seed)
    cache: OrderedDict[int, None] = OrderedDict()
    hits, reads = 0, int(items * part)
    for epoch in range(before + 1):
        for item in map(int, rng.permutation(items)[:reads]):
            hits += epoch == before and item in cache
            cache[item] = None
            cache.move_to_end(item)
            if len(cache) > room:
                cache.popitem(last=False)
    return hits / reads


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95])
def test_it_is_what_such_a_cache_answers(share: float) -> None:
    seen = np.mean([answered(int(800 * share), 800, seed) for seed in range(5)])
    assert cache_hit_share(share, 1.0) == pytest.approx(seen, abs=0.02)


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize(("share", "part"), [(0.3, 0.2), (0.5, 0.4), (0.8, 0.7), (1.2, 0.4)])
def test_epochs_that_are_cut_short_find_what_the_ones_before_left(share: float, part: float, before: int) -> None:
    seen = np.mean([answered(int(800 * share), 800, seed, part, before) for seed in range(8)])
    assert cache_hit_share(share, 1.0, ever_read_share(before, part), part) == pytest.approx(seen, abs=0.03)
    assert cache_hit_share(share, 1.0, ever_read_share(0, part), part) == 0.0


def test_what_fits_is_all_there_and_without_a_cache_nothing_is() -> None:
    assert cache_hit_share(10.0, 9.0) == 1.0
    assert cache_hit_share(1.0, 0.0) == 1.0
    assert cache_hit_share(0.0, 5.0) == 0.0
