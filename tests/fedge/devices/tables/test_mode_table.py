"""A measured table is read in SI units, refused with the line and the reason, and written as it is read."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import grid, made_up_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedge.devices.tables.mode_table import (
    TABLE_COLUMNS,
    check_units,
    format_mode_tables,
    list_batch_sizes,
    list_table_notes,
    parse_workload_kind,
    read_mode_table,
    write_mode_table,
)
from fedge.errors import BadInput
from fedge.types import Modes, PowerMode, ProfileTable

HEAD = ",".join(TABLE_COLUMNS)
ROWS = ("4,1500000,500000000,800000000,16,250,9.5", "8,2000000,1000000000,1600000000,16,100,20")


def _file(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "my-board" / "train" / "my-net.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def test_units_become_mhz_seconds_and_watts(tmp_path):
    table = read_mode_table(_file(tmp_path, *ROWS))

    assert list(table.modes) == [PowerMode(4, 1500, 500, 800), PowerMode(8, 2000, 1000, 1600)]
    np.testing.assert_allclose(table.step_s, [0.25, 0.1])
    np.testing.assert_allclose(table.power_w, [9.5, 20])
    assert table.maxn == PowerMode(8, 2000, 1000, 1600)


def test_names_come_from_the_path_and_can_be_given(tmp_path):
    path = _file(tmp_path, *ROWS)

    assert (read_mode_table(path).device, read_mode_table(path).workload) == ("my-board", "my-net")
    assert (read_mode_table(path, "a", "b").device, read_mode_table(path, "a", "b").workload) == ("a", "b")


def test_the_sum_names_the_rows_whatever_their_order_and_their_file(tmp_path):
    sums = {read_mode_table(_file(tmp_path, *rows)).sha256 for rows in (ROWS, ROWS[::-1], (*ROWS, ""))}

    assert len(sums) == 1


def test_the_sum_changes_with_any_number(tmp_path):
    first, *others = ROWS
    changed = first.replace(first.split(",")[5], f"{float(first.split(',')[5]) * 1.0001:.8g}")

    assert read_mode_table(_file(tmp_path, *ROWS)).sha256 != read_mode_table(_file(tmp_path, changed, *others)).sha256


def test_repeated_modes_become_their_median_in_place(tmp_path):
    repeats = [ROWS[1].replace(",100,20", f",{time_ms},{watts}") for time_ms, watts in ((90, 19), (300, 30))]

    table = read_mode_table(_file(tmp_path, ROWS[1], ROWS[0], *repeats))

    assert table.duplicates == 2
    assert list(table.modes) == [PowerMode(8, 2000, 1000, 1600), PowerMode(4, 1500, 500, 800)]
    np.testing.assert_allclose(table.step_s, [0.1, 0.25])
    np.testing.assert_allclose(table.power_w, [20, 9.5])


def test_of_several_batch_sizes_one_must_be_chosen(tmp_path):
    path = _file(tmp_path, ROWS[0], ROWS[1].replace(",16,", ",32,"))

    with pytest.raises(BadInput, match="batch sizes 16, 32; choose one"):
        read_mode_table(path)
    with pytest.raises(BadInput, match="got 64; known: 16, 32"):
        read_mode_table(path, batch_size=64)
    assert read_mode_table(path, batch_size=32).step_s.tolist() == [0.1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("4,1500000,500000000,800000000,16,fast,9.5", r"line 3, time_ms: got 'fast'; a number above 0"),
        ("4,1500000,500000000,800000000,16,nan,9.5", r"line 3, time_ms: got 'nan'"),
        ("4,1500000,500000000,800000000,16,inf,9.5", r"line 3, time_ms: got 'inf'"),
        ("4,1500000,500000000,800000000,16,250,0", r"line 3, power_w: got '0'"),
        ("4,-1,500000000,800000000,16,250,9.5", r"line 3, cpu_khz: got '-1'"),
        ("4.5,1500000,500000000,800000000,16,250,9.5", r"line 3, cores: got '4.5'; a whole number above 0"),
        ("4,1500000,500000000,800000000,16,250", r"line 3, power_w: got ''"),
    ],
)
def test_a_bad_number_is_named_with_its_line_and_column(tmp_path, row, message):
    with pytest.raises(BadInput, match=message) as error:
        read_mode_table(_file(tmp_path, ROWS[0], row))

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{HEAD}\n".encode(), "no rows"),
        (None, r"my\.csv: got no such file"),
        (b"\xff\xd8\xff\xe0", "bytes that are not text"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(tmp_path, content, message):
    if content is not None:
        (tmp_path / "my.csv").write_bytes(content)
    with pytest.raises(BadInput, match=message):
        read_mode_table(tmp_path / "my.csv")
    with pytest.raises(BadInput, match="cannot be read"):
        read_mode_table(tmp_path)


def _grid_rows() -> list[list[str]]:
    """A good table's cells, header first."""
    knobs = grid().knobs[::40]
    rows = [(c, f * 1e3, g * 1e6, m * 1e6, 16, 1e6 / (f + g), 9 + g / 90) for c, f, g, m in knobs]
    return [list(TABLE_COLUMNS), *([f"{value:.10g}" for value in row] for row in rows)]


