"""A fleet under an account that is not root: what the quick start asks for, ``sudo`` without a password, is enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.faulty_run import experiment_of
from fleet.fleet_view import findings_of
from fleet.hosts import Hosts

from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
ACCOUNT = "tester"
MAKE = (
    f"useradd --create-home --shell /bin/bash {ACCOUNT}"
    f" && echo '{ACCOUNT} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{ACCOUNT} && chmod 440 /etc/sudoers.d/{ACCOUNT}"
    f" && install -d -o {ACCOUNT} -m 700 /home/{ACCOUNT}/.ssh"
    f" && install -o {ACCOUNT} -m 600 /root/.ssh/authorized_keys /home/{ACCOUNT}/.ssh/authorized_keys"
)
REMOVE = f"rm /etc/sudoers.d/{ACCOUNT}; userdel --force --remove {ACCOUNT}"
"""By force: Ansible's connection is held open for a minute."""
ONE_MODE = ["--workload", "synthetic-cnn", "--batch-size", "8", "--modes", "1", "--max-mode-s", "2"]


@pytest.fixture(scope="module")
def as_account(provisioned: Hosts) -> Iterator[Hosts]:
    """The fleet with an inventory whose ``ansible_user`` is such an account."""
    for host in provisioned.all:
        host.run(MAKE)
    inventory = yaml.safe_load(provisioned.inventory.read_text(encoding="utf-8"))
    inventory["all"]["vars"]["ansible_user"] = ACCOUNT
    path = provisioned.inventory.with_name("account.yml")
    path.write_text(yaml.safe_dump(inventory), encoding="utf-8")
    yield replace(provisioned, inventory=path)
    for host in provisioned.all:
        host.ssh(REMOVE)


def test_the_fleet_is_provisioned_by_root_and_the_account_alike(as_account):
    done = as_account.fedge("provision")

    assert done.returncode == 0, done.stdout[-4000:]
    assert "nothing had to change" in done.stdout


def test_the_account_finds_every_board_well_and_gets_its_logs(as_account, tmp_path):
    assert findings_of(as_account, tmp_path) == dict.fromkeys(as_account.boards, "")

    done = as_account.fedge("logs", "--folder", str(tmp_path / "logs"))

    assert done.returncode == 0, done.stdout[-4000:]
    assert {path.parent.name for path in (tmp_path / "logs").glob("*/fedge-worker.log")} == set(as_account.boards)


def test_the_account_profiles_and_runs(as_account, tmp_path):
    file, folder = tmp_path / "one.yaml", tmp_path / "one"
    file.write_text(yaml.safe_dump(experiment_of(as_account) | {"name": "account", "rounds": 1}), encoding="utf-8")

    profiled = as_account.fedge("profile", *ONE_MODE, "--folder", str(tmp_path / "profiles"))
    done = as_account.fedge("run", str(file), "--folder", str(folder))

    assert (profiled.returncode, done.returncode) == (0, 0), profiled.stdout[-3000:] + done.stdout[-3000:]
    assert {row.board for row in read_rows(folder, ClientRow) if row.error is None} == set(as_account.boards)


def test_the_account_takes_the_fleet_down_and_up(as_account):
    done = [as_account.fedge(word) for word in ("down", "up")]

    assert [each.returncode for each in done] == [0, 0], [each.stdout[-3000:] for each in done]
    as_account.wait_online(as_account.boards)
