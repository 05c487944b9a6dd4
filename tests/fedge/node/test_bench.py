"""``fedge profile`` on the board at hand: the real daemon, sensors and worker make a table in the normal form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the worker trains with torch")

from contracts.desk import desk

from fedge.powerd.client import Client as Power
from fedge.profiles.table import read_table

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 4.0
"""Too short for any mode to settle, so that the test's length does not depend on how even the machine is."""


@pytest.mark.slow
@pytest.mark.xdist_group("desk")
def test_a_board_is_profiled_into_a_table_and_left_as_found(tmp_path: Path) -> None:
    with desk("xavier-nx", tmp_path) as board:
        settings = tmp_path / "node.yaml"
        settings.write_text(json.dumps(board.settings.model_dump(mode="json")), encoding="utf-8")
        power = Power(board.settings.power_socket)
        before = power.get()
        out = tmp_path / "xavier-nx" / "train" / "digits-cnn.csv"
        out.parent.mkdir(parents=True)
        command = [sys.executable, "-m", "experiments.cli", "profile", "--settings", str(settings), "--modes", "3"]
        command += ["--workload", "digits-cnn", "--batch-size", "16", "--out", str(out), "--json"]
        command += ["--limit-s", f"{LIMIT_S:g}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=400)
        after = power.get()
        power.close()

    assert done.returncode == 0, done.stderr
    table = read_table(out)
    assert len(table.modes) == 3
    assert (table.device, table.workload, table.batch_size) == ("xavier-nx", "digits-cnn", 16)
    assert (table.power_w > 0).all()
    record = json.loads((tmp_path / "xavier-nx" / "train" / "digits-cnn.csv.json").read_text(encoding="utf-8"))
    assert record["label"] == "measured"
    assert record["method"]["limit_s"] == LIMIT_S < record["method"]["least_s"]
    assert json.loads(done.stdout)["not_settled"] == 3
    assert all(mode["note"].startswith("not settled: ") for mode in record["modes"])
    assert after["limits"] == before["limits"]
    assert after["lease"] is None