GOOD = _grid_rows()


def test_wrong_units_are_refused_by_the_reader_itself(tmp_path):
    rows = [row.replace("1500000", "1500000000").replace("2000000,", "2000000000,") for row in ROWS]

    with pytest.raises(BadInput, match=r"cpu_khz: got 2e\+06 MHz as the top; .* looks like Hz: divide it by 1000"):
        read_mode_table(_file(tmp_path, *rows))


def test_one_row_and_repeats_are_read_and_noted(tmp_path):
    table = read_mode_table(_file(tmp_path, ROWS[0], ROWS[0]))

    assert len(table.modes) == 1
    assert [note.partition(":")[0] for note in list_table_notes(table)] == [
        "1 row repeats a mode",
        "only one power mode",
    ]


ODD_CELLS = st.one_of(
    st.sampled_from(["", "nan", "inf", "-1", "0", "1e999", "1e-320", "1_0", "0x1f", "4.5", '"', "null", "1;2", "\x00"]),
    st.floats().map(str),
    st.text(max_size=8),
)


KINDS = ("cell", "scale", "drop row", "repeat row", "drop column", "swap columns", "cut row")


@st.composite
def _mutated(draw: st.DrawFn) -> list[list[str]]:
    """The good table with cells, rows and columns changed, dropped, repeated or swapped."""
    rows = [list(row) for row in GOOD]
    for _ in range(draw(st.integers(1, 4))):
        i = draw(st.integers(0, max(0, len(rows) - 1)))
        j = draw(st.integers(0, len(TABLE_COLUMNS) - 1))
        kind = draw(st.sampled_from(KINDS))
        if not rows:
            break
        if kind == "cell":
            rows[i][j : j + 1] = [draw(ODD_CELLS)]
        elif kind == "scale":
            factor = draw(st.sampled_from([-1.0, 0.0, 1e3, 1e-3, 1e6, 1e-6]))
            rows[1:] = [[*row[:j], _scaled(row[j : j + 1], factor), *row[j + 1 :]] for row in rows[1:]]
        elif kind == "drop row":
            del rows[i]
        elif kind == "repeat row":
            rows.insert(i, list(rows[i]))
        elif kind == "drop column":
            rows = [row[:j] + row[j + 1 :] for row in rows]
        elif kind == "swap columns":
            rows = [[*row[1:], *row[:1]] for row in rows]
        else:
            del rows[i][j:]
    return rows


def _scaled(cell: list[str], factor: float) -> str:
    try:
        return str(float(cell[0]) * factor)
    except (IndexError, ValueError):
        return ""


def _reads_or_refuses(path: Path) -> None:
    refusal = ""
    try:
        table = read_mode_table(path)
    except BadInput as error:
        refusal = str(error)
    if refusal:
        assert len(refusal.splitlines()) == 1
        return
    assert len(table.modes) == len(table.step_s) == len(table.power_w) > 0
    values = np.column_stack([table.modes.knobs, table.step_s, table.power_w])
    assert np.isfinite(values).all()
    assert (values > 0).all()
    assert len({tuple(row) for row in table.modes.knobs}) == len(table.modes)
    assert all(list_table_notes(table))


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=_mutated(), separator=st.sampled_from([",", ";", "\t"]), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_mutated_table_is_read_or_refused_in_one_line(tmp_path, rows, separator, end):
    path = tmp_path / "mutated.csv"
    path.write_bytes(end.join(separator.join(row) for row in rows).encode("utf-8", errors="surrogatepass"))

    _reads_or_refuses(path)


