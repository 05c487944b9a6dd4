"""The end of a fleet: after ``fedge fleet down --remove`` the hosts are as they were, but for the kept runs."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")


pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
KEPT = "/var/lib/fedge-link/runs"
LEFT = (
    "{ find / -xdev -iname '*fedge*' -not -path '/opt/*' -not -path '/proc/*' -not -path '/sys/*'"
    f" -not -path '/var/lib/nvpmodel/*' -not -path '*/.ansible/*' -not -path '{KEPT}*';"
    " dpkg-query -W -f '${Package}=${db:Status-Status}\\n' | grep -E '^prometheus.*=installed';"
    " getent passwd | grep -i fedge; getent group | grep -i fedge;"
    " systemctl list-unit-files --no-legend 'fedge*'; } || true"
)
"""What a removed host still has; below /opt is what was there before, as is the recorded board;
Prometheus only comes with monitoring."""


def test_removing_leaves_nothing_of_fedge_but_the_runs(provisioned):
    provisioned.server.run(f"install -d -o fedge-link -g fedge-link {KEPT}/a-run")
    done = provisioned.fedge("down", "--remove", "--yes")

    assert done.returncode == 0, done.stdout[-4000:]
    left = {host.name: set(host.run(LEFT).split()) for host in provisioned.all}
    assert left == {provisioned.server.name: {"/var/lib/fedge-link"}} | {name: set() for name in provisioned.boards}
    assert provisioned.server.run(f"stat -c '%U %a' {KEPT}").split() == ["root", "700"]
    assert "a-run" in provisioned.server.run(f"ls {KEPT}").split()
