"""The systemd units as they are put on hosts: they parse, run as who they should, and may do no more than they must."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

jinja2 = pytest.importorskip("jinja2", reason="the units are Jinja templates")

ROOT = Path(__file__).resolve().parents[2]
ROLES = ROOT / "ansible" / "roles"
TEMPLATES = sorted(ROLES.glob("*/templates/fedge-*.service.j2"))
FIREWALL = ROLES / "superlink" / "files" / "fedge-firewall.service"
USERS = {
    "fedge-powerd": "root",
    "fedge-worker": "fedge-worker",
    "fedge-supernode": "fedge-node",
    "fedge-ready": "fedge-app",
    "fedge-superexec": "fedge-app",
    "fedge-superlink": "fedge-link",
    "fedge-telemetry": "fedge-tell",
    "fedge-board": "fedge-board",
}
Settings = dict[str, list[str]]


@cache
def _unit(name: str) -> dict[str, Settings]:
    """The unit's sections, as systemd reads them: repeated keys, comments, lines that go on."""
    return _sections(_text(name).replace("\\\n", " "))


def _text(name: str, **given: Any) -> str:
    """The unit as it is put on a host whose inventory has what is ``given``."""
    path = next(path for path in TEMPLATES if path.name == f"{name}.service.j2")
    defaults = (path.parents[1] / "defaults" / "main.yml").read_text(encoding="utf-8")
    known: dict[str, Any] = yaml.safe_load(defaults) | {
        "supernode_superlink": "server:8443",
        "ansible_managed": "managed",
        **given,
    }
    # As Ansible's template module does it.
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)
    return environment.from_string(path.read_text(encoding="utf-8")).render(known)


def _sections(text: str) -> dict[str, Settings]:
    found: dict[str, Settings] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            found[heading[1]] = defaultdict(list)
            continue
        key, sign, value = line.partition("=")
        assert sign, line
        assert re.fullmatch(r"[A-Za-z]+", key), line
        found[list(found)[-1]][key].append(value)
    return found


def _documented(page: Path) -> dict[str, Settings]:
    text = page.read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```ini\n(.*?)```", text, re.DOTALL) if "[Service]" in block)
    return _sections(block)


def test_every_program_has_its_unit():
    assert {path.name.removesuffix(".service.j2") for path in TEMPLATES} == set(USERS)


def test_the_power_daemons_unit_says_what_the_manual_says():
    """But for the user, the Python, the paths that the inventory decides, and the order of the lines."""
    unit, written = _unit("fedge-powerd")["Service"], _documented(ROOT / "docs/reference/powerd.md")["Service"]
    decided = {"User", "ExecStart", "Environment"}

    assert {key: unit[key] for key in unit if key not in decided} == {
        key: written[key] for key in written if key not in decided
    }


@pytest.mark.parametrize(("name", "user"), USERS.items())
def test_a_program_runs_as_its_own_user_and_only_the_power_daemon_is_root(name, user):
    assert _unit(name)["Service"]["User"] == [user]


@pytest.mark.parametrize("name", USERS)
def test_a_program_can_neither_gain_rights_nor_write_to_the_system_nor_see_homes(name):
    service = _unit(name)["Service"]

    assert service["NoNewPrivileges"] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["ProtectHome"] == ["yes"]
    assert service["PrivateTmp"] == ["yes"]
    assert service["ProtectControlGroups"] == ["yes"]
    assert service["ProtectKernelModules"] == ["yes"]
    assert service["SystemCallArchitectures"] == ["native"]
    assert "UMask" in service


