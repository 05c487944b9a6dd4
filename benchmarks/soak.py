"""Growth of a running experiment: memory, open files, threads, disk, computing and wall time per round.

    python benchmarks/soak.py [--rounds 2000] [--warm-up 600] [--backend local] [--clients 3] [--folder DIR]
        [--samples CSV]

Starts ``fedge run`` with a few tiny clients, looks at its processes every 20 rounds, and prints the means of the four
quarters after the warm-up, in which the clients' states (200 measurements) and the first write-ahead files (512 rounds)
fill up to their limits, and the slope per 1,000 rounds. The checkpoint, the folder without the store, and memory should
stay; the store gains the same for each round. Wall time on a busy machine says little; computing time does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
EVERY = 20
QUARTERS = 4
EXPERIMENT = """
name: soak
seed: 1
rounds: {rounds}
backend: {backend}
{jobs}
fleet: [{{device: nano, count: {nanos}}}, {{device: xavier-nx, count: 1}}]
workload: {{task: digits-cnn, local_epochs: 0.05}}
"""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
FIGURES: dict[str, str] = {
    "memory": "MB",
    "heap": "MB",
    "files": "",
    "threads": "",
    "store": "kB",
    "checkpoint": "kB",
    "rest": "kB",
    "cpu": "ms/round",
    "wall": "ms/round",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--warm-up", type=int, default=600, help="rounds that do not count")
    parser.add_argument("--backend", default="local", choices=["local", "sim"])
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="of the run; by default a temporary one")
    parser.add_argument("--samples", type=Path, help="a CSV file of the figures every 20 rounds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedge-soak-") as scratch:
        rounds, figures = watch_run(given, Path(scratch), given.folder or Path(scratch) / "run")
    print_growth(rounds, figures, given.warm_up)


def watch_run(given: argparse.Namespace, scratch: Path, folder: Path) -> tuple[list[int], list[dict[str, float]]]:
    """Return rounds and the figures at their ends; computing and wall time are sums until then."""
    jobs = "jobs: 1" if given.backend == "local" else ""
    text = EXPERIMENT.format(rounds=given.rounds, backend=given.backend, jobs=jobs, nanos=given.clients - 1)
    (scratch / "soak.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "experiments.cli", "run", str(scratch / "soak.yaml"), "--folder", str(folder)]
    rounds: list[int] = []
    figures: list[dict[str, float]] = []
    if given.samples:
        given.samples.write_text(",".join(["round", *FIGURES]) + "\n", encoding="utf-8")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        for line in run.stdout:
            found = re.match(r"round (\d+)/", line)
            if found and int(found[1]) % EVERY == 0:
                rounds.append(int(found[1]))
                figures.append(look_at(run.pid, folder))
                if given.samples:
                    with given.samples.open("a", encoding="utf-8") as samples:
                        samples.write(",".join(f"{value:.2f}" for value in [rounds[-1], *figures[-1].values()]) + "\n")
    if run.returncode:
        print(f"the run ended with {run.returncode} after round {rounds[-1] if rounds else 0}")
    return rounds, figures


def look_at(launcher: int, folder: Path) -> dict[str, float]:
    """Return the figures of a run now, summed over its processes."""
    figures = dict.fromkeys(FIGURES, 0.0)
    for process in find_family(launcher):
        try:
            status = (process / "status").read_text()
            ticks = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
            own = (process / "smaps_rollup").read_text()
            figures["files"] += len(list((process / "fd").iterdir()))
        except OSError:  # it has just ended
            continue
        figures["memory"] += float(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024 if "VmRSS" in status else 0.0
        figures["heap"] += float(found[1]) / 1024 if (found := re.search(r"Anonymous:\s+(\d+)", own)) else 0.0
        figures["threads"] += float(re.search(r"Threads:\s+(\d+)", status)[1])
        figures["cpu"] += 1e3 * TICK_S * sum(map(int, ticks))
    figures["wall"] = 1e3 * time.monotonic()
    figures["store"] = size_kb(folder.glob("store/**/*"))
    figures["checkpoint"] = size_kb(sorted(folder.glob("checkpoints/round-*"))[-1:])
    figures["rest"] = size_kb(folder.rglob("*")) - size_kb(folder.glob("checkpoints/*")) - figures["store"]
    return figures


def find_family(launcher: int) -> list[Path]:
    """Return the folders in /proc of a process and its descendants."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {launcher}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return [Path("/proc") / str(pid) for pid in family]


def size_kb(paths: Iterable[Path]) -> float:
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # replaced meanwhile
            continue
    return total / 1e3


def print_growth(rounds: Sequence[int], figures: Sequence[dict[str, float]], warm_up: int) -> None:
    """Print, per figure, its means in the quarters after the warm-up and its slope."""
    at = np.asarray(rounds, dtype=float)
    warm = at > warm_up
    if warm.sum() < 2 * QUARTERS:
        print(f"{len(rounds) * EVERY} rounds are too few for a warm-up of {warm_up}")
        return
    quarters = "".join(f"{f'quarter {number}':>12}" for number in range(1, QUARTERS + 1))
    print(f"{'figure':16}{quarters} {'per 1,000 rounds':>18} {'of it':>8}")
    for name, unit in FIGURES.items():
        values = np.asarray([one[name] for one in figures])
        if unit == "ms/round":
            values = np.diff(values, prepend=values[0]) / np.diff(at, prepend=at[0] - EVERY)
        slope = 1e3 * float(np.polyfit(at[warm], values[warm], 1)[0])
        means = [float(part.mean()) for part in np.array_split(values[warm], QUARTERS)]
        shown = "".join(f"{mean:12.1f}" for mean in means)
        share = f"{slope / means[0]:8.1%}" if means[0] else f"{'':>8}"
        print(f"{f'{name} ({unit})' if unit else name:16}{shown} {slope:18.2f} {share}")


if __name__ == "__main__":
    main()
