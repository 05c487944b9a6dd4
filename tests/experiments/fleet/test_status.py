"""What a fleet's facts mean: each thing that can be wrong is said with its cure; logs as Flower wrote them."""

import copy
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from contracts.shown import shown_text
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from experiments.cli import fleet_status as command
from experiments.cli.command_output import write_json
from experiments.fleet import fleet_assessment, selected_fleet
from experiments.fleet.fleet_assessment import assess_fleet
from experiments.fleet.inventory import Inventory, InventoryHost
from experiments.fleet.playbook_runner import (
    COLOUR_CODES,
    PLAY,
    UNREACHABLE,
    PlaybookCall,
    PlaybookEvent,
    PlaybookOutcome,
    PlaybookState,
    apply_event,
)
from experiments.fleet.selected_fleet import FleetOptions
from experiments.fleet.status_records import SERVICES, ControlNode, FleetHosts, FleetStatus
from fedge.errors import RunFailed

OWN = ControlNode("0.1.0", "1.41.0", 1, 1)
LOGINS = {name: f"me@{name}.lan" for name in ("nano-1", "nano-2", "srv")}
FLEET = FleetHosts(("nano-1", "nano-2"), ("nano-1", "nano-2"), "srv", LOGINS)
NOW_S = 1795305000.0
# One key in both of its forms, and another.
SSH = (
    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBLERl3r75mAsKlGK9vdcey9JQqhJ"
    "Pkbsq66FgAjY9ytClKr/pXRA2tyN+vIun5hiRt3RtX/iCvQK0FG1asWnk69S6ls+Bkv98kRVLXqcNxyQ2rruvkBGubyf9dp00azu"
    "Dw== nano-1"
)
PEM = """-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEsRGXevvmYCwqUY2r921x7L0lCqEk+Ruy
roWACNj3K0KUqv+ldEDa3I368i6fmGJG3dG1f+IK9ArQUbVqxaeTr1LqWz4GS/3y
RFUtepw3HJDauu6+QEa5vJ/12nTRrO4P
-----END PUBLIC KEY-----
"""
OTHER_PEM = """-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE5XbrjKD3jO3uy9ho+AnBMH8VAwtu8e17
JH/YPd8COwnAbCiX0jGvtvvAbnFzbfj1SB2bLVYVrvNNzlMK+Ae/Ptbd4rYoOJHi
gYdP2GNoGOPFeFw8t3f6R87nuCTmIyE3
-----END PUBLIC KEY-----
"""
START = [
    "INFO :      Starting Flower SuperNode",
    "INFO:     Started server process [29729]",
    "INFO:     Waiting for application startup.",
    "INFO :      FastAPI lifespan: startup",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on http://127.0.0.1:57785 (Press CTRL+C to quit)",
]
END = [
    "INFO:     Shutting down",
    "INFO:     Waiting for application shutdown.",
    "INFO :      FastAPI lifespan: shutdown",
    "INFO:     Application shutdown complete.",
    "INFO:     Finished server process [29729]",
]
VERIFY = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "


def refused(line: str, *before: str) -> list[str]:
    """The log of a SuperNode that ends with exit code 305."""
    told = ["ERROR :     Exit Code: 305", "Failed to initialize the connection to the SuperLink.", line]
    more = "For more information, visit: <https://flower.ai/docs/framework/1.41/en/ref-exit-codes/305.html>"
    return [*START, *before, *told, "The SuperNode could not establish a connection to the SuperLink.", more, *END]


UNREGISTERED = refused("[code: 2004] Failed to activate SuperNode.")
LOGS = {
    "wrong-ca": refused(
        f"{VERIFY}unable to get local issuer certificate (_ssl.c:1006)", "ERROR :     SSL/TLS handshake error detected."
    ),
    "wrong-name": refused(
        f"{VERIFY}IP address mismatch, certificate is not valid for '127.0.0.2'. (_ssl.c:1006)",
        "ERROR :     SSL/TLS handshake error detected.",
    ),
    "plain": refused(
        "Client error '400 Bad Request' for url 'http://127.0.0.1:44691/v1/fleet/register-node'",
        "WARNING :   Option `--insecure` was set. Starting insecure channel to 127.0.0.1:44691.",
    ),
    "no-key": refused(
        "[code: 2001] SuperNode authentication is enabled. All SuperNodes must be registered via the CLI."
    ),
    "clock": [*START, "INFO :      SuperNode terminated gracefully.", *END],
    "retrying": [*START, "WARNING :   Connection attempt failed, retrying in 0.62 seconds", *(
        f"WARNING :   Connection attempt failed, retrying in {wait} seconds" for wait in ("1.61", "3.60", "6.12")
    )],
}  # fmt: skip
"""As SuperNodes of Flower 1.41 wrote them on loopback, without colours."""


