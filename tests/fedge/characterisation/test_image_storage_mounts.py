"""On which file system a path lies, by the kernel's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedge.characterisation.image_storage import Mount, find_mount, parse_mounts

TABLE = r"""
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
30 22 0:26 / {base}/ram rw - tmpfs tmpfs rw,size=1k
31 22 179:1 / {base}/my\040card rw master:2 shared:3 - vfat /dev/mmcblk1p1 rw
32 22 0:40 / {base}/net rw - nfs4 server:/export rw
33 22 259:1 / {base}/ram rw - xfs /dev/nvme0n1p1 rw
no mount at all
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(TABLE.replace("{base}", str(tmp_path)), "utf-8")
    for name in ("ram", "my card", "net", "ramp"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_the_longest_mount_above_a_path_holds_it(proc: Path) -> None:
    assert find_mount(proc / "my card/a/b", proc) == Mount(f"{proc}/my card", "vfat", "/dev/mmcblk1p1", "179:1")
    assert find_mount(proc / "ramp", proc).device == "/dev/sda2"  # not below .../ram, though it begins so


def test_of_two_mounts_at_one_place_the_later_one_counts(proc: Path) -> None:
    assert find_mount(proc / "ram", proc).kind == "xfs"


def test_what_has_no_block_device_says_so(proc: Path) -> None:
    assert find_mount(proc / "net", proc).disk is None


def test_a_path_through_a_link_lies_where_the_link_leads(proc: Path) -> None:
    (proc / "link").symlink_to(proc / "my card")
    assert find_mount(proc / "link/x", proc).kind == "vfat"


def test_files_in_memory_are_known() -> None:
    (mount,) = parse_mounts("30 22 0:26 / /dev/shm rw - tmpfs tmpfs rw")
    assert mount.is_in_memory
    assert str(mount) == "tmpfs on tmpfs"


def test_this_machines_own_table_is_understood() -> None:
    assert find_mount(Path("/")).point == "/"
