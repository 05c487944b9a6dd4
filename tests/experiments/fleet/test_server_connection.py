"""The way to the server: what the inventory says, words that arrive as they are, and what a failure means."""

import http.server
import os
import signal
import string
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from contracts.launching import FEDGE
from contracts.processes import wait_for
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.backends.sim_backend import find_free_port
from experiments.fleet import server_connection
from experiments.fleet.inventory import InventoryHost
from experiments.fleet.server_connection import (
    DashboardAddress,
    ServerConnection,
    build_command_prefix,
    find_dashboard_address,
    format_login,
    tunnel_command,
)
from fedge.errors import BadInput, RunFailed

AWKWARD = st.text(alphabet=st.sampled_from(" '\"$`\\\n\t;&|<>*?~!#(){}[]é" + string.ascii_letters), max_size=20)
SHOW = ("sh", "-c", 'for word; do printf "%s\\0" "$word"; done', "sh")


def test_the_way_is_what_the_inventory_says():
    member = InventoryHost(
        "hub",
        {
            "ansible_host": "10.0.0.1",
            "ansible_port": 2222,
            "ansible_user": "admin",
            "ansible_ssh_common_args": "-J 'jump host'",
        },
    )
    way = server_connection.build_command_prefix(member)

    assert way[-2:] == ("--", "10.0.0.1")
    assert way[-8:-2] == ("-p", "2222", "-l", "admin", "-J", "jump host")


def test_a_person_logs_in_with_the_address_and_the_options_of_the_inventory():
    variables = {"ansible_host": "10.0.0.1", "ansible_user": "me", "ansible_port": 2222}
    options = {"ansible_ssh_common_args": "-J 'jump host'"}

    assert format_login(InventoryHost("hub", {})) == "hub"
    assert format_login(InventoryHost("hub", variables | options)) == "-p 2222 -J 'jump host' me@10.0.0.1"


def test_a_login_leaves_out_what_only_ansible_can_evaluate_and_options_that_are_malformed():
    sealed = {"ansible_user": {"__ansible_vault": "secret"}, "ansible_port": "{{ port }}", "ansible_host": "10.0.0.1"}
    malformed = {"ansible_host": "10.0.0.1", "ansible_port": 2222, "ansible_ssh_extra_args": "-J 'jump"}

    assert format_login(InventoryHost("hub", sealed)) == "10.0.0.1"
    assert format_login(InventoryHost("hub", malformed)) == "10.0.0.1"


def test_ssh_asks_nobody_and_no_check_of_the_host_is_switched_off():
    way = server_connection.build_command_prefix(InventoryHost("hub", {}))

    assert "BatchMode=yes" in way
    assert not [word for word in way if "StrictHostKeyChecking" in word or "UserKnownHostsFile" in word]


@settings(max_examples=40, deadline=None)
@given(st.lists(AWKWARD, min_size=1, max_size=3), AWKWARD)
def test_words_and_variables_arrive_as_they_are(tmp_path_factory, words, told):
    sudo = tmp_path_factory.getbasetemp() / "words" / "sudo"
    if not sudo.exists():
        sudo.parent.mkdir(exist_ok=True)
        sudo.write_text('#!/bin/sh\nshift 3\nexec "$@"\n', encoding="utf-8")
        sudo.chmod(0o755)
    command = ServerConnection("hub", ("sh", "-c")).command(*SHOW, *words, variables={"TOLD": told})
    shown = subprocess.run(command, env={"PATH": f"{sudo.parent}:/usr/bin:/bin"}, capture_output=True, check=True)
    seen = ServerConnection("hub", ("sh", "-c")).command("printenv", "TOLD", variables={"TOLD": told})
    value = subprocess.run(seen, env={"PATH": f"{sudo.parent}:/usr/bin:/bin"}, capture_output=True, check=True)

    assert shown.stdout.decode().split("\0")[:-1] == words
    assert value.stdout.decode() == f"{told}\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ansible_host", "{{ address }}"),
        ("superlink_port", "many"),
        ("superlink_port", 70000),
        ("ansible_ssh_common_args", "-o 'half"),
    ],
)
def test_what_makes_no_way_is_the_users_mistake(key, value):
    with pytest.raises(BadInput, match=f"{key} of hub"):
        server_connection.build_connection(InventoryHost("hub", {key: value}))


