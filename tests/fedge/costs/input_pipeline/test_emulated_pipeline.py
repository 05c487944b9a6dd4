"""An emulated board's pipeline follows its cores, the images, the batch and the loader; what a page cache answers."""

from collections import OrderedDict

import numpy as np
import pytest

from fedge.costs.input_pipeline.emulated_pipeline import (
    SampleFormat,
    build_pipeline,
    cache_hit_share,
    ever_read_share,
    find_pipeline_kind,
    find_storage,
    load_storages,
    page_cache_mb,
)
from fedge.costs.input_pipeline.pipeline_model import ClockShares, InputPipeline, Loader, scale_to_clocks
from fedge.errors import UnknownName

MEGAPIXEL = 3_000_000


def made(
    fed: SampleFormat, batch: int = 16, workers: int = 1, pinned: bool = False, score: float = 1.0
) -> InputPipeline:
    return build_pipeline(fed, batch, Loader(workers, pinned=pinned), find_storage("ssd"), score, 8)


def test_preprocessing_grows_with_the_stored_pixels_and_those_of_the_tensor():
    none = made(SampleFormat(0.0, 0)).samples.preprocess_s
    decode_s = made(SampleFormat(1.0, 0)).samples.preprocess_s - none
    transform_s = made(SampleFormat(0.0, MEGAPIXEL)).samples.preprocess_s - none
    assert (decode_s, transform_s) == pytest.approx((0.015, 0.03))
    both = made(SampleFormat(2.0, MEGAPIXEL // 2)).samples
    assert both.preprocess_s == pytest.approx(none + 2 * decode_s + transform_s / 2)
    assert both.file_mb == pytest.approx(0.66)


def test_a_data_set_in_memory_is_neither_opened_nor_decoded():
    there, stored = (
        made(SampleFormat(1.0, MEGAPIXEL, in_memory=True)).samples,
        made(SampleFormat(1.0, MEGAPIXEL, kb=50.0)).samples,
    )
    assert (there.file_mb, there.fetch_s) == (0.0, 0.0)
    assert stored.preprocess_s - there.preprocess_s == pytest.approx(0.015)
    assert stored.file_mb == 0.05


def test_a_batch_costs_by_its_megabytes_and_something_of_its_own():
    small, large = made(SampleFormat(1.0, MEGAPIXEL), 16).step, made(SampleFormat(1.0, MEGAPIXEL), 32).step
    assert large.copy_s == pytest.approx(2 * small.copy_s)
    assert (small.copy_s, large.handover_s - small.handover_s) == pytest.approx((192 / 3000, 192 / 1400))
    for one, two in ((small.handover_s, large.handover_s), (small.collate_s, large.collate_s)):
        assert one < two < 2 * one


def test_a_slower_core_does_everything_slower_but_reading():
    fed = SampleFormat(1.0, MEGAPIXEL)
    quick, slow = made(fed), made(fed, score=0.5)
    assert slow.samples.preprocess_s == pytest.approx(2 * quick.samples.preprocess_s)
    assert slow.samples.fetch_s == pytest.approx(2 * quick.samples.fetch_s)
    for name in ("copy_s", "collate_s", "handover_s", "overhead_s"):
        assert getattr(slow.step, name) == pytest.approx(2 * getattr(quick.step, name))
    assert slow.start_s == pytest.approx(2 * quick.start_s)
    assert slow.storage == quick.storage


def test_lower_clocks_slow_all_of_the_host_s_work_alike():
    top = made(SampleFormat(1.0, MEGAPIXEL))
    low = scale_to_clocks(top, ClockShares(2, 0.5, 0.25), compute_s=0.1, host_share=0.3)
    factor = 0.8 / 0.5 + 0.2 / 0.25
    for name in ("copy_s", "collate_s", "handover_s", "overhead_s"):
        assert getattr(low.step, name) == pytest.approx(factor * getattr(top.step, name))
    assert low.samples.fetch_s == pytest.approx(factor * top.samples.fetch_s)
    assert low.samples.preprocess_s == pytest.approx(factor * top.samples.preprocess_s)
    assert low.start_s == pytest.approx(factor * top.start_s)
    assert (low.host.cores, low.step.compute_s, low.step.host_share) == (2.0, 0.1, 0.3)


def test_pinning_is_a_thread_s_work_beside_workers_and_else_the_training_s():
    fed = SampleFormat(1.0, MEGAPIXEL)
    for workers, pinning_s in ((1, 0.0), (0, 192 / 3000)):
        plain, pinned = made(fed, workers=workers).step, made(fed, workers=workers, pinned=True).step
        assert pinned.copy_s == pytest.approx(192 / 8000)
        assert pinned.collate_s - plain.collate_s == pytest.approx(pinning_s)


def test_the_page_cache_has_what_the_system_and_the_training_leave():
    assert page_cache_mb(8.0, 1000.0) == pytest.approx(3000.0)
    assert page_cache_mb(4.0, 9000.0) == 0.0


def test_boards_without_constants_of_their_own_are_like_others_and_unknown_storages_are_named():
    assert find_pipeline_kind("toaster") == find_pipeline_kind("agx-orin-64gb")
    assert find_pipeline_kind("xavier-nx") != find_pipeline_kind("nano")
    assert {"sd", "ssd", "hdd", "emmc", "nvme", "tmpfs"} <= set(load_storages())
    with pytest.raises(UnknownName, match="drum"):
        find_storage("drum")


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
def test_it_is_what_such_a_cache_answers(share):
    seen = np.mean([answered(int(800 * share), 800, seed) for seed in range(5)])
    assert cache_hit_share(share, 1.0) == pytest.approx(seen, abs=0.02)


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize(("share", "part"), [(0.3, 0.2), (0.5, 0.4), (0.8, 0.7), (1.2, 0.4)])
def test_epochs_that_are_cut_short_find_what_the_ones_before_left(share, part, before):
    seen = np.mean([answered(int(800 * share), 800, seed, part, before) for seed in range(8)])
    assert cache_hit_share(share, 1.0, ever_read_share(before, part), part) == pytest.approx(seen, abs=0.03)
    assert cache_hit_share(share, 1.0, ever_read_share(0, part), part) == 0.0


def test_what_fits_is_all_there_and_without_a_cache_nothing_is():
    assert cache_hit_share(10.0, 9.0) == 1.0
    assert cache_hit_share(1.0, 0.0) == 1.0
    assert cache_hit_share(0.0, 5.0) == 0.0