def test_a_tables_batch_sizes_are_listed_in_order(tmp_path):
    rows = [row.replace(",16,", f",{size},") for size in (32, 4) for row in ROWS]

    assert list_batch_sizes(_file(tmp_path, *rows)) == (4, 32)


def test_a_folder_named_infer_makes_a_table_one_of_inference(tmp_path):
    assert parse_workload_kind(tmp_path / "infer" / "net.csv") == "infer"
    assert parse_workload_kind(tmp_path / "train" / "net.csv") == "train"
    assert parse_workload_kind(tmp_path / "net.csv") == "train"


@pytest.mark.parametrize(
    ("labels", "label"),
    [
        (("measured", "measured"), "measured"),
        (("measured", "calibrated"), "calibrated"),
        (("calibrated", "estimated"), "estimated"),
        (("measured", ""), "unknown"),
    ],
)
def test_a_tables_label_is_the_weakest_of_its_rows(labels, label, tmp_path):
    rows = [f"{row},{word}" for row, word in zip(ROWS, labels, strict=True)]

    assert read_mode_table(_file(tmp_path, *rows, head=f"{HEAD},label")).label == label


def test_a_table_without_labels_is_of_unknown_origin_also_when_it_is_written_again(tmp_path):
    table = read_mode_table(_file(tmp_path, *ROWS))

    assert table.label == "unknown"
    assert format_mode_tables(table).startswith(f"{HEAD}\n")


def test_a_written_table_keeps_its_label_and_its_sum(tmp_path):
    path = tmp_path / "board" / "train" / "net.csv"

    for label in ("estimated", "measured"):
        write_mode_table(path, replace(made_up_table(), label=label))
        assert read_mode_table(path).label == label
    write_mode_table(tmp_path / "bare.csv", made_up_table())
    assert read_mode_table(path).sha256 == read_mode_table(tmp_path / "bare.csv").sha256


def test_a_label_that_does_not_exist_is_refused(tmp_path):
    path = _file(tmp_path, *(f"{row},sure" for row in ROWS), head=f"{HEAD},label")

    with pytest.raises(BadInput, match="line 2, label: got 'sure'; one of measured, calibrated, estimated, unknown"):
        read_mode_table(path)


def test_idle_power_is_an_optional_column(tmp_path):
    table = made_up_table()
    with_idle = dataclasses.replace(table, idle_w=0.5 * table.power_w)

    write_mode_table(tmp_path / "net.csv", with_idle)
    write_mode_table(tmp_path / "mixed.csv", with_idle, dataclasses.replace(table, batch_size=4))
    back = read_mode_table(tmp_path / "net.csv")

    assert back.idle_w is not None
    np.testing.assert_allclose(back.idle_w, 0.5 * table.power_w, rtol=1e-11)
    assert back.sha256 == read_mode_table(tmp_path / "mixed.csv", batch_size=16).sha256
    assert read_mode_table(tmp_path / "mixed.csv", batch_size=16).idle_w is None


def test_a_written_table_is_read_back(tmp_path):
    path = tmp_path / "board" / "train" / "net.csv"

    write_mode_table(path, made_up_table())
    back = read_mode_table(path)
    write_mode_table(path, back)

    assert (back.device, back.workload, back.batch_size) == ("board", "net", 16)
    assert back.sha256 == read_mode_table(path).sha256
    np.testing.assert_array_equal(back.modes.knobs, grid().knobs)
    np.testing.assert_allclose(back.step_s, made_up_table().step_s, rtol=1e-11)
    np.testing.assert_allclose(back.power_w, made_up_table().power_w, rtol=1e-11)


@given(st.floats(102, 3_000), st.floats(1e-4, 100), st.floats(1, 100))
def test_any_value_keeps_its_digits(mhz, seconds, watts):
    modes = Modes(np.array([[4.0, mhz, mhz, mhz]]))
    table = ProfileTable("b", "n", 1, modes, np.array([seconds]), np.array([watts]), "", "")

    cells = [float(cell) for cell in format_mode_tables(table).splitlines()[1].split(",")]

    np.testing.assert_allclose(cells, [4, mhz * 1e3, mhz * 1e6, mhz * 1e6, 1, seconds * 1e3, watts], rtol=1e-11)


