"""The micro-benchmark runs every kernel on this processor, counts its work, and meters it where there is a meter."""

from __future__ import annotations

import itertools
import time

import pytest

from fedge.analysis.roofline.microbenchmark import FEWEST, PRODUCT_COLUMNS, run_microbenchmark
from fedge.analysis.roofline.pagoda_fit import fit_sweep
from fedge.errors import BadInput

pytest.importorskip("torch")


def test_every_kernel_is_timed_on_this_processor():
    points = run_microbenchmark("cpu", 0.1, time.perf_counter, lambda: None, array_mb=1.0)
    assert [point.kernel for point in points] == ["add", "scale", *(f"product {n}" for n in PRODUCT_COLUMNS)]
    assert all(point.seconds > 0 and point.joules is None for point in points)
    intensities = [point.work.intensity for point in points]
    assert intensities == sorted(intensities)
    found = fit_sweep("cpu", "", points, "measured", "no meter")
    assert found.tau_f > 0
    assert found.tau_m > 0


def test_a_meter_is_read_around_every_kernels_repeats():
    joules = itertools.count(0.0, 6.0)
    points = run_microbenchmark("cpu", 1e-9, time.perf_counter, lambda: next(joules), array_mb=0.1)
    assert {point.joules for point in points} == {6.0 / FEWEST}


def test_cuda_where_there_is_none_is_a_clear_error(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="torch sees a CUDA device"):
        run_microbenchmark("cuda", 1.0, time.perf_counter, lambda: None)


@pytest.mark.gpu
def test_every_kernel_is_timed_on_a_gpu():
    points = run_microbenchmark("cuda", 1.0, time.perf_counter, lambda: None)
    assert len(points) == len(PRODUCT_COLUMNS) + 2
