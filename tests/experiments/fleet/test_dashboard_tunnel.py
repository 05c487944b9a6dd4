"""The way to the server's page: where the inventory says it is, what ssh is told, and what a way that fails says."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from contracts.launching import FEDGE
from contracts.processes import wait_for

from experiments.backends.sim_backend import find_free_port
from experiments.fleet import dashboard_tunnel
from experiments.fleet.dashboard_tunnel import DashboardAddress, find_dashboard_address, tunnel_command
from experiments.fleet.inventory import InventoryHost
from experiments.fleet.server_connection import ServerConnection, build_command_prefix
from fedge.errors import BadInput, RunFailed

LIMIT_S = 60.0
SSH = """#!{python}
import os, pathlib, re, socket, sys, threading
here, there = re.fullmatch(r"127.0.0.1:(\\d+):127.0.0.1:(\\d+)", sys.argv[sys.argv.index("-L") + 1]).groups()
pathlib.Path({folder!r}, "pid").write_text(str(os.getpid()))
if {broken!r}:
    sys.exit({broken!r})
door = socket.create_server(("127.0.0.1", int(here)))
def passed(source, sink):
    while chunk := source.recv(65536):
        sink.sendall(chunk)
    sink.shutdown(socket.SHUT_WR)
while True:
    near = door.accept()[0]
    try:
        far = socket.create_connection(("127.0.0.1", int(there)))
    except OSError:
        near.close()
        continue
    for pair in ((near, far), (far, near)):
        threading.Thread(target=passed, args=pair, daemon=True).start()
"""


@pytest.mark.parametrize(
    ("variables", "page"),
    [
        ({}, DashboardAddress("127.0.0.1", 8400)),
        ({"board_page_port": 8401}, DashboardAddress("127.0.0.1", 8401)),
        ({"board_page_settings": {"host": "0.0.0.0", "port": 9000}}, DashboardAddress("127.0.0.1", 9000)),
        ({"board_page_settings": {"host": "::1"}}, DashboardAddress("::1", 8400)),
        (
            {"board_page_settings": {"host": "192.0.2.10"}, "board_page_enabled": True},
            DashboardAddress("192.0.2.10", 8400),
        ),
    ],
)
def test_the_page_is_where_the_inventory_says(variables: dict[str, Any], page: DashboardAddress) -> None:
    assert find_dashboard_address(InventoryHost("hub", variables)) == page


@pytest.mark.parametrize("variables", [{"board_page_enabled": False}, {"board_page_port": "{{ x }}"}])
def test_no_page_and_no_port_are_said_before_anybody_is_asked(variables: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="of hub"):
        find_dashboard_address(InventoryHost("hub", variables))


def test_ssh_is_told_the_way_of_the_inventory_and_to_do_nothing_but_pass_on() -> None:
    way = build_command_prefix(InventoryHost("hub", {"ansible_host": "192.0.2.1", "ansible_port": 2222}))
    words = tunnel_command(ServerConnection("hub", way), DashboardAddress("::1", 8401), 5000)

    assert words[words.index("-L") + 1] == "127.0.0.1:5000:[::1]:8401"
    assert words[-4:] == ["-p", "2222", "--", "192.0.2.1"]
    assert {"-N", "BatchMode=yes", "ExitOnForwardFailure=yes", "ControlPath=none"} <= set(words)


@pytest.fixture
def port() -> Iterator[int]:
    """Of a page on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def put_ssh(folder: Path, broken: int = 0) -> dict[str, str]:
    """A program in ssh's place that passes on to this machine, and where it is found."""
    folder.mkdir(exist_ok=True)
    (folder / "ssh").write_text(SSH.format(python=sys.executable, folder=str(folder), broken=broken), encoding="utf-8")
    (folder / "ssh").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_the_tunnel_lasts_as_long_as_its_block(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", put_ssh(tmp_path)["PATH"])
    here = find_free_port()
    with dashboard_tunnel.open_tunnel(
        ServerConnection("hub", build_command_prefix(InventoryHost("hub", {}))), DashboardAddress(port=port), here
    ):
        inside = dashboard_tunnel.probe_page("127.0.0.1", here)

    assert (inside, dashboard_tunnel.probe_page("127.0.0.1", here)) == (True, None)


def test_where_no_page_answers_it_is_said_what_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", put_ssh(tmp_path)["PATH"])
    server, nobody = (
        ServerConnection("hub", build_command_prefix(InventoryHost("hub", {}))),
        DashboardAddress(port=find_free_port()),
    )
    with (
        pytest.raises(RunFailed, match="no page answers there; `fedge fleet status`"),
        dashboard_tunnel.open_tunnel(server, nobody, find_free_port()),
    ):
        pass


def test_an_ssh_that_ends_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", put_ssh(tmp_path, broken=255)["PATH"])
    with (
        pytest.raises(RunFailed, match="try `ssh hub` by hand"),
        dashboard_tunnel.open_tunnel(
            ServerConnection("hub", build_command_prefix(InventoryHost("hub", {}))),
            DashboardAddress(),
            find_free_port(),
        ),
    ):
        pass


@pytest.mark.slow
def test_the_command_prints_the_address_and_ctrl_c_ends_it_and_its_ssh(tmp_path: Path, port: int) -> None:
    pytest.importorskip("ansible", reason="the inventory is read by Ansible")
    hosts = {"server": {"hosts": {"hub": {"board_page_port": port}}}, "boards": {"hosts": {"nano-1": {}}}}
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(hosts), encoding="utf-8")
    env = {**os.environ, **put_ssh(tmp_path / "bin")}
    env["PATH"] = f"{env['PATH']}:{Path(sys.executable).parent}"
    words = [*FEDGE, "fleet", "board", "--inventory", str(tmp_path / "inventory.yml")]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        here = int(line.partition("/ ")[0].rpartition(":")[2])
        answered = dashboard_tunnel.probe_page("127.0.0.1", here)
        process.send_signal(signal.SIGINT)
        code = process.wait(LIMIT_S)

    ssh = int((tmp_path / "bin" / "pid").read_text(encoding="utf-8"))
    wait_for(lambda: not Path(f"/proc/{ssh}").exists(), "ssh ended with the tunnel", LIMIT_S)
    assert line == f"http://127.0.0.1:{here}/ is the page of hub, until Ctrl-C\n"
    assert (answered, code) == (True, 0)
