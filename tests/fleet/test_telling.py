"""What boards tell of themselves after provisioning: it arrives at the server by their certificates, run or no run."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime, timedelta
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from cryptography import x509

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.fleet_view import PYTHON, findings_of, view
from fleet.hosts import INSTALLED, Host, Hosts

from experiments.fleet.key_folder import BOARD_DAYS, encode_certificate, make_board, parse_request, read_signer

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
ARRIVES_S = 30.0
FRESH_S = 10.0
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
OLD = timedelta(days=BOARD_DAYS - 10.3)
"""So long ago the certificate was made that ten days are left of it, and some hours for the test."""
FOLDER = "/etc/fedge/tell"
REQUEST = (
    f"rm -f {FOLDER}/board.crt; /usr/lib/fedge-node/venv/bin/python -I -B /usr/lib/fedge-node/request.py %s"
    f" --folder={FOLDER} --ca=/etc/fedge/ca.crt"
)


def put_old_certificate(hosts: Hosts, name: str, host: Host) -> x509.Certificate:
    """In the place of the board's own, one of the same CA that ends soon."""
    keys = hosts.folder / "keys"
    request = parse_request(json.loads(host.run(REQUEST % name))["request"])
    since = datetime.now(UTC) - OLD
    made = make_board(read_signer(keys / "ca.crt", keys / "ca.key"), request, name, since, BOARD_DAYS)
    host.run(
        f"cat > {FOLDER}/board.crt <<'END'\n{encode_certificate(made).decode()}END\nsystemctl restart fedge-telemetry"
    )
    return made


def certificate_of(host: Host) -> x509.Certificate:
    """The one that the board shows."""
    return x509.load_pem_x509_certificate(host.run(f"cat {FOLDER}/board.crt").encode())


def test_every_board_is_heard_of_within_half_a_minute_and_the_page_tells_how_long_ago(provisioned):
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


def test_the_samples_of_every_board_are_in_the_servers_store(provisioned):
    end_s, counted = time.monotonic() + ARRIVES_S, {}
    while set(counted) != set(provisioned.boards):
        assert time.monotonic() < end_s, counted
        counted = {row["board"]: row["n"] for row in json.loads(provisioned.server.run(COUNT))}

    assert min(counted.values()) > 0


def test_the_key_is_the_senders_alone_and_without_it_nobody_tells_anything(provisioned):
    for host in provisioned.boards.values():
        owner = host.run("stat -c '%U %a' /etc/fedge/tell/board.key").strip()
        subject = host.run("openssl x509 -noout -subject -issuer -in /etc/fedge/tell/board.crt || true")
        server = host.run("grep -o 'https://[^/]*' /etc/fedge/node.yaml").strip().removeprefix("https://")
        knock = f"cat > /run/knock.py <<'END'\n{KNOCK}END\n/usr/lib/fedge-node/venv/bin/python /run/knock.py {server}"

        assert owner == "fedge-tell 400"
        assert "fedge fleet CA" in subject or not subject
        # With its certificate it is heard, and what it said is refused as nothing that a board says.
        assert (host.run(knock).strip(), host.run(f"{knock} shown").strip()) == ("403", "400")


def test_who_runs_an_experiments_code_reads_neither_the_key_nor_the_samples(provisioned):
    for host in provisioned.boards.values():
        for path in ("/etc/fedge/tell/board.key", "/var/lib/fedge-tell"):
            said = host.ssh(f"runuser -u fedge-app -- ls -l {path}/ || runuser -u fedge-app -- cat {path}")
            assert said.returncode != 0, path


def test_the_page_is_seen_from_the_control_node_until_ctrl_c(provisioned):
    with provisioned.begun("board") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = line.partition(" ")[0]
            with urlopen(f"{address}api/view", timeout=10) as answer:
                seen = json.load(answer)
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(ARRIVES_S)

    assert {one["name"] for one in seen["boards"]} == set(provisioned.boards)
    assert line.endswith(f" is the page of {provisioned.server.name}, until Ctrl-C\n")
    assert code == 0
    with pytest.raises(URLError, match="refused"):
        urlopen(address, timeout=10)


def test_status_names_a_board_that_has_fallen_silent(provisioned, tmp_path):
    name, host = next(iter(provisioned.boards.items()))
    told = tmp_path / "status.json"
    host.run("systemctl stop fedge-telemetry")
    try:
        provisioned.fedge("status", "--out", str(told))
    finally:
        host.run("systemctl start fedge-telemetry")

    boards = {board["name"]: board for board in json.loads(told.read_text())["boards"]}
    assert [finding["what"] for finding in boards[name]["findings"]] == ["fedge-telemetry is stopped"]


def test_a_certificate_near_its_end_is_told_by_status_and_by_a_check_and_renewed_by_provisioning(provisioned, tmp_path):
    name, host = next(iter(provisioned.boards.items()))
    old = put_old_certificate(provisioned, name, host)
    found = findings_of(provisioned, tmp_path)[name]
    checked = provisioned.fedge("provision", "--dry-run", "--limit", name)
    kept = certificate_of(host)
    renewed = provisioned.fedge("provision", "--limit", name)
    provisioned.wait_online([name])
    after = findings_of(provisioned, tmp_path)[name]

    assert found == "the certificate of its telemetry ends in 10 days"
    assert "Ask whether a certificate is wanted" in checked.stdout, checked.stdout[-3000:]
    assert kept == old
    assert renewed.returncode == 0, renewed.stdout[-3000:]
    assert certificate_of(host).not_valid_after_utc - datetime.now(UTC) > timedelta(days=BOARD_DAYS - 1)
    assert after == ""
