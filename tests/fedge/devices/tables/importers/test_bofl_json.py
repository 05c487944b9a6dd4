"""BoFL's JSON becomes a table; small made-up files in its layout."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.tables.importers import assemble_tables
from fedge.devices.tables.importers.bofl_json import import_json
from fedge.errors import BadInput

XAVIER = {"1190400,675750000,1600000000": [0.5, 6.0], "2265600,1377000000,2133000000": [0.25, 7.5]}
TX2 = {"960000,930750000,1331200000": [1.0, 7.0]}


def _table(content: Any, where: str = "AGX/CIFAR10.json", batch_size: int | None = None, cores: int | None = None):
    return assemble_tables(import_json(where, json.dumps(content), batch_size, cores), "board", "net")


def test_joules_over_seconds_are_watts() -> None:
    (table,) = _table(XAVIER).tables

    np.testing.assert_allclose(table.modes.knobs, [[8, 1190.4, 675.75, 1600], [8, 2265.6, 1377, 2133]])
    np.testing.assert_allclose(table.step_s, [0.5, 0.25])
    np.testing.assert_allclose(table.power_w, [12, 30])


@pytest.mark.parametrize(
    ("where", "given_size", "size"), [("a/CIFAR10.json", None, 32), ("IMDB.json", None, 8), ("mine.json", 4, 4)]
)
def test_the_batch_size_is_the_programs_or_the_one_given(where: str, given_size: int | None, size: int) -> None:
    imported = _table(XAVIER, where, given_size)

    assert imported.tables[0].batch_size == size
    assert any(note.startswith("batch size") for note in imported.notes) == (given_size is None)


def test_the_core_count_is_the_boards_known_or_by_its_gpu_clocks() -> None:
    assert _table(XAVIER).tables[0].maxn.cores == 8
    assert _table(TX2).tables[0].maxn.cores == 6
    assert _table(XAVIER, cores=4).tables[0].maxn.cores == 4
    assert _table(XAVIER).notes[0] == "cores 8: the file does not say; all of the board's were on"


def test_modes_without_energy_are_left_out_and_noted() -> None:
    imported = _table({**XAVIER, "115200,1377000000,2133000000": [0.5, 0.0]})

    assert len(imported.tables[0].modes) == 2
    assert "1 mode (115200,1377000000,2133000000) without a time and an energy above 0: left out" in imported.notes


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("{", "CIFAR10.json", "got text that is not JSON"),
        ("[1]", "CIFAR10.json", r"got JSON of another layout; \{"),
        ("{}", "CIFAR10.json", "got JSON of another layout"),
        ('{"1,2": [1, 2]}', "CIFAR10.json", "'1,2': got an entry of another layout"),
        ('{"1,2,3": 4}', "CIFAR10.json", "'1,2,3': got an entry of another layout"),
        ('{"1,2,3": [1, NaN]}', "CIFAR10.json", "NaN is no number"),
        (json.dumps(XAVIER), "mine.json", "does not say its batch size; --batch-size: only cifar10, imagenet, imdb"),
        (json.dumps({"960000,114750000,800000000": [1, 2]}), "CIFAR10.json", "does not say how many cores were on"),
        (json.dumps({"1190400000,675750000,1600000000": [1, 2]}), "IMDB.json", "cpu_khz: .* looks like Hz"),
    ],
)
def test_files_that_cannot_be_used_are_refused(text: str, where: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        assemble_tables(import_json(where, text), "board", "net")

    assert "\n" not in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*XAVIER, "1,2,3", "a,b,c"]), JSON | st.lists(st.floats(), max_size=3)) | JSON)
def test_any_json_is_read_or_refused(content: Any) -> None:
    try:
        imported = _table(content)
    except BadInput:
        return
    assert np.isfinite(imported.tables[0].power_w).all()
