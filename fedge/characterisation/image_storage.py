"""Storage of images: mounts and block devices, creation of data sets, and the state of the page cache."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedge.characterisation.point_measurement import ProgressCallback
from fedge.characterisation.sweep_plan import (
    DEFAULT_STORAGE,
    CacheState,
    CharacterisationPlan,
    Images,
    StoragePlan,
    SweepPoint,
    WorkloadPlan,
)
from fedge.errors import BadInput, BoardError
from fedge.powerd.powerd_client import SOCKET, PowerdClient, PowerdError
from fedge.worker import generated_images, page_cache
from fedge.worker.refusal import Refusal

IN_MEMORY_TYPES = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
"""File systems whose files live in the page cache and cannot be dropped from it."""
NO_DEVICE = "0"
"""Major number of file systems without a block device of their own: network, overlay, btrfs."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """An entry of the kernel's table of mounts.

    Attributes:
        disk: Numbers of the block device, such as "8:1".
    """

    point: str
    kind: str
    device: str
    disk: str | None

    @property
    def is_in_memory(self) -> bool:
        """Whether its files exist in memory only."""
        return self.kind in IN_MEMORY_TYPES

    def __str__(self) -> str:
        return f"{self.kind} on {self.device}{f' ({self.disk})' if self.disk else ''}"


def find_mount(path: Path, proc: Path = Path("/proc")) -> Mount:
    """Return the mount that holds a path; raises ``OSError`` if the table of mounts cannot be read or has none."""
    real = os.path.realpath(path)
    found = [
        mount for mount in parse_mounts((proc / "self/mountinfo").read_text("utf-8")) if _is_below(real, mount.point)
    ]
    if not found:
        raise OSError(f"no mount holds {real}")
    longest = max(len(mount.point) for mount in found)
    return [mount for mount in found if len(mount.point) == longest][-1]  # the last mount covers the earlier ones


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Parse ``/proc/PID/mountinfo``; lines in another format are skipped."""
    return tuple(mount for line in text.splitlines() if (mount := _parse_mount(line)) is not None)


def _parse_mount(line: str) -> Mount | None:
    own, separator, beside = line.partition(" - ")
    fields, more = own.split(" "), beside.split(" ")
    if not separator or len(fields) < 5 or len(more) < 2:
        return None
    # Spaces and similar characters are octal escapes.
    point, device = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), text) for text in (fields[4], more[1]))
    return Mount(point, more[0], device, None if fields[2].split(":")[0] == NO_DEVICE else fields[2])


