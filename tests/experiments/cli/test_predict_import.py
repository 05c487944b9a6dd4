"""``fedge predict import`` writes the table, says what it did, and leaves what is there alone."""

import json
from pathlib import Path

import pytest
from contracts.launching import Launcher

from fedge.devices.tables.mode_table import TABLE_COLUMNS, read_mode_table

STEPS = (
    "start_s,end_s,cores,cpu_khz,gpu_hz,mem_hz,batch_size,steps\n"
    "2023-03-04 10:00:02,2023-03-04 10:00:06,4,1344000,510000000,2133000000,16,8\n"
    "2023-03-04 10:00:07,2023-03-04 10:00:09,4,1344000,510000000,2133000000,4,8\n"
)
LINE = (
    "03-04-2023 10:00:{0:02d} RAM 4722/30536MB CPU [0%@729] GR3D_FREQ 0% tj@47.6C "
    "VDD_GPU_SOC 5000mW/1mW VDD_CPU_CV 1000mW/1mW VIN_SYS_5V0 3000mW/1mW VDDQ_VDD2_1V8AO 500mW/1mW\n"
)
BOFL = {"1190400,675750000,1600000000": [0.5, 6.0], "2265600,1377000000,2133000000": [0.25, 7.5]}


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Launcher:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.csv").write_text(STEPS, encoding="utf-8")
    (tmp_path / "t.log").write_text("".join(LINE.format(s) for s in range(12)), encoding="utf-8")
    (tmp_path / "CIFAR10.json").write_text(json.dumps(BOFL), encoding="utf-8")
    return Launcher(monkeypatch, capsys)


def _log(fedge: Launcher, out: str, *more: str):
    return fedge(
        "predict", "import", "t.log", "--format", "tegrastats", "--step-times", "steps.csv", "--out", out, *more
    )


def test_a_log_takes_the_total_of_the_board_in_the_tables_path(fedge, tmp_path):
    outcome = _log(fedge, "agx-orin/train/net.csv")

    assert outcome.code == 0
    first, *notes = outcome.out.splitlines()
    assert first == (
        "agx-orin/train/net.csv: rows 2, power modes 1, batch sizes 4, 16 (board agx-orin, workload net, measured)"
    )
    assert notes[0] == ("note: power is VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0 + VDDQ_VDD2_1V8AO, from 12 samples")
    table = read_mode_table(tmp_path / "agx-orin" / "train" / "net.csv", batch_size=16)
    assert (table.step_s[0], table.power_w[0], table.device) == (0.5, 9.5, "agx-orin")


def test_json_says_the_same(fedge):
    said = json.loads(_log(fedge, "agx-orin/train/net.csv", "--batch-size", "4", "--json").out)

    assert (said["rows"], said["modes"], said["batch_sizes"]) == (1, 1, [4])
    assert (said["device"], said["workload"], said["format"]) == ("agx-orin", "net", "tegrastats")
    assert len(said["notes"]) == 3


def test_bofl_takes_the_core_count_of_the_board_in_the_tables_path(fedge, tmp_path):
    assert fedge("predict", "import", "CIFAR10.json", "--format", "bofl", "--out", "tx2/train/vit.csv").code == 0
    assert fedge("predict", "import", "CIFAR10.json", "--format", "bofl", "--out", "mine/vit.csv").code == 0

    assert read_mode_table(tmp_path / "tx2" / "train" / "vit.csv").maxn.cores == 6
    assert read_mode_table(tmp_path / "mine" / "vit.csv").maxn.cores == 8


def test_powertrain_result_tables_are_imported(fedge, tmp_path):
    rows = "powermode,observed_time,observed_power\n4_1344000_510000000_2133000000,300,11\n"
    (tmp_path / "r.csv").write_text(rows, encoding="utf-8")

    assert fedge("predict", "import", "r.csv", "--format", "powertrain", "--out", "agx-orin/net.csv").code == 0
    assert read_mode_table(tmp_path / "agx-orin" / "net.csv").power_w[0] == 11


@pytest.mark.parametrize(("given", "label"), [("", "measured"), ("estimated", "estimated")])
def test_who_imports_a_table_without_a_label_states_that_it_was_measured(fedge, tmp_path, given, label):
    rows = f"{','.join(TABLE_COLUMNS)},label\n4,1344000,510000000,2133000000,16,312.5,11.8,{given}\n"
    (tmp_path / "mine.csv").write_text(rows, encoding="utf-8")

    done = fedge("predict", "import", "mine.csv", "--format", "table", "--out", "agx-orin/train/net.csv")

    assert done.code == 0, done.err
    assert read_mode_table(tmp_path / "agx-orin" / "train" / "net.csv").label == label


def test_a_file_that_is_there_is_left_alone_unless_it_is_the_same(fedge, tmp_path):
    assert [_log(fedge, "net.csv").code for _ in range(2)] == [2, 2]
    assert _log(fedge, "agx-orin/net.csv").code == 0
    assert _log(fedge, "agx-orin/net.csv").code == 0
    (tmp_path / "agx-orin" / "net.csv").write_text("mine", encoding="utf-8")

    outcome = _log(fedge, "agx-orin/net.csv")

    assert outcome.code == 2
    assert outcome.message == (
        "fedge: --out: agx-orin/net.csv: got an existing file with other content; another path, or delete it first"
    )
    assert (tmp_path / "agx-orin" / "net.csv").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t.log", "--format", "nope"), "--format: got 'nope'; known: tegrastats, jtop, powertrain, bofl, table"),
        (("t.log", "--format", "tegrastats"), "--step-times: got nothing; a CSV file that says when each mode ran"),
        (
            ("CIFAR10.json", "--format", "bofl", "--step-times", "steps.csv"),
            "--step-times: got steps.csv; no file for bofl",
        ),
        (
            ("gone.log", "--format", "jtop", "--step-times", "steps.csv"),
            "gone.log: got no such file; the path of a CSV log",
        ),
        (
            ("t.log", "--format", "jtop", "--step-times", "gone.csv"),
            "gone.csv: got no such file; the path of a steps file",
        ),
        (("gone", "--format", "powertrain"), "gone: got no such file; the path of a folder with pm_"),
        ((".", "--format", "bofl"), ".: got a file that cannot be read (Is a directory)"),
    ],
)
def test_what_cannot_be_imported_is_one_line_and_writes_nothing(fedge, tmp_path, arguments, message):
    outcome = fedge("predict", "import", *arguments, "--out", "agx-orin/train/net.csv")

    assert outcome.code == 2
    assert outcome.message.startswith(f"fedge: {message}")
    assert not (tmp_path / "agx-orin").exists()
