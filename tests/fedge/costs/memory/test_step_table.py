"""Measured steps are read with their geometry, and a bad file is named with what would be right."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from contracts.measured_steps import LEVELS, write_folder, write_network

from fedge.costs.memory.step_table import GEOMETRY_COLUMNS, read_step_tables
from fedge.errors import BadInput


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_network(tmp_path, "net", 64, 4)
    return tmp_path


def test_every_network_of_a_folder_is_read_by_name(tmp_path):
    tables = read_step_tables(write_folder(tmp_path))
    assert [table.network for table in tables] == ["deep", "small", "wide"]
    assert all(set(table.layers) == set(LEVELS) for table in tables)


def test_an_empty_cell_is_a_step_that_ran_out_of_memory(folder):
    path = folder / "net.csv"
    path.write_text(path.read_text() + "net,0,512,,NaN\nnet,0,1024,900.5,\n")
    table = read_step_tables(folder)[0]
    assert np.isnan(table.memory_mb[-2:]).all()
    assert np.isnan(table.step_ms[-2])
    assert table.step_ms[-1] == 900.5


def test_rows_of_a_level_without_a_geometry_are_counted_and_left_out(folder):
    path = folder / "net.csv"
    whole = read_step_tables(folder)[0]
    path.write_text(path.read_text() + "net,33,4,10,1700\n")
    table = read_step_tables(folder)[0]
    assert table.dropped == 1
    assert len(table.batch_size) == len(whole.batch_size)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("net,0,4,fast,1700", "step_ms: got 'fast'; a number above 0"),
        ("net,0,4,10,-3", "memory_mb: got '-3'"),
        ("net,0,4.5,10,1700", "batch_size: got '4.5'; a whole number"),
        ("net,0,0,10,1700", "batch_size: got '0'"),
        ("net,0", "batch_size: got ''"),
        ("net,0,4,inf,1700", "step_ms: got 'inf'"),
    ],
)
def test_a_bad_row_is_named_with_what_would_be_right(folder, line, says):
    path = folder / "net.csv"
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(BadInput) as caught:
        read_step_tables(folder)
    assert says in str(caught.value)
    assert "net.csv" in str(caught.value)


def without(key: str) -> Callable[[dict[str, object]], object]:
    return lambda data: {name: value for name, value in data.items() if name != key}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("columns"), "columns: got others"),
        (without("levels"), "levels: got None"),
        (lambda _: [1], "columns: got list"),
        (lambda d: {**d, "levels": {"a": []}}, "levels: got 'a'"),
        (lambda d: {**d, "levels": {"0": [[1, 2, 3]]}}, "level 0: got an array of shape (1, 3)"),
        (lambda d: {**d, "levels": {"0": [[1], [1, 2]]}}, "level 0: got rows that differ"),
        (lambda d: {**d, "levels": {"0": [[3, 0, 3, 1, 1, 1, 8]]}}, "level 0: got a size that is not above 0"),
        (lambda d: {**d, "levels": {"0": [[3, 8, 9, 0, 1, 1, 8]]}}, "level 0: got a kernel larger than its input"),
        (lambda d: {**d, "levels": {"1": [[3, 8, 3, 0, 1, 1, 8]]}}, "got no row of a level"),
    ],
)
def test_a_bad_geometry_is_named_with_what_would_be_right(folder, change, says):
    path = folder / "net.layers.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(BadInput) as caught:
        read_step_tables(folder)
    assert says in str(caught.value)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(BadInput, match=r"no NETWORK\.layers\.json"):
        read_step_tables(tmp_path)
    with pytest.raises(BadInput, match="no folder"):
        read_step_tables(tmp_path / "nowhere")
    write_network(tmp_path, "net", 8, 2)
    (tmp_path / "net.layers.json").write_text("{")
    with pytest.raises(BadInput, match="no JSON"):
        read_step_tables(tmp_path)
    write_network(tmp_path, "net", 8, 2)
    (tmp_path / "net.csv").write_text("network,pruned_pct,batch_size,step_ms\n")
    with pytest.raises(BadInput, match="no column memory_mb"):
        read_step_tables(tmp_path)
    (tmp_path / "net.csv").unlink()
    with pytest.raises(BadInput, match=r"net\.csv"):
        read_step_tables(tmp_path)


def test_the_columns_are_those_of_a_convolution():
    from dataclasses import fields

    from fedge.costs.layers.network_cost import Convolution

    assert tuple(field.name for field in fields(Convolution)) == GEOMETRY_COLUMNS
