"""A calibration is fitted to several networks, says how far off it is on one left out, and survives its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from contracts.measured_steps import write_folder

from fedge.costs.memory.memory_calibration import (
    fit_memory_calibration,
    load_stock_calibration,
    memory_calibration_from_dict,
    memory_calibration_to_dict,
)
from fedge.costs.memory.step_table import read_step_tables
from fedge.errors import BadInput


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("steps"))


def test_what_made_the_steps_is_found_and_the_spread_is_that_of_networks_left_out(folder):
    found = fit_memory_calibration(read_step_tables(folder), "made-up", "a law of our own")
    assert found.memory.floor_mb == pytest.approx(1600.0, rel=0.02)
    assert 5500.0 < found.memory.ceiling_mb <= 6200.0
    assert 0.005 < found.memory_sd_log < 0.15
    assert 0.005 < found.step_sd_log < 0.3


def test_a_calibration_reads_back_as_it_was_written(folder):
    found = fit_memory_calibration(read_step_tables(folder), "made-up", "a law of our own")
    again = memory_calibration_from_dict(yaml.safe_load(yaml.safe_dump(memory_calibration_to_dict(found))), "file")
    assert memory_calibration_to_dict(again) == memory_calibration_to_dict(found)
    assert again.memory.coefficients == pytest.approx(found.memory.coefficients, rel=1e-5)


def test_two_networks_are_too_few(folder):
    with pytest.raises(BadInput, match="got 2 networks; at least 3"):
        fit_memory_calibration(read_step_tables(folder)[:2], "made-up", "")
    with pytest.raises(BadInput, match="got 1 network; at least 3"):
        fit_memory_calibration(read_step_tables(folder)[:1], "made-up", "")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("board", 3, "no board or no source"),
        ("floor_mb", -1.0, "floor_mb: got -1.0"),
        ("launch_ms", "fast", "launch_ms: got 'fast'"),
        ("memory_sd_log", True, "memory_sd_log: got True"),
        ("memory_mb", {"base": 1.0}, "memory_mb: got other terms"),
        ("step_ms", [1.0], "step_ms: got other terms"),
    ],
)
def test_a_file_that_was_tampered_with_is_named(field, value, says):
    data: dict[str, Any] = {**memory_calibration_to_dict(load_stock_calibration()), field: value}
    with pytest.raises(BadInput) as caught:
        memory_calibration_from_dict(data, "mine.yaml")
    assert says in str(caught.value)
    with pytest.raises(BadInput, match=r"mine\.yaml: got list"):
        memory_calibration_from_dict([], "mine.yaml")


def test_the_stock_calibration_is_physical():
    found = load_stock_calibration()
    assert found.board == "tx2"
    assert 1000 < found.memory.floor_mb < 2000
    assert 2.0 < found.memory.coefficients[1] < 5.0  # weights, their gradients and their momentum
    assert (found.time.coefficients >= 0).all()


def test_the_stock_calibration_is_that_of_the_measured_tables(profiles_root):
    names = ("mobilenetv2", "resnet18", "resnet50", "squeezenet")
    tables = [t for t in read_step_tables(profiles_root / "perf4sight-tx2") if t.network in names]
    found, shipped = fit_memory_calibration(tables, "tx2", load_stock_calibration().source), load_stock_calibration()
    assert np.allclose(found.memory.coefficients, shipped.memory.coefficients, rtol=1e-3)
    assert np.allclose(found.time.coefficients, shipped.time.coefficients, rtol=1e-3)
