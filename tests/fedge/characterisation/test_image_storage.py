"""The page cache before a point: dropped or filled, and a note where that was not reached."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedge.characterisation import image_storage
from fedge.characterisation.image_storage import Mount, find_mount, parse_mounts
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.errors import BadInput
from fedge.worker import generated_images, page_cache


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    if find_mount(tmp_path).is_in_memory:
        pytest.skip("files in memory cannot be dropped")
    paths = [tmp_path / f"{k}" for k in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(40_000))
    return [str(path) for path in paths]


def never() -> str | None:
    raise AssertionError("all of the cache was dropped")


def test_files_are_dropped_alone_and_read_again(files):
    assert image_storage.set_cache_state(files, "dropped", drop_all=never) == ()
    assert page_cache.resident_share(files) == pytest.approx(0.0)
    assert image_storage.set_cache_state(files, "warm", drop_all=never) == ()
    assert page_cache.resident_share(files) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("cache", "shares", "why", "note"),
    [
        ("dropped", (0.4, 0.3), "nobody may", "dropped: 30 % of the images stayed in it (nobody may)"),
        ("dropped", (None, None), None, "cannot be seen"),
        ("warm", (0.5,), None, "holds 50 % of the images only"),
    ],
)
def test_a_state_that_was_not_reached_is_noted(files, monkeypatch, cache, shares, why, note):
    seen = iter(shares)
    monkeypatch.setattr(page_cache, "resident_share", lambda paths: next(seen))
    assert note in image_storage.set_cache_state(files, cache, drop_all=lambda: why)[0]


def test_pages_that_stay_are_dropped_with_all_others(files, monkeypatch):
    shares = [0.4, 0.01]
    monkeypatch.setattr(page_cache, "resident_share", lambda paths: shares.pop(0))
    assert image_storage.set_cache_state(files, "dropped", drop_all=lambda: None) == ()


def test_root_drops_all_of_the_page_cache_and_nothing_else(tmp_path):
    control = tmp_path / "drop_caches"
    control.write_text("0")
    assert image_storage.drop_page_cache(str(tmp_path / "no.sock"), control) is None
    assert control.read_text() == "1"


def test_without_root_and_without_a_daemon_it_is_said_who_could(tmp_path):
    reason = image_storage.drop_page_cache(str(tmp_path / "no.sock"), tmp_path / "gone/drop_caches")
    assert "root alone, or through the power daemon" in reason


POINT = SweepPoint("here", "w", storage="card")
TINY = Images(count=8, width=24, height=16)
Why = Callable[..., str | None]


def tiny(**changed: object) -> Images:
    return TINY.model_copy(update=changed)


def plan_with(storage: StoragePlan) -> CharacterisationPlan:
    return CharacterisationPlan("p", ("here",), {}, {storage.name: storage}, MeasurementSchedule(), ())


def workload(images: Images = TINY) -> WorkloadPlan:
    return WorkloadPlan(name="w", model="lenet5", input=(3, 16, 16), classes=10, images=images)


@pytest.fixture
def why(tmp_path: Path) -> Why:
    def asked(storage: StoragePlan, images: Images = TINY, point: SweepPoint = POINT) -> str | None:
        return image_storage.storage_refusal(plan_with(storage), tmp_path / "out", point, workload(images))

    return asked


def test_a_storage_that_is_emulated_or_not_mounted_is_refused_and_not_made(tmp_path, why):
    assert why(StoragePlan(name="card", path=str(tmp_path / "gone"))) == (
        f"storage card: there is no folder {tmp_path}/gone; mount it, or make it"
    )
    assert not (tmp_path / "gone").exists()
    assert why(StoragePlan(name="card", model="sd")) == "storage card is an emulated one (sd); here it needs a path"


def test_a_storage_that_cannot_be_written_is_refused_unless_its_images_are_there(tmp_path, why, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, how: False)
    card = StoragePlan(name="card", path=str(tmp_path))
    assert "cannot be written by this user" in (why(card) or "")
    generated_images.make_images(str(tmp_path), image_storage.make_image_request(TINY))
    assert why(card) is None


def test_a_full_storage_is_refused(tmp_path, why):
    reason = why(StoragePlan(name="card", path=str(tmp_path)), tiny(count=2**31 - 1, width=4000, height=4000))
    assert "MB free; 2147483647 images and a reserve need" in (reason or "")


def test_files_in_memory_cannot_be_dropped_but_be_warm(tmp_path, why, monkeypatch):
    monkeypatch.setattr(image_storage, "find_mount", lambda path: Mount("/", "tmpfs", "tmpfs", None))
    card = StoragePlan(name="card", path=str(tmp_path))
    assert f"{tmp_path} is a tmpfs" in (why(card) or "")
    assert why(card, point=replace(POINT, cache="warm")) is None


def test_a_users_folder_must_be_there_and_on_the_storage(tmp_path, why):
    (tmp_path / "card/photos").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    card = StoragePlan(name="card", path=str(tmp_path / "card"))
    assert why(card, tiny(folder="photos")) is None
    assert why(card, tiny(folder=str(tmp_path / "card/photos"))) is None
    assert "there is no folder" in (why(card, tiny(folder="gone")) or "")
    assert "does not lie on storage card" in (why(card, tiny(folder=str(tmp_path / "elsewhere"))) or "")


def test_a_point_without_a_path_has_its_images_in_the_sweeps_folder(tmp_path):
    plan, heard = plan_with(StoragePlan(name="card")), list[str]()
    found = image_storage.prepare_data_set(plan, tmp_path, POINT, workload(), heard.append)
    assert found.folder.is_relative_to(tmp_path / "images")
    assert len(found.files) == 8
    assert found.program_spec == {"folder": str(found.folder)}
    assert 0.0005 < found.file_mb < 0.01
    assert heard == [f"makes images on {tmp_path}/images: 8 of 8"]


def test_images_in_memory_are_read_from_one_file(tmp_path):
    plan = plan_with(StoragePlan(name="card", path=str(tmp_path)))
    found = image_storage.prepare_data_set(plan, tmp_path, POINT, workload(tiny(source="memory")), lambda _: None)
    assert found.files == ()
    assert found.cached_files == (str(found.folder / "images.npy"),)
    assert found.file_mb == 0


def test_a_users_folder_without_images_is_a_mistake_in_the_plan(tmp_path):
    (tmp_path / "photos").mkdir()
    plan = plan_with(StoragePlan(name="card", path=str(tmp_path)))
    with pytest.raises(BadInput, match="without images"):
        image_storage.prepare_data_set(plan, tmp_path, POINT, workload(tiny(folder="photos")), lambda _: None)


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


def test_the_longest_mount_above_a_path_holds_it(proc):
    assert find_mount(proc / "my card/a/b", proc) == Mount(f"{proc}/my card", "vfat", "/dev/mmcblk1p1", "179:1")
    assert find_mount(proc / "ramp", proc).device == "/dev/sda2"  # not below .../ram, though it begins so
    (proc / "link").symlink_to(proc / "my card")
    assert find_mount(proc / "link/x", proc).kind == "vfat"


def test_files_in_memory_are_known():
    (mount,) = parse_mounts("30 22 0:26 / /dev/shm rw - tmpfs tmpfs rw")
    assert mount.is_in_memory
    assert str(mount) == "tmpfs on tmpfs"
