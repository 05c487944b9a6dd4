"""``fedge board-check`` on a healthy board: nothing fails, whatever moves by itself; what it says is shown as it is."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contracts.desk import Desk, desk
from contracts.jetsons.kernel import BPMP_EMC, KernelMachine
from contracts.launching import FEDGE
from contracts.shown import shown_text

from experiments.cli.power_commands import print_findings
from fedge.devices import board_check
from fedge.devices.board_check import FAILED, PASSED, BoardCheckFinding, check_board, is_passed
from fedge.devices.jetson_board import BoardLease
from fedge.errors import SensorLost

ROOT = Path(__file__).resolve().parents[3]
DRIFTED_HZ = 665600000


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    pytest.importorskip("torch", reason="the worker trains with torch")
    with desk("agx-orin-jp5", tmp_path_factory.mktemp("desk")) as found:
        yield found


@pytest.mark.slow
@pytest.mark.xdist_group("desk")
def test_a_healthy_board_passes_and_the_exit_code_is_0(board):
    settings = board.log.parent / "node.yaml"
    settings.write_text(json.dumps(board.settings.model_dump(mode="json")), encoding="utf-8")
    command = [*FEDGE, "board-check", "--settings", str(settings), "--seconds", "1"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)

    findings = json.loads(done.stdout)
    results = {finding["what"]: finding["result"] for finding in findings}
    changes = {finding["what"]: finding["seen"] for finding in findings if finding["what"].endswith(", change")}
    assert list(changes) == ["cores, change", "CPU MHz, change", "GPU MHz, change", "memory MHz, change"]
    assert "emulated boards take 5 ms per core (estimated)" in changes["cores, change"]
    assert "median of 10" in changes["GPU MHz, change"]
    assert "emulated boards take 5 ms (estimated)" in changes["GPU MHz, change"]
    assert FAILED not in results.values(), done.stdout
    assert (results["put back"], results["worker"], done.returncode) == (PASSED, PASSED, 0)


@pytest.mark.slow
@pytest.mark.xdist_group("desk")
def test_an_unlocked_memory_clock_that_moves_by_itself_is_no_failure(board, monkeypatch):
    kernel = KernelMachine(str(board.root))
    rate = kernel.path(f"{BPMP_EMC}/rate")

    class Drifting(BoardLease):
        """When the board was given back, and its memory's lock is off, the clock follows the load."""

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            assert kernel.read(f"{BPMP_EMC}/mrq_rate_locked") == "0"
            assert kernel.read(f"{BPMP_EMC}/rate") != str(DRIFTED_HZ)
            rate.write_text(f"{DRIFTED_HZ}\n", encoding="ascii")

    found = rate.read_text(encoding="ascii")
    monkeypatch.setattr(board_check, "BoardLease", Drifting)
    try:
        findings = check_board(board.settings.place, board.settings.worker_socket, 1.0, lambda _: None)
    finally:
        rate.write_text(found, encoding="ascii")

    assert is_passed(findings), findings


def told(locked: bool, rate_hz: int, cap_hz: int = 0) -> dict[str, Any]:
    emc = {"locked": locked, "rate_hz": rate_hz, "cap_hz": cap_hz}
    return {"mode": {"cores": 4}, "limits": {"cpu": {}, "gpu": {}, "emc": emc}}


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        (told(False, 1), told(False, 2), PASSED),
        (told(True, 1), told(True, 2), FAILED),
        (told(False, 1), told(True, 1), FAILED),
        (told(False, 1, 5), told(False, 1, 6), FAILED),
    ],
)
def test_only_limits_that_somebody_set_count_as_put_back(before, after, result):
    assert board_check._check_restored(before, after).result == result


def test_a_sensor_that_is_lost_after_the_measurement_is_a_finding():
    class Lost:
        def energy_between(self, start_s: float, end_s: float) -> None: ...

        def read(self) -> None:
            raise SensorLost("VDD_IN is gone")

    class Here:
        sampler = sensor = Lost()

    (finding,) = board_check._measure_power(Here(), 0.0)

    assert finding == BoardCheckFinding("power", FAILED, "VDD_IN is gone")


def test_a_finding_is_shown_as_it_is_whatever_brackets_it_holds():
    text = shown_text(print_findings, [BoardCheckFinding("worker [1]", FAILED, "killed [oom-killed] x[/y]")])

    assert "worker [1]" in text
    assert "killed [oom-killed] x[/y]" in text
