"""What is read of the machine and of a tree of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedge.characterisation import system_sampler
from fedge.characterisation.system_sampler import PackageEnergyCounter, SamplingThread, SystemSampler

PROC = Path("/proc")
NESTED = "import subprocess, sys; print('up', flush=True); subprocess.run([sys.executable, '-c', {inner!r}])"
INNER = "held = bytearray(50_000_000); print('full', flush=True); import sys; sys.stdin.read()"


def test_waiting_for_a_disk_is_not_work(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  10 5 15 100 20 1 2 3 7 7\ncpu0 1 1 1 1 1 1 1 1 0 0\n", "ascii")
    assert system_sampler.read_cpu_ticks(tmp_path) == (36, 156)


def test_a_tree_of_processes_is_found_with_its_memory() -> None:
    outer = [sys.executable, "-c", NESTED.format(inner=INNER)]
    with subprocess.Popen(outer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "full\n"]
        pids = system_sampler.list_process_tree(process.pid, PROC)
        mb = system_sampler.read_resident_mb(pids, PROC)
        read = system_sampler.read_storage_bytes(pids, PROC)
        process.stdin.close()
    assert len(pids) == 2
    assert pids[0] == process.pid
    assert mb > 55
    assert set(read) == set(pids)


def test_what_others_do_is_what_is_not_this_programs_own() -> None:
    then = system_sampler.CpuWork(100.0, 1000.0, 50.0)
    assert system_sampler.CpuWork(110.0, 1012.0, 55.0).other_cores_since(then) == pytest.approx(0.7)
    assert system_sampler.CpuWork(110.0, 1004.0, 55.0).other_cores_since(then) == 0  # ticks are coarse
    before = system_sampler.CpuWork.read_now()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    after = system_sampler.CpuWork.read_now()
    assert after.own_s > before.own_s
    assert after.all_s >= before.all_s


def test_a_process_that_is_gone_counts_nothing() -> None:
    assert system_sampler.read_resident_mb((2**22 + 1,), PROC) == 0
    assert system_sampler.read_storage_bytes((2**22 + 1,), PROC) == {}


def rapl_at(root: Path, *uj: int) -> None:
    for k, value in enumerate(uj):
        zone = root / f"sys/class/powercap/intel-rapl:{k}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "energy_uj").write_text(f"{value}\n", "ascii")
        (zone / "max_energy_range_uj").write_text("1000000\n", "ascii")


def test_packages_add_up_and_a_counter_that_wraps_goes_on(tmp_path: Path) -> None:
    rapl_at(tmp_path, 900_000, 100_000)
    rapl = PackageEnergyCounter.try_open(str(tmp_path))
    assert rapl is not None
    rapl_at(tmp_path, 100_000, 400_000)
    assert rapl.read_energy_j() == pytest.approx(0.5)
    rapl_at(tmp_path, 200_000, 400_000)
    assert rapl.read_energy_j() == pytest.approx(0.6)


def test_a_machine_without_counters_has_none(tmp_path: Path) -> None:
    assert PackageEnergyCounter.try_open(str(tmp_path)) is None


def test_the_machine_is_looked_at_while_the_block_runs() -> None:
    eyes = SystemSampler(disk=None, pid=os.getpid())
    with SamplingThread(eyes, 50) as looking:
        while len(looking.looks) < 4:
            sum(range(10_000))
    at_s = [look.at_s for look in looking.looks]
    assert at_s == sorted(at_s)
    assert looking.looks[-1].ticks_so_far > looking.looks[0].ticks_so_far
    assert looking.looks[-1].memory_mb > 10
    assert looking.looks[-1].read_bytes_so_far >= looking.looks[0].read_bytes_so_far