def board(name: str = "nano-1") -> dict[str, Any]:
    """A board of which nothing is wrong."""
    service = {"state": "active", "restarts": 0, "log": ["Started it."]}
    return {
        "kind": "board",
        "at_s": NOW_S + 0.2,
        "done_at_s": NOW_S + 0.5,
        "board": name,
        "fedge": "0.1.0",
        "python": "3.11.7",
        "model": "NVIDIA Jetson Nano Developer Kit",
        "client": {"powerd_protocol": 1, "worker_protocol": 1, "flwr": "1.41.0"},
        "services": {unit: dict(service) for unit in SERVICES},
        "superlink": "fleet.lan:9443",
        "way": {"ok": True},
        "public_key": SSH if name == "nano-1" else None,
        "powerd": {
            "protocol": 1,
            "version": "0.1.0",
            "mode": {"cores": 4},
            "preset": "MAXN",
            "holder": None,
            "temperature_c": 41.5,
        },
        "worker": {"protocol": 1, "version": "0.1.0", "python": "3.6.9", "torch": "1.10.0", "state": "idle"},
        "disk_free_mb": {"/": 9000, "/var/lib/fedge": 8000},
        "claim": None,
    }


def server() -> dict[str, Any]:
    service = {"state": "active", "restarts": 0, "log": []}
    return {
        "kind": "server",
        "at_s": NOW_S + 0.2,
        "done_at_s": NOW_S + 0.5,
        "fedge": "0.1.0",
        "flwr": "1.41.0",
        "services": {"fedge-superlink": dict(service), "nginx": dict(service)},
        "nodes": [
            {"node_id": "1858576401903109868", "name": "nano-1", "status": "online", "public_key": PEM},
            {"node_id": "7", "name": "nano-2", "status": "online", "public_key": OTHER_PEM},
        ],
        "runs": [],
        "disk_free_mb": {"/": 90000},
        "certificates": {"server.crt": NOW_S + 300 * 86400, "ca.crt": NOW_S + 3000 * 86400},
    }


def told(facts: dict[str, Any]) -> dict[str, Any]:
    return {"asked_at_s": NOW_S, "answered_at_s": NOW_S + 0.6, "facts": facts}


def answers(**changed: Any) -> dict[str, Any]:
    """What all hosts of the fleet told, some facts of nano-1 being others."""
    return {"nano-1": told({**board(), **changed}), "nano-2": told(board("nano-2")), "srv": told(server())}


def with_server(**changed: Any) -> dict[str, Any]:
    return answers() | {"srv": told({**server(), **changed})}


def verdict(hosts: dict[str, Any], fleet: FleetHosts = FLEET) -> FleetStatus:
    return assess_fleet(fleet, hosts, OWN, {})


def said(status: FleetStatus, name: str = "nano-1") -> str:
    """Everything that is found of a host, with its severity and cure."""
    hosts = {host.name: host for host in (*status.boards, *([status.server] if status.server else []))}
    return "\n".join(f"{one.severity}: {one.what} -> {one.cure}" for one in hosts[name].findings)


def at(*path: str, value: Any) -> dict[str, Any]:
    """nano-1 with another value at one place of its facts."""
    facts = board()
    place = facts
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return answers(**facts)


def in_trouble(log: Sequence[str], online: bool = False, restarts: int = 4, **changed: Any) -> dict[str, Any]:
    """nano-1 whose SuperNode is started again and again, with this log."""
    hosts = at("services", "fedge-supernode", value={"state": "activating", "restarts": restarts, "log": list(log)})
    hosts["nano-1"]["facts"].update(changed)
    if not online:
        hosts["srv"]["facts"]["nodes"][0]["status"] = "offline"
    return hosts


