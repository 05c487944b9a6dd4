"""Output of commands: checks that only new files or the command's own output are overwritten, consoles, progress."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

import click

from experiments.report.tables import print_lines
from fedge.atomic_files import probe_folder, write_text
from fedge.errors import BadInput
from fedge.phases import begin_phase

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


HTML_START = "<!doctype html><!-- fedge -->"
"""Beginning of every page of fedge (``experiments/report/templates``)."""


def check_output(option: str, path: Path | None, starts: str) -> None:
    """Check that a file can be written, and may be: it is new, or begins with ``starts``, ignoring case, like this
    command's output.

    This keeps a mistyped path from replacing a measured table or a model.

    Raises:
        BadInput: If the folder does not exist or takes no files, or the file exists and begins differently.
    """
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise BadInput(option, str(path), "the path of a file in a folder that exists")
    check_replaceable(option, path, starts)
    write_output(option, path, lambda file: probe_folder(file.parent))


def check_replaceable(option: str, path: Path, starts: str) -> None:
    """Check that a file is new or this command's own output, as ``check_output`` does.

    Raises:
        BadInput: It is another file, a folder or a device.
    """
    if path.is_dir():
        raise BadInput(option, str(path), "the path of a file, not a folder")
    if path.exists() and not (path.is_file() and _starts_with(path, starts)):
        raise BadInput(option, f"{path}, which holds something else", "a new file, or this command's earlier output")


def check_folder(option: str, folder: Path) -> None:
    """Check that a folder, which may have to be made, can be written; raises ``BadInput``."""
    write_output(option, folder, probe_folder, "folder")


def _starts_with(path: Path, starts: str) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(starts)).lower() == starts.lower().encode()
    except OSError:
        return False


def print_json(value: object, *, indent: int | None = None) -> None:
    """Print a record, or anything that holds records, as JSON."""
    sys.stdout.write(json.dumps(value, indent=indent, default=dataclasses.asdict) + "\n")


def write_json(out: Path | None, value: object) -> None:
    """Write a record, or anything that holds records, as JSON to the file of ``--out``; nothing if none is given."""
    if out is not None:
        text = json.dumps(value, indent=2, default=dataclasses.asdict) + "\n"
        write_output("--out", out, lambda path: write_text(path, text))


@dataclasses.dataclass(frozen=True, slots=True)
class Outputs:
    """Where a command's result goes: to standard output, and to the files of ``--out`` and ``--html`` if named."""

    as_json: bool
    out: Path | None = None
    html: Path | None = None

    def check(self, starts: str) -> None:
        """Check the files before anything is computed; that of ``--out`` begins with ``starts``.

        Raises:
            BadInput: If one of them cannot be written (``check_output``), or both are the same.
        """
        check_output("--out", self.out, starts)
        check_output("--html", self.html, HTML_START)
        if self.out is not None and self.html is not None and self.out.absolute() == self.html.absolute():
            raise BadInput("--html", str(self.html), "another file than --out")

    def deliver(
        self, data: object, view: Callable[[Console], object], page: Callable[[Path], object] | None = None
    ) -> None:
        """Write the files, and print the result as JSON, its ``data``, or as the ``view`` on a terminal."""
        # In this order: whoever reads the output may have gone, and the result is not to go with them.
        write_json(self.out, data)
        if self.html is not None and page is not None:
            write_output("--html", self.html, page)
        if self.as_json:
            print_json(data)
        else:
            view(make_console())


def write_output(option: str, path: Path, write: Callable[[Path], T], what: str = "file") -> T:
    """Return ``write(path)``; an error names the command's ``option``.

    Raises:
        BadInput: If the file, or another ``what``, cannot be written.
    """
    try:
        return write(path)
    except OSError as error:
        raise BadInput(option, str(path), f"a {what} that can be written ({error.strerror})") from error


def print_plan(plan: Mapping[str, object], as_json: bool) -> None:
    """Print what a command would do, as ``--dry-run`` shows it."""
    if as_json:
        print_json(plan)
        return
    width = max(map(len, plan))
    for name, value in plan.items():
        print_line(f"{name:<{width}}  {value}")
    print_line("nothing was started (--dry-run)")


def ask_confirmation(question: str, without_terminal: str) -> bool:
    """Return the user's answer to a question.

    Raises:
        BadInput: Without a terminal to ask at; ``without_terminal`` says what to call then.
    """
    if not sys.stdin.isatty():
        raise BadInput("--yes", "no terminal to ask at", without_terminal)
    begin_phase("")  # a sign of life would replace the question on a terminal
    return click.confirm(question)


def is_quiet() -> bool:
    """Return whether the command was called with ``--quiet``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


def write_if_heard(stream: TextIO, text: str) -> None:
    """Write to standard error; once nobody reads it, its file becomes /dev/null, so that no later write fails."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        with suppress(OSError), Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())


def warn(text: str) -> None:
    """Write a note for the user to standard error; a terminal wraps it between words."""
    write_error(f"fedge: {text}")


def write_error(text: str) -> None:
    """Write lines to standard error as they are; a terminal wraps them between words."""
    lines = text.splitlines()
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        wrapped = (textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False) for line in lines)
        lines = [part for parts in wrapped for part in parts]
    write_if_heard(sys.stderr, "".join(f"{line}\n" for line in lines))


def print_line(text: str) -> None:
    """Print a line as ``print_lines`` does, on standard output."""
    print_lines(make_console(), [text])


WHOLE_COLUMNS = 100_000
"""Columns of a console that writes to a file or a pipe: more than any line has, so that none is wrapped or cut."""


def make_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Create the console of a command; a quiet one shows nothing.

    Its width is that of the terminal or of ``COLUMNS``; a file or a pipe gets every line whole.
    """
    from rich.console import Console

    console = Console(stderr=stderr, quiet=quiet)
    if not (console.is_terminal or console.is_jupyter or os.environ.get("COLUMNS", "").isdigit()):
        console.width = WHOLE_COLUMNS
    return console


def make_progress_console(*, stderr: bool = True) -> Console:
    """Create the console of what a command shows while it works: a quiet one with ``--quiet``."""
    return make_console(stderr=stderr, quiet=is_quiet())


@contextmanager
def show_bar(total: int) -> Iterator[Callable[[int, str], None]]:
    """Show a bar and a text, which the yielded function replaces, on the terminal; silent without a terminal."""
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    shown = make_progress_console()
    fitted = Column(no_wrap=True, overflow="ellipsis")
    columns = (BarColumn(bar_width=10), TextColumn("{task.description}", table_column=fitted))
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as line:
        task = line.add_task("starting", total=total)
        yield lambda done, text: line.update(task, completed=done, description=escape(text))


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show the number of finished runs and the last one on the terminal; silent without a terminal.

    Yields a function to be called with the name of each finished run.
    """
    with show_bar(total) as show:
        numbers = count(1)

        def report(step: str) -> None:
            done = next(numbers)
            place = f"{done} of {total} done, the last one {step}"
            show(done, place)
            begin_phase(place)

        begin_phase(f"0 of {total} done")
        yield report


@contextmanager
def show_job_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show the number of finished jobs and the last one; without a terminal, one line per job.

    A job takes up to minutes, so silence in a log would look like a hang.
    """
    if is_quiet() or make_console(stderr=True).is_terminal:
        with show_progress(total) as report_job:
            yield report_job
    else:
        yield lambda job: warn(f"done: {job}")
