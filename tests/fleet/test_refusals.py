"""Boards that must not get in, an account that must not set power: each is refused, and ``status`` says so in words."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.fleet_view import findings_of, until_told
from fleet.hosts import Host

from experiments.backends.run_submission import write_connection
from fedge.experiment import SuperlinkSpec

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
NEW_KEY = (
    "cd /etc/fedge/keys && rm node node.pub && ssh-keygen -q -t ecdsa -b 384 -N '' -C stranger -f node"
    " && chown fedge-node:fedge-node node && chmod 400 node"
)
OTHER_CA = "openssl req -x509 -newkey rsa:2048 -nodes -keyout /dev/null -subj /CN=other -days 2 -out /etc/fedge/ca.crt"
PLAIN = (
    "sed -i 's#--root-certificates /etc/fedge/ca.crt#--insecure#;"
    " s#--auth-supernode-private-key /etc/fedge/keys/node##'"
    " /etc/systemd/system/fedge-supernode.service && systemctl daemon-reload"
)
WRONG_GROUP = "chgrp root /run/fedge/powerd.sock"
FLWR = "/usr/lib/fedge-node/venv/bin/flwr"
THROUGH_THE_PROXY = SuperlinkSpec(address="fedge-server:9443", root_certificates="/etc/fedge/ca.crt")
WORDS = {
    "nano-1": "its key is not registered at the SuperLink",
    "xavier-nx-1": "another CA signed it than the ca.crt on the board",
    "agx-orin-1": "it speaks plain text",
    "orin-nano-1": "fedge-app may not ask the power daemon",
}


def spoil(host: Host, how: str) -> None:
    """Spoil a board's SuperNode and start it again."""
    host.run(f"{{ {how}; }} >/dev/null 2>&1 && systemctl restart fedge-supernode")


def test_each_is_refused_and_status_says_why_and_what_to_do(provisioned, tmp_path):
    for board, how in zip(WORDS, (NEW_KEY, OTHER_CA, PLAIN, WRONG_GROUP), strict=True):
        spoil(provisioned.boards[board], how)

    told = until_told(provisioned, tmp_path, WORDS)

    assert {board: words in told[board] for board, words in WORDS.items()} == dict.fromkeys(WORDS, True), told
    assert provisioned.online() == {"orin-nano-1"}


def test_what_status_says_to_do_mends_them(provisioned, tmp_path):
    done = [provisioned.fedge(*words) for words in (("provision",), ("down", "--limit", "orin-nano-1"), ("up",))]

    assert [each.returncode for each in done] == [0, 0, 0], [each.stdout[-3000:] for each in done]
    provisioned.wait_online(provisioned.boards)
    assert findings_of(provisioned, tmp_path) == dict.fromkeys(provisioned.boards, "")


def test_a_board_can_neither_start_nor_stop_nor_list_runs(provisioned):
    board = provisioned.boards["agx-orin-1"]
    home = board.root / "root/cli"
    home.mkdir()
    write_connection(home, THROUGH_THE_PROXY)
    refused = {}
    for words in ("list fedge", "stop 1 fedge", "supernode list fedge"):
        done = board.ssh(f"cd /root/cli && FLWR_HOME=/root/cli FLWR_TELEMETRY_ENABLED=0 {FLWR} {words}")
        refused[words] = done.returncode != 0 and "403" in done.stdout + done.stderr
    shutil.rmtree(home)

    assert refused == dict.fromkeys(refused, True)
    assert board.ssh("timeout 5 bash -c '</dev/tcp/fedge-server/8000'").returncode != 0
