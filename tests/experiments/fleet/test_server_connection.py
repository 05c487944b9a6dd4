"""The way to the server: what the inventory says, words that arrive as they are, and what a failure means."""

from __future__ import annotations

import string
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.fleet import server_connection
from experiments.fleet.inventory import InventoryHost
from experiments.fleet.server_connection import ServerConnection
from fedge.errors import BadInput

AWKWARD = st.text(alphabet=st.sampled_from(" '\"$`\\\n\t;&|<>*?~!#(){}[]é" + string.ascii_letters), max_size=20)
SHOW = ("sh", "-c", 'for word; do printf "%s\\0" "$word"; done', "sh")


def test_the_way_is_what_the_inventory_says() -> None:
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


def test_ssh_asks_nobody_and_no_check_of_the_host_is_switched_off() -> None:
    way = server_connection.build_command_prefix(InventoryHost("hub", {}))

    assert "BatchMode=yes" in way
    assert not [word for word in way if "StrictHostKeyChecking" in word or "UserKnownHostsFile" in word]


@settings(max_examples=40, deadline=None)
@given(st.lists(AWKWARD, min_size=1, max_size=3), AWKWARD)
def test_words_and_variables_arrive_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], told: str
) -> None:
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
def test_what_makes_no_way_is_the_users_mistake(key: str, value: object) -> None:
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
def test_each_failure_has_its_cure_and_no_traceback(code: int, stderr: str, word: str) -> None:
    text = server_connection.explain_failure(
        ServerConnection("hub", ("ssh", *server_connection.CONNECTION, "--", "10.0.0.1")), code, stderr
    )

    assert word in text
    assert "Traceback" not in text
