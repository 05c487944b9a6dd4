"""Growth of a running experiment, or of a fleet's telemetry: memory, open files, threads, disk and times.

    python benchmarks/soak.py [--rounds 2000] [--warm-up 600] [--backend local] [--clients 3] [--folder DIR]
    OMP_NUM_THREADS=1 python benchmarks/soak.py --telemetry 24 [--boards 1000] [--folder DIR]

Starts ``fedge run`` with a few tiny clients, looks at its processes every 20 rounds, and prints the means of the four
quarters after the warm-up, in which the clients' states (200 measurements) and the first write-ahead files (512 rounds)
fill up to their limits, and the slope per 1,000 rounds. The checkpoint, the folder without the store, and memory should
stay; the store gains the same for each round. Wall time on a busy machine says little; computing time does.

With ``--telemetry HOURS`` the service of a real fleet, in its own process and with the clock of what is replayed, takes
the samples of so many hours, one a second of each board, as fast as it can. They come over HTTP on its unix socket in
messages of 120 s, as a board sends what it kept while the server was away; in messages of one second, an hour would
take longer than an hour. A line per hour has its figures and the times of what the board page asks for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from live_channel import ServerConnections

from fedge.characterisation.machine_control import list_process_tree
from fedge.telemetry import open_run
from fedge.telemetry.live_records import VERSION, TelemetryBatch, encode_batch
from fedge.telemetry.outbox import MAX_BATCH_STRETCHES
from fedge.types import Trace

ROOT = Path(__file__).resolve().parents[1]
PROC = Path("/proc")
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
    parser.add_argument("--telemetry", type=int, metavar="HOURS", help="replay telemetry instead of a run")
    parser.add_argument("--boards", type=int, default=1_000, help="of the telemetry")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedge-soak-") as scratch:
        if given.telemetry:
            replay_telemetry(given.telemetry, given.boards, given.folder or Path(scratch))
            return
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
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        for line in run.stdout:
            found = re.match(r"round (\d+)/", line)
            if found and int(found[1]) % EVERY == 0:
                rounds.append(int(found[1]))
                figures.append(look_at(run.pid, folder))
    if run.returncode:
        print(f"the run ended with {run.returncode} after round {rounds[-1] if rounds else 0}")
    return rounds, figures


def look_at(launcher: int, folder: Path) -> dict[str, float]:
    """Return the figures of a run now, summed over its processes."""
    figures = dict.fromkeys(FIGURES, 0.0)
    for process in (PROC / str(pid) for pid in list_process_tree(launcher, PROC)):
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


# Telemetry of a fleet -------------------------------------------------------------------------------------------------

HOUR_S, BEGIN_S = 3600, 1_790_000_000
SENDERS, SHAPES = 16, 50
"""Messages under way at the same time, and different ones, of which each board sends one after the other."""
STEP_S = MAX_BATCH_STRETCHES
SENT_HEAD = "POST /telemetry HTTP/1.1\r\nHost: fleet\r\nX-Fedge-Board: {board}\r\nContent-Length: {length}\r\n\r\n"
COUNT_QUERY = """
    select sum(n)::bigint as stored, min(n) as least, max(n) as most
    from (select count(*) as n from samples group by board)
"""
ANSWERS = {"p50 ms": 50, "p99 ms": 99, "longest ms": 100}
"""Percentiles of the times until a message is acknowledged."""
PAGE = {"view ms": "/api/view", "metrics ms": "/metrics", "board ms": "/api/boards/board-7"}


def serve_telemetry(folder: Path, port: int, clock: Any) -> None:
    """Run the service of a fleet with the replay's clock until SIGTERM."""
    from experiments.backends.dashboard_service import FleetDashboard, ListenAddress, serve_fleet

    service = FleetDashboard(folder / "store", None, folder / "in", store_bytes=20 * 10**9, store_age_s=90 * 86_400.0)
    serve_fleet(service, ListenAddress(port=port), lambda _: None, lambda: clock.value)


def build_shape(chance: random.Random) -> bytes:
    """Return a message of a board with places for its name, number and times."""

    def draw(low: float, high: float) -> tuple[float, ...]:
        return tuple(round(chance.uniform(low, high), 3) for _ in range(STEP_S))

    rails = {name: draw(1, 9) for name in ("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC")}
    clocks = {"cpu_mhz": draw(300, 1510), "gpu_mhz": draw(300, 625), "mem_mhz": (2133.0,) * STEP_S}
    loads = {"cpu_load": draw(0, 1), "gpu_load": draw(0, 1), "mem_load": draw(0, 1)}
    trace = Trace((0.0,), (1.0,) * STEP_S, draw(4, 25), draw(40, 60), **clocks, **loads, rails_w=rails)
    return encode_batch(TelemetryBatch(VERSION, board="BOARD", stream="replayed", seq=987654321, trace=trace))