@pytest.mark.parametrize("name", [name for name, user in USERS.items() if user != "root"])
def test_a_program_that_is_not_root_has_no_capability_and_writes_no_kernel_setting(name):
    service = _unit(name)["Service"]

    assert service["CapabilityBoundingSet"] == [""]
    assert service["ProtectKernelTunables"] == ["yes"]


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("fedge-powerd", {"CapabilityBoundingSet": ["CAP_CHOWN"], "PrivateNetwork": ["yes"]}),
        # It runs an experiment's code, which reaches this machine alone.
        ("fedge-superexec", {"IPAddressDeny": ["any"], "IPAddressAllow": ["localhost"]}),
        ("fedge-telemetry", {"SupplementaryGroups": ["fedge"]}),
        # It sees the runs and cannot change them, not what lies beside them, and only nginx reaches its socket.
        (
            "fedge-board",
            {
                "TemporaryFileSystem": ["/var/lib/fedge-link:ro"],
                "BindReadOnlyPaths": ["/var/lib/fedge-link/runs"],
                "ReadWritePaths": [],
                "InaccessiblePaths": ["-/etc/fedge/tls"],
                "Group": ["www-data"],
                "RuntimeDirectoryMode": ["0750"],
                "StateDirectoryMode": ["0700"],
            },
        ),
    ],
)
def test_a_program_reaches_what_its_duty_needs(name, allowed):
    service = _unit(name)["Service"]

    assert {key: service[key] for key in allowed} == allowed


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ("fedge-supernode", "fedge-superexec", "fedge-superlink"),
            {"FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"},
        ),
        (("fedge-superexec", "fedge-superlink"), {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1"}),
    ],
    ids=["it says nothing to third parties", "a message waits a tenth of a second for its process"],
)
def test_flower_is_told_by_its_environment(names, words):
    for name in names:
        assert words <= set(" ".join(_unit(name)["Service"]["Environment"]).split())


def test_the_supernode_asks_for_tls_and_shows_its_key():
    command = _unit("fedge-supernode")["Service"]["ExecStart"][0].split()

    assert "--insecure" not in command
    assert {"--root-certificates", "--auth-supernode-private-key"} <= set(command)
    assert command[command.index("--isolation") + 1] == "process"
    assert command[command.index("--host") + 1] == "127.0.0.1"


