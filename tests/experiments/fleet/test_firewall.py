"""The firewall around the SuperLink: which accounts it names, and in a network of its own whom it lets through."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from experiments.fleet.nginx_proxy import build_firewall_rules
from fedge.errors import BadInput

NFT = shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
TOOLS = (
    NFT
    and os.geteuid() == 0
    and shutil.which("unshare")
    and shutil.which("setpriv")
    and Path("/usr/bin/python3").exists()
)
SCRIPT = """
ip link set lo up && nft -f "$1" && nft -f "$1" || exit 9
exec /usr/bin/python3 - <<'END'
import os, socket
server = socket.create_server(("127.0.0.1", 8000))
other = socket.create_server(("127.0.0.1", 8001))
def tries(uid, port):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setuid(uid)
        with socket.socket() as client:
            client.settimeout(5)
            os.write(writing, b"refused" if client.connect_ex(("127.0.0.1", port)) else b"through")
        os._exit(0)
    os.wait()
    return os.read(reading, 10).decode()
print(*[tries(uid, port) for uid, port in ((0, 8000), (33, 8000), (65534, 8000), (65534, 8001))])
END
"""


def test_root_and_the_named_accounts_get_through() -> None:
    text = build_firewall_rules(["fedge-link", "www-data", "root"], 8000)

    assert 'oif "lo" tcp dport 8000 meta skuid != { "root", "fedge-link", "www-data" } reject' in text


@pytest.mark.parametrize("account", ["", "a b", 'x" accept', "-x", "A", "x\n"])
def test_what_is_no_account_is_refused(account: str) -> None:
    with pytest.raises(BadInput, match="--account"):
        build_firewall_rules([account], 8000)


def test_a_port_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadInput, match="--superlink-port"):
        build_firewall_rules(["a"], 0)


@pytest.mark.skipif(not TOOLS, reason="needs root, nft, unshare and a system Python")
def test_in_a_network_of_its_own_only_named_accounts_reach_the_port(tmp_path: Path) -> None:
    (tmp_path / "fedge.nft").write_text(build_firewall_rules(["www-data"], 8000), encoding="utf-8")
    command = ["unshare", "--net", "sh", "-c", SCRIPT, "sh", str(tmp_path / "fedge.nft")]
    env = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 9:
        pytest.skip(f"no network of its own here: {done.stderr.strip()}")

    assert done.stdout.split() == ["through", "through", "refused", "through"], done.stderr
