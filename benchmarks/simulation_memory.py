"""Peak memory of all processes of a run of emulated clients, by backend.

    python benchmarks/simulation_memory.py [--clients 500] [--rounds 2] [--backends sim,local]

A run of the digits CNN with boards of four kinds, `balanced`, all of them in every round. Four times a second the
memory of the command and of all its descendants is added up: Flower's SuperLink and its helpers, Ray and its workers.
RSS counts a page that several processes share once for each of them; PSS divides it by their number, so that its sum is
what the machine needs. The limit is on the RSS.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from figures import FOUR_KINDS, build_parser, build_table
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
MARK = "FEDGE_MEMORY_BENCHMARK"
"""Variable of the environment that all processes of a run inherit, also those that no longer have a parent in it."""
LIMIT_GB = 8.0
EXPERIMENT = """
name: memory
rounds: {rounds}
policy: balanced
fleet: [{fleet}]
workload: {{task: digits-cnn, batch_size: 16, local_epochs: 1}}
data: {{partition: iid}}
"""


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """Largest sums over the processes in GB, the number of processes at the peak of RSS, and the wall time."""

    rss_gb: float
    pss_gb: float
    processes: int
    wall_s: float


def main() -> None:
    """Run each backend once and print the table."""
    parser = build_parser(__doc__, clients=500, rounds=2)
    parser.add_argument("--backends", default="sim,local")
    options = parser.parse_args()
    title = f"{options.clients} clients, {options.rounds} rounds, {os.cpu_count()} cores"
    headings = ("backend", "RSS, GB", "PSS, GB", "processes", "wall time, s", f"RSS within {LIMIT_GB:g} GB")
    table = build_table(title, *headings)
    for backend in options.backends.split(","):
        with tempfile.TemporaryDirectory() as folder:
            peak = measure_run(Path(folder), backend, options.clients, options.rounds)
        within = "yes" if peak.rss_gb <= LIMIT_GB else "no"
        memory = f"{peak.rss_gb:.2f}", f"{peak.pss_gb:.2f}"
        table.add_row(backend, *memory, str(peak.processes), f"{peak.wall_s:.0f}", within)
    Console().print(table)


def measure_run(folder: Path, backend: str, clients: int, rounds: int) -> MemoryPeak:
    """Run ``fedge run`` once; exits with the end of its output if it fails."""
    fleet = ", ".join(f"{{device: {kind}, count: {clients // len(FOUR_KINDS)}}}" for kind in FOUR_KINDS)
    (folder / "experiment.yaml").write_text(EXPERIMENT.format(rounds=rounds, fleet=fleet), encoding="utf-8")
    command = [sys.executable, "-m", "experiments.cli.main", "run", "experiment.yaml", "--backend", backend]
    mark = uuid.uuid4().hex
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), MARK: mark}
    rss = pss = processes = 0
    begun_s = time.monotonic()
    with (folder / "log").open("wb") as output:
        run = subprocess.Popen([*command, "--folder", "run"], cwd=folder, env=env, stdout=output, stderr=output)
        while run.poll() is None:
            sizes = [size for pid in list_processes(mark) if (size := read_memory(pid)) is not None]
            total = sum(size for size, _ in sizes)
            pss = max(pss, sum(size for _, size in sizes))
            if total > rss:
                rss, processes = total, len(sizes)
            time.sleep(0.25)
    if run.returncode != 0:
        sys.exit(f"{backend}: ended with {run.returncode}\n{(folder / 'log').read_text('utf-8', 'replace')[-3000:]}")
    return MemoryPeak(rss / 1e6, pss / 1e6, processes, time.monotonic() - begun_s)


def list_processes(mark: str) -> list[int]:
    """Return the processes of this machine that carry the mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


def read_memory(pid: int) -> tuple[int, int] | None:
    """Return the RSS and the PSS of a process in kB, or None if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return None
    sizes = {line.partition(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return sizes["Rss"], sizes["Pss"]


if __name__ == "__main__":
    main()