@pytest.mark.parametrize(
    ("code", "stderr", "word"),
    [
        (255, "ssh: connect to host 10.0.0.1 port 22: Connection refused", "by hand"),
        (1, "sudo: a password is required", "NOPASSWD"),
        (127, "sh: 1: sudo: not found", "install sudo"),
        (1, "Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left on device", "make room"),
        (127, "env: /usr/lib/fedge-server/venv/bin/python: No such file or directory", "fedge fleet provision"),
        (3, "", "exit code 3"),
    ],
)
def test_each_failure_has_its_cure_and_no_traceback(code, stderr, word):
    text = server_connection.explain_failure(
        ServerConnection("hub", ("ssh", *server_connection.CONNECTION, "--", "10.0.0.1")), code, stderr
    )

    assert word in text
    assert "Traceback" not in text


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
def test_the_page_is_where_the_inventory_says(variables, page):
    assert find_dashboard_address(InventoryHost("hub", variables)) == page


@pytest.mark.parametrize("variables", [{"board_page_enabled": False}, {"board_page_port": "{{ x }}"}])
def test_no_page_and_no_port_are_said_before_anybody_is_asked(variables):
    with pytest.raises(BadInput, match="of hub"):
        find_dashboard_address(InventoryHost("hub", variables))


def test_ssh_is_told_the_way_of_the_inventory_and_to_do_nothing_but_pass_on():
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


def test_the_tunnel_lasts_as_long_as_its_block(tmp_path, port, monkeypatch):
    monkeypatch.setenv("PATH", put_ssh(tmp_path)["PATH"])
    here = find_free_port()
    with server_connection.open_tunnel(
        ServerConnection("hub", build_command_prefix(InventoryHost("hub", {}))), DashboardAddress(port=port), here
    ):
        inside = server_connection.probe_page("127.0.0.1", here)

    assert (inside, server_connection.probe_page("127.0.0.1", here)) == (True, None)


def test_where_no_page_answers_it_is_said_what_to_ask(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", put_ssh(tmp_path)["PATH"])
    server, nobody = (
        ServerConnection("hub", build_command_prefix(InventoryHost("hub", {}))),
        DashboardAddress(port=find_free_port()),
    )
    with (
        pytest.raises(RunFailed, match="no page answers there; `fedge fleet status`"),
        server_connection.open_tunnel(server, nobody, find_free_port()),
    ):
        pass


def test_an_ssh_that_ends_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", put_ssh(tmp_path, broken=255)["PATH"])
    with (
        pytest.raises(RunFailed, match="try `ssh hub` by hand"),
        server_connection.open_tunnel(
            ServerConnection("hub", build_command_prefix(InventoryHost("hub", {}))),
            DashboardAddress(),
            find_free_port(),
        ),
    ):
        pass


@pytest.mark.slow
def test_the_command_prints_the_address_and_ctrl_c_ends_it_and_its_ssh(tmp_path, port):
    pytest.importorskip("ansible", reason="the inventory is read by Ansible")
    hosts = {"server": {"hosts": {"hub": {"board_page_port": port}}}, "boards": {"hosts": {"nano-1": {}}}}
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(hosts), encoding="utf-8")
    env = {**os.environ, **put_ssh(tmp_path / "bin")}
    env["PATH"] = f"{env['PATH']}:{Path(sys.executable).parent}"
    words = [*FEDGE, "fleet", "board", "--inventory", str(tmp_path / "inventory.yml")]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        here = int(line.partition("/ ")[0].rpartition(":")[2])
        answered = server_connection.probe_page("127.0.0.1", here)
        process.send_signal(signal.SIGINT)
        code = process.wait(LIMIT_S)

    ssh = int((tmp_path / "bin" / "pid").read_text(encoding="utf-8"))
    wait_for(lambda: not Path(f"/proc/{ssh}").exists(), "ssh ended with the tunnel", LIMIT_S)
    assert line == f"http://127.0.0.1:{here}/ is the page of hub, until Ctrl-C\n"
    assert (answered, code) == (True, 0)
