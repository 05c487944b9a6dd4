"""Change the source in small ways, one at a time, and print which changes no test notices.

python tests/mutants/run_mutants.py [--mutants N] [--seed N] [--minutes M] [--tests FOLDER,...] [PACKAGE ...]

The sources are changed in a temporary copy of the current folder. Of the tests that run the changed line, those of the
module's own test file come first, then the quickest; slow ones, which start processes, are left out. What no test runs
counts as not covered.
"""

import argparse
import ctypes
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import NoReturn

sys.path[0] = str(Path(__file__).resolve().parents[1])

from mutants.source_mutants import Mutant, draw_mutants  # noqa: E402

PACKAGES = ("fedge/decisions", "fedge/telemetry", "fedge/powerd")
TESTS = ("tests/fedge/decisions", "tests/fedge/telemetry", "tests/fedge/powerd", "tests/server/rounds")
LIBRARIES = ("coverage", "duckdb", "hypothesis", "numpy", "psutil", "pyarrow.parquet", "pydantic", "pytest", "yaml")
"""Imported once for all processes."""
MARKS = "not slow and not long and not fleet and not monitor and not vendor"
FEWEST_TESTS, TESTS_S = 12, 20.0
"""Tests of a mutant: at least so many of those that run the line, and more up to so many seconds."""
START_S, SLOWER = 20.0, 4.0
"""A mutant that takes longer than the start and so many times what its tests took without it is ended."""
MOST_MEMORY = 12 << 30
PASSED = 77
"""Exit code of a process whose tests passed; one that a mutant ends early has another."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): processes that a mutant leaves become ours, and are ended."""
VERDICTS = ("killed", "timed out", "survived", "not covered")


@dataclass(frozen=True, slots=True)
class BaseRun:
    """What the tests did without a mutant.

    Attributes:
        durations_s: Seconds of each test.
        reached: Tests that run a line, by file and line.
    """

    durations_s: Mapping[str, float]
    reached: Mapping[str, Mapping[int, Sequence[str]]]


class BaseFailed(Exception):
    """The tests fail without a mutant."""


