"""The images of a point: where they lie on its storage, why they cannot, made where they are not there yet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedge.characterisation.here.mounts import Mount, mount_of
from fedge.characterisation.plans.plan import Images, Plan, StoragePlan, WorkloadPlan
from fedge.characterisation.point import Point
from fedge.characterisation.rig import Told
from fedge.errors import BadInput, BoardError
from fedge.worker import imaging
from fedge.worker.refusal import Refusal

OWN = "images"
"""Below the sweep's folder: where images lie when a storage names no path."""
DEFAULT = "default"
"""The storage of a plan that names none: the sweep's own folder."""
TELL_EVERY = 500


@dataclass(frozen=True, slots=True)
class DataSet:
    """Where a point's images lie; ``files`` are what an epoch reads, none where they are held in memory."""

    place: Path
    files: tuple[str, ...]
    array: Path | None
    mount: Mount

    @property
    def cached_files(self) -> tuple[str, ...]:
        """The files whose place in the page cache matters: of data held in memory the one it is read from."""
        return self.files if self.array is None else (str(self.array),)

    @property
    def spec(self) -> dict[str, str]:
        """As the measuring program wants it."""
        return {"folder": str(self.place)} if self.array is None else {"array": str(self.array)}

    @property
    def file_mb(self) -> float:
        """Mean size of what a sample is read from; 0 where it lies in memory."""
        return sum(Path(file).stat().st_size for file in self.files) / max(1, len(self.files)) / 1e6


def wanted(images: Images) -> imaging.Wanted:
    """The images to be made."""
    in_memory = images.source == "memory"
    return imaging.Wanted(images.count, images.width, images.height, images.channels, 0, images.kb, in_memory)


def storage_path(plan: Plan, folder: Path, name: str) -> Path:
    """The folder that a storage of the plan is; ``folder`` is the sweep's own."""
    storage = plan.storages.get(name, StoragePlan(name))
    return Path(storage.path).expanduser() if storage.path is not None else folder / OWN


def own_folder(plan: Plan, folder: Path, point: Point, images: Images) -> Path | None:
    """The user's own images: an absolute folder, or one below the storage's path. None: they are made."""
    if images.folder is None:
        return None
    return storage_path(plan, folder, point.storage) / Path(images.folder).expanduser()


def why_not(plan: Plan, folder: Path, point: Point, workload: WorkloadPlan) -> str | None:
    """Why a point's images cannot lie where they should, in words; None where they can."""
    if point.storage != DEFAULT and point.storage not in plan.storages:
        return f"the plan has no storage called {point.storage}; it has {', '.join(plan.storages) or 'none'}"
    storage = plan.storages.get(point.storage, StoragePlan(point.storage))
    if storage.path is None and storage.model is not None:
        return f"storage {point.storage} is an emulated one ({storage.model}); here it needs a path"
    path = storage_path(plan, folder, point.storage)
    if storage.path is None:  # it is made where images are; until then what holds it is looked at
        path = next(found for found in (path, *path.parents) if found.is_dir())
    if not path.is_dir():
        return f"storage {point.storage}: there is no folder {path}; mount it, or make it"
    own = own_folder(plan, folder, point, workload.images)
    reason = _why_not_made(path, point, workload.images) if own is None else _why_not_own(path, own, storage, point)
    if reason is None and point.cache == "dropped" and mount_of(own or path).in_memory:
        kind = mount_of(own or path).kind
        return f"{own or path} is a {kind}: its files are the page cache itself and cannot be dropped; use cache: warm"
    return reason


def _why_not_made(path: Path, point: Point, images: Images) -> str | None:
    asked = wanted(images)
    if imaging.is_complete(imaging.place_of(str(path), asked)):
        return None
    if not os.access(path, os.W_OK | os.X_OK):
        return f"storage {point.storage}: {path} cannot be written by this user, and its images are not there yet"
    try:
        imaging.checked(asked)
    except Refusal as refused:
        return str(refused)
    return imaging.why_no_room(str(path), asked)


def _why_not_own(path: Path, own: Path, storage: StoragePlan, point: Point) -> str | None:
    if not own.is_dir():
        return f"images.folder: there is no folder {own}"
    if storage.path is not None and not own.resolve().is_relative_to(path.resolve()):
        return (
            f"images.folder {own} does not lie on storage {point.storage} ({path}); "
            "name a folder below the storage's path, without / in front, and have a copy on each storage"
        )
    return None


def data_set(plan: Plan, folder: Path, point: Point, workload: WorkloadPlan, told: Told) -> DataSet:
    """A point's images, made where they are not there yet.

    Raises ``BadInput`` without room for them or without images in the user's folder, ``BoardError`` for a storage that
    cannot be written.
    """
    own = own_folder(plan, folder, point, workload.images)
    path = storage_path(plan, folder, point.storage)
    try:
        if path == folder / OWN:  # never make a folder where a storage should be mounted
            path.mkdir(parents=True, exist_ok=True)
        place = imaging.make(str(path), wanted(workload.images), _aloud(told, path)) if own is None else own
        if workload.images.source == "memory":
            return DataSet(place, (), _array(place), mount_of(place))
        files = imaging.chosen(imaging.files_of(str(place)), workload.images.count, str(place))
        return DataSet(place, tuple(file for file, _ in files), None, mount_of(place))
    except Refusal as refused:
        raise BadInput(refused.where, refused.got, refused.right) from refused
    except OSError as error:
        raise BoardError(f"the images cannot be made on storage {point.storage}: {error}") from error


def _array(place: Path) -> Path:
    array = place / imaging.ARRAY
    if not array.is_file():
        right = "an array (count, height, width, channels) of bytes, by numpy.save; or source: files"
        raise BadInput("images.folder", f"no {imaging.ARRAY} in {place}", right)
    return array


def _aloud(told: Told, path: Path) -> imaging.Hears:
    def hears(done: int, of: int) -> None:
        if done == of or done % TELL_EVERY == 0:
            told(f"makes images on {path}: {done} of {of}")

    return hears
