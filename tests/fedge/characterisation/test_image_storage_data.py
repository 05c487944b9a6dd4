"""Where a point's images lie, and why they cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedge.characterisation import image_storage
from fedge.characterisation.image_storage import Mount
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.errors import BadInput
from fedge.worker import generated_images

POINT = SweepPoint("here", "w", storage="card")
TINY = Images(8, 24, 16)
Why = Callable[..., str | None]


def plan_with(storage: StoragePlan) -> CharacterisationPlan:
    return CharacterisationPlan("p", ("here",), {}, {storage.name: storage}, MeasurementSchedule(), ())


def workload(images: Images = TINY) -> WorkloadPlan:
    return WorkloadPlan("w", "lenet5", (3, 16, 16), 10, images)


@pytest.fixture
def why(tmp_path: Path) -> Why:
    def asked(storage: StoragePlan, images: Images = TINY, point: SweepPoint = POINT) -> str | None:
        return image_storage.storage_refusal(plan_with(storage), tmp_path / "out", point, workload(images))

    return asked


def test_a_storage_that_is_not_mounted_is_refused_and_not_made(tmp_path: Path, why: Why) -> None:
    assert why(StoragePlan("card", str(tmp_path / "gone"))) == (
        f"storage card: there is no folder {tmp_path}/gone; mount it, or make it"
    )
    assert not (tmp_path / "gone").exists()


def test_an_emulated_storage_is_refused(why: Why) -> None:
    assert why(StoragePlan("card", model="sd")) == "storage card is an emulated one (sd); here it needs a path"


def test_a_storage_that_cannot_be_written_is_refused_unless_its_images_are_there(
    tmp_path: Path, why: Why, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, how: False)
    card = StoragePlan("card", str(tmp_path))
    assert "cannot be written by this user" in (why(card) or "")
    generated_images.make_images(str(tmp_path), image_storage.make_image_request(TINY))
    assert why(card) is None


def test_a_full_storage_is_refused(tmp_path: Path, why: Why) -> None:
    reason = why(StoragePlan("card", str(tmp_path)), replace(TINY, count=2**31 - 1, width=4000, height=4000))
    assert "MB free; 2147483647 images and a reserve need" in (reason or "")


def test_files_in_memory_cannot_be_dropped_but_be_warm(
    tmp_path: Path, why: Why, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_storage, "find_mount", lambda path: Mount("/", "tmpfs", "tmpfs", None))
    card = StoragePlan("card", str(tmp_path))
    assert f"{tmp_path} is a tmpfs" in (why(card) or "")
    assert why(card, point=replace(POINT, cache="warm")) is None


def test_a_users_folder_must_be_there_and_on_the_storage(tmp_path: Path, why: Why) -> None:
    (tmp_path / "card/photos").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    card = StoragePlan("card", str(tmp_path / "card"))
    assert why(card, replace(TINY, folder="photos")) is None
    assert why(card, replace(TINY, folder=str(tmp_path / "card/photos"))) is None
    assert "there is no folder" in (why(card, replace(TINY, folder="gone")) or "")
    assert "does not lie on storage card" in (why(card, replace(TINY, folder=str(tmp_path / "elsewhere"))) or "")


def test_a_point_without_a_path_has_its_images_in_the_sweeps_folder(tmp_path: Path) -> None:
    plan, heard = plan_with(StoragePlan("card")), list[str]()
    found = image_storage.prepare_data_set(plan, tmp_path, POINT, workload(), heard.append)
    assert found.folder.is_relative_to(tmp_path / "images")
    assert len(found.files) == 8
    assert found.program_spec == {"folder": str(found.folder)}
    assert 0.0005 < found.file_mb < 0.01
    assert heard == [f"makes images on {tmp_path}/images: 8 of 8"]


def test_images_in_memory_are_read_from_one_file(tmp_path: Path) -> None:
    plan = plan_with(StoragePlan("card", str(tmp_path)))
    found = image_storage.prepare_data_set(
        plan, tmp_path, POINT, workload(replace(TINY, source="memory")), lambda _: None
    )
    assert found.files == ()
    assert found.cached_files == (str(found.folder / "images.npy"),)
    assert found.file_mb == 0


def test_a_users_folder_without_images_is_a_mistake_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    plan = plan_with(StoragePlan("card", str(tmp_path)))
    with pytest.raises(BadInput, match="without images"):
        image_storage.prepare_data_set(plan, tmp_path, POINT, workload(replace(TINY, folder="photos")), lambda _: None)