class TestSelection:
    """Plug-in of pytest that runs the named tests only, in that order."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.places), key=lambda item: self.places[item.nodeid]
        )


class TestRecorder:
    """Plug-in of pytest that notes durations and the first failure, and names the running test to coverage."""

    def __init__(self, coverage) -> None:
        self.coverage, self.durations_s, self.failed = coverage, Counter(), None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report) -> None:
        self.durations_s[report.nodeid] += report.duration
        self.failed = self.failed or (report.nodeid if report.failed else None)

    def pytest_collectreport(self, report) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else None)


def main() -> int:
    """Return 2 if the tests fail without a mutant, 130 if interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="folders of sources")
    parser.add_argument("--mutants", type=int, default=420, help="in all, as many of each package")
    parser.add_argument("--seed", type=int, default=0, help="the same number, the same mutants")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no mutant later")
    parser.add_argument("--tests", default=",".join(TESTS), help="folders or files, with commas between")
    given = parser.parse_args()
    if missing := [name for name in (*given.packages, *given.tests.split(",")) if not Path(name).exists()]:
        parser.error(f"no {missing[0]} in {Path.cwd()}")
    ends_s = time.monotonic() + 60.0 * given.minutes
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    counted: Counter[tuple[str, str]] = Counter()
    code = 0
    try:
        with copied_tree() as home:
            base = run_base(home, given.tests.split(","), given.packages)
            print(f"{len(base.durations_s)} tests passed in {sum(base.durations_s.values()):.0f} s", flush=True)
            try_mutants(home, base, given, ends_s, counted)
    except BaseFailed as failure:
        print(failure)
        return 2
    except KeyboardInterrupt:
        print("interrupted")
        code = 130
    print_table(counted)
    return code


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the current folder, which becomes the current one; all temporary files lie beside it and go with it."""
    before, temporary = Path.cwd(), Path(tempfile.mkdtemp(prefix="mut"))  # short: it begins the paths of sockets
    home = temporary / "h"
    try:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        shutil.copytree(before, home, symlinks=True, ignore=shutil.ignore_patterns(".*", "runs", "site", "dist"))
        os.environ |= {"TMPDIR": str(temporary), "PYTHONPATH": str(home), "COVERAGE_CORE": "ctrace"}
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("FEDGE_EXAMPLES", "25")
        tempfile.tempdir = None
        for name in LIBRARIES:
            with suppress(ImportError):
                import_module(name)
        sys.path[:0] = [str(home)]
        os.chdir(home)
        yield home
    finally:
        os.chdir(before)
        end_children()
        shutil.rmtree(temporary, ignore_errors=True)


def run_base(home: Path, tests: Sequence[str], packages: Sequence[str]) -> BaseRun:
    """Run all tests once and return what each reached.

    Raises:
        BaseFailed: One of them failed, or there are none.
    """
    outcome, data = home.parent / "base.json", home.parent / "base.coverage"
    run_process(lambda: _record_base(tests, packages, outcome, data))
    if not outcome.exists():
        raise BaseFailed(f"The tests end without a result: python -m pytest {' '.join(tests)}")
    found = json.loads(outcome.read_text(encoding="utf-8"))
    if found["failed"] or not found["durations_s"]:
        raise BaseFailed(f"A test fails without a mutant: {found['failed']}" if found["failed"] else "No tests")
    from coverage import CoverageData

    measured = CoverageData(str(data))
    measured.read()
    reached = {
        str(Path(name).relative_to(home)): measured.contexts_by_lineno(name) for name in measured.measured_files()
    }
    return BaseRun(found["durations_s"], reached)


def _record_base(tests: Sequence[str], packages: Sequence[str], outcome: Path, data: Path) -> int:
    import coverage

    tracer = coverage.Coverage(str(data), config_file=False, include=[f"{Path.cwd() / name}/*" for name in packages])
    recorder = TestRecorder(tracer)
    tracer.start()
    code = _run_pytest(tests, "-x", "-m", MARKS, plugin=recorder)
    tracer.stop()
    tracer.save()
    failed = recorder.failed or (f"pytest ends with {code}" if code not in {0, 5} else None)
    outcome.write_text(json.dumps({"failed": failed, "durations_s": recorder.durations_s}), encoding="utf-8")
    return code


def _run_pytest(tests: Sequence[str], *options: str, plugin: object) -> int:
    import pytest

    folder = Path.cwd().parent / "t"
    return int(
        pytest.main(["-q", "-p", "no:cacheprovider", "--basetemp", str(folder), *options, *tests], plugins=[plugin])
    )


def run_process(work: Callable[[], int], limit_s: float = float("inf")) -> int | None:
    """Return the exit code of the work in a process of its own, without output; None if it takes longer."""
    ends_s = time.monotonic() + limit_s
    child = os.fork()
    if not child:
        _work_silently(work)
    try:
        while time.monotonic() < ends_s:
            if (ended := os.waitpid(child, os.WNOHANG))[0]:
                return os.waitstatus_to_exitcode(ended[1])
            time.sleep(0.02)
        return None
    finally:
        end_children()


def _work_silently(work: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        os.setsid()  # Ctrl-C is for the parent
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        code = PASSED if work() == 0 else 1
    finally:
        os._exit(code)


def end_children() -> None:
    """End all processes that this one started, with theirs."""
    import psutil

    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def try_mutants(
    home: Path, base: BaseRun, given: argparse.Namespace, ends_s: float, counted: Counter[tuple[str, str]]
) -> None:
    """Try the packages' mutants in turns, count them, and print the survivors."""
    drawn = []
    for package in given.packages:
        sources = {path.as_posix(): path.read_text(encoding="utf-8") for path in sorted(Path(package).rglob("*.py"))}
        mutants = draw_mutants(sources, given.mutants // len(given.packages), Random(f"{package} {given.seed}"))
        drawn.append([(package, mutant) for mutant in mutants])
    turns = list(filter(None, itertools.chain.from_iterable(itertools.zip_longest(*drawn))))
    for number, (package, mutant) in enumerate(turns, 1):
        if time.monotonic() >= ends_s:
            return
        verdict = try_mutant(home / mutant.file, mutant, base, number)
        counted[package, verdict] += 1
        if verdict in {"survived", "not covered"}:
            print(f"{number}/{len(turns)} {verdict}: {mutant.file}:{mutant.line}: {mutant.change}", flush=True)


def try_mutant(path: Path, mutant: Mutant, base: BaseRun, number: int) -> str:
    """Return what the tests say to a mutant; the file is put back."""
    names = select_tests(mutant, base)
    if not names:
        return "not covered"
    before = path.read_text(encoding="utf-8")
    path.write_text(mutant.text, encoding="utf-8")
    os.utime(path, (number, number))  # Python takes bytecode of the same second and size for this source's
    files = list(dict.fromkeys(name.split("::")[0] for name in names))
    try:
        code = run_process(
            lambda: _run_pytest(files, "-x", plugin=TestSelection(names)),
            START_S + SLOWER * sum(base.durations_s[name] for name in names),
        )
    finally:
        path.write_text(before, encoding="utf-8")
    return "timed out" if code is None else "survived" if code == PASSED else "killed"


def select_tests(mutant: Mutant, base: BaseRun) -> list[str]:
    """Return tests that run a mutant, those of the module's own file first, then the quickest."""
    reached = base.reached.get(mutant.file, {})
    names = {name for line in mutant.lines for name in reached.get(line, ()) if name}
    if not names and mutant.is_import_time:
        names = {name for tests in reached.values() for name in tests if name}
    own = f"test_{Path(mutant.file).name}::"
    order = sorted(names, key=lambda name: (own not in name, base.durations_s[name], name))
    took_s = itertools.accumulate(base.durations_s[name] for name in order)
    return [
        name
        for place, (name, until_s) in enumerate(zip(order, took_s, strict=False))
        if place < FEWEST_TESTS or until_s < TESTS_S
    ]


def print_table(counted: Counter[tuple[str, str]]) -> None:
    """Print a line per package; what is killed or timed out was noticed."""
    print(f"\n{'package':20} {'mutants':>8}" + "".join(f"{verdict:>13}" for verdict in VERDICTS) + f"{'noticed':>10}")
    packages = list(dict.fromkeys(package for package, _ in counted))
    for title, members in [*((package, [package]) for package in packages), ("all", packages)]:
        row = [sum(counted[package, verdict] for package in members) for verdict in VERDICTS]
        share = 100.0 * sum(row[:2]) / max(sum(row), 1)
        print(f"{title:20} {sum(row):8}" + "".join(f"{count:13}" for count in row) + f"{share:8.1f} %")


if __name__ == "__main__":
    sys.exit(main())