def test_the_superlink_listens_on_loopback_with_tls_and_known_boards_alone():
    command = _unit("fedge-superlink")["Service"]["ExecStart"][0].split()

    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "--insecure" not in command
    assert {"--ssl-certfile", "--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(command)


def test_programs_of_runs_start_in_time_also_on_a_busy_server():
    assert int(_unit("fedge-superlink")["Service"]["CPUWeight"][0]) > 100  # systemd's own for every service


def test_what_waits_for_messages_may_do_what_the_runner_may_and_sees_what_it_sees():
    waits, runs = _unit("fedge-ready")["Service"], _unit("fedge-superexec")["Service"]
    own = {"ExecStart", "Environment", "RuntimeDirectory", "RuntimeDirectoryMode", "KillMode"}
    environments = [
        dict(word.split("=", 1) for word in " ".join(unit["Environment"]).split()) for unit in (waits, runs)
    ]

    assert {key: waits[key] for key in waits if key not in own} == {key: runs[key] for key in runs if key not in own}
    assert {key for key in environments[1] if environments[0].get(key) != environments[1][key]} == {
        "PATH",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL",
    }
    assert waits["RuntimeDirectoryMode"] == ["0700"]


def test_the_runner_finds_what_stands_in_before_flowers_own_program():
    environment = " ".join(_unit("fedge-superexec")["Service"]["Environment"]).split()
    path = next(word for word in environment if word.startswith("PATH=")).removeprefix("PATH=").split(":")

    assert path[:2] == ["/usr/lib/fedge-node/ready", "/usr/lib/fedge-node/venv/bin"]
    assert "/usr/lib/fedge-node/ready" not in " ".join(_unit("fedge-ready")["Service"]["Environment"])


def test_what_tells_of_a_board_commands_nothing():
    hidden = " ".join(_unit("fedge-telemetry")["Service"]["InaccessiblePaths"]).replace("-/", "/").split()

    assert {"/run/fedge", "/run/fedge-worker", "/etc/fedge/keys", "/etc/fedge/app"} <= set(hidden)


@pytest.mark.parametrize("name", ["fedge-telemetry", "fedge-board"])
def test_what_is_beside_the_training_takes_little_of_the_machine(name):
    service = _unit(name)["Service"]

    assert re.fullmatch(r"\d+M", service["MemoryMax"][0])
    assert int(service["Nice"][0]) > 0
    assert "TasksMax" in service


@pytest.mark.parametrize(
    ("host", "shut"), [({}, True), ({"host": "::1"}, True), ({"host": "192.0.2.10"}, False)], ids=str
)
def test_the_page_is_this_machines_alone_unless_it_is_told_to_listen_elsewhere(host, shut):
    service = _sections(_text("fedge-board", board_page_settings=host).replace("\\\n", " "))["Service"]

    assert (service["IPAddressDeny"] == ["any"]) == shut


@pytest.mark.parametrize("name", ["fedge-supernode", "fedge-superexec", "fedge-telemetry"])
def test_a_board_comes_back_however_long_its_server_was_away(name):
    assert _unit(name)["Service"]["Restart"] == ["always"]
    assert _unit(name)["Unit"]["StartLimitIntervalSec"] == ["0"]


@pytest.mark.parametrize("name", ["fedge-supernode", "fedge-superexec"])
def test_the_two_halves_of_a_board_share_a_secret_in_a_copy_each(name):
    command = _unit(name)["Service"]["ExecStart"][0].split()
    folder = {"fedge-supernode": "/etc/fedge/keys", "fedge-superexec": "/etc/fedge/app"}[name]

    # What runs an experiment's code is not given the key.
    assert ("/etc/fedge/keys" in str(_unit(name)["Service"])) == (name == "fedge-supernode")
    assert command[command.index("--superexec-auth-secret-file") + 1] == f"{folder}/superexec"


def test_the_superlink_runs_out_of_the_environment_that_is_named_else_out_of_the_one_made():
    made, named = (_text("fedge-superlink", superlink_environment=path) for path in ("", "/opt/fedge/.venv"))

    assert "ExecStart=/usr/lib/fedge-server/venv/bin/flower-superlink " in made
    assert "PATH=/usr/lib/fedge-server/venv/bin:" in made
    assert "ExecStart=/opt/fedge/.venv/bin/flower-superlink " in named
    assert "/usr/lib/fedge-server" not in named


def test_the_superlink_does_not_start_without_its_firewall_unless_the_inventory_has_none():
    without = _sections(_text("fedge-superlink", superlink_firewall=False).replace("\\\n", " "))

    assert _unit("fedge-superlink")["Unit"]["Requires"] == ["fedge-firewall.service"]
    assert "fedge-firewall.service" in _unit("fedge-superlink")["Unit"]["After"]
    assert "Requires" not in without["Unit"]


def test_the_firewall_is_there_before_the_superlink_and_again_after_the_machines_own_rules():
    unit = _sections(FIREWALL.read_text(encoding="utf-8"))

    assert unit["Unit"]["Before"] == ["fedge-superlink.service"]
    assert [unit["Unit"][key] for key in ("After", "PartOf", "ReloadPropagatedFrom")] == [["nftables.service"]] * 3
    assert unit["Service"]["CapabilityBoundingSet"] == ["CAP_NET_ADMIN"]
    assert unit["Service"]["NoNewPrivileges"] == ["yes"]
    assert unit["Install"]["WantedBy"] == ["multi-user.target"]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A root folder with every unit, and a program that can be started wherever a unit names one."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine")
    said = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.findall(r"\d+", said)[0]) < 250:
        pytest.skip(f"systemd-analyze reads units below another root from systemd 250 on; got {said.splitlines()[0]}")
    folder = tmp_path / "etc" / "systemd" / "system"
    folder.mkdir(parents=True)
    texts = {f"{name}.service": _text(name) for name in USERS} | {FIREWALL.name: FIREWALL.read_text(encoding="utf-8")}
    for target in ("sysinit", "basic", "shutdown", "multi-user", "network-online", "network", "local-fs", "time-sync"):
        (folder / f"{target}.target").write_text("[Unit]\nDescription=The distribution's\n", encoding="utf-8")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        for program in re.findall(r"^Exec\w+=-?(\S+)", text, re.MULTILINE):
            (tmp_path / program[1:]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / program[1:]).write_text("#!/bin/sh\n", encoding="utf-8")
            (tmp_path / program[1:]).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("name", [*USERS, "fedge-firewall"])
def test_systemd_finds_nothing_wrong_with_a_unit(host, name):
    command = ["systemd-analyze", f"--root={host}", "--man=no", "--recursive-errors=no", "verify", f"{name}.service"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in said.stderr.splitlines() if name in line]

    assert said.returncode == 0, said.stderr
    assert lines == []


@pytest.mark.parametrize("name", [*USERS, "fedge-firewall"])
def test_systemd_counts_a_unit_as_not_exposed(host, name):
    """On its scale from 0 to 10, of which it calls anything below 5 ok or better."""
    command = ["systemd-analyze", f"--root={host}", "security", "--offline=true", "--threshold=50", f"{name}.service"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)

    assert said.returncode == 0, said.stdout + said.stderr
