"""A calibration is fitted to several networks, says how far off it is on one left out, and survives its file.

A step's need grows with batch and network, is labelled by what it rests on, and is quick and light to compute.
"""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from contracts.measured_steps import write_folder
from hypothesis import given
from hypothesis import strategies as st

from fedge.costs.layers.network_cost import LayerCost, NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.costs.memory.step_need import (
    fit_memory_calibration,
    load_stock_calibration,
    memory_calibration_from_dict,
    memory_calibration_to_dict,
    predict_step_need,
)
from fedge.costs.memory.step_table import read_step_table, read_step_tables
from fedge.devices.catalogue import find, load_catalogue
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
    again = memory_calibration_from_dict(yaml.safe_load(yaml.safe_dump(memory_calibration_to_dict(found))))
    assert memory_calibration_to_dict(again) == memory_calibration_to_dict(found)
    assert again.memory.coefficients == pytest.approx(found.memory.coefficients, rel=1e-5)


def test_two_networks_are_too_few(folder):
    with pytest.raises(BadInput, match="got 2 networks; at least 3"):
        fit_memory_calibration(read_step_tables(folder)[:2], "made-up", "")
    with pytest.raises(BadInput, match="got 1 network; at least 3"):
        fit_memory_calibration(read_step_tables(folder)[:1], "made-up", "")


def test_a_network_that_no_step_shows_does_not_spoil_the_spread(folder):
    tables = read_step_tables(folder)
    small = [replace(one, memory_mb=np.full_like(one.memory_mb, one.memory_mb.min())) for one in tables]
    found = fit_memory_calibration([small[0], *tables[1:]], "made-up", "")
    assert 0.005 < found.memory_sd_log < 0.15
    assert found.step_sd_log == fit_memory_calibration(tables, "made-up", "").step_sd_log
    with pytest.raises(BadInput, match="no step with a peak memory between idle and full"):
        fit_memory_calibration(small, "made-up", "")


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


TX2 = find("tx2")
KNOWN = ("resnet18-imagenet", "resnet50-imagenet", "mobilenetv3l-gld23k", "vit-b16-cifar10", "yolov8n-coco")


def network(name: str = "resnet50-imagenet") -> NetworkCost:
    found = find_known_network(name)
    assert found is not None
    return found


def product(name: str, tokens: int, inputs: int, outputs: int) -> LayerCost:
    """A matrix product of so many tokens."""
    written = tokens * outputs
    return LayerCost(
        name, "linear", 2.0 * inputs * written, 4.0 * tokens * inputs, 4.0 * written,
        weight_bytes=4.0 * inputs * outputs, parameters=inputs * outputs, activations=written,
        inputs=((tokens, inputs),), output=(tokens, outputs),
    )  # fmt: skip


@given(st.sampled_from(KNOWN), st.sampled_from(sorted(load_catalogue())), st.integers(1, 512))
def test_a_larger_batch_needs_no_less_and_all_figures_are_finite(name, board, batch):
    device = find(board)
    one, more = predict_step_need(network(name), device, batch), predict_step_need(network(name), device, batch + 1)
    assert more.memory_mb >= one.memory_mb > 1000.0
    assert more.step_s >= one.step_s > 0.0
    assert all(math.isfinite(x) and x > 0 for x in (one.memory_sd_log, one.step_sd_log))


def test_resnet50_on_the_tx2_is_near_what_was_measured(profiles_root):
    """Its own table is among those that the coefficients were fitted to."""
    table = read_step_table(profiles_root / "perf4sight-tx2" / "resnet50.layers.json")
    for batch in (8, 16, 32):
        row = (table.pruned_pct == 0) & (table.batch_size == batch)
        found = predict_step_need(network(), TX2, batch)
        assert found.memory_mb == pytest.approx(float(table.memory_mb[row][0]), rel=0.1)
        assert found.step_s == pytest.approx(float(table.step_ms[row][0]) / 1e3, rel=0.2)


def test_only_convolutional_networks_on_the_tx2_are_calibrated():
    assert predict_step_need(network(), TX2, 16).label == "calibrated"
    other_board = predict_step_need(network(), find("agx-xavier"), 16)
    assert other_board.label == "estimated"
    assert "data-sheet ratios" in other_board.source
    other_kind = predict_step_need(network("vit-b16-cifar10"), TX2, 16)
    assert other_kind.label == "estimated"
    assert "another kind of network" in other_kind.source
    large_images = replace(network(), input_shape=(3, 640, 640))
    assert predict_step_need(large_images, TX2, 16).label == "estimated"


def test_what_is_carried_further_is_less_sure():
    sure, board, both = (
        predict_step_need(network(), TX2, 16),
        predict_step_need(network(), find("agx-orin"), 16),
        predict_step_need(network("vit-b16-cifar10"), find("agx-orin"), 16),
    )
    assert sure.memory_sd_log < board.memory_sd_log < both.memory_sd_log
    assert sure.step_sd_log < board.step_sd_log < both.step_sd_log


def test_a_small_network_is_as_sure_as_what_every_network_needs():
    """Most of its memory is CUDA's and the libraries', which no kind of network changes: it runs on a Nano."""
    small = NetworkCost("small", (3, 8, 8), layers=(product("only", 1, 192, 10),), source="test")
    nano, convolutions = predict_step_need(small, find("nano"), 1), predict_step_need(network(), find("nano"), 1)

    assert "another kind of network" in nano.source
    assert nano.memory_sd_log == pytest.approx(convolutions.memory_sd_log, rel=0.01)
    assert nano.upper_mb < 2_800
    large = replace(small, layers=(product("only", 1, 20_000, 20_000),))
    assert predict_step_need(large, find("nano"), 1).memory_sd_log > 1.4 * nano.memory_sd_log


def test_a_network_of_matrix_products_is_estimated_from_them():
    def at(width: int, batch: int) -> float:
        layers = (product("in", 196, 768, width), product("out", 196, width, 768))
        return predict_step_need(NetworkCost("mlp", (3, 224, 224), layers, "made up"), TX2, batch).memory_mb

    kept_mb = 4e-6 * 196 * (3072 + 768)
    grown = (at(3072, 256) - at(3072, 128)) / 128
    assert kept_mb < grown < 6 * kept_mb
    assert at(6144, 128) > at(3072, 128)


def test_a_network_without_layers_of_either_kind_is_not_refused():
    layer = LayerCost("norm", "batch_norm", 2.0 * 64, 256.0, 256.0, activations=64, output=(64,))
    for layers in ((), (layer,)):
        found = predict_step_need(NetworkCost("odd", (64,), layers, "made up"), TX2, 4)
        assert found.label == "estimated"
        assert found.memory_mb > 1000.0


def test_a_batch_without_samples_is_refused():
    with pytest.raises(ValueError, match="batch_size: got 0; 1 or more"):
        predict_step_need(network(), TX2, 0)


def test_no_heavy_library_is_needed():
    program = (
        "import sys, fedge.costs.memory.scale_choice, fedge.costs.memory.step_need as n; from "
        "fedge.costs.layers.network_record import find_known_network\n"
        "from fedge.devices.catalogue import find\n"
        "n.predict_step_need(find_known_network('resnet50-imagenet'), find('tx2'), 8)\n"
        "print(*[m for m in ('torch', 'sklearn', 'scipy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
