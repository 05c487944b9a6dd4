"""``fedge fleet upgrade``: boards with earlier code get the checkout's, one after the other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.fleet_view import findings_of
from fleet.hosts import ROOT, Host

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
CLIENTS = "cd /usr/lib/fedge-node && readlink -f client && ls -d client-*"
EARLIER = "client-earlier"
GO_BACK = (
    f"cd /usr/lib/fedge-node && mv $(readlink -f client) {EARLIER} && ln -sfn /usr/lib/fedge-node/{EARLIER} client"
    f" && sed -i 's/^__version__ = .*/__version__ = \"0.0.1\"/' {EARLIER}/fedge/__init__.py"
    " && systemctl restart fedge-supernode fedge-ready fedge-superexec fedge-telemetry"
)
"""As if an earlier version had been provisioned."""
SENT = ("ansible", "fedge", "clients", "experiments", "server")
CRASHING = "raise SystemExit('this version is no good')\n"
WORKER = "cat /usr/lib/fedge-worker/fedge/worker/__main__.py | sha256sum; systemctl is-active fedge-worker"


def clients_of(host: Host) -> list[str]:
    """The client in use, and all that are there."""
    return host.run(CLIENTS).split()


def test_boards_with_earlier_code_are_told_apart_and_upgraded(provisioned, tmp_path):
    before = {name: clients_of(host) for name, host in provisioned.boards.items()}
    for host in provisioned.boards.values():
        host.run(GO_BACK)
    status = provisioned.fedge("status")
    done = provisioned.fedge("upgrade")

    assert "has fedge 0.0.1, this control node" in status.stdout, status.stdout[-3000:]
    assert done.returncode == 0, done.stdout[-4000:]
    assert {name: clients_of(host) for name, host in provisioned.boards.items()} == before
    provisioned.wait_online(provisioned.boards)
    assert findings_of(provisioned, tmp_path) == dict.fromkeys(provisioned.boards, "")


def make_bad_checkout(folder: Path) -> Path:
    """Copy the checkout with a worker that ends at once; return the folder of its playbooks."""
    for name in SENT:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    (folder / "fedge/worker/__main__.py").write_text(CRASHING, encoding="utf-8")
    return folder / "ansible"


def test_a_version_that_does_not_stay_up_is_taken_back_and_reaches_no_other_board(provisioned, tmp_path):
    def states() -> dict[str, tuple[list[str], list[str]]]:
        return {name: (clients_of(host), host.run(WORKER).split()) for name, host in provisioned.boards.items()}

    before, first = states(), next(iter(provisioned.boards))
    done = provisioned.fedge("upgrade", "--playbooks", str(make_bad_checkout(tmp_path / "bad")))
    said = " ".join(done.stdout.split())

    assert done.returncode != 0
    assert f"{first} has its earlier version again" in said, said[-3000:]
    assert "fedge-worker did not stay up" in said
    assert "this version is no good" in said
    assert states() == before
    assert [host.ssh("ls -d /usr/lib/fedge-before").returncode for host in provisioned.boards.values()] == [2] * 4
    provisioned.wait_online(provisioned.boards)
    assert findings_of(provisioned, tmp_path) == dict.fromkeys(provisioned.boards, "")
