"""Logs of tegrastats and jtop with a steps file."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.tables.mode_table import ImportedTables, assemble_tables
from fedge.devices.tables.power_log import StepsFile, import_jtop_log, import_tegrastats_log, read_steps_file
from fedge.errors import BadInput

NANO = (
    "RAM 1500/3956MB (lfb 12x4MB) SWAP 0/1978MB (cached 0MB) IRAM 0/252kB(lfb 252kB) CPU [12%@1479,4%@1479,off,off] "
    "EMC_FREQ 8%@1600 GR3D_FREQ 37%@921 APE 25 PLL@39C CPU@41.5C PMIC@100C GPU@38C AO@45.5C thermal@40.25C "
    "POM_5V_IN {0}/2500 POM_5V_GPU 10/20 POM_5V_CPU 400/410"
)
XAVIER = (
    "RAM 1903/31919MB (lfb 6000x4MB) SWAP 0/15959MB (cached 0MB) CPU [1%@1190,2%@1190,off,off,off,off,off,off] "
    "EMC_FREQ 0% GR3D_FREQ 0% AO@32.5C GPU@32C Tboard@32C Tdiode@34.75C AUX@31.5C CPU@33.5C thermal@32.9C PMIC@100C "
    "GPU {0}/10 CPU 200/210 SOC 300/310 CV 0/0 VDDRQ 100/110 SYS5V 400/410"
)
ORIN = (
    "03-04-2023 10:00:{1:02d} RAM 4722/30536MB (lfb 5x4MB) SWAP 0/15268MB (cached 0MB) CPU [0%@729,off,off,off] "
    "EMC_FREQ 0%@2133 GR3D_FREQ 0%@[305,305] VIC_FREQ 115 APE 174 CV0@-256C CPU@47.6C Tboard@36C tj@47.6C "
    "VDD_GPU_SOC {0}mW/3000mW VDD_CPU_CV 400mW/400mW VIN_SYS_5V0 3000mW/3000mW NC 0mW/0mW "
    "VDDQ_VDD2_1V8AO 600mW/600mW NC 0mW/0mW"
)
NX = (
    "03-04-2024 10:00:{1:02d} RAM 2000/15656MB (lfb 54x4MB) SWAP 0/7828MB (cached 0MB) CPU [3%@729,0%@729,off,off] "
    "GR3D_FREQ 0% cv0@45.2C cpu@47.2C soc2@46C gpu@46.3C tj@47.9C "
    "VDD_IN {0}mW/4500mW VDD_CPU_GPU_CV 500mW/500mW VDD_SOC 1400mW/1400mW"
)
ORIN_TOTAL = "VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0 + VDDQ_VDD2_1V8AO"
XAVIER_TOTAL = "GPU + CPU + SOC + CV + VDDRQ + SYS5V"
HEAD = "start_s,end_s,cores,cpu_khz,gpu_hz,mem_hz,batch_size,steps\n"
TWO_MODES = HEAD + (
    "2023-03-04 10:00:02,2023-03-04 10:00:06,4,1344000,510000000,2133000000,16,8\n"
    "2023-03-04 10:00:08,2023-03-04 10:00:12,8,2201600,1300500000,3199000000,16,20\n"
)


def _steps(text: str = TWO_MODES, batch_size: int | None = None) -> StepsFile:
    return read_steps_file("steps.csv", text, batch_size)


def _orin(log: str, steps: StepsFile | None = None, total: str | None = ORIN_TOTAL) -> ImportedTables:
    return assemble_tables(import_tegrastats_log("t.log", log, steps or _steps(), total), "agx-orin", "net")


def _orin_log(watts_at: dict[int, int]) -> str:
    return "\n".join(ORIN.format(1000 * watts_at.get(s, 1), s) for s in range(15))


def test_every_mode_gets_the_power_of_its_own_time():
    log = _orin_log({2: 10, 3: 11, 4: 12, 5: 11, 8: 30, 9: 31, 10: 30, 11: 29})

    (table,), notes = (imported := _orin(log)).tables, imported.notes

    np.testing.assert_allclose(table.power_w, [11 + 4, 30 + 4])
    np.testing.assert_allclose(table.step_s, [0.5, 0.2])
    np.testing.assert_allclose(table.modes.knobs, [[4, 1344, 510, 2133], [8, 2201.6, 1300.5, 3199]])
    assert (table.device, table.workload, table.batch_size) == ("agx-orin", "net", 16)
    assert notes == (f"power is {ORIN_TOTAL}, from 15 samples",)


@pytest.mark.parametrize(
    ("form", "total", "expected"),
    [
        (NX, "VDD_IN", 5.0),
        ("{stamp} " + NANO, "POM_5V_IN", 5.0),
        ("{stamp} " + XAVIER, XAVIER_TOTAL, 6.0),
        ("[{date}] " + NANO, "POM_5V_IN", 5.0),
        ("{date} " + XAVIER, XAVIER_TOTAL, 6.0),
    ],
)
def test_jetpack_4_logs_need_a_stamp_and_have_no_unit(form, total, expected):
    lines = []
    for s in range(15):
        line = form.replace("{stamp}", f"{1709546400 + s}.25").replace("{date}", f"2024-03-04T10:00:{s:02d}.250")
        lines.append(line.format(5000, s))

    imported = _orin("\n".join(lines), _steps(TWO_MODES.replace("2023-", "2024-")), total)

    np.testing.assert_allclose(imported.tables[0].power_w, [expected, expected])


def test_times_of_steps_may_be_seconds_since_1970_or_since_the_logs_first_line():
    log = "\n".join(f"{1709546400 + s}.0 {NANO.format(1000 * (s + 1))}" for s in range(15))
    since_1970 = HEAD + "1709546402,1709546405,4,1479000,921600000,1600000000,16,3\n"
    since_first = HEAD + "2,5,4,1479000,921600000,1600000000,16,3\n"

    tables = [_orin(log, _steps(text), "POM_5V_IN") for text in (since_1970, since_first)]

    assert [imported.tables[0].power_w.tolist() for imported in tables] == [[4.0], [4.0]]
    assert "the steps' times were counted from the log's first sample" in tables[1].notes


def test_lines_that_share_a_second_are_spread_over_it():
    log = "\n".join(ORIN.format(1000 * (1 + s), 3) for s in range(10))
    steps = HEAD + "2023-03-04 10:00:03.5,2023-03-04 10:00:04,4,1344000,510000000,2133000000,16,1\n"

    assert _orin(log, _steps(steps)).tables[0].power_w[0] == pytest.approx((6 + 7 + 8 + 9 + 10) / 5 + 4)


def test_minibatches_one_per_row_give_the_median_time():
    knobs = "4,1344000,510000000,2133000000"
    ends = (2.0, 2.5, 3.1, 3.6, 5.6)
    rows = [f"{a},{b},{knobs}" for a, b in itertools.pairwise(ends)]
    text = "start_s,end_s,cores,cpu_khz,gpu_hz,mem_hz\n" + "\n".join(rows)

    (table,) = _orin(_orin_log({}), _steps(text, batch_size=8)).tables

    assert table.step_s[0] == pytest.approx(0.55)
    assert table.batch_size == 8


def test_batch_sizes_become_a_table_each_or_one_is_picked():
    both = TWO_MODES.replace("3199000000,16", "3199000000,4")

    assert [table.batch_size for table in _orin(_orin_log({}), _steps(both)).tables] == [4, 16]
    assert [table.batch_size for table in _orin(_orin_log({}), _steps(both, 4)).tables] == [4]
    with pytest.raises(BadInput, match=r"steps\.csv: batch size: got 9; known: 4, 16"):
        _steps(both, 9)


def test_modes_and_lines_without_power_are_left_out_and_noted():
    log = _orin_log({}) + "\nRAM 1/2MB no rails here\n" + "03-04-2023 10:00:05 VDD_GPU_SOC 1mW/1mW\n"
    late = "2023-03-04 11:00:02,2023-03-04 11:00:06,12,1344000,510000000,2133000000,16,8\n"
    short = "2023-03-04 10:00:13,2023-03-04 10:00:14,2,1344000,510000000,2133000000,16,8\n"

    imported = _orin(log, _steps(TWO_MODES + late + short))

    assert len(imported.tables[0].modes) == 3
    assert f"1 of 16 samples lack a rail of {ORIN_TOTAL}: left out" in imported.notes
    assert "1 mode (12c/1344/510/2133 MHz) without a power sample: left out" in imported.notes
    assert "1 mode (2c/1344/510/2133 MHz) with fewer than 3 power samples: run longer" in imported.notes


def test_an_unknown_board_is_measured_at_its_input_rail():
    log = "\n".join(NX.format(7000, s) for s in range(15))

    imported = _orin(log, _steps(TWO_MODES.replace("2023-", "2024-")), None)

    assert imported.tables[0].power_w.tolist() == [7.0, 7.0]
    assert "the board is not in the catalogue: VDD_IN is taken for the module's total" in imported.notes


@pytest.mark.parametrize(
    ("log", "total", "message"),
    [
        ("", None, r"t\.log: got no power in any line; .* root only"),
        (NANO.format(1), "POM_5V_IN", r"got 1 of 1 lines without a time; a time before every line, e\.g\. tegrastats"),
        (ORIN.format(1, 1), None, "none of which is the module's input; --out BOARD/train"),
        (ORIN.format(1, 1), "VDD_IN", r"the board's rails, VDD_IN \(found: VDDQ_VDD2_1V8AO, VDD_CPU_CV, "),
        (
            ORIN.format(1, 1).replace("2023", "2021"),
            ORIN_TOTAL,
            "samples from 2021-03-04 10:00:01 to 2021-03-04 10:00:01; samples during the steps, 2023-03-04 10:00:02 to",
        ),
    ],
)
def test_logs_that_cannot_be_used_are_refused(log, total, message):
    with pytest.raises(BadInput, match=message) as error:
        _orin(log, total=total)

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "got no rows"),
        (TWO_MODES.replace("start_s", "begin"), "got no column start_s"),
        (TWO_MODES.replace(",batch_size", ",size"), "got no column batch_size; the column, or --batch-size"),
        (TWO_MODES.replace("2023-03-04 10:00:06", "soon"), r"line 2, end_s: got 'soon'; a time: seconds since 1970"),
        (TWO_MODES.replace("10:00:06", "10:00:01"), "line 2, end_s: got 2023-03-04 10:00:01; a time after start_s"),
        (TWO_MODES.replace(",8\n", ",2.5\n"), r"line 2, steps: got '2\.5'; a whole number above 0"),
        (TWO_MODES.replace(",4,1344000", ",x,1344000"), "line 2, cores: got 'x'"),
    ],
)
def test_steps_files_that_cannot_be_used_are_refused_by_line(text, message):
    with pytest.raises(BadInput, match=rf"steps\.csv: .*{message}|steps\.csv: {message}"):
        _steps(text)


def test_clocks_of_another_unit_name_the_steps_file():
    with pytest.raises(BadInput, match=r"t\.log with steps\.csv: cpu_khz: .* looks like Hz"):
        _orin(_orin_log({}), _steps(re.sub(r",(1344000|2201600),", r",\g<1>000,", TWO_MODES)))


@given(st.integers(0, 3_000), st.integers(0, 400), st.text(max_size=20), st.booleans())
def test_damaged_logs_and_steps_are_read_or_refused(start, cut, put, in_steps):
    log, steps = _orin_log({}), TWO_MODES
    if in_steps:
        start %= len(steps)
        steps = steps[:start] + put + steps[start + cut % 40 :]
    else:
        log = log[:start] + put + log[start + cut :]
    try:
        imported = _orin(log, _steps(steps))
    except BadInput:
        return
    assert all(np.isfinite(table.power_w).all() for table in imported.tables)


STEPS = read_steps_file(
    "steps.csv",
    "start_s,end_s,cores,cpu_khz,gpu_hz,mem_hz,batch_size,steps\n"
    "2024-05-06 10:00:02,2024-05-06 10:00:06,4,1344000,510000000,2133000000,16,8\n",
)
OLD = "time,uptime,jetson_clocks,nvp model,CPU1,CPU2,GPU1,RAM,EMC,SWAP,fan,Temp CPU,Temp GPU,power cur,power avg"
NEW = "time,uptime,CPU1,CPU2,RAM,SWAP,EMC,GPU,APE,Fan pwmfan0,Temp cpu,Temp gpu,"
ORIN_RAILS = (
    "Power VDD_GPU_SOC,Power VDD_CPU_CV,Power VIN_SYS_5V0,Power VDDQ_VDD2_1V8AO,Power TOT,jetson_clocks,nvp model"
)


def _log(head: str, ends: str, extra: str = "") -> str:
    """Ten rows, one a second; ``ends`` is what follows the columns before the power."""
    before = head.partition("power cur")[0] if "power cur" in head else NEW
    cells = ",".join("1" for _ in before.rstrip(",").split(",")[1:])
    rows = [f"2024-05-06 10:00:{s:02d}{'.984120' if s != 4 else ''},{cells},{ends}" for s in range(10)]
    return "\n".join([head, *rows]) + extra


def _imported(log: str, total: str | None) -> ImportedTables:
    return assemble_tables(import_jtop_log("j.csv", log, STEPS, total), "board", "net")


def test_the_boards_rails_are_summed_where_they_are_logged():
    imported = _imported(_log(NEW + ORIN_RAILS, "8000,1000,3000,600,99000,ON,MAXN"), ORIN_TOTAL)

    np.testing.assert_allclose(imported.tables[0].power_w, [12.6])
    np.testing.assert_allclose(imported.tables[0].step_s, [0.5])
    assert imported.notes[0] == f"power is {ORIN_TOTAL}, from 10 samples"


@pytest.mark.parametrize(
    ("log", "total", "note"),
    [
        (_log(OLD, "9000,8800"), "VDD_IN", "power is 'power cur', jtop's own total (no column of VDD_IN)"),
        (
            _log(NEW + "Power VDD_CPU_GPU_CV,Power VDD_SOC,Power TOT", "900,1500,9000"),
            "VDD_IN",
            "power is 'power tot', jtop's own total (no column of VDD_IN)",
        ),
        (
            _log(NEW + "Power tj,Power TOT", "900,9000"),
            None,
            "power is 'power tot', jtop's own total (the board is not",
        ),
    ],
)
def test_else_jtops_own_total_is_taken_and_noted(log, total, note):
    imported = _imported(log, total)

    np.testing.assert_allclose(imported.tables[0].power_w, [9.0])
    assert imported.notes[0].startswith(note)


def test_rows_that_say_nothing_are_left_out_and_noted():
    imported = _imported(_log(OLD, "9000,8800", "\nnever,1,ON\n2024-05-06 10:00:05,1,ON\n"), None)

    assert imported.notes[0] == "2 rows (line 12, line 13) without a time or a power: left out"


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("a,b\n1,2\n", r"j\.csv: got no column time"),
        ("time,Power VDD_SOC\n1,2\n", r"no column of the module's power; .* \(power columns found: power vdd_soc\)"),
        ("time,Power TOT\nnever,2\n", "got no row with a time and a power"),
        (_log(OLD, "9000,8800").replace("2024-05-06", "2024-05-07"), "both files need one clock and time zone"),
        (_log(OLD, "9000000,8800"), "power_w: got 9000 W as the top; .* looks like milliwatts"),
    ],
)
def test_jtop_logs_that_cannot_be_used_are_refused(log, message):
    with pytest.raises(BadInput, match=message):
        _imported(log, None)


@given(st.integers(0, 1_500), st.integers(0, 200), st.text(max_size=20))
def test_damaged_logs_are_read_or_refused(start, cut, put):
    log = _log(NEW + ORIN_RAILS, "8000,1000,3000,600,99000,ON,MAXN")
    try:
        imported = _imported(log[:start] + put + log[start + cut :], ORIN_TOTAL)
    except BadInput:
        return
    assert all(np.isfinite(table.power_w).all() for table in imported.tables)
