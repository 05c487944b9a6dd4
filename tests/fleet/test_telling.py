"""What boards tell of themselves after provisioning: it arrives at the server by their certificates, run or no run."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.hosts import INSTALLED, Hosts

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
ARRIVES_S = 30.0
FRESH_S = 10.0
PYTHON = f"{INSTALLED}/.venv/bin/python"
PAGE = "http://127.0.0.1:8400"
ASK = f"{PYTHON} -c 'import urllib.request as u; print(u.urlopen(\"{PAGE}/%s\", timeout=5).read().decode())'"
COUNT = (
    f"cd {INSTALLED} && {PYTHON} -c 'import json; from fedge.telemetry import open_run\n"
    'with open_run("/var/lib/fedge-board/store") as run:\n'
    '    print(json.dumps(run.query("select board, count(*) as n from samples group by board").to_pylist()))\''
)
KNOCK = (
    "import http.client, ssl, sys\n"
    "c = ssl.create_default_context(cafile='/etc/fedge/ca.crt')\n"
    "if len(sys.argv) > 2: c.load_cert_chain('/etc/fedge/tell/board.crt', '/etc/fedge/tell/board.key')\n"
    "l = http.client.HTTPSConnection(sys.argv[1], context=c, timeout=10)\n"
    "l.request('POST', '/telemetry', body=b'{}', headers={'X-Fedge-Board': 'somebody-else'})\n"
    "print(l.getresponse().status)\n"
)


def view(hosts: Hosts) -> dict[str, Any]:
    """What the page of the server shows; nothing while it does not answer."""
    said = hosts.server.ssh(ASK % "api/view")
    return dict(json.loads(said.stdout)) if said.returncode == 0 else {}


def test_every_board_is_heard_of_within_half_a_minute_and_the_page_tells_how_long_ago(provisioned: Hosts) -> None:
    end_s, fresh, seen = time.monotonic() + ARRIVES_S, set(), {}
    while fresh < set(provisioned.boards):
        assert time.monotonic() < end_s, (
            f"{seen}\n{provisioned.server.ssh('journalctl -n 40 -u fedge-board').stdout}"
            + ("".join(host.ssh("journalctl -n 40 -u fedge-telemetry").stdout for host in provisioned.boards.values()))
        )
        seen = view(provisioned)
        now_s = float(provisioned.server.run("date +%s.%N"))
        fresh = {one["name"] for one in seen.get("boards", ()) if now_s - (one["seen_at_s"] or 0) < FRESH_S}
        time.sleep(0.5)

    told = {one["name"]: one for one in seen["boards"]}
    assert all(told[name]["power_w"] is not None for name in provisioned.boards)


def test_the_samples_of_every_board_are_in_the_servers_store(provisioned: Hosts) -> None:
    end_s, counted = time.monotonic() + ARRIVES_S, {}
    while set(counted) != set(provisioned.boards):
        assert time.monotonic() < end_s, counted
        counted = {row["board"]: row["n"] for row in json.loads(provisioned.server.run(COUNT))}

    assert min(counted.values()) > 0


def test_the_key_is_the_senders_alone_and_without_it_nobody_tells_anything(provisioned: Hosts) -> None:
    for host in provisioned.boards.values():
        owner = host.run("stat -c '%U %a' /etc/fedge/tell/board.key").strip()
        subject = host.run("openssl x509 -noout -subject -issuer -in /etc/fedge/tell/board.crt || true")
        server = host.run("grep -o 'https://[^/]*' /etc/fedge/node.yaml").strip().removeprefix("https://")
        knock = f"cat > /run/knock.py <<'END'\n{KNOCK}END\n/usr/lib/fedge-node/venv/bin/python /run/knock.py {server}"

        assert owner == "fedge-tell 400"
        assert "fedge fleet CA" in subject or not subject
        # With its certificate it is heard, and what it said is refused as nothing that a board says.
        assert (host.run(knock).strip(), host.run(f"{knock} shown").strip()) == ("403", "400")


def test_who_runs_an_experiments_code_reads_neither_the_key_nor_the_samples(provisioned: Hosts) -> None:
    for host in provisioned.boards.values():
        for path in ("/etc/fedge/tell/board.key", "/var/lib/fedge-tell"):
            said = host.ssh(f"runuser -u fedge-app -- ls -l {path}/ || runuser -u fedge-app -- cat {path}")
            assert said.returncode != 0, path


def test_status_names_a_board_that_has_fallen_silent(provisioned: Hosts, tmp_path) -> None:
    name, host = next(iter(provisioned.boards.items()))
    told = tmp_path / "status.json"
    host.run("systemctl stop fedge-telemetry")
    try:
        provisioned.fedge("status", "--json", str(told))
    finally:
        host.run("systemctl start fedge-telemetry")

    boards = {board["name"]: board for board in json.loads(told.read_text())["boards"]}
    assert [finding["what"] for finding in boards[name]["findings"]] == ["fedge-telemetry is stopped"]
