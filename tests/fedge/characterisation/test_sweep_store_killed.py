"""A sweep that is killed at any moment and started again repeats no finished point and loses none."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from characterised.fake import fake_plan

from fedge.characterisation.sweep_store import JOURNAL_FILE, UNFINISHED_FILES, SweepResult, parse_journal, read_result

ROOT = Path(__file__).resolve().parents[3]
KILLS = 25


def run(out: Path, log: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "characterised.running", str(out), str(log), *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}


def finished(out: Path) -> set[str]:
    path = out / JOURNAL_FILE
    return set(parse_journal(path, path.read_bytes())[0].done) if path.exists() else set()


def arrays(result: SweepResult) -> list[np.ndarray]:
    found = []
    for point in result.points:
        for records in (point.read_minibatches(), point.read_sensor_trace()):
            found += [getattr(records, name) for name in records.__slots__]
    return found


@pytest.mark.slow
def test_killed_at_random_moments_and_started_again_it_is_as_if_it_had_run_through(tmp_path):
    whole, out, log = tmp_path / "whole", tmp_path / "out", tmp_path / "log"
    subprocess.run(run(whole, tmp_path / "one"), env=environment(), check=True, timeout=60)
    plan = fake_plan(workers=(0, 1, 2, 4), batches=(4, 8, 16))
    rng = random.Random(7)
    log.touch()
    killed = 0
    with subprocess.Popen(
        run(out, log, "--fork"), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        for _ in range(200):
            before = finished(out)
            counted = Counter(log.read_text().split())
            server.stdin.write("\n")
            server.stdin.flush()
            child = int(server.stdout.readline())
            if killed < KILLS and len(before) < len(plan.points):
                time.sleep(rng.uniform(0.0, 0.03))
                os.kill(child, signal.SIGKILL)
                killed += 1
            code = int(server.stdout.readline())
            assert code in {0, -signal.SIGKILL}
            measured = Counter(log.read_text().split()) - counted
            assert not before & set(measured), "a finished point was measured again"
            assert max(measured.values(), default=1) == 1
            if code == 0:
                break
        server.stdin.close()
        server.wait(timeout=10)
    assert killed >= 10

    result, one = read_result(out), read_result(whole)

    lines = [line for line in (out / JOURNAL_FILE).read_text().splitlines() if '"event": "done"' in line]
    assert len(lines) == len(plan.points) == len({line.split('"key": ')[1][:14] for line in lines})
    assert [done.point for done in result.points] == list(plan.points) == [done.point for done in one.points]
    assert [done.epochs for done in result.points] == [done.epochs for done in one.points]
    for there, wanted in zip(arrays(result), arrays(one), strict=True):
        np.testing.assert_array_equal(there, wanted)
    assert not list(out.rglob(UNFINISHED_FILES))
