"""An emulated board's pipeline follows its cores' speed, the images, the batch and the loader."""

from __future__ import annotations

import pytest

from fedge.errors import UnknownName
from fedge.pipeline.emulation import Fed, cache_mb, kind_of, pipeline_of, storage, storages
from fedge.pipeline.modes import Clocks, at_clocks
from fedge.pipeline.records import Loader, Pipeline

MEGAPIXEL = 3_000_000


def made(fed: Fed, batch: int = 16, workers: int = 1, pinned: bool = False, score: float = 1.0) -> Pipeline:
    return pipeline_of(fed, batch, Loader(workers, pinned=pinned), storage("ssd"), score, 8)


def test_preprocessing_grows_with_the_stored_pixels_and_those_of_the_tensor() -> None:
    none = made(Fed(0.0, 0)).samples.preprocess_s
    decode_s = made(Fed(1.0, 0)).samples.preprocess_s - none
    transform_s = made(Fed(0.0, MEGAPIXEL)).samples.preprocess_s - none
    assert (decode_s, transform_s) == pytest.approx((0.015, 0.03))
    both = made(Fed(2.0, MEGAPIXEL // 2)).samples
    assert both.preprocess_s == pytest.approx(none + 2 * decode_s + transform_s / 2)
    assert both.file_mb == pytest.approx(0.66)


def test_a_data_set_in_memory_is_neither_opened_nor_decoded() -> None:
    there, stored = made(Fed(1.0, MEGAPIXEL, in_memory=True)).samples, made(Fed(1.0, MEGAPIXEL, kb=50.0)).samples
    assert (there.file_mb, there.fetch_s) == (0.0, 0.0)
    assert stored.preprocess_s - there.preprocess_s == pytest.approx(0.015)
    assert stored.file_mb == 0.05


def test_a_batch_costs_by_its_megabytes_and_something_of_its_own() -> None:
    small, large = made(Fed(1.0, MEGAPIXEL), 16).step, made(Fed(1.0, MEGAPIXEL), 32).step
    assert large.copy_s == pytest.approx(2 * small.copy_s)
    assert (small.copy_s, large.handover_s - small.handover_s) == pytest.approx((192 / 3000, 192 / 1400))
    for one, two in ((small.handover_s, large.handover_s), (small.collate_s, large.collate_s)):
        assert one < two < 2 * one


def test_a_slower_core_does_everything_slower_but_reading() -> None:
    fed = Fed(1.0, MEGAPIXEL)
    quick, slow = made(fed), made(fed, score=0.5)
    assert slow.samples.preprocess_s == pytest.approx(2 * quick.samples.preprocess_s)
    assert slow.samples.fetch_s == pytest.approx(2 * quick.samples.fetch_s)
    for name in ("copy_s", "collate_s", "handover_s", "overhead_s"):
        assert getattr(slow.step, name) == pytest.approx(2 * getattr(quick.step, name))
    assert slow.start_s == pytest.approx(2 * quick.start_s)
    assert slow.storage == quick.storage


def test_lower_clocks_slow_all_of_the_host_s_work_alike() -> None:
    top = made(Fed(1.0, MEGAPIXEL))
    low = at_clocks(top, Clocks(2, 0.5, 0.25), compute_s=0.1, host_share=0.3)
    factor = 0.8 / 0.5 + 0.2 / 0.25
    for name in ("copy_s", "collate_s", "handover_s", "overhead_s"):
        assert getattr(low.step, name) == pytest.approx(factor * getattr(top.step, name))
    assert low.samples.fetch_s == pytest.approx(factor * top.samples.fetch_s)
    assert low.samples.preprocess_s == pytest.approx(factor * top.samples.preprocess_s)
    assert low.start_s == pytest.approx(factor * top.start_s)
    assert (low.host.cores, low.step.compute_s, low.step.host_share) == (2.0, 0.1, 0.3)


def test_pinning_is_a_thread_s_work_beside_workers_and_else_the_training_s() -> None:
    fed = Fed(1.0, MEGAPIXEL)
    for workers, pinning_s in ((1, 0.0), (0, 192 / 3000)):
        plain, pinned = made(fed, workers=workers).step, made(fed, workers=workers, pinned=True).step
        assert pinned.copy_s == pytest.approx(192 / 8000)
        assert pinned.collate_s - plain.collate_s == pytest.approx(pinning_s)


def test_the_page_cache_has_what_the_system_and_the_training_leave() -> None:
    assert cache_mb(8.0, 1000.0) == pytest.approx(3000.0)
    assert cache_mb(4.0, 9000.0) == 0.0


def test_boards_without_constants_of_their_own_are_like_others_and_unknown_storages_are_named() -> None:
    assert kind_of("toaster") == kind_of("agx-orin-64gb")
    assert kind_of("xavier-nx") != kind_of("nano")
    assert {"sd", "ssd", "hdd", "emmc", "nvme", "tmpfs"} <= set(storages())
    with pytest.raises(UnknownName, match="drum"):
        storage("drum")