def test_a_fleet_of_which_nothing_is_wrong_has_no_findings():
    status = verdict(answers())

    assert status.is_healthy
    assert [one.findings for one in status.boards] == [(), ()]
    first = status.boards[0]
    assert (first.node_id, first.node, first.preset, first.temperature_c) == (
        "1858576401903109868",
        "online",
        "MAXN",
        41.5,
    )
    assert first.free_mb == 8000
    assert first.versions["torch"] == "1.10.0"
    assert status.server.findings == ()


SERVICE = ("services", "fedge-worker")
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "not installed": (at(*SERVICE, value={"state": "absent"}), ("fault: fedge-worker is not installed", "provision")),
    "stopped": (at(*SERVICE, value={"state": "inactive"}), ("fault: fedge-worker is stopped", "fedge fleet up")),
    "failed": (
        at(
            *SERVICE,
            value={
                "state": "failed",
                "restarts": 0,
                "log": ["loading", "OSError: no torch", "fedge-worker.service: Failed with result 'exit-code'."],
            },
        ),
        ("fault: fedge-worker has failed", '"OSError: no torch"', "journalctl -u fedge-worker"),
    ),
    "restarting": (
        at(*SERVICE, value={"state": "activating", "restarts": 12, "log": []}),
        ("fault: fedge-worker ends and is started again, 12 times",),
    ),
    "half upgraded": (
        at("client", "powerd_protocol", value=2),
        ("fault: half upgraded: power daemon speaks protocol 1, the client 2", "fedge fleet upgrade --limit nano-1"),
    ),
    "half upgraded worker": (
        at("worker", "protocol", value=3),
        ("fault: half upgraded: worker speaks protocol 3, the client 1", "fedge fleet upgrade --limit nano-1"),
    ),
    "another flwr": (
        at("client", "flwr", value="1.40.2"),
        ("fault: has flwr 1.40.2, the SuperLink 1.41.0", "fedge fleet upgrade --limit nano-1"),
    ),
    "another fedge": (at("fedge", value="0.0.9"), ("note: has fedge 0.0.9, this control node 0.1.0",)),
    "wrong group on the power socket": (
        at("powerd", value={"error": "denied", "text": "no right to /run/fedge/powerd.sock, which is root:root 0660"}),
        ("fault: fedge-app may not ask the power daemon", "root:root 0660", "down --limit nano-1, then fedge fleet up"),
    ),
    "wrong group on the worker's socket": (
        at("worker", value={"error": "denied", "text": "no right to it"}),
        ("fault: fedge-app may not ask the worker",),
    ),
    "a package of the task is missing": (
        at(
            "worker",
            "refused",
            value="t.py, line 2: got ModuleNotFoundError from the file: No module named 'peft'; "
            "`/usr/bin/python3 -m pip install peft` on this machine",
        ),
        ("fault: its worker could not load the last task: t.py, line 2", "-m pip install peft` on this machine"),
    ),
    "no answer": (
        at("powerd", value={"error": "refused", "text": "Connection refused"}),
        ("fault: the power daemon does not answer",),
    ),
    "held": (
        at("powerd", "holder", value="bench"),
        ("note: the power daemon holds its mode for bench",),
    ),
    "refuses changes": (
        at("powerd", "stopped", value="nvpmodel has failed"),
        ("fault: the power daemon refuses changes: nvpmodel",),
    ),
    "no systemd": (
        at(*SERVICE, value={"error": "failed", "text": "no bus", "state": "unknown", "restarts": 0, "log": []}),
        ("fault: what fedge-worker does could not be asked: no bus",),
    ),
    "hot": (at("powerd", "temperature_c", value=90.0), ("note: 90 C hot",)),
    "full": (
        at("disk_free_mb", value={"/": 9000, "/var/lib/fedge": 499}),
        ("fault: only 499 MB free at /var/lib/fedge",),
    ),
    "another name": (at("board", value="nano-9"), ("fault: it calls itself nano-9",)),
    "twins": (at("board", value="nano-2"), ("has the name or the key of nano-2 too",)),
    "wrong CA": (in_trouble(LOGS["wrong-ca"]), ("fault: it does not trust the certificate at fleet.lan:9443",)),
    "name not in the certificate": (
        in_trouble(LOGS["wrong-name"]),
        ("fault: it dials fleet.lan, which is not in the server's certificate", "--renew --host fleet.lan"),
    ),
    "plain text": (in_trouble(LOGS["plain"]), ("fault: it speaks plain text to fleet.lan:9443",)),
    "without a key": (in_trouble(LOGS["no-key"]), ("fault: its SuperNode runs without its key",)),
    "registered and refused": (
        in_trouble(UNREGISTERED, restarts=12),
        ("fault: its key is registered and yet refused: another SuperNode is online with it",),
    ),
    "refused for its clock": (in_trouble(LOGS["clock"]), ("fault: the SuperLink refuses its signature",)),
    "nobody listens": (
        in_trouble(LOGS["retrying"], way={"error": "refused", "text": "Connection refused"}),
        ("fault: nobody listens at fleet.lan:9443",),
    ),
    "unknown name": (
        in_trouble(LOGS["retrying"], way={"error": "unresolved", "text": "Name or service not known"}),
        ("fault: it does not know the name fleet.lan",),
    ),
    "no way": (
        in_trouble(LOGS["retrying"], way={"error": "timeout", "text": "timed out"}),
        ("fault: it does not reach fleet.lan:9443 (timed out)",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_with_a_board_is_said_in_words_with_its_cure(case):
    hosts, expected = CASES[case]
    status = verdict(hosts)

    text = said(status)
    for words in expected:
        assert words in text
    assert status.boards[0].is_healthy == ("fault:" not in text)
    assert all(one.cure for one in status.boards[0].findings)
    # One finding for one cause; a twin also calls itself otherwise than the inventory does.
    assert len(status.boards[0].findings) == (2 if case == "twins" else 1), text


def test_a_missing_package_of_a_language_model_has_its_command_as_the_cure(monkeypatch):
    language_models = pytest.importorskip("fedge.worker.language_models", reason="needs torch")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(language_models.BadTask) as caught:
        language_models.require_package("peft")

    what, cure = said(verdict(at("worker", "refused", value=str(caught.value)))).split(" -> ")

    assert "needs Python 3.10" in what
    assert cure.startswith(f"`{sys.executable} -m pip install peft`")


@pytest.mark.parametrize("online", [True, False])
def test_a_board_back_before_the_superlink_has_given_it_up_is_no_problem(online):
    status = verdict(in_trouble(UNREGISTERED, online))

    assert status.is_healthy
    assert said(status).startswith("note: the SuperLink still counts it as online, for up to a minute")


def test_the_restarts_of_such_a_board_are_not_mentioned_once_it_runs():
    status = verdict(at("services", "fedge-supernode", value={"state": "active", "restarts": 5, "log": []}))

    assert status.boards[0].findings == ()


def test_a_board_whose_key_nobody_registered_is_told_to_register_it():
    hosts = in_trouble(UNREGISTERED)
    hosts["srv"]["facts"]["nodes"] = hosts["srv"]["facts"]["nodes"][1:]

    status = verdict(hosts)

    assert said(status) == (
        "fault: its key is not registered at the SuperLink, which refuses it (Flower's exit code 305) -> "
        "fedge fleet provision --limit server,nano-1"
    )


def test_a_bare_board_a_lost_one_and_one_that_fails_are_told_apart():
    hosts = answers()
    hosts["nano-1"] = told({"kind": "bare"})
    del hosts["nano-2"]

    status = assess_fleet(FLEET, hosts, OWN, {"nano-2": "Connection refused"})

    assert [one.state for one in status.boards] == ["bare", "unreachable"]
    assert "fedge fleet provision --limit nano-1" in said(status)
    assert "cannot be reached by ssh (Connection refused)" in said(status, "nano-2")
    assert "log in by hand: ssh me@nano-2.lan;" in said(status, "nano-2")
    hosts["nano-1"] = told({"kind": "failed", "text": "sudo: a password is required"})
    assert "sudo: a password is required" in said(verdict(hosts))


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [
        (600.0, "fault: its clock is 10 min ahead of the server's"),
        (-600.0, "fault: its clock is 10 min behind the server's"),
        (3.5, "fault: its clock is 3.5 s ahead"),
        (1.0, ""),
        (-50.0, ""),
        (2.1, ""),
    ],
)
def test_a_clock_is_wrong_when_it_is_so_beyond_doubt(ahead_s, words):
    status = verdict(answers(at_s=NOW_S + 0.2 + ahead_s, done_at_s=NOW_S + 0.5 + ahead_s))

    assert words in said(status)
    assert status.boards[0].is_healthy == (words == "")
    offset_s, give_s = status.boards[0].offset_s, status.boards[0].give_s
    assert offset_s == pytest.approx(ahead_s)
    assert give_s == pytest.approx(0.3)


def test_a_probe_that_takes_long_makes_no_clock_uncertain():
    slow = {**board(), "done_at_s": NOW_S + 30.5}
    hosts = answers() | {"nano-1": {"asked_at_s": NOW_S, "answered_at_s": NOW_S + 30.6, "facts": slow}}

    assert verdict(hosts).boards[0].give_s == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"services": {"fedge-superlink": {"state": "inactive"}, "nginx": {"state": "active"}}}, "no board gets work"),
        ({"services": {"fedge-superlink": {"state": "active"}, "nginx": {"state": "failed", "log": ["bind() failed"]}}},
         'no board gets in; it said: "bind() failed"'),
        ({"disk_free_mb": {"/": 12}}, "only 12 MB free at /"),
        ({"certificates": {"server.crt": NOW_S + 20 * 86400}}, "server.crt ends in 20 days"),
        ({"certificates": {"server.crt": NOW_S - 3 * 86400}}, "server.crt ended 3 days ago"),
        ({"nodes": {"error": "timeout", "text": "no answer within 30 s"}}, "no answer within 30 s"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_server_is_said_in_words(changed, words):
    status = verdict(with_server(**changed))

    assert words in said(status, "srv")
    assert not status.is_healthy


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        (
            [*server()["nodes"], {"node_id": "99", "name": "old-1", "status": "offline", "public_key": None}],
            "note: node 99, registered as old-1, is not in the inventory",
        ),
        (
            [{"node_id": "1", "name": None, "status": "online", "public_key": None}],
            "tells neither names nor keys of its nodes (1 online)",
        ),
    ],
    ids=["no board of the inventory", "ids without names"],
)
def test_nodes_of_no_known_board_are_noted_and_accuse_nobody(nodes, note):
    status = verdict(with_server(nodes=nodes))

    assert note in said(status, "srv")
    assert status.is_healthy


