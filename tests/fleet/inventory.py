"""The inventory of a test fleet for the real playbooks, and the wheels that its boards, without network, are given."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import yaml
from fleet import jetson
from fleet.base import CannotHave, cache, only_one, say
from fleet.hosts import INSTALLED, ROOT, SERVER, Host, Hosts

from experiments.fleet.key_folder import create_keys

LOCK = ROOT / "ansible" / "board.lock"
PORT = 9443
DAYS = 60
"""How long the server's certificate holds: longer than the days before its end on which ``status`` warns."""


def write_inventory(hosts: Hosts) -> None:
    """``hosts.inventory``, with new keys of the fleet beside it."""
    create_keys(hosts.folder / "keys", [SERVER, hosts.server.address], datetime.now(UTC), DAYS)
    tree = {
        "all": {"vars": _everywhere(hosts)},
        "server": {"hosts": {hosts.server.name: _reached(hosts.server) | _server(hosts)}},
        "boards": {
            "vars": _boards(hosts),
            "hosts": {name: _reached(host) | _board(host) for name, host in hosts.boards.items()},
        },
    }
    hosts.inventory.write_text(yaml.safe_dump(tree, sort_keys=False, width=110))


def wheelhouse() -> Path:
    """Wheels of board.lock for this machine, fetched once; raises ``CannotHave`` where no index answers."""
    lock = LOCK.read_bytes()
    folder = cache() / f"wheels-{hashlib.sha256(lock).hexdigest()[:12]}"
    with only_one(cache() / "wheels.lock"):
        if not folder.exists():
            say("fetching the boards' packages, 53 wheels (once)")
            unfinished = folder.with_name(folder.name + ".part")
            shutil.rmtree(unfinished, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
            words = [*pip, "--only-binary=:all:", "-r", str(LOCK), "-d", str(unfinished)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CannotHave(f"the boards' wheels: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
            unfinished.rename(folder)
    return folder


def _everywhere(hosts: Hosts) -> dict[str, object]:
    words = hosts.server.ssh_options
    return {
        "ansible_user": "root",
        "ansible_ssh_common_args": " ".join(words),
        "ansible_control_path_dir": str(Path("/run") / f"fedge-test-fleet-{hosts.server.net.number}"),
    }


def _reached(host: Host) -> dict[str, object]:
    return {"ansible_host": host.address}


def _server(hosts: Hosts) -> dict[str, object]:
    keys = hosts.folder / "keys"
    return {
        "superlink_environment": f"{INSTALLED}/.venv",
        "superlink_certificate": str(keys / "server.crt"),
        "superlink_key": str(keys / "server.key"),
        "superlink_ca_certificate": str(keys / "ca.crt"),
        "superlink_packed": str(hosts.folder / "packed"),
    }


def _boards(hosts: Hosts) -> dict[str, object]:
    return {
        "supernode_superlink": f"{SERVER}:{PORT}",
        "supernode_ca_certificate": str(hosts.folder / "keys" / "ca.crt"),
        "telemetry_ca_key": str(hosts.folder / "keys" / "ca.key"),
        "telemetry_ca_certificate": str(hosts.folder / "keys" / "ca.crt"),
        "python_runtime_existing": "/usr/bin/python3",
        "python_runtime_wheelhouse": str(wheelhouse()),
        "python_runtime_packed": str(hosts.folder / "packed"),
        # No network, and a host shares this machine's clock.
        "jetson_base_packages": [],
        "worker_python": jetson.PYTHON,
        "powerd_python": jetson.POWERD_PYTHON,
        "chaos": "allowed",
        # All boards share this machine: threads that spin while they wait take the others' time, and their own.
        "worker_environment": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
    }


def _board(host: Host) -> dict[str, object]:
    assert host.kind is not None
    root = f"{jetson.FILES}/{host.kind}"
    return {
        "powerd_options": f"--root {root} --config /etc/fedge/powerd.json --socket /run/fedge/powerd.sock",
        "powerd_settings": jetson.powerd_settings(host.kind),
        "supernode_settings": {"root": root},
    }
