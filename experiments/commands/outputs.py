"""Where a command may write: in a folder that exists, over its own earlier output, never over anything else."""

from __future__ import annotations

from pathlib import Path

from fedge.errors import BadInput


def check_output(option: str, path: Path | None, starts: str) -> None:
    """Raise ``BadInput`` unless ``path`` is new or a file that begins with ``starts``, as this command's output does.

    So a slip of the tab key does not replace a measured table, a model or a device by a page.
    """
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise BadInput(option, str(path), "the path of a file in a folder that exists")
    if path.exists() and not (path.is_file() and _begins(path, starts)):
        raise BadInput(option, f"{path}, which holds something else", "a new file, or this command's earlier output")


def _begins(path: Path, starts: str) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(starts)).lower() == starts.lower().encode()
    except OSError:
        return False
