"""What every test shares: one thread per process, examples that repeat, a reason for what this machine cannot run."""

import gc
import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

# Before numpy or torch is imported: their thread pools are made once.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# A process that must not keep what it compiled takes three times as long to import torch, Ray or scikit-learn.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Started in the background by a shell, pytest would hand an ignored Ctrl-C on to the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]

# FEDGE_EXAMPLES: fewer examples per property, where time is short or the same tests are run a second time.
EXAMPLES = int(os.environ.get("FEDGE_EXAMPLES", "100"))
hypothesis.settings.register_profile("fedge", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("fedge")

# Where torch has no build, the parts without it are still tested.
collect_ignore_glob = (
    [] if importlib.util.find_spec("torch") else ["clients/*", "server/*", "experiments/*", "fedge/workloads/*"]
)


def _missing(mark: str) -> str | None:
    """Why this machine cannot run a test that carries the mark; None when it can."""
    if mark == "jetson" and not Path("/etc/nv_tegra_release").exists():
        return "needs a Jetson board"
    if mark == "gpu" and not shutil.which("nvidia-smi"):
        return "needs a CUDA device"
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if getattr(config.option, "loadgroup", False):
        _name_groups(items)
    for item in items:
        _take_fewer_examples(item)
        for mark in ("jetson", "gpu"):
            reason = _missing(mark) if item.get_closest_marker(mark) else None
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests and their libraries stay to the end: a full collection need not look at them again.

    Some strategies of Flower ask for one with every model that they take; that is a second each with all tests loaded.
    """
    gc.collect()
    gc.freeze()


def _take_fewer_examples(item: pytest.Item) -> None:
    """Hold properties with a number of their own to FEDGE_EXAMPLES too: to that percentage of it, or to that number."""
    test = getattr(item, "function", None)
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None and (fewer := max(EXAMPLES, own.max_examples * EXAMPLES // 100)) < own.max_examples:
        test._hypothesis_internal_use_settings = hypothesis.settings(own, max_examples=fewer)


def _name_groups(items: list[pytest.Item]) -> None:
    """Write each test's group at the end of its name, where pytest-xdist's scheduler reads it.

    pytest-xdist 3.8 does so itself in ``_nodeid``, which pytest 9.2 no longer has: without this no group is kept.
    """
    for item in items:
        group = "_".join(sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")}))
        if group and not item.nodeid.endswith(f"@{group}") and hasattr(item, "_id"):
            item._id = type(item._id).parse(f"{item.nodeid}@{group}")


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def profiles_root() -> Path:
    """The folder of recorded measurements, which is not part of the project."""
    folder = os.environ.get("FEDGE_PROFILES")
    if not folder:
        pytest.skip("FEDGE_PROFILES names no folder of recorded measurements")
    return Path(folder)
