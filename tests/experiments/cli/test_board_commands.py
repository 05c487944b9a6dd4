"""``fedge power``, ``board-check`` and ``devices record`` as a person types them, against the real daemon."""

import json
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from contracts.desk import Desk, desk
from contracts.jetsons.kernel import BPMP_EMC, Fault, KernelMachine
from contracts.launching import FEDGE

from fedge.devices.board_power import ask_powerd

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("desk")]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk("agx-orin-jp5", tmp_path_factory.mktemp("desk"), worker=False) as found:
        settings = found.settings.model_dump(mode="json")
        (found.log.parent / "node.yaml").write_text(json.dumps(settings), encoding="utf-8")
        yield found


def fedge(board: Desk, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*FEDGE, *arguments, "--settings", str(board.log.parent / "node.yaml")]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)


def recorded(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [*FEDGE, "devices", "record", "--root", str(root), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)


def state(board: Desk) -> Mapping[str, object]:
    """What the daemon says, without a process for each time."""
    return ask_powerd(str(board.settings.power_socket), "get")


def test_a_mode_is_set_shown_and_put_back(board):
    found = state(board)

    done = fedge(board, "power", "set", "4/1113.6/420.75/665.6")
    now = json.loads(fedge(board, "power", "get", "--json").stdout)
    back = fedge(board, "power", "restore")

    assert done.returncode == 0, done.stderr
    assert "read back 4/1113.6/420.75/665.6" in done.stdout
    assert now["mode"] == {"cores": 4, "cpu_khz": 1113600, "gpu_hz": 420750000, "emc_hz": 665600000}
    assert now["changed"] is True
    assert "restored" in back.stdout
    assert state(board)["limits"] == found["limits"]


def test_what_is_set_is_told_in_words(board):
    said = fedge(board, "power", "get").stdout

    assert "stock mode" in said
    assert "nobody" in said


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("MODE_99W", "stock modes here: MAXN"),
        ("4/1113/400/2133", "the nearest are"),
        ("4/1113", "CORES/CPU/GPU/MEMORY"),
    ],
)
def test_a_mode_that_is_not_there_is_one_line(board, mode, message):
    done = fedge(board, "power", "set", mode)

    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert state(board)["changed"] is False


def test_a_daemon_that_is_not_there_is_one_line_with_what_to_do(board, tmp_path):
    done = fedge(board, "power", "get", "--power-socket", str(tmp_path / "none.sock"))

    assert done.returncode == 1
    assert "fedge-powerd" in done.stderr
    assert "Traceback" not in done.stderr


def test_board_check_tries_each_knob_twice_and_leaves_the_board_as_found(board):
    before = state(board)

    done = fedge(board, "board-check", "--seconds", "1", "--json")

    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    knobs = [what for what in findings if " to " in what]
    assert len(knobs) == 8
    assert {findings[what]["result"] for what in knobs} == {"ok"}
    assert findings["power"]["result"] == "ok"
    assert "VDD_GPU_SOC + VDD_CPU_CV" in findings["power"]["seen"]
    assert findings["put back"]["result"] == "ok"
    assert findings["worker"]["result"] == "FAILED"  # none runs here
    assert done.returncode == 1
    assert state(board)["limits"] == before["limits"]


def test_board_check_names_the_knob_that_does_not_stick(board):
    before = state(board)
    kernel = KernelMachine(str(board.root))
    kernel.plant(Fault("ignore", f"{BPMP_EMC}/rate"))
    try:
        done = fedge(board, "board-check", "--seconds", "1")
    finally:
        kernel.plant()

    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("memory MHz to 665.6"))
    assert "FAILED" in line
    assert state(board)["limits"] == before["limits"]


def test_a_recording_is_one_archive(board, tmp_path):
    out = tmp_path / "board.tar.gz"
    done = recorded(board.root, out)

    assert done.returncode == 0, done.stderr
    with tarfile.open(out) as tar:
        assert "root/proc/device-tree/model" in tar.getnames()


def test_recording_a_machine_that_is_no_jetson_is_one_line(tmp_path):
    out = tmp_path / "board.tar.gz"
    done = recorded(tmp_path, out)

    assert done.returncode == 2
    assert "no Jetson" in done.stderr
    assert not out.exists()
