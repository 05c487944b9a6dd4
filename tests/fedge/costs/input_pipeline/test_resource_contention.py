"""Work takes turns on the cores and slows down beside other work; a storage serves as many readers as it can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts.pipelines import PLAIN

from fedge.costs.input_pipeline.pipeline_model import HostCores, Storage
from fedge.costs.input_pipeline.resource_contention import (
    batch_read_s,
    compute_slowdown,
    compute_slowdowns,
    count_served_readers,
    file_read_s,
)


def test_turns_and_crowding_multiply_and_the_background_counts() -> None:
    host = HostCores(4.0, background=1.0, crowding=0.6)
    assert compute_slowdown(host, 1) == pytest.approx(1.0 + 0.6 * 1 / 3)
    assert compute_slowdown(host, 3) == pytest.approx(1.6)
    assert compute_slowdown(host, 5) == pytest.approx(6 / 4 * 1.6)
    assert compute_slowdown(HostCores(1.0, crowding=0.5), 2) == pytest.approx(2 * 1.5)
    assert compute_slowdown(HostCores(1.0, crowding=0.5), 1) == 1.0
    cores = np.array([1.0, 2.0, 4.0])
    each = [compute_slowdown(replace(host, cores=float(one)), 3) for one in cores]
    np.testing.assert_array_equal(compute_slowdowns(cores, host, 3), each)


def test_a_storage_moves_one_reader_s_bytes_at_a_time() -> None:
    disk = Storage("disk", mb_per_s=100.0, latency_s=0.003, at_once=8)
    assert file_read_s(disk, 0.1) == pytest.approx(0.004)
    assert count_served_readers(disk, 0.1) == pytest.approx(4.0)
    assert count_served_readers(replace(disk, at_once=2), 0.1) == 2.0
    assert count_served_readers(replace(disk, latency_s=0.0), 0.1) == 1.0
    assert count_served_readers(disk, 0.0) == 8.0
    assert count_served_readers(replace(disk, latency_s=0.0), 0.0) == 8.0


def test_only_what_is_not_cached_is_read() -> None:
    whole = batch_read_s(replace(PLAIN, cached=0.0))
    assert whole == pytest.approx(4 * (0.001 + 0.1 / 100.0))
    assert batch_read_s(replace(PLAIN, cached=0.75)) == pytest.approx(whole / 4)
    assert batch_read_s(replace(PLAIN, cached=0.0, samples=replace(PLAIN.samples, file_mb=0.0))) == 0.0
