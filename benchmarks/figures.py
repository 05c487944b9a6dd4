"""Parts of a program, measured tables, terminal tables and errors: what the programs of this folder share.

    python benchmarks/figures.py

lists the programs, what each prints, and the pages that quote its figures.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedge.devices.tables.mode_table import list_batch_sizes, read_mode_table
from fedge.types import Floats, ProfileTable

HERE = Path(__file__).resolve()
FOUR_KINDS = ("nano", "xavier-nx", "agx-xavier", "agx-orin-64gb")
"""Boards of the mixed fleets, from slow to fast."""
PAPER_MODES = {
    "a": (4, 1200, 670, 1333),
    "b": (8, 1200, 670, 1333),
    "c": (8, 1200, 900, 1333),
    "d": (8, 1200, 900, 1600),
    "e": (8, 2100, 900, 1600),
    "f": (2, 2100, 900, 1600),
    "g": (8, 2265, 1377, 2133),
    "h": (8, 2265, 1377, 1066),
    "i": (8, 2265, 1377, 1333),
    "j": (8, 2265, 1377, 1600),
    "k": (4, 1036, 420, 2133),
    "l": (8, 1036, 420, 2133),
    "m": (8, 2265, 420, 2133),
    "n": (8, 2265, 900, 2133),
}
"""Modes of the AGX Xavier of the paper doi 10.1145/3570604: cores, CPU, GPU and memory clock in MHz."""


def list_programs() -> dict[str, tuple[str, list[str]]]:
    """Return each program's summary, and the pages of the documentation that name it, by file name."""
    root = HERE.parents[1]
    paths = (root / "README.md", *sorted((root / "docs").rglob("*.md")))
    pages = {path.name: path.read_text("utf-8") for path in paths}
    summaries = {
        path.name: (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()[0]
        for path in sorted(HERE.parent.glob("*.py"))
        if path != HERE
    }
    return {
        name: (summary, [page for page, text in pages.items() if f"benchmarks/{name}" in text])
        for name, summary in summaries.items()
    }


def build_parser(doc: str | None, **counts: int) -> argparse.ArgumentParser:
    """Build a parser of a program's options.

    Args:
        doc: The program's docstring, which ``--help`` prints.
        counts: Default of every option ``--NAME``.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=count, help=f"{count} by default")
    return parser


def run_parts(
    doc: str | None, parts: Mapping[str, Callable[..., None]], default: Sequence[str] = (), **counts: int
) -> None:
    """Run the parts of a program that the command line names.

    Args:
        doc: The program's docstring, which ``--help`` prints.
        parts: Function of each part.
        default: Parts that run if none is named; all if empty.
        counts: Default of every option ``--NAME``. Each part receives all of them as keyword arguments.
    """
    parser = build_parser(doc, **counts)
    names = ", ".join(default) or "all of them"
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(parts)}; {names} by default")
    options = vars(parser.parse_args())
    chosen = options.pop("parts") or default or parts
    if unknown := [name for name in chosen if name not in parts]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(parts)}")
    for name in chosen:
        parts[name](**options)


def profiles_folder() -> Path:
    """Return the folder of measured tables, or end the program."""
    folder = os.environ.get("FEDGE_PROFILES")
    if not folder:
        sys.exit("FEDGE_PROFILES: got nothing; the folder of measured tables")
    return Path(folder)


def find_profiles(kind: str) -> list[Path]:
    """Return the measured tables of training (``train``) or inference (``infer``), or end the program without any."""
    paths = sorted(profiles_folder().glob(f"*/{kind}/*.csv"))
    if not paths:
        sys.exit(f"FEDGE_PROFILES: got {profiles_folder()}; a folder that holds <board>/{kind}/<workload>.csv")
    return paths


def read_batch_sizes(path: Path) -> list[ProfileTable]:
    """Read a measured table once for each of its batch sizes."""
    return [read_mode_table(path, batch_size=size) for size in list_batch_sizes(path)]


def build_table(title: str, *headings: str, left: Sequence[str] = ()) -> Table:
    """Build an empty table; the first column and those named in ``left`` are left-aligned."""
    table = Table(title=title)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 or heading in left else "right")
    return table


def compute_mape(predicted: Floats, measured: Floats) -> float:
    """Return the mean absolute error in percent of the measured values."""
    return 100.0 * float(np.mean(np.abs(predicted / measured - 1.0)))


def measure_s(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the seconds of one call by a clock; by default the CPU time of all threads, which other load spares."""
    begin_s = clock()
    work()
    return clock() - begin_s


def report_progress(job: object) -> None:
    """Print on standard error that a job is done."""
    print(f"done: {job}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    programs = build_table("What `make bench` runs", "program", "prints", "quoted in", left=("prints", "quoted in"))
    for program, (summary, quoting) in list_programs().items():
        programs.add_row(program, summary, ", ".join(quoting))
    Console(width=170).print(programs)
