"""The proxy's configuration as text: what it passes on, what it refuses; nginx itself reads it where it is here."""

import os
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.fleet.key_folder import create_keys
from experiments.fleet.nginx_proxy import NginxProxy, build_configuration, build_firewall_rules, parse_network
from fedge.errors import BadInput

KEYS = Path("/etc/fedge/tls")
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def locations(text: str) -> list[str]:
    return re.findall(r"location (.+?) \{", text)


def test_boards_get_the_fleets_paths_and_nothing_else():
    text = build_configuration(NginxProxy(KEYS))

    assert locations(text) == ["@plain", "/v1/fleet/", "= /health", "/"]
    assert set(re.findall(r"proxy_pass (\S+);", text)) == {
        "https://fedge_superlink/v1/fleet/",
        "https://fedge_superlink/health",
    }
    assert "server 127.0.0.1:8000;" in text
    assert "listen 0.0.0.0:9443 ssl;" in text


def test_without_a_management_network_no_command_is_passed_on():
    assert "control" not in build_configuration(NginxProxy(KEYS))


def test_a_management_network_gets_a_port_of_its_own_that_denies_all_others():
    text = build_configuration(NginxProxy(KEYS, management=("10.20.0.0/24", "fd00::/64")))
    boards, control = text.split("# The management network", maxsplit=1)

    assert "control" not in boards
    assert "listen 0.0.0.0:9444 ssl;" in control
    assert re.findall(r"^ +(allow .+|deny .+);$", control, re.MULTILINE) == [
        "allow 10.20.0.0/24",
        "allow fd00::/64",
        "deny all",
    ]


def test_no_listener_speaks_plain_text():
    text = build_configuration(NginxProxy(KEYS, addresses=("192.168.1.10", "::"), management=("10.0.0.0/8",)))
    listeners = re.findall(r"listen (.+);", text)

    assert listeners == ["192.168.1.10:9443 ssl", "[::]:9443 ssl", "192.168.1.10:9444 ssl", "[::]:9444 ssl"]
    assert text.count("ssl_protocols TLSv1.2 TLSv1.3;") == 5  # two servers, and three ways on to the SuperLink


@pytest.mark.parametrize("network", ["0.0.0.0/0", "::/0", "10.20.0.1/24", "everybody", "10.0.0.0/8; allow all", ""])
def test_a_network_that_is_everybody_or_none_is_refused(network):
    with pytest.raises(BadInput, match="--management"):
        build_configuration(NginxProxy(KEYS, management=(network,)))


@pytest.mark.parametrize("path", ["keys", "/etc/my keys", "/etc/x; include /tmp/y", "/etc/$x", '/etc/"x"', "/etc/x\n"])
def test_a_path_that_nginx_would_read_otherwise_is_refused(path):
    with pytest.raises(BadInput, match="--keys"):
        build_configuration(NginxProxy(Path(path)))
    for option in ("telemetry", "revocations"):
        with pytest.raises(BadInput, match=f"--{option}"):
            build_configuration(NginxProxy(KEYS, **{option: Path(path)}))


@pytest.mark.parametrize(
    "ports",
    [
        {"superlink_port": 9443},
        {"fleet_port": 0},
        {"fleet_port": 70000},
        {"management": ("10.0.0.0/8",), "control_port": 9443},
    ],
)
def test_ports_that_meet_or_do_not_exist_are_refused(ports):
    with pytest.raises(BadInput, match="ports"):
        build_configuration(NginxProxy(KEYS, **ports))


@pytest.mark.parametrize("address", ["localhost", "*", "0.0.0.0:9443", "", "fe80::1%eth0", "fe80::1%x]:1 ssl; a"])
def test_it_listens_on_addresses_only(address):
    with pytest.raises(BadInput, match="--listen"):
        build_configuration(NginxProxy(KEYS, addresses=(address,)))


@example("fe80::%x; allow all/128")
@given(
    st.one_of(
        st.from_type(str),
        st.ip_addresses().map(str),
        st.tuples(st.ip_addresses(), st.integers(0, 128)).map("{0[0]}/{0[1]}".format),
    )
)
def test_whatever_is_given_as_a_network_is_refused_or_a_plain_network(text):
    try:
        network = parse_network(text)
    except BadInput:
        return
    assert network.prefixlen > 0
    assert re.fullmatch(r"[0-9a-f.:/]+", str(network))


@pytest.mark.skipif(NGINX is None, reason="nginx is not here")
@pytest.mark.parametrize("management", [(), ("10.20.0.0/24", "fd00::/64")])
def test_nginx_takes_the_configuration(tmp_path, management):
    create_keys(tmp_path / "keys", ["a"], datetime.now(UTC), days=1)
    (tmp_path / "fedge.conf").write_text(
        build_configuration(NginxProxy(tmp_path / "keys", management=management)), encoding="utf-8"
    )
    main = tmp_path / "nginx.conf"
    main.write_text(
        f"pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}}\n"
        f"http {{ access_log off; include {tmp_path}/fedge.conf; }}\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [NGINX, "-t", "-c", str(main), "-p", str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


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


def test_root_and_the_named_accounts_get_through():
    text = build_firewall_rules(["fedge-link", "www-data", "root"], 8000)

    assert 'oif "lo" tcp dport 8000 meta skuid != { "root", "fedge-link", "www-data" } reject' in text


@pytest.mark.parametrize("account", ["", "a b", 'x" accept', "-x", "A", "x\n"])
def test_what_is_no_account_is_refused(account):
    with pytest.raises(BadInput, match="--account"):
        build_firewall_rules([account], 8000)


def test_a_port_that_does_not_exist_is_refused():
    with pytest.raises(BadInput, match="--superlink-port"):
        build_firewall_rules(["a"], 0)


@pytest.mark.skipif(not TOOLS, reason="needs root, nft, unshare and a system Python")
def test_in_a_network_of_its_own_only_named_accounts_reach_the_port(tmp_path):
    (tmp_path / "fedge.nft").write_text(build_firewall_rules(["www-data"], 8000), encoding="utf-8")
    command = ["unshare", "--net", "sh", "-c", SCRIPT, "sh", str(tmp_path / "fedge.nft")]
    env = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 9:
        pytest.skip(f"no network of its own here: {done.stderr.strip()}")

    assert done.stdout.split() == ["through", "through", "refused", "through"], done.stderr
