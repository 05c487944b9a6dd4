"""Files that are replaced as a whole: a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes ``path`` at the end of the context, once its content is on the disk.

    The folder is created. After an error ``path`` is unchanged and the temporary file is gone.

    Args:
        path: The file to replace or create.

    Raises:
        OSError: The file or its folder cannot be written; it names a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # of a write, as on a full disk
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file by UTF-8 text, with line ends as they are."""
    with replace_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="")


def sync_folder(folder: Path) -> None:
    """Sync a folder, because a new file's name is on disk only after its folder has been synced."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
