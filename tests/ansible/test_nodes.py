"""Which boards the server registers and which it locks out: one name is one key, whatever happened before."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from contracts.programs import load_program
from hypothesis import given
from hypothesis import strategies as st

PROGRAM = Path(__file__).resolve().parents[2] / "ansible" / "roles" / "superlink" / "files" / "nodes.py"


nodes = load_program(PROGRAM)


def node(name: str, key: str, status: str = "offline", node_id: str = "1"):
    return nodes.RegisteredNode(node_id, name, status, key)


NANO = {"nano-1": "key"}


@pytest.mark.parametrize(
    ("found", "keys", "register", "unregister", "notes"),
    [
        ([], NANO, ("nano-1",), {}, []),
        ([node("nano-1", "key")], NANO, (), {}, []),
        ([node("nano-1", "old", node_id="7")], {"nano-1": "new"}, ("nano-1",), {"7": "nano-1"}, []),
        ([node("nano-9", "key", node_id="7")], {}, (), {}, ["nano-9 (node 7) is registered and not in the inventory"]),
        ([node("nano-1", "key")], {}, (), {}, []),
        ([node("nano-1", "key", "unregistered")], NANO, (), {}, ["never taken again.*provision it again"]),
        (
            [node("nano-1", "key")],
            {"nano-2": "key"},
            (),
            {},
            ["nano-2: its key is registered as 'nano-1'; for the new name, remove /etc/fedge/keys/node"],
        ),
        (
            [node("nano-1", "first"), node("nano-2", "second", node_id="2")],
            {"nano-1": "second", "nano-2": "first"},
            (),
            {},
            ["nano-1: its key is registered as 'nano-2'", "nano-2: its key is registered as 'nano-1'"],
        ),
    ],
    ids=[
        "new",
        "registered with its key",
        "former key of a board with a new one",
        "not in the inventory",
        "no key on the control node",
        "a key that a person locked out stays out",
        "another name than its key's",
        "boards that changed names with each other",
    ],
)
def test_a_name_is_one_key_and_nobody_is_locked_out_by_mistake(found, keys, register, unregister, notes):
    plan = nodes.plan_registration(found, keys, sorted(keys) or ["nano-1"])

    assert (plan.register, dict(plan.unregister)) == (register, unregister)
    assert len(plan.notes) == len(notes)
    for note, words in zip(plan.notes, notes, strict=True):
        assert re.search(words.replace("(", r"\(").replace(")", r"\)"), note, re.DOTALL)


def test_only_the_boards_own_nodes_that_may_still_come_in_are_unregistered_with_it():
    found = [
        node("nano-1", "first", "online", "1"),
        node("nano-1", "second", "unregistered", "2"),
        node("nano-10", "third", "offline", "3"),
        node("nano-1", "fourth", "registered", "4"),
    ]

    assert nodes.node_ids_named(found, "nano-1") == ["1", "4"]


@pytest.mark.parametrize("text", ["nano-1", "=ecdsa-sha2-nistp384 AAAA", "nano-1=AAAA"])
def test_a_board_without_a_name_or_a_key_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        nodes.main(["register", text])

    assert "NAME=KEY with a line of OpenSSH's would be right" in capsys.readouterr().err


_NAMES, _KEYS = st.sampled_from("abc"), st.sampled_from("123456")
_BOARDS = st.dictionaries(_NAMES, _KEYS, max_size=3).filter(lambda keys: len(set(keys.values())) == len(keys))
_KNOWN = st.lists(
    st.tuples(_NAMES, _KEYS, st.sampled_from(["online", "offline", "registered", "unregistered"])),
    max_size=6,
    unique_by=lambda found: found[1],
)


@given(known=_KNOWN, keys=_BOARDS)
def test_after_it_was_done_once_there_is_nothing_to_do(known, keys):
    before = [node(name, key, status, str(i)) for i, (name, key, status) in enumerate(known)]
    first = nodes.plan_registration(before, keys, [*keys])
    after = [
        node(found.name, found.public_key, "unregistered" if found.node_id in first.unregister else found.status)
        for found in before
    ]
    after += [node(board, keys[board], "registered") for board in first.register]
    second = nodes.plan_registration(after, keys, [*keys])

    assert second.register == ()
    assert second.unregister == {}
    for board in keys:
        assert {found.public_key for found in after if found.name == board and found.status != "unregistered"} <= {
            *keys.values()
        }


@contextmanager
def _superlink(folder: Path) -> Iterator[dict[str, str]]:
    """A SuperLink with node authentication; yields the environment of its commands."""
    from contracts.secured_fleet import running, says

    from experiments.backends.run_processes import private_environment
    from experiments.backends.sim_backend import find_free_port
    from experiments.fleet.key_folder import create_keys

    keys, port, home = folder / "keys", find_free_port(), folder / "cli"
    create_keys(keys, ["127.0.0.1"], datetime.now(UTC), days=2)
    link = ["flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth"]
    link += ["--ssl-certfile", str(keys / "server.crt"), "--ssl-keyfile", str(keys / "server.key")]
    link += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--disable-runtime-dependency-installation"]
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{keys / "ca.crt"}"\n',
        encoding="utf-8",
    )
    with running(link, folder / "superlink", says("Uvicorn running on")):
        yield private_environment(os.environ, folder) | {"FLWR_HOME": str(home)}


def _asked(env: dict[str, str], *arguments: str) -> dict[str, object]:
    command = [sys.executable, str(PROGRAM), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _public(key: Path) -> str:
    return key.with_suffix(".pub").read_text(encoding="utf-8").strip()


@pytest.mark.fleet
@pytest.mark.slow
def test_a_superlink_registers_a_board_then_its_new_key_alone_and_forgets_it_in_the_end(tmp_path):
    from contracts.secured_fleet import new_node_key

    key = tmp_path / "nano-1"
    with _superlink(tmp_path) as env:
        new_node_key(key)
        board = f"Nano-1.lan={_public(key)}"
        command = ("register", board, "--known=Nano-1.lan")
        said = [_asked(env, *command, "--check"), _asked(env, *command), _asked(env, *command)]
        for path in (key, key.with_suffix(".pub")):
            path.unlink()
        new_node_key(key)
        said.append(_asked(env, "register", f"Nano-1.lan={_public(key)}"))
        listed = _asked(env, "list")["nodes"]
        said += [_asked(env, "unregister", "Nano-1.lan"), _asked(env, "unregister", "Nano-1.lan")]

    assert [answer["changed"] for answer in said] == [True, True, False, True, True, False]
    assert isinstance(listed, list)
    assert [(found["name"], found["status"]) for found in listed] == [
        ("Nano-1.lan", "unregistered"),
        ("Nano-1.lan", "registered"),
    ]
    assert listed[1]["public_key"] == " ".join(_public(key).split()[:2])


@pytest.mark.fleet
@pytest.mark.slow
def test_a_superlink_that_does_not_answer_is_told_in_a_sentence(tmp_path):
    (tmp_path / "config.toml").write_text(
        '[superlink.fleet]\naddress = "127.0.0.1:9"\ninsecure = true\n', encoding="utf-8"
    )
    env = dict(os.environ) | {"FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"}
    command = [sys.executable, str(PROGRAM), "list"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 1
    assert done.stderr.startswith("the SuperLink: ")
    assert "Traceback" not in done.stderr
