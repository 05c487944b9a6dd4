"""What the study commands share: their lists of names, files of results, and a line of progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.commands.outputs import check_output
from fedge.errors import BadInput
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from rich.console import Console


def names_of(text: str) -> tuple[str, ...]:
    """The policies of ``--policy``; raises ``BadInput`` for empty and repeated ones."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words) or len(set(words)) < len(words):
        raise BadInput("--policy", repr(text), "names of policies, separated by commas, each once")
    return words


def check_outputs(json_file: Path | None, html: Path | None) -> None:
    """Raise ``BadInput`` for a place where a result cannot be put, before anything is computed."""
    check_output("--json", json_file, "[")
    check_output("--html", html, "<!doctype html")
    if json_file is not None and html is not None and json_file.absolute() == html.absolute():
        raise BadInput("--html", str(html), "another file than --json")


def write_rows(json_file: Path | None, rows: Sequence[object]) -> None:
    """The rows as a JSON list."""
    if json_file is not None:
        written("--json", json_file, lambda path: run_folder.write_json(path, list(rows)))


def written(option: str, path: Path, write: Callable[[Path], None]) -> None:
    """``write(path)``; raises ``BadInput`` where the file cannot be written."""
    try:
        write(path)
    except OSError as error:
        raise BadInput(option, str(path), f"a file that can be written ({error.strerror})") from error


def console(*, stderr: bool = False) -> Console:
    """Where a command prints."""
    from rich.console import Console

    return Console(stderr=stderr)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A line on the terminal: how many runs are done and which was the last; nothing where there is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shown = console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as line:
        task = line.add_task("starting", total=total)
        yield lambda step: line.update(task, advance=1, description=step)
