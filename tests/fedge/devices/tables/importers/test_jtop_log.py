"""CSV logs of jetson-stats of all versions become a table; made-up values in their form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.tables.importers import ImportedTables, assemble_tables
from fedge.devices.tables.importers.jtop_log import import_jtop_log
from fedge.devices.tables.importers.steps_file import read_steps_file
from fedge.errors import BadInput

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
ORIN_TOTAL = "VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0 + VDDQ_VDD2_1V8AO"


def _log(head: str, ends: str, extra: str = "") -> str:
    """Ten rows, one a second; ``ends`` is what follows the columns before the power."""
    before = head.partition("power cur")[0] if "power cur" in head else NEW
    cells = ",".join("1" for _ in before.rstrip(",").split(",")[1:])
    rows = [f"2024-05-06 10:00:{s:02d}{'.984120' if s != 4 else ''},{cells},{ends}" for s in range(10)]
    return "\n".join([head, *rows]) + extra


def _imported(log: str, total: str | None) -> ImportedTables:
    return assemble_tables(import_jtop_log("j.csv", log, STEPS, total), "board", "net")


def test_the_boards_rails_are_summed_where_they_are_logged() -> None:
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
def test_else_jtops_own_total_is_taken_and_noted(log: str, total: str | None, note: str) -> None:
    imported = _imported(log, total)

    np.testing.assert_allclose(imported.tables[0].power_w, [9.0])
    assert imported.notes[0].startswith(note)


def test_rows_that_say_nothing_are_left_out_and_noted() -> None:
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
def test_logs_that_cannot_be_used_are_refused(log: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        _imported(log, None)


@given(st.integers(0, 1_500), st.integers(0, 200), st.text(max_size=20))
def test_damaged_logs_are_read_or_refused(start: int, cut: int, put: str) -> None:
    log = _log(NEW + ORIN_RAILS, "8000,1000,3000,600,99000,ON,MAXN")
    try:
        imported = _imported(log[:start] + put + log[start + cut :], ORIN_TOTAL)
    except BadInput:
        return
    assert all(np.isfinite(table.power_w).all() for table in imported.tables)