def test_a_board_with_a_new_key_names_the_node_of_its_old_one():
    nodes = [{**server()["nodes"][0], "public_key": OTHER_PEM}]

    text = said(verdict(with_server(nodes=nodes)))

    assert "its key is not registered at the SuperLink; another key is registered as nano-1" in text
    assert "flwr supernode unregister 1858576401903109868 fleet" in text


def test_a_node_that_is_offline_without_a_reason_is_said_to_be_so():
    nodes = [{**server()["nodes"][0], "status": "offline"}, server()["nodes"][1]]

    assert "fault: its node is offline, not online" in said(verdict(with_server(nodes=nodes)))


def test_without_the_server_boards_are_judged_by_what_they_say():
    hosts = answers()
    del hosts["srv"]

    status = verdict(hosts, FleetHosts(FLEET.boards, FLEET.asked, None))

    assert status.is_healthy
    assert status.server is None
    assert status.boards[0].offset_s is None


def test_a_supernode_that_was_told_to_stop_is_not_called_refused():
    services = {unit: {"state": "inactive", "log": LOGS["clock"]} for unit in board()["services"]}
    hosts = answers(services=services)
    hosts["srv"]["facts"]["nodes"][0]["status"] = "offline"

    text = said(verdict(hosts))

    assert "fault: its services are stopped -> fedge fleet up --limit nano-1" in text
    assert "signature" not in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in facts at which something else may stand."""
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [(value, key) for key, _ in pairs] + [place for _, inner in pairs for place in _places(inner)]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_facts_whatever_make_it_fail(data):
    hosts = copy.deepcopy(in_trouble(UNREGISTERED))
    for _ in range(data.draw(st.integers(1, 4))):
        places = _places(hosts)
        container, key = data.draw(st.sampled_from(places))
        container[key] = data.draw(JSON)

    status = verdict(hosts)

    shown(status)
    assert len(status.boards) == 2


@given(JSON)
def test_no_answer_whatever_makes_it_fail(answer):
    shown(verdict({"nano-1": answer, "nano-2": told(answer), "srv": {"facts": answer}}))


def shown(status: FleetStatus) -> str:
    return shown_text(command.print_status, status, width=200)


def test_a_table_of_a_hundred_boards_is_as_wide_as_a_screen_and_tells_of_those_that_are_not_well():
    names = tuple(f"nano-{i}" for i in range(100))
    hosts = {name: told({**board(name), "fedge": "0.0.9", "claim": {"run": "exp", "left_s": 9}}) for name in names}
    hosts["nano-7"]["facts"]["disk_free_mb"] = {"/": 3}
    hosts["srv"] = told({**server(), "nodes": []} | {"nodes": {"error": "x", "text": "y"}})

    text = shown(assess_fleet(FleetHosts(names, names, "srv"), hosts, OWN, {}))

    table = [line for line in text.splitlines() if line.startswith(("board", "nano-")) and ":" not in line]
    assert len(table) >= 101
    assert max(len(line.rstrip()) for line in table) <= 100
    assert text.count("only 3 MB free") == 1
    assert text.count("has fedge 0.0.9") == 2  # of the board with a full disk, and of all others at once
    assert "and 91 more: has fedge 0.0.9" in text
    assert "100 boards, 1 with a fault" in text


def test_a_remedy_that_is_given_on_a_board_says_how_to_log_in_there():
    hosts = answers()
    hosts["nano-1"] = told({"kind": "failed", "text": "sudo: a password is required"})
    hosts["nano-2"] = told({"kind": "bare"})

    lines = shown(assess_fleet(FLEET, hosts, OWN, {})).splitlines()

    assert [line for line in lines if "ssh" in line] == ["  on the board: ssh me@nano-1.lan"]


# Asking


def chosen(folder: Path, *limited: str) -> selected_fleet.SelectedFleet:
    """The fleet, or these of it."""
    members = [
        InventoryHost(name, {"ansible_user": "me", "ansible_host": f"{name}.lan"}) for name in ("srv", *FLEET.boards)
    ]
    hosts = frozenset(limited or (*FLEET.boards, "srv"))
    options = FleetOptions(folder / "i.yml", folder, ",".join(limited) or None)
    return selected_fleet.SelectedFleet(options, Inventory(options.inventory, members[0], tuple(members[1:])), hosts)


def nobody() -> Console:
    return Console(file=io.StringIO())


def playing(hosts: dict[str, Any], *events: PlaybookEvent) -> Callable[..., PlaybookOutcome]:
    """A playbook that writes these files and tells of these events."""

    def run(call: PlaybookCall, _log: Path, _tell: object) -> PlaybookOutcome:
        assert call.playbook == "status.yml"
        for name, one in hosts.items():
            (Path(call.variables["status_to"]) / f"{name}.json").write_text(json.dumps(one), encoding="utf-8")
        state = PlaybookState()
        for event in (PlaybookEvent(PLAY, play="ask"), *events):
            state = apply_event(state, event)
        return PlaybookOutcome(4 if events else 0, state, "")

    return run


def test_hosts_are_asked_by_the_playbook_and_the_lost_keep_their_reason(tmp_path):
    hosts = answers()
    del hosts["nano-2"]
    lost = PlaybookEvent(UNREACHABLE, "nano-2", text="Connection refused")

    asked = fleet_assessment.query_hosts(chosen(tmp_path), tmp_path / "log", nobody(), playing(hosts, lost))

    assert asked.fleet == FLEET
    assert set(asked.answers) == {"nano-1", "srv"}
    assert asked.unreachable == {"nano-2": "Connection refused"}


def test_with_a_limit_those_boards_are_judged_by_what_the_server_says_too(tmp_path):
    hosts = answers()
    del hosts["nano-2"]
    limits: list[str | None] = []

    def run(asking: PlaybookCall, log: Path, tell: object) -> PlaybookOutcome:
        limits.append(asking.limit)
        return playing(hosts)(asking, log, tell)

    asked = fleet_assessment.query_hosts(chosen(tmp_path, "nano-1"), tmp_path / "log", nobody(), run)

    assert limits == ["nano-1,srv"]
    assert asked.fleet == FleetHosts(("nano-1", "nano-2"), ("nano-1",), "srv", LOGINS)
    assert assess_fleet(asked.fleet, asked.answers, OWN, asked.unreachable).boards[0].node == "online"


@pytest.mark.parametrize("limit", ["boards:&site_a", "all:!server", "boards,!nano-2", "nano-1:srv"])
def test_whatever_pattern_names_the_boards_they_and_the_server_are_asked(tmp_path, limit):
    fleet = chosen(tmp_path, "nano-1")
    limits: list[str | None] = []

    def run(asking: PlaybookCall, log: Path, tell: object) -> PlaybookOutcome:
        limits.append(asking.limit)
        return playing(answers())(asking, log, tell)

    fleet_assessment.query_hosts(
        replace(fleet, options=replace(fleet.options, limit=limit)), tmp_path / "log", nobody(), run
    )

    assert limits == ["nano-1,srv"]


def test_a_playbook_that_reaches_nobody_is_a_failure_with_the_reason(tmp_path):
    def run(*_call: object) -> PlaybookOutcome:
        return PlaybookOutcome(1, PlaybookState(), "the inventory is empty")

    with pytest.raises(RunFailed, match="the inventory is empty"):
        fleet_assessment.query_hosts(chosen(tmp_path), tmp_path / "log", nobody(), run)


def test_while_hosts_are_asked_a_terminal_shows_who_is_waited_for(tmp_path):
    out, lost = io.StringIO(), PlaybookEvent(UNREACHABLE, "nano-2", text="Connection refused")
    seen: list[str] = []

    def run(call: PlaybookCall, log: Path, tell: Callable[[PlaybookState, PlaybookEvent], None]) -> PlaybookOutcome:
        tell(apply_event(PlaybookState(), lost), lost)
        outcome = playing({"srv": told(server())}, lost)(call, log, tell)
        end_s = time.monotonic() + 10
        while "waiting for nano-1" not in out.getvalue() and time.monotonic() < end_s:
            time.sleep(0.02)
        seen.append(out.getvalue())
        return outcome

    fleet_assessment.query_hosts(
        chosen(tmp_path), tmp_path / "log", Console(file=out, force_terminal=True, width=100), run
    )

    assert "2 of 3 hosts have answered" in seen[0]
    assert "waiting for nano-1" in seen[0]


def test_the_records_are_written_whole(tmp_path):
    out = tmp_path / "status.json"

    write_json(out, command.fleet_status_to_dict(verdict(at("disk_free_mb", value={"/": 1}))))

    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["healthy"] is False
    assert found["boards"][0]["findings"][0]["severity"] == "fault"
    assert found["boards"][1]["healthy"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_what_flowers_supernode_logs_today_is_understood(tmp_path):
    pytest.importorskip("flwr", reason="SuperNodes are Flower's")
    from contracts.secured_fleet import new_node_key, running, secured_fleet, supernode

    from experiments.fleet.key_folder import create_keys

    key = str(new_node_key(tmp_path / "node.key"))
    create_keys(tmp_path / "other", ["127.0.0.1"], datetime.now(UTC), days=2)
    with secured_fleet(tmp_path / "fleet") as fleet:
        ca, other = str(fleet.keys / "ca.crt"), str(tmp_path / "other" / "ca.crt")
        cases = {
            "its key is not registered": ("--root-certificates", ca, "--auth-supernode-private-key", key),
            "it does not trust the certificate": ("--root-certificates", other, "--auth-supernode-private-key", key),
            "it speaks plain text": ("--insecure",),
            "its SuperNode runs without its key": ("--root-certificates", ca),
        }
        logs = {}
        for number, (words, options) in enumerate(cases.items()):
            with running(supernode(fleet, *options), tmp_path / f"node-{number}", lambda _log: False) as (_, log):
                logs[words] = [COLOUR_CODES.sub("", line) for line in log.read_text(encoding="utf-8").splitlines()][
                    -20:
                ]

    for words, lines in logs.items():
        hosts = in_trouble(lines)
        hosts["srv"]["facts"]["nodes"] = []
        assert words in said(verdict(hosts)), lines


TELLING = {"state": "active", "restarts": 0, "log": []}


def telling_hosts(ages_s: object, state: str = "active", **changed: Any) -> dict[str, Any]:
    """A fleet whose nano-1 tells of itself, and a server that has heard of boards so long ago."""
    hosts = at("services", "fedge-telemetry", value={**TELLING, "state": state})
    hosts["nano-1"]["facts"].update(changed)
    hosts["srv"]["facts"]["ages_s"] = ages_s
    return hosts


def test_a_board_that_was_heard_of_a_moment_ago_has_nothing_wrong():
    status = verdict(telling_hosts({"nano-1": 1.2}))

    assert said(status) == ""
    assert status.boards[0].services["fedge-telemetry"] == "active"
    assert "fedge-telemetry" not in status.boards[1].services


PROVISION, SILENT = "fedge fleet provision --limit nano-1", "on the board: journalctl -u fedge-telemetry"
HEARD = {"nano-1": 1.0}


@pytest.mark.parametrize(
    ("ages_s", "certificate", "found"),
    [
        ({"nano-1": 200.0}, None, f"note: telemetry: last sample 3 min ago -> {SILENT}"),
        ({}, None, f"note: telemetry: no sample of it has come yet -> {SILENT}"),
        *((ages_s, None, "") for ages_s in (None, {"error": "refused", "text": "nobody listens"}, "rubbish", 3)),
        (HEARD, NOW_S + 13 * 86400, f"fault: the certificate of its telemetry ends in 13 days -> {PROVISION}"),
        (HEARD, NOW_S - 3 * 86400, f"fault: the certificate of its telemetry ended 3 days ago -> {PROVISION}"),
        (HEARD, NOW_S + 15 * 86400, ""),
        *((HEARD, certificate, "") for certificate in (None, "soon", {"error": "absent", "text": "no file"})),
    ],
)
def test_silence_and_a_certificate_that_ends_are_told_where_something_is_known_of_them(ages_s, certificate, found):
    status = verdict(telling_hosts(ages_s, certificate=certificate))

    assert said(status) == found
    assert status.boards[0].is_healthy == ("fault" not in found)


def test_a_sender_that_is_stopped_is_a_service_that_is_stopped():
    assert "fault: fedge-telemetry is stopped" in said(verdict(telling_hosts({}, state="inactive")))


def test_the_table_says_when_a_board_was_heard_of_and_how_long_its_certificate_holds():
    told = verdict(telling_hosts({"nano-1": 1.23}, certificate=NOW_S + 82 * 86400 + 10))
    ended = verdict(telling_hosts({"nano-1": 200.0}, certificate=NOW_S - 86400))
    head, row, other = shown(told).splitlines()[:3]

    assert (told.boards[0].heard_s, round(told.boards[0].certificate_left_s or 0)) == (1.23, 82 * 86400 + 10)
    assert [column for column in head.split() if column in {"seen", "cert"}] == ["seen", "cert"]
    assert row.rstrip().endswith("1.2 s 82 d")
    assert "82 d" not in other
    assert "3 min 0 d" in shown(ended)


def test_the_board_service_is_judged_where_it_is_installed():
    services = {**server()["services"], "fedge-board": {"state": "failed", "restarts": 3, "log": []}}
    status = verdict(with_server(services=services))

    assert "fault: fedge-board is failed, so nothing that boards tell of themselves is taken" in said(status, "srv")
    assert status.server.services["fedge-board"] == "failed"
