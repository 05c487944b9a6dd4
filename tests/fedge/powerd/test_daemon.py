"""The program: how it starts, what it says when it cannot, how it ends, and that it stands alone."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from contracts.jetsons.kernel import Fault, KernelMachine, hot, lost_sensor
from contracts.running_powerd import ROOT, Running, board_root, state_of

from fedge.powerd import daemon
from fedge.powerd.powerd_client import PowerdError


def failed(*arguments, program=("-m", "fedge.powerd"), cwd=ROOT):
    """Exit code, and the one line that says why."""
    command = [sys.executable, *program, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=str(cwd), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=30, check=False
    )
    text = done.stderr.decode()
    assert text.count("\n") == 1, text
    assert text.startswith("fedge-powerd: ")
    return done.returncode, text


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ('{"floor": {"gpu": 1}}', 2, "floor.cpu_khz"),
        (None, 2, "no such file"),
        ('{"group": "root"}', 1, "no Jetson"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line_and_an_exit_code(tmp_path, settings, code, says):
    file = tmp_path / "powerd.json"
    if settings is not None:
        file.write_text(settings)
    found, text = failed("--root", tmp_path, "--config", file)
    assert found == code
    assert says in text


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's daemon has no group")
def test_a_missing_group_is_one_line_with_the_command(tmp_path):
    code, text = failed("--root", board_root("nano", tmp_path, group="no-such-group-here"))
    assert code == 2
    assert "groupadd --system no-such-group-here" in text


def test_it_starts_sets_and_puts_back_when_it_is_told_to_end(tmp_path):
    root = board_root("nano", tmp_path)
    before = state_of(root)
    with Running(root) as one:
        client = one.wait_until_up()
        table = client.describe()["allowed"]
        client.set_mode({"cores": table["cores"][0], "gpu_hz": table["gpu_hz"][0]})
        assert state_of(root) != before
        assert (root / "var/lib/fedge-powerd/found.json").exists()
        client.close()
        assert one.end() == 0, one.log()
        assert not Path(one.socket).exists()
        assert "listens at" in one.log()
    assert state_of(root) == before
    assert sorted(path.name for path in (root / "var/lib/fedge-powerd").iterdir()) == ["lock"]


def test_an_end_that_cannot_put_all_back_is_exit_code_1_and_keeps_the_state_found(tmp_path):
    root = board_root("nano", tmp_path)
    with Running(root, quick=1) as one:
        client = one.wait_until_up()
        client.set_mode({"gpu_hz": client.describe()["allowed"]["gpu_hz"][0]})
        client.close()
        KernelMachine(str(root)).plant(Fault("refuse", "*max_freq", "EIO"))
        assert one.end() == 1
    assert (root / "var/lib/fedge-powerd/found.json").exists()


def test_a_second_daemon_on_one_board_is_refused(tmp_path):
    root = board_root("nano", tmp_path)
    with Running(root) as one:
        client = one.wait_until_up()
        with Running(root) as other:
            assert other.process.wait(20) == 1
            assert "another daemon" in other.log()
        client.get()
        client.close()


def test_it_runs_alone_and_isolated(tmp_path):
    """Only fedge/powerd and fedge/__init__.py, with -I, as a unit of systemd starts it."""
    root = board_root("nano", tmp_path / "board")
    package = tmp_path / "lib" / "fedge"
    shutil.copytree(str(ROOT / "fedge" / "powerd"), str(package / "powerd"))
    shutil.copy(str(ROOT / "fedge" / "__init__.py"), str(package / "__init__.py"))
    program = ("-I", str(package / "powerd"))
    code, text = failed("--root", root, "--socket", f"{tmp_path}{'s' * 120}", program=program, cwd=tmp_path)
    assert code == 1
    assert "longer than 107 bytes" in text


def test_a_lease_that_is_not_renewed_ends_in_a_real_daemon(tmp_path):
    root = board_root("nano", tmp_path)
    before = state_of(root)
    with Running(root) as one:
        client = one.wait_until_up()
        token = client.hold("ann", 0.3)["token"]
        client.set_mode({"cores": 2}, token=token)
        while client.get()["lease"] is not None:
            pass
        with pytest.raises(PowerdError) as caught:
            client.set_mode({"cores": 2}, token=token)
        assert caught.value.kind == "not-holder"
        assert state_of(root) == before
        assert token not in one.log()
        client.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [hot("*/thermal_zone*/temp", 99.0), lost_sensor("*/thermal_zone*/temp")])
def test_heat_or_a_lost_sensor_puts_a_real_board_back_within_the_second(tmp_path, fault):
    root = board_root("nano", tmp_path)
    before = state_of(root)
    with Running(root, quick=1) as one:
        client = one.wait_until_up()
        client.set_mode({"cores": 2})
        KernelMachine(str(root)).plant(fault)
        end_s = time.monotonic() + 20
        while client.get()["stopped"] is None:
            assert time.monotonic() < end_s
        assert state_of(root) == before
        with pytest.raises(PowerdError) as caught:
            client.set_mode({"cores": 2})
        assert caught.value.kind in {"too-hot", "sensor-lost"}
        KernelMachine(str(root)).plant()
        while client.get()["stopped"] is not None:
            assert time.monotonic() < end_s
        client.set_mode({"cores": 2})
        client.close()
        assert one.end() == 0
    assert state_of(root) == before


def test_systemd_is_told_when_it_asked_to_be(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="fp") as made:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.bind(made + "/n")
        listener.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", made + "/n")
        daemon.notify_systemd("READY=1")
        assert listener.recv(100) == b"READY=1"
        listener.close()
