"""``fedge chaos`` on a fleet: a run goes on through its faults, and nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

import yaml
from fleet.faulty_run import experiment_of
from fleet.hosts import Host, Hosts

from experiments.fleet.chaos_attack import SPARE_S

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
FAULTS = "kill-worker,kill-client,kill-powerd,stop-worker,cut-link"
"""Without those of the SuperNode, after which a board is away for a minute and more."""
LEFT = (
    "systemctl list-units --all --no-legend 'fedge-chaos*'; ip route show type blackhole; ls -d /run/fedge-chaos;"
    " systemctl is-active fedge-worker fedge-powerd fedge-supernode"
)
"""What says something of a board on which a fault is left, beside three times that a service is active."""
NOTHING = ["active"] * 3
HOLD_S = 4
LIMIT_S = 1500.0


def begin_chaos(fleet: Hosts, out: Path, *options: str) -> subprocess.Popen[str]:
    words = ["chaos", str(fleet.inventory), "--folder", str(out), "--hold", str(HOLD_S), "--yes", *options]
    env = {**os.environ, **fleet.environment, "XDG_STATE_HOME": str(fleet.folder / "state")}
    program = Path(sys.prefix) / "bin" / "fedge"
    return subprocess.Popen(
        [program, *words],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until(board: Host, command: str, limit_s: float) -> bool:
    """Whether a command of a board succeeds within the limit."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if board.ssh(command).returncode == 0:
            return True
        time.sleep(0.5)
    return False


def test_a_run_goes_on_through_faults_and_nothing_of_them_is_left(provisioned, tmp_path):
    experiment = {**experiment_of(provisioned), "name": "chaos", "rounds": 20}
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    options = ("--run", str(tmp_path / "exp.yaml"), "--faults", FAULTS, "--every", "10", "--for", "1m")

    done = begin_chaos(provisioned, tmp_path / "out", *options)
    said, _ = done.communicate(timeout=LIMIT_S)
    faults = json.loads((tmp_path / "out" / "chaos.json").read_text(encoding="utf-8"))["faults"]

    print(said)
    assert {one["verdict"] for one in faults} == {"held"}, said
    assert done.returncode == 0
    assert len(faults) >= 3
    for board in provisioned.boards.values():
        assert board.ssh(LEFT).stdout.split() == NOTHING


@pytest.mark.parametrize(("number", "limit_s"), [(signal.SIGTERM, 30.0), (signal.SIGKILL, HOLD_S + SPARE_S + 30.0)])
def test_a_command_that_is_ended_leaves_no_fault(provisioned, tmp_path, number, limit_s):
    """Terminated, it undoes the fault; killed, it cannot, and the board's timer does."""
    board = next(iter(provisioned.boards.values()))
    options = ("--faults", "stop-worker", "--every", "1", "--for", "1", "--limit", board.name)
    with begin_chaos(provisioned, tmp_path / "out", *options) as command:
        stopped = "grep -q '^State:.T' /proc/$(systemctl show -P MainPID fedge-worker)/status"
        assert wait_until(board, stopped, 120.0)
        command.send_signal(number)
        assert wait_until(board, f"! {stopped}", limit_s)
        command.wait(60.0)

    assert wait_until(board, "! systemctl is-active --quiet fedge-chaos.timer", 30.0)
    assert board.run("systemctl is-active fedge-worker").split() == ["active"]
