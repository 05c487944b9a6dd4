"""From looks at the machine to loads over time and of a stretch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedge.characterisation.system_sampler import (
    SystemSample,
    build_sensor_trace,
    counter_growth,
    mean_cpu_load,
    peak_value,
)


def looks(**columns: list[float]) -> list[SystemSample]:
    """A look per second from 100 s on; what is not given is NaN."""
    names = ("busy_so_far", "ticks_so_far", "memory_mb", "read_bytes_so_far", "joules_so_far", "temperature_c")
    count = len(next(iter(columns.values())))
    rows = [columns.get(name, [math.nan] * count) for name in names]
    return [SystemSample(100.0 + k, *(row[k] for row in rows)) for k in range(count)]


def test_a_strip_holds_what_changed_between_two_looks() -> None:
    seen = looks(
        busy_so_far=[0, 50, 250],
        ticks_so_far=[0, 200, 400],
        memory_mb=[math.nan, 10, 20],
        read_bytes_so_far=[0, 3e6, 4e6],
        joules_so_far=[5, 7, 10],
        temperature_c=[40, 41, 42],
    )
    strip = build_sensor_trace(seen, 99.0)
    assert strip.at_s.tolist() == [2, 3]
    assert strip.cpu_load.tolist() == [0.25, 1.0]
    assert strip.memory_mb.tolist() == [10, 20]
    assert strip.disk_mb_per_s.tolist() == [3, 1]
    assert strip.power_w.tolist() == [2, 3]
    assert strip.temperature_c.tolist() == [41, 42]
    assert np.isnan(strip.gpu_load).all()


def test_a_counter_grows_along_a_line_between_looks() -> None:
    seen = looks(joules_so_far=[0, 10, 10, 40])
    assert counter_growth(seen, "joules_so_far", 100.5, 102.5) == pytest.approx(20)
    assert counter_growth(seen, "busy_so_far", 100.5, 102.5) is None


def test_the_load_of_a_stretch_is_its_share_of_ticks() -> None:
    seen = looks(busy_so_far=[0, 100, 100], ticks_so_far=[0, 200, 400])
    assert mean_cpu_load(seen, 100, 102) == pytest.approx(0.25)
    assert mean_cpu_load(seen, 100, 101) == pytest.approx(0.5)


def test_an_idle_machine_has_a_load_of_nothing() -> None:
    assert mean_cpu_load(looks(busy_so_far=[5, 5], ticks_so_far=[0, 200]), 100, 101) == 0.0


def test_the_highest_of_a_short_stretch_is_that_of_the_looks_about_it() -> None:
    seen = looks(memory_mb=[math.nan, 10, 30, 20])
    assert peak_value(seen, "memory_mb", 101.2, 101.3) == 30
    assert peak_value(seen, "memory_mb", 100.1, 100.2) == 10
    assert peak_value(seen, "temperature_c", 100, 103) is None
