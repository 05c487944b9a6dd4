"""The measurements of BoFL and PowerTrain."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.tables.mode_table import ImportedTables, assemble_tables
from fedge.devices.tables.published_files import (
    LAST_MINIBATCHES,
    ModeFiles,
    import_bofl_json,
    import_folders,
    import_results,
    read_source,
)
from fedge.errors import BadInput

XAVIER = {"1190400,675750000,1600000000": [0.5, 6.0], "2265600,1377000000,2133000000": [0.25, 7.5]}
TX2 = {"960000,930750000,1331200000": [1.0, 7.0]}


def _table(content: Any, where: str = "AGX/CIFAR10.json", batch_size: int | None = None, cores: int | None = None):
    return assemble_tables(import_bofl_json(where, json.dumps(content), batch_size, cores), "board", "net")


def test_joules_over_seconds_are_watts():
    (table,) = _table(XAVIER).tables

    np.testing.assert_allclose(table.modes.knobs, [[8, 1190.4, 675.75, 1600], [8, 2265.6, 1377, 2133]])
    np.testing.assert_allclose(table.step_s, [0.5, 0.25])
    np.testing.assert_allclose(table.power_w, [12, 30])


@pytest.mark.parametrize(
    ("where", "given_size", "size"), [("a/CIFAR10.json", None, 32), ("IMDB.json", None, 8), ("mine.json", 4, 4)]
)
def test_the_batch_size_is_the_programs_or_the_one_given(where, given_size, size):
    imported = _table(XAVIER, where, given_size)

    assert imported.tables[0].batch_size == size
    assert any(note.startswith("batch size") for note in imported.notes) == (given_size is None)


def test_the_core_count_is_the_boards_known_or_by_its_gpu_clocks():
    assert _table(XAVIER).tables[0].maxn.cores == 8
    assert _table(TX2).tables[0].maxn.cores == 6
    assert _table(XAVIER, cores=4).tables[0].maxn.cores == 4
    assert _table(XAVIER).notes[0] == "cores 8: the file does not say; all of the board's were on"


def test_modes_without_energy_are_left_out_and_noted():
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
def test_files_that_cannot_be_used_are_refused(text, where, message):
    with pytest.raises(BadInput, match=message) as error:
        assemble_tables(import_bofl_json(where, text), "board", "net")

    assert "\n" not in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*XAVIER, "1,2,3", "a,b,c"]), JSON | st.lists(st.floats(), max_size=3)) | JSON)
def test_any_json_is_read_or_refused(content):
    try:
        imported = _table(content)
    except BadInput:
        return
    assert np.isfinite(imported.tables[0].power_w).all()


MODE = "pm_4_1344000_510000000_2133000000"
STEP_S = 0.5


def _epochs(steps: int, slow_first: int = 11) -> str:
    """One minibatch a line; the first ones slow, the others around 500 ms."""
    lines = ["epoch,time,loss,accuracy,epochtime_ms,log_time"]
    lines += [
        f'0,null,":",null,{2000 if i < slow_first else 498 + i % 5},{100 + STEP_S * (i + 1)}' for i in range(steps)
    ]
    return "\n".join(lines)


def _samples(watts: dict[int, float], last: int = 150) -> str:
    rows = [f"2024-05-06 10:00:00,ON,{1e3 * watts.get(s, 9.0):.0f},7777,{s}" for s in range(90, last)]
    return "\n".join(["time,jetson_clocks,power cur,power avg,log_time", *rows])


def _mode(name: str = MODE, **text: str) -> ModeFiles:
    return ModeFiles(name, {"epoch_stats": _epochs(51), "tegrastats": _samples({}), **text})


def _imported(*modes: ModeFiles, batch_size: int | None = None) -> ImportedTables:
    return assemble_tables(import_folders("runs", modes, batch_size), "agx-orin", "net")


def test_the_last_minibatches_count_and_the_power_meanwhile():
    during = dict.fromkeys(range(106, 126), 20.0)

    imported = _imported(_mode(tegrastats=_samples(during)))

    (table,) = imported.tables
    assert LAST_MINIBATCHES == 51 - 11
    assert (table.step_s[0], table.power_w[0], table.batch_size) == (0.5, 20.0, 16)
    np.testing.assert_allclose(table.modes.knobs, [[4, 1344, 510, 2133]])
    assert imported.notes[0] == "batch size 16: the paper's; the files do not say"


def test_the_first_minibatch_never_counts():
    (table,) = _imported(_mode(epoch_stats=_epochs(4, slow_first=1)), batch_size=8).tables

    assert table.step_s[0] == pytest.approx(0.500)
    assert table.batch_size == 8


def test_fetch_and_compute_are_added_where_their_sum_is_not_logged():
    fetch = ["epoch,batch_idx,fetchtime,fetchtime_ms,log_time", *(f"0,{i},null,100,{100 + i}" for i in range(5))]
    compute = ["epoch,batch_idx,computetime,computetime_ms,log_time", *(f"0,{i},null,250,{100 + i}" for i in range(4))]
    text = {"fetch": "\n".join(fetch), "compute": "\n".join(compute), "tegrastats": _samples({})}

    (table,) = _imported(ModeFiles(MODE, text)).tables

    assert table.step_s[0] == pytest.approx(0.35)


def test_modes_with_incomplete_files_are_left_out_and_noted():
    other = "pm_8_2201600_1300500000_3199000000"
    silent = ModeFiles(other, {"epoch_stats": _epochs(51)})
    early = _mode("pm_2_2201600_1300500000_3199000000", tegrastats=_samples({}, last=100))

    imported = _imported(_mode(), silent, early)

    assert len(imported.tables[0].modes) == 1
    assert imported.notes[1].startswith(f"2 modes ({other}: got no *_tegrastats.csv;")
    assert imported.notes[1].endswith("no power sample during its minibatches; at least one): left out")
    with pytest.raises(BadInput, match=r"runs: got no mode with a time and a power \(pm_8"):
        _imported(silent)


def _write(folder: Path, mode: ModeFiles) -> None:
    (folder / mode.name).mkdir(parents=True)
    for kind, text in mode.text.items():
        (folder / mode.name / f"mn_nw4_pf2_{kind}.csv").write_text(text, encoding="utf-8")
    (folder / mode.name / "mn_nw4_pf2_cpufreq_stats.csv").write_text("1,2\n", encoding="utf-8")


def test_a_folder_of_modes_is_found_at_any_depth(tmp_path):
    for name in (MODE, "pm_8_2201600_1300500000_3199000000"):
        _write(tmp_path / "runs" / "net", _mode(name))

    found = read_source(tmp_path)

    assert not isinstance(found, str)
    assert sorted(_imported(*found).tables[0].modes.knobs[:, 0]) == [4, 8]
    one = read_source(tmp_path / "runs" / "net" / MODE)
    assert not isinstance(one, str)
    assert len(_imported(*one).tables[0].modes) == 1


def test_folders_of_several_workloads_are_not_mixed(tmp_path):
    for workload in ("mobnet", "resnet"):
        _write(tmp_path / workload, _mode())

    with pytest.raises(BadInput, match=r"modes of 2 folders \(.*mobnet, .*resnet\); one workload's folder"):
        read_source(tmp_path)


def test_two_runs_in_a_folder_and_an_empty_one_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"got no pm_\.\.\. folder; a folder with pm_CORES_KHZ_HZ_HZ folders"):
        read_source(tmp_path)
    _write(tmp_path, _mode())
    (tmp_path / MODE / "other_epoch_stats.csv").write_text("", encoding="utf-8")
    found = read_source(tmp_path)
    assert not isinstance(found, str)
    with pytest.raises(BadInput, match=r"got 2 files \*_epoch_stats\.csv; one run's files"):
        _imported(*found)


RESULTS = "powermode,predicted_time,predicted_power,observed_time,observed_power\n"


def test_observed_columns_of_a_result_table_are_taken(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(RESULTS + "4_1344000_510000000_2133000000,1,2,300,11\nall,,,,\n", encoding="utf-8")
    text = read_source(path)

    assert isinstance(text, str)
    imported = assemble_tables(import_results("results.csv", text), "b", "n")
    assert (imported.tables[0].step_s[0], imported.tables[0].power_w[0]) == (0.3, 11)
    assert "1 row (line 3) without a mode, a time and a power: left out" in imported.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RESULTS + "4_1344000_510000000_2133000000,1,2,3000000,11\n", "the column looks like those of an epoch"),
        (RESULTS, "no power mode with a time and a power"),
        ("a,b\n", "no column powermode"),
        (RESULTS + f"4_{'9' * 5000}_510000000_2133000000,1,2,300,11\n", "no power mode with a time and a power"),
    ],
)
def test_result_tables_that_cannot_be_used_are_refused(text, message):
    with pytest.raises(BadInput, match=message):
        assemble_tables(import_results("results.csv", text), "b", "n")
