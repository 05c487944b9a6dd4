"""``fedge fleet upgrade``: boards with earlier code get the checkout's, one after the other."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.fleet_view import findings_of
from fleet.hosts import Host

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
CLIENTS = "cd /usr/lib/fedge-node && readlink -f client && ls -d client-*"
EARLIER = "client-earlier"
GO_BACK = (
    f"cd /usr/lib/fedge-node && mv $(readlink -f client) {EARLIER} && ln -sfn /usr/lib/fedge-node/{EARLIER} client"
    f" && sed -i 's/^__version__ = .*/__version__ = \"0.0.1\"/' {EARLIER}/fedge/__init__.py"
    " && systemctl restart fedge-supernode fedge-ready fedge-superexec fedge-telemetry"
)
"""As if an earlier version had been provisioned."""


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