def test_batch_sizes_share_a_file(tmp_path):
    write_mode_table(tmp_path / "net.csv", made_up_table(batch_size=4), made_up_table())

    assert [len(read_mode_table(tmp_path / "net.csv", batch_size=size).modes) for size in (4, 16)] == [len(grid())] * 2


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "net.csv"
    path.write_text("mine", encoding="utf-8")
    torn = replace(made_up_table(), step_s=np.ones(3))

    with pytest.raises(BadInput, match=r"net\.csv: got a file that cannot be written"):
        write_mode_table(path, torn)
    with pytest.raises(BadInput, match="cannot be written"):
        write_mode_table(path / "below" / "net.csv", made_up_table())

    assert [file.name for file in tmp_path.iterdir()] == ["net.csv"]
    assert path.read_text(encoding="utf-8") == "mine"


GRID = grid()
STEP_S = np.linspace(0.05, 2.0, len(GRID))
POWER_W = np.linspace(8.0, 40.0, len(GRID))


def _table(modes: Modes = GRID, duplicates: int = 0, power_w: float | None = None) -> ProfileTable:
    n = len(modes)
    watts = POWER_W[:n] if power_w is None else np.full(n, power_w)
    return ProfileTable("board", "net", 16, modes, STEP_S[:n], watts, "", "net.csv", duplicates)


def _check(column: int, factor: float, rows: slice = slice(None)) -> None:
    numbers = np.column_stack([GRID.knobs, STEP_S, POWER_W])
    numbers[rows, column] *= factor
    check_units("t.csv", Modes(numbers[:, :4]), numbers[:, 4], numbers[:, 5])


def test_a_good_table_has_nothing_to_say():
    check_units("t.csv", GRID, STEP_S, POWER_W)

    assert list_table_notes(_table()) == ()


@pytest.mark.parametrize(
    ("column", "factor", "message"),
    [
        (1, 1e3, r"t\.csv: cpu_khz: got 2e\+06 MHz as the top; kHz: .*; the column looks like Hz: divide it by 1000$"),
        (1, 1e-3, "cpu_khz: .* the column looks like MHz: multiply it by 1000$"),
        (1, 1e-6, "cpu_khz: .* the column looks like GHz: multiply it by 1000000$"),
        (2, 1e-3, "gpu_hz: .* the column looks like kHz: multiply it by 1000$"),
        (3, 1e-6, "mem_hz: .* the column looks like MHz: multiply it by 1000000$"),
        (4, 1e3, "time_ms: .* the column looks like microseconds: divide it by 1000$"),
        (4, 1e6, "time_ms: .* the column looks like nanoseconds: divide it by 1000000$"),
        (5, 1e3, "power_w: got 40000 W as the top; watts: .* the column looks like milliwatts: divide it by 1000$"),
        (0, 1e5, "cores: got 800000 cores as the top; a count: a board's core count lies between 1 and 128 cores$"),
    ],
)
def test_another_unit_is_recognised(column, factor, message):
    with pytest.raises(BadInput, match=message):
        _check(column, factor)


@given(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1e3, 1e-3, 1e6, 1e-6]), st.integers(1, len(GRID) - 1))
def test_no_mix_of_two_units_a_thousand_apart_passes(column, factor, rows):
    with pytest.raises(BadInput, match=r"as the top; |in \d+ of 630 rows; "):
        _check(column, factor, slice(rows))


def test_few_rows_in_another_unit_are_counted():
    with pytest.raises(BadInput, match="cpu_khz: got 500000 MHz in 3 of 630 rows; kHz in every row"):
        _check(1, 1e3, slice(3))


@pytest.mark.parametrize(
    ("table", "note"),
    [
        (_table(duplicates=1), "1 row repeats a mode: the mode's median is used"),
        (_table(duplicates=3), "3 rows repeat a mode: the mode's median is used"),
        (_table(Modes(GRID.knobs[:1])), "only one power mode: how time and power change from mode to mode cannot be"),
        (_table(Modes(GRID.knobs[:9])), "cores is the same in every row (2): what other values do cannot be seen"),
        (_table(power_w=9.0), "power_w is the same in every row (9 W): was it measured in every mode?"),
    ],
)
def test_what_was_repaired_or_cannot_be_learnt_is_noted(table, note):
    assert any(said.startswith(note) for said in list_table_notes(table))
