"""What the role ``jetson_base`` adds if the inventory asks for it: chrony and jetson-stats; both go with the board."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.base import CannotHave
from fleet.fleet_view import findings_of
from fleet.hosts import Host, Hosts
from fleet.packages import fetched, offer, offer_no_more

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
BOARD, JTOP = "orin-nano-1", "4.3.2"
WHEELS = "srv/wheels"
SETTINGS = f"[global]\nno-index = true\nfind-links = /{WHEELS}\n"
HAS = "dpkg-query -W -f '${Package} ${db:Status-Status}\\n' chrony; python3 -m pip list --format=freeze"


@pytest.fixture(scope="module")
def furnished(provisioned: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The fleet with a board that has both, and that is provisioned as before in the end."""
    board = provisioned.boards[BOARD]
    try:
        packages, wheels = fetched(["chrony", "python3-pip"]), _download(tmp_path_factory.mktemp("wheels"))
    except CannotHave as reason:
        pytest.skip(str(reason))
    offer(board, packages)
    shutil.copytree(wheels, board.root / WHEELS)
    (board.root / "etc/pip.conf").write_text(SETTINGS)
    board.run("apt-get update -q && apt-get install -q -y --no-install-recommends python3-pip")
    done = provision(provisioned)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    yield provisioned
    offer_no_more(board)
    (board.root / "etc/pip.conf").unlink()
    assert provisioned.fedge("provision").returncode == 0


def _download(folder: Path) -> Path:
    """Fetch jetson-stats and what building and running it needs; raises ``CannotHave`` where no index answers."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", str(folder)]
    for names in (["--no-binary=:all:", f"jetson-stats=={JTOP}"], ["smbus2", "distro", "setuptools<81", "wheel"]):
        done = subprocess.run([*pip, *names], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotHave(f"jetson-stats: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return folder


def provision(hosts: Hosts) -> subprocess.CompletedProcess[str]:
    """Provision the board with the server as its time server."""
    wanted = {"jetson_base_packages": ["chrony"], "jetson_base_time_servers": [hosts.server.address]}
    return hosts.playbook("site.yml", "--limit", BOARD, "-e", json.dumps({**wanted, "jetson_base_jtop": JTOP}))


def installed(board: Host) -> set[str]:
    """Which of both the board has."""
    return {"chrony installed", f"jetson-stats=={JTOP}"} & set(board.ssh(HAS).stdout.splitlines())


def test_chrony_is_installed_with_the_time_server_that_is_named(furnished):
    # Its service does not start in a container, which may not set the clock (CAP_SYS_TIME).
    board = furnished.boards[BOARD]

    assert "chrony installed" in installed(board)
    assert f"server {furnished.server.address} iburst" in board.run("cat /etc/chrony/chrony.conf")


def test_jetson_stats_has_the_version_asked_for_and_its_service_starts_with_the_board(furnished):
    board = furnished.boards[BOARD]

    assert f"jetson-stats=={JTOP}" in installed(board)
    assert board.run("systemctl is-enabled jtop").strip() == "enabled"


def test_the_board_is_well_and_doing_it_again_tries_to_start_chrony_alone(furnished, tmp_path):
    done = provision(furnished)

    assert re.findall(r"TASK \[([^\]]*)\] \**\nchanged:", done.stdout) == ["jetson_base : Start chrony"], done.stdout[
        -4000:
    ]
    assert findings_of(furnished, tmp_path)[BOARD] == ""


def test_both_go_with_the_board(furnished):
    board = furnished.boards[BOARD]
    done = furnished.fedge("down", "--remove", "--yes", "--limit", BOARD)

    assert done.returncode == 0, done.stdout[-4000:]
    assert installed(board) == set()
    assert board.ssh("ls /etc/systemd/system/jtop.service /etc/chrony/chrony.conf").stdout == ""
