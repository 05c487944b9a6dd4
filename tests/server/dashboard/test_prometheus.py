"""A real Prometheus scrapes a real run while it is going: PromQL gives the energy that the store has."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contracts.processes import wait_for
from contracts.prometheus import LIMIT_S, Prometheus, got, needs_prometheus, prometheus

from experiments.backends.sim_backend import find_free_port
from fedge.telemetry import open_run

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.monitor, needs_prometheus]
ROUNDS = 60
YAML = f"""
name: scraped
seed: 1
rounds: {ROUNDS}
backend: local
fleet: [{{device: orin-nano, name: orin, count: 2}}, {{device: nano, name: nano, count: 1}}]
workload: {{task: digits-cnn, local_epochs: 1}}
exploration: {{probes: 1, probe_s: 0.1}}
"""
SQL = {
    "fleet": "select sum(energy_j) from clients",
    "rounds": "select sum(energy_j) from rounds",
    "nano": "select sum(energy_j) from clients where device = 'nano'",
    "sampled": "select sum(power_w * span_s) from samples",
}


@contextmanager
def fedge(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process of its own, ended by its process id."""
    command = [sys.executable, "-m", "experiments.cli.main", *words]
    with log.open("wb") as out:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env=env)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def stored(run: Path, sql: str) -> float:
    with open_run(run) as opened:
        return float(opened.query(sql).column(0)[0].as_py())


def going(found: Prometheus) -> float | None:
    """The energy of the fleet after a round, while there are rounds to come."""
    rounds = found.value("fedge_rounds_total") or 0
    return found.value("sum(fedge_run_energy_joules)") if 0 < rounds < ROUNDS else None


def test_promql_gives_the_fleets_energy_as_the_store_has_it(tmp_path):
    (tmp_path / "exp.yaml").write_text(YAML, encoding="utf-8")
    run, port = tmp_path / "run", find_free_port()
    page = f"http://127.0.0.1:{port}"
    with (
        fedge(tmp_path / "board.log", "board", str(run), "--port", str(port)),
        prometheus(tmp_path / "prometheus", {"fedge": f"127.0.0.1:{port}"}) as found,
    ):
        wait_for(lambda: got(f"{page}/metrics"), "the page is there before the run")
        with fedge(tmp_path / "run.log", "run", str(tmp_path / "exp.yaml"), "--folder", str(run)) as process:
            early_j = wait_for(lambda: going(found), "Prometheus sees the run while it is going", 3 * LIMIT_S)
            assert process.wait(300) == 0, (tmp_path / "run.log").read_text(encoding="utf-8")
        wait_for(lambda: found.value(f"fedge_rounds_total == {ROUNDS}"), "Prometheus sees the last round")

        fleet_j, by_rounds_j = stored(run, SQL["fleet"]), stored(run, SQL["rounds"])
        assert 0 < early_j < fleet_j
        assert found.value("sum(fedge_run_energy_joules)") == pytest.approx(fleet_j, rel=0.01)
        assert found.value("sum(fedge_run_energy_joules)") == pytest.approx(by_rounds_j, rel=0.01)
        assert found.value("sum(fedge_board_energy_joules_total)") == pytest.approx(fleet_j, rel=0.01)
        nano_j = found.value('sum(fedge_run_energy_joules{device="nano"})')
        assert nano_j == pytest.approx(stored(run, SQL["nano"]), rel=0.01)
        # The counter only grew, and Prometheus took all that it read.
        assert found.value("sum(resets(fedge_board_energy_joules_total[1h]))") == 0
        (target,) = found.targets()
        assert target["lastError"] == ""
        view = json.loads(got(f"{page}/api/view") or b"{}")
        assert view["summary"]["energy_j"] == pytest.approx(fleet_j, rel=0.01)
        assert stored(run, SQL["sampled"]) == pytest.approx(fleet_j, rel=0.01)