def fill_shape(shape: bytes, board: int, seq: int, begin_s: float) -> bytes:
    """Return the HTTP request of a message that begins at a unix time."""
    name, at = f"board-{board}", (begin_s + board / 10_000 + second for second in range(STEP_S))
    body = shape.replace(b'"BOARD"', f'"{name}"'.encode(), 1).replace(b"987654321", b"%d" % seq, 1)
    body = body.replace(b"[0.0]", json.dumps([round(one, 4) for one in at]).encode(), 1)
    return SENT_HEAD.format(board=name, length=len(body)).encode() + body


async def send_hour(connections: ServerConnections, boards: int, hour: int, clock: Any) -> None:
    """Send an hour of every board; a message that is not stored is an error."""
    shapes = [build_shape(random.Random(number)) for number in range(SHAPES)]
    for step in range(hour * HOUR_S // STEP_S, (hour + 1) * HOUR_S // STEP_S):
        from_s = BEGIN_S + step * STEP_S
        clock.value = float(from_s + STEP_S)
        messages = iter(range(boards))

        async def send(step: int, from_s: int, messages: Iterable[int]) -> None:
            for board in messages:
                await connections.post(fill_shape(shapes[(board + step) % SHAPES], board, step + 1, from_s))

        await asyncio.gather(*(send(step, from_s, messages) for _ in range(SENDERS)))


async def replay_hours(service: int, hours: int, boards: int, folder: Path, clock: Any, port: int) -> None:
    """Print a line per hour, and how much the figures of the last hours differ from those of the first."""
    connections, lines = ServerConnections(folder / "in"), list[dict[str, float]]()
    await connections.open(SENDERS)
    for hour in range(hours):
        connections.took_s.clear()
        begun_s, before = time.monotonic(), look_at(service, folder / "store")
        await send_hour(connections, boards, hour, clock)
        wall_s, rows = time.monotonic() - begun_s, boards * HOUR_S
        line = {"hour": hour + 1.0, "rows/s": rows / wall_s} | measure_hour(service, folder, before["cpu"], rows)
        line |= {name: 1e3 * float(np.percentile(connections.took_s, at)) for name, at in ANSWERS.items()}
        # In a thread, so that connections which the service closes meanwhile are seen.
        lines.append(line | {name: await asyncio.to_thread(measure_page_ms, port, path) for name, path in PAGE.items()})
        print("".join(f"{name:>11}" for name in lines[0]) + "\n" if hour == 0 else "", end="")
        print("".join(f"{value:11,.1f}" for value in lines[-1].values()), flush=True)
    third = max(1, len(lines) // 3)
    first, last = (
        {name: np.mean([one[name] for one in part]) for name in line} for part in (lines[:third], lines[-third:])
    )
    print(f"{'last third':>11}" + "".join(f"{last[name] / first[name]:10.2f}x" for name in [*line][1:]))


def measure_hour(service: int, folder: Path, cpu_before_ms: float, rows: int) -> dict[str, float]:
    """Return the figures of the service and its store after an hour of so many rows."""
    now = look_at(service, folder / "store")
    sizes = {name: now[name] for name in ("memory", "heap", "files", "threads")}
    stored = {"parts": float(len(list(folder.glob("store/store/samples/*")))), "store MB": now["store"] / 1e3}
    return {"rows/cpu-s": 1e3 * rows / (now["cpu"] - cpu_before_ms), **sizes, **stored}


def measure_page_ms(port: int, path: str) -> float:
    """Return the median time of three answers of the board page, each to a question of its own."""
    took_s = []
    for _ in range(3):
        time.sleep(0.6)  # longer than an answer is given again
        begun_s = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60.0) as answer:
            answer.read()
        took_s.append(time.monotonic() - begun_s)
    return 1e3 * sorted(took_s)[1]


def replay_telemetry(hours: int, boards: int, folder: Path) -> None:
    """Replay the telemetry into a service, and print whether every sample is stored once."""
    from experiments.backends.sim_backend import find_free_port
    from server.dashboard.telemetry_ingest import open_ingest

    context, port = multiprocessing.get_context("spawn"), find_free_port()
    clock = context.Value("d", float(BEGIN_S))
    service = context.Process(target=serve_telemetry, args=(folder, port, clock))
    service.start()
    try:
        while not (folder / "in").is_socket():
            time.sleep(0.05)
            assert service.is_alive(), "the service ended"
        asyncio.run(replay_hours(service.pid or 0, hours, boards, folder=folder, clock=clock, port=port))
    finally:
        service.terminate()
        service.join()
    begun_s = time.monotonic()
    open_ingest(folder / "store").close()
    print(f"opened again in {time.monotonic() - begun_s:.1f} s")
    with open_run(folder / "store") as store:
        counted = store.query(COUNT_QUERY).to_pylist()[0]
    print(f"rows sent {boards * hours * HOUR_S:,}, stored {counted['stored']:,}")
    print(f"rows of a board {counted['least']:,} to {counted['most']:,}")


if __name__ == "__main__":
    main()
