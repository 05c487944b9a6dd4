"""What is read of the machine and of a tree of processes."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedge.characterisation import system_sampler
from fedge.characterisation.system_sampler import (
    SamplingThread,
    SystemSample,
    SystemSampler,
    build_sensor_trace,
    counter_growth,
    mean_cpu_load,
    peak_value,
)

PROC = Path("/proc")
NESTED = "import subprocess, sys; print('up', flush=True); subprocess.run([sys.executable, '-c', {inner!r}])"
INNER = "held = bytearray(50_000_000); print('full', flush=True); import sys; sys.stdin.read()"


def test_waiting_for_a_disk_is_not_work(tmp_path):
    (tmp_path / "stat").write_text("cpu  10 5 15 100 20 1 2 3 7 7\ncpu0 1 1 1 1 1 1 1 1 0 0\n", "ascii")
    assert system_sampler.read_cpu_ticks(tmp_path) == (36, 156)


def test_a_tree_of_processes_is_found_with_its_memory():
    outer = [sys.executable, "-c", NESTED.format(inner=INNER)]
    with subprocess.Popen(outer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "full\n"]
        pids = system_sampler.list_process_tree(process.pid, PROC)
        mb = system_sampler.read_resident_mb(pids, PROC)
        read = system_sampler.read_storage_bytes(pids, PROC)
        process.stdin.close()
    assert len(pids) == 2
    assert pids[0] == process.pid
    assert mb > 55
    assert set(read) == set(pids)


def test_what_others_do_is_what_is_not_this_programs_own():
    then = system_sampler.CpuWork(100.0, 1000.0, 50.0)
    assert system_sampler.CpuWork(110.0, 1012.0, 55.0).other_cores_since(then) == pytest.approx(0.7)
    assert system_sampler.CpuWork(110.0, 1004.0, 55.0).other_cores_since(then) == 0  # ticks are coarse
    before = system_sampler.CpuWork.read_now()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    after = system_sampler.CpuWork.read_now()
    assert after.own_s > before.own_s
    assert after.all_s >= before.all_s


def test_a_process_that_is_gone_counts_nothing():
    assert system_sampler.read_resident_mb((2**22 + 1,), PROC) == 0
    assert system_sampler.read_storage_bytes((2**22 + 1,), PROC) == {}


def test_the_machine_is_looked_at_while_the_block_runs():
    eyes = SystemSampler(disk=None, pid=os.getpid())
    with SamplingThread(eyes, 50) as looking:
        while len(looking.samples) < 4:
            sum(range(10_000))
    at_s = [look.at_s for look in looking.samples]
    assert at_s == sorted(at_s)
    assert looking.samples[-1].ticks_so_far > looking.samples[0].ticks_so_far
    assert looking.samples[-1].memory_mb > 10
    assert looking.samples[-1].read_bytes_so_far >= looking.samples[0].read_bytes_so_far


def looks(**columns: list[float]) -> list[SystemSample]:
    """A look per second from 100 s on; what is not given is NaN."""
    names = ("busy_so_far", "ticks_so_far", "memory_mb", "read_bytes_so_far", "joules_so_far", "temperature_c")
    count = len(next(iter(columns.values())))
    rows = [columns.get(name, [math.nan] * count) for name in names]
    return [SystemSample(100.0 + k, *(row[k] for row in rows)) for k in range(count)]


def test_a_strip_holds_what_changed_between_two_looks():
    seen = looks(
        busy_so_far=[0, 50, 250],
        ticks_so_far=[0, 200, 400],
        memory_mb=[math.nan, 10, 20],
        read_bytes_so_far=[0, 3e6, 4e6],
        joules_so_far=[5, 7, 10],
        temperature_c=[40, 41, 42],
    )
    strip = build_sensor_trace(seen, 99.0)
    assert strip.at_s.tolist() == [2, 3]
    assert strip.cpu_load.tolist() == [0.25, 1.0]
    assert strip.memory_mb.tolist() == [10, 20]
    assert strip.disk_mb_per_s.tolist() == [3, 1]
    assert strip.power_w.tolist() == [2, 3]
    assert strip.temperature_c.tolist() == [41, 42]
    assert np.isnan(strip.gpu_load).all()


def test_a_counter_grows_along_a_line_between_looks():
    seen = looks(joules_so_far=[0, 10, 10, 40])
    assert counter_growth(seen, "joules_so_far", 100.5, 102.5) == pytest.approx(20)
    assert counter_growth(seen, "busy_so_far", 100.5, 102.5) is None


def test_the_load_of_a_stretch_is_its_share_of_ticks():
    seen = looks(busy_so_far=[0, 100, 100], ticks_so_far=[0, 200, 400])
    assert mean_cpu_load(seen, 100, 102) == pytest.approx(0.25)
    assert mean_cpu_load(seen, 100, 101) == pytest.approx(0.5)


def test_the_highest_of_a_short_stretch_is_that_of_the_looks_about_it():
    seen = looks(memory_mb=[math.nan, 10, 30, 20])
    assert peak_value(seen, "memory_mb", 101.2, 101.3) == 30
    assert peak_value(seen, "memory_mb", 100.1, 100.2) == 10
    assert peak_value(seen, "temperature_c", 100, 103) is None
