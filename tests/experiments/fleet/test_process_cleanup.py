"""Whom a command ends with it: those with its mark, or, without /proc, those that descend from it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from contracts.processes import wait_for
from hypothesis import given
from hypothesis import strategies as st

from experiments.backends.run_processes import RUN_MARK, find_descendants, find_marked_processes
from experiments.fleet import process_cleanup

CHILD = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"


def test_descendants_are_found_over_all_generations():
    parents = {10: 1, 11: 10, 12: 11, 20: 1, 21: 20}

    assert find_descendants(parents, {10}) == {11, 12}
    assert find_descendants(parents, {99}) == set()


@given(st.dictionaries(st.integers(1, 12), st.integers(0, 12)), st.integers(1, 12))
def test_any_table_of_processes_has_an_end(parents, root):
    found = find_descendants(parents, {root})

    assert root not in found
    assert all(parents[pid] in found | {root} for pid in found)


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_without_proc_a_grandchild_is_found_and_is_still_known_as_an_orphan():
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as child:
        sleeper = int(child.stdout.readline())
        alive = process_cleanup.watch_descendants(child.pid)
        try:
            first = alive()
            child.kill()
            child.wait()
            orphaned = alive()
        finally:
            os.kill(sleeper, 9)

    assert first == {sleeper}
    assert orphaned == {sleeper}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_an_exception_ends_whoever_carries_the_mark():
    child = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, RUN_MARK: "a-mark-of-this-test"}, start_new_session=True
    )
    wait_for(lambda: child.pid in find_marked_processes("a-mark-of-this-test"))  # in the midst of exec it has no mark

    with pytest.raises(KeyboardInterrupt), process_cleanup.end_playbook_on_error("a-mark-of-this-test"):
        raise KeyboardInterrupt

    assert child.wait(10) != 0
