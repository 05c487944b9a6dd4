"""From bare hosts to a run and back, by the documented commands: provision, run, collect, remove."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.hosts import Host, Hosts

from fedge.telemetry.rows import ClientRow
from fedge.telemetry.store import read_rows

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
ROUNDS = 5
RUN_LIMIT_S = 900.0
EXPERIMENT = f"""
name: five-rounds
seed: 1
rounds: {ROUNDS}
backend: fleet
fleet:
  - {{device: nano, name: nano}}
  - {{device: xavier-nx, name: xavier-nx}}
  - {{device: agx-orin-64gb, name: agx-orin}}
  - {{device: orin-nano, name: orin-nano}}
workload: {{task: synthetic-cnn, local_epochs: 1}}
exploration: {{probes: 1, probe_s: 0.1}}
superlink: {{address: "127.0.0.1:8000", root_certificates: /etc/fedge/tls/ca.crt, connect_timeout_s: 60}}
reply_timeout_s: 300
"""
LEFT = (
    "{ find / -xdev -iname '*fedge*' -not -path '/opt/*' -not -path '/proc/*' -not -path '/sys/*'"
    " -not -path '/var/lib/nvpmodel/*' -not -path '/root/.ansible/*';"
    " getent passwd | grep -i fedge; getent group | grep -i fedge;"
    " systemctl list-unit-files --no-legend 'fedge*'; } || true"
)
"""What a removed host still has; below /opt is what was there before, as is the recorded board."""


@contextmanager
def timed(what: str) -> Iterator[None]:
    begun_s = time.monotonic()
    yield
    print(f"\n{what}: {time.monotonic() - begun_s:.0f} s")


def changes(recap: str) -> dict[str, int]:
    """How many tasks changed something, by host, as Ansible's last lines say."""
    return {name: int(number) for name, number in re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", recap, re.MULTILINE)}


def run_experiment(server: Host, text: str, name: str) -> Path:
    """The folder of a run that is started as docs/fleet.md says, on this machine."""
    (server.root / f"var/lib/fedge-link/{name}.yaml").write_text(text)
    command = f"fedge run {name}.yaml --out /var/lib/fedge-link/runs/{name}"
    done = server.ssh(
        f'cd /var/lib/fedge-link && sudo -u fedge-link env PATH="/opt/fedge/.venv/bin:$PATH" {command}', RUN_LIMIT_S
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return server.root / f"var/lib/fedge-link/runs/{name}"


def test_bare_hosts_are_provisioned_by_the_playbook_and_every_board_is_online(provisioned: Hosts) -> None:
    assert provisioned.online() == set(provisioned.boards)


def test_a_second_provisioning_changes_nothing(provisioned: Hosts) -> None:
    with timed("site.yml again"):
        done = provisioned.playbook("site.yml")

    assert done.returncode == 0, done.stdout[-4000:]
    assert changes(done.stdout) == dict.fromkeys([provisioned.server.name, *provisioned.boards], 0), done.stdout


def test_a_run_goes_through_and_every_board_answers_in_every_round(provisioned: Hosts) -> None:
    with timed(f"{ROUNDS} rounds"):
        folder = run_experiment(provisioned.server, EXPERIMENT, "five-rounds")

    rows = read_rows(folder, ClientRow)
    assert {(row.round, row.board) for row in rows if row.error is None} == {
        (number, board) for number in range(1, ROUNDS + 1) for board in provisioned.boards
    }


def test_the_logs_of_every_board_are_collected(provisioned: Hosts, tmp_path: Path) -> None:
    with timed("collect.yml"):
        done = provisioned.playbook("collect.yml", "-e", f"collect_to={tmp_path}")

    assert done.returncode == 0, done.stdout[-4000:]
    for board in provisioned.boards:
        for unit in ("fedge-powerd", "fedge-worker", "fedge-supernode", "fedge-superexec"):
            assert (tmp_path / board / f"{unit}.log").stat().st_size > 100, f"{board}: {unit}"


def test_removing_leaves_nothing_of_fedge(provisioned: Hosts) -> None:
    with timed("remove.yml"):
        done = provisioned.playbook("remove.yml", "-e", "remove_runs=true")

    assert done.returncode == 0, done.stdout[-4000:]
    assert {host.name: host.run(LEFT) for host in provisioned.all} == {host.name: "" for host in provisioned.all}
