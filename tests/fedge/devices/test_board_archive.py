"""A recorded board is a root on which everything reads the same, without what would name the board or its owner."""

import tarfile
from pathlib import Path

import pytest
from contracts import jetsons

from fedge.clock import RealClock
from fedge.devices.board_archive import BOOT_ID, NO_BOOT_ID, write_board_archive
from fedge.devices.sensing import open_sensor
from fedge.errors import BadInput
from fedge.powerd.board_control import BoardControl
from fedge.powerd.config import Config
from fedge.powerd.machine import Machine


def unpacked(machine: Machine, tmp_path: Path) -> Machine:
    write_board_archive(machine, tmp_path / "board.tar.gz")
    with tarfile.open(tmp_path / "board.tar.gz") as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    return Machine(str(tmp_path / "unpacked" / "root"))


@pytest.mark.parametrize("name", jetsons.BOARDS)
def test_daemon_and_sensors_find_in_a_recorded_board_what_they_find_in_the_board(name, tmp_path):
    machine = Machine(str(jetsons.build(name, tmp_path)))
    recorded = unpacked(machine, tmp_path)
    board, again = (BoardControl(one, Config()) for one in (machine, recorded))
    first, second = (open_sensor("sysfs", one, RealClock()).read() for one in (machine, recorded))

    for told in ("identity", "tables", "presets", "preset", "mode", "limits"):
        assert getattr(again, told)() == getattr(board, told)(), told
    for read in ("rails_w", "temperatures_c", "gpu_mhz", "gpu_load"):
        assert getattr(second, read) == getattr(first, read), read


def test_what_names_the_board_is_left_out(tmp_path):
    root = jetsons.build(jetsons.BOARDS[0], tmp_path)
    (root / "proc/device-tree/serial-number").write_text("1423019042567\0", encoding="ascii")
    (root / "etc/hostname").write_text("marys-nano\n", encoding="ascii")
    with (root / "etc/nv_tegra_release").open("a", encoding="ascii") as file:
        file.write("# Serial Number: 1423019042567\n")

    machine = unpacked(Machine(str(root)), tmp_path)

    everything = b"".join(path.read_bytes() for path in Path(machine.root).rglob("*") if path.is_file())
    assert b"1423019042567" not in everything
    assert b"marys-nano" not in everything
    assert machine.read(BOOT_ID) == NO_BOOT_ID


@pytest.mark.parametrize("file", ["sys/kernel/debug/cactmon/mc_all", "sys/kernel/actmon_avg_activity/mc_all"])
def test_the_memorys_activity_is_taken_so_that_its_unit_can_be_told(tmp_path, file):
    root = jetsons.build(jetsons.BOARDS[-1], tmp_path)
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text("73421\n", encoding="ascii")

    assert unpacked(Machine(str(root)), tmp_path).read(f"/{file}") == "73421"


def test_what_cannot_be_read_is_told(tmp_path, monkeypatch):
    machine = Machine(str(jetsons.build(jetsons.BOARDS[0], tmp_path)))
    real = Path.open

    def guarded(self: Path, *args, **kwargs):
        if self.name == "nvpmodel.conf":
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", guarded)
    recording = write_board_archive(machine, tmp_path / "board.tar.gz")

    assert recording.unreadable == ("/etc/nvpmodel.conf: Permission denied",)
    assert "/etc/nvpmodel.conf" not in recording.taken


def test_a_machine_that_is_no_jetson_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(BadInput, match="no Jetson"):
        write_board_archive(Machine(str(tmp_path)), tmp_path / "out.tar.gz")

    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_one_line(tmp_path):
    machine = Machine(str(jetsons.build(jetsons.BOARDS[0], tmp_path)))
    (tmp_path / "file").write_text("", encoding="ascii")

    with pytest.raises(BadInput, match="cannot be written"):
        write_board_archive(machine, tmp_path / "file" / "out.tar.gz")