def _is_below(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(folder.rstrip("/") + "/")


IMAGES_FOLDER = "images"
"""Subfolder of the sweep's folder for images of a storage without a path."""
PROGRESS_EVERY = 500


@dataclass(frozen=True, slots=True)
class ImageDataSet:
    """A point's images on disk.

    Attributes:
        files: The files that an epoch reads; empty if the data are held in memory.
        array: The array file that is loaded into memory, if any.
    """

    folder: Path
    files: tuple[str, ...]
    array: Path | None
    mount: Mount

    @property
    def cached_files(self) -> tuple[str, ...]:
        """The files whose presence in the page cache matters; for data held in memory, the file they come from."""
        return self.files if self.array is None else (str(self.array),)

    @property
    def program_spec(self) -> dict[str, str]:
        """The data set as the measuring program's specification has it."""
        return {"folder": str(self.folder)} if self.array is None else {"array": str(self.array)}

    @property
    def file_mb(self) -> float:
        """Mean file size per sample in MB; 0 for data held in memory."""
        return sum(Path(file).stat().st_size for file in self.files) / max(1, len(self.files)) / 1e6


def make_image_request(images: Images) -> generated_images.ImageSetSpec:
    size = {name: getattr(images, name) for name in ("width", "height", "channels", "kb")}
    return generated_images.ImageSetSpec(images.count, **size, seed=0, in_memory=images.source == "memory")


def storage_path(plan: CharacterisationPlan, folder: Path, name: str) -> Path:
    storage = plan.storages.get(name, StoragePlan(name=name))
    return Path(storage.path).expanduser() if storage.path is not None else folder / IMAGES_FOLDER


def user_image_folder(plan: CharacterisationPlan, folder: Path, point: SweepPoint, images: Images) -> Path | None:
    """Return the folder of the user's own images, or None if images are generated."""
    if images.folder is None:
        return None
    return storage_path(plan, folder, point.storage) / Path(images.folder).expanduser()


def storage_refusal(plan: CharacterisationPlan, folder: Path, point: SweepPoint, workload: WorkloadPlan) -> str | None:
    """Return why a point's images cannot be on its storage, in words for the user, or None if they can."""
    if point.storage != DEFAULT_STORAGE and point.storage not in plan.storages:
        return f"the plan has no storage called {point.storage}; it has {', '.join(plan.storages) or 'none'}"
    storage = plan.storages.get(point.storage, StoragePlan(name=point.storage))
    if storage.path is None and storage.model is not None:
        return f"storage {point.storage} is an emulated one ({storage.model}); here it needs a path"
    path = storage_path(plan, folder, point.storage)
    if storage.path is None:  # created with the images; until then, check its nearest existing parent
        path = next(found for found in (path, *path.parents) if found.is_dir())
    if not path.is_dir():
        return f"storage {point.storage}: there is no folder {path}; mount it, or make it"
    own = user_image_folder(plan, folder, point, workload.images)
    if own is None:
        reason = _creation_refusal(path, point, workload.images)
    else:
        reason = _user_folder_refusal(path, own, storage, point)
    if reason is None and point.cache == "dropped" and (mount := find_mount(own or path)).is_in_memory:
        where = f"{own or path} is a {mount.kind}"
        return f"{where}: its files are the page cache itself and cannot be dropped; use cache: warm"
    return reason


def _creation_refusal(path: Path, point: SweepPoint, images: Images) -> str | None:
    request = make_image_request(images)
    if generated_images.is_complete(generated_images.image_set_folder(str(path), request)):
        return None
    if not os.access(path, os.W_OK | os.X_OK):
        return f"storage {point.storage}: {path} cannot be written by this user, and its images are not there yet"
    try:
        generated_images.check_image_spec(request)
    except Refusal as refused:
        return str(refused)
    return generated_images.explain_lack_of_space(str(path), request)


def _user_folder_refusal(path: Path, own: Path, storage: StoragePlan, point: SweepPoint) -> str | None:
    if not own.is_dir():
        return f"images.folder: there is no folder {own}"
    if storage.path is not None and not own.resolve().is_relative_to(path.resolve()):
        return (
            f"images.folder {own} does not lie on storage {point.storage} ({path}); "
            "name a folder below the storage's path, without / in front, and have a copy on each storage"
        )
    return None


def prepare_data_set(
    plan: CharacterisationPlan, folder: Path, point: SweepPoint, workload: WorkloadPlan, report: ProgressCallback
) -> ImageDataSet:
    """Return a point's images, generating them if they do not exist yet.

    Raises:
        BadInput: There is no room for the images, or the user's folder has none.
        BoardError: The storage cannot be written.
    """
    own = user_image_folder(plan, folder, point, workload.images)
    path = storage_path(plan, folder, point.storage)
    try:
        if path == folder / IMAGES_FOLDER:  # do not create a folder where a storage should be mounted
            path.mkdir(parents=True, exist_ok=True)
        place = own
        if place is None:
            request, progress = make_image_request(workload.images), _make_image_progress(report, path)
            place = generated_images.make_images(str(path), request, progress)
        if workload.images.source == "memory":
            return ImageDataSet(place, (), _find_array(place), find_mount(place))
        files = generated_images.choose_image_files(
            generated_images.list_image_files(str(place)), workload.images.count, str(place)
        )
        return ImageDataSet(place, tuple(file for file, _ in files), None, find_mount(place))
    except Refusal as refused:
        raise BadInput(refused.where, refused.got, refused.right) from refused
    except OSError as error:
        raise BoardError(f"the images cannot be made on storage {point.storage}: {error}") from error


def _find_array(place: Path) -> Path:
    array = place / generated_images.ARRAY
    if not array.is_file():
        right = "an array (count, height, width, channels) of bytes, by numpy.save; or source: files"
        raise BadInput("images.folder", f"no {generated_images.ARRAY} in {place}", right)
    return array


def _make_image_progress(report: ProgressCallback, path: Path) -> generated_images.ImageProgress:
    def report_progress(done: int, of: int) -> None:
        if done == of or done % PROGRESS_EVERY == 0:
            report(f"makes images on {path}: {done} of {of}")

    return report_progress


MAX_SHARE_AFTER_DROP = 0.05
"""Share of the data set's pages in the cache after a drop above which a note is added; a default above a few shared
pages."""
MIN_WARM_SHARE = 0.95
"""Share of the data set's pages in the cache after reading it below which a note is added; a default."""
DROP_CACHES_FILE = Path("/proc/sys/vm/drop_caches")
DROP_PAGES = "1"
"""Value that drops clean pages only."""


def set_cache_state(
    files: Sequence[str], cache: CacheState, *, drop_all: Callable[[], str | None] | None = None
) -> tuple[str, ...]:
    """Drop the files' pages from the page cache, or read all of them into it; return notes on what was not achieved.

    The files alone are dropped first, which needs no privilege. If pages remain (another process maps them, or the file
    system ignores the advice), ``drop_all`` drops the whole page cache; it returns why it could not, or None.

    Raises:
        BoardError: A file cannot be read.
    """
    try:
        if cache == "warm":
            page_cache.fill(files)
            return _cache_notes(page_cache.resident_share(files), least=MIN_WARM_SHARE)
        page_cache.drop(files)
        left = page_cache.resident_share(files)
        why = None
        if left is None or left > MAX_SHARE_AFTER_DROP:
            why = (drop_all or drop_page_cache)()
            left = page_cache.resident_share(files)
    except OSError as error:
        raise BoardError(f"the images cannot be read: {error}") from error
    return _cache_notes(left, most=MAX_SHARE_AFTER_DROP, why=why)


def _cache_notes(share: float | None, least: float = 0.0, most: float = 1.0, why: str | None = None) -> tuple[str, ...]:
    beside = f" ({why})" if why else ""
    if share is None:
        return (f"the page cache's share of the images cannot be seen: they belong to another user{beside}",)
    if share > most:
        return (f"the page cache could not be dropped: {100 * share:.0f} % of the images stayed in it{beside}",)
    if share < least:
        return (f"the page cache holds {100 * share:.0f} % of the images only, though all were read",)
    return ()


def drop_page_cache(socket: str = SOCKET, control: Path = DROP_CACHES_FILE) -> str | None:
    """Drop the whole page cache, as root or through the power daemon; return why it could not be, or None."""
    os.sync()
    with contextlib.suppress(OSError):
        control.write_text(DROP_PAGES)
        return None
    if not Path(socket).exists():
        return "all of the cache can be dropped by root alone, or through the power daemon, which is not here"
    try:
        with closing(PowerdClient(socket)) as power:
            power.drop_caches()
    except PowerdError as error:
        return f"the power daemon does not drop it: {error}"
    return None
