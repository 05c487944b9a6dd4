"""The recorded boards' roots, built once and shared: a root that a test has left changed is copied anew."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from contracts import jetsons
from contracts.jetsons.kernel import DRIFT, FAULTS, LOG, KernelMachine

from fedge.powerd.board_control import BoardControl
from fedge.powerd.config import Config
from fedge.powerd.mode_records import PowerdRefusal

PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""In memory where that can be had, else where temporary files go: a root is hundreds of small files."""


class Roots:
    """Every board at most once; a board's root is as it was built whenever it is given out."""

    def __init__(self, folder: Path) -> None:
        self._built, self._folder, self._fresh = folder / "built", folder / "given", {}

    def root(self, name: str) -> Path:
        """The board's root, without any write in its log, and with nothing planted."""
        root = self._folder / name
        if name in self._fresh and jetsons.contents(root) == self._fresh[name]:
            (root / LOG.lstrip("/")).write_text("")
            for planted in (root / FAULTS.lstrip("/"), root / DRIFT.lstrip("/")):
                if planted.exists():
                    planted.unlink()
            return root
        if name not in self._fresh:
            self._fresh[name] = jetsons.contents(jetsons.build(name, self._built))
        shutil.rmtree(str(root), ignore_errors=True)
        shutil.copytree(str(self._built / name), str(root), symlinks=True)
        return root


@pytest.fixture(scope="session")
def roots():
    """One set of roots for all tests of this process, which run one after the other."""
    with tempfile.TemporaryDirectory(prefix="fedge-roots", dir=PLACE) as made:
        yield Roots(Path(made))


@pytest.fixture
def scratch():
    """A folder of this test's own."""
    with tempfile.TemporaryDirectory(prefix="fedge-root", dir=PLACE) as made:
        yield Path(made)


@pytest.fixture(scope="session")
def refused():
    """Call something that is refused, and return the refusal."""

    def call(act, *arguments, **fields) -> PowerdRefusal:
        with pytest.raises(PowerdRefusal) as caught:
            act(*arguments, **fields)
        return caught.value

    return call


@pytest.fixture(params=jetsons.PLAYED)
def truth(request):
    """What is true of a recorded board."""
    return jetsons.board(request.param)


@pytest.fixture
def machine(truth, roots):
    return KernelMachine(str(roots.root(truth.name)), quick=True)


@pytest.fixture
def board(truth, machine):
    """The Nano tells of one memory rate only, so its daemon's file has the table."""
    return BoardControl(machine, Config(emc_table_hz=() if truth.emc.bpmp else truth.emc_hz))
