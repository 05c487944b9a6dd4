"""Throughput and CPU of the live channel's server: messages of 1,000 boards a second, then as many as it can take.

A server in its own process listens on a unix socket, as behind the proxy; this process sends for the boards, over 64
connections that are kept open. Each message is one second of a board: one trace with three rails, and its status.
First every board sends once a second; then as fast as answers come. (The store syncs samples to the disk once a second;
until then they survive the end of the process, but not a loss of power.) Everything is written to a temporary folder,
which is removed. CPU time is the server's alone, all of its threads.

    OMP_NUM_THREADS=1 python benchmarks/live_channel.py [SECONDS]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge.telemetry.live_records import VERSION, BoardProgress, TelemetryBatch, encode_batch
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import SampleRow
from fedge.types import Trace

BOARDS, CONNECTIONS = 1000, 64
DURATION_S = 20.0
MIN_MESSAGES_PER_S = 1000.0
START_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class ServerCost:
    """A server's cost: messages, messages per second, CPU per message and in all, and answer times."""

    messages: int
    per_s: float
    cpu_ms: float
    cores: float
    median_ms: float
    worst_ms: float


def build_message(board: int, seq: int, at_s: float) -> bytes:
    """Return one HTTP request, as the proxy sends it."""
    name = f"orin-nano-{board}"
    rails = {"VDD_IN": (7.1,), "VDD_CPU_GPU_CV": (3.2,), "VDD_SOC": (1.4,)}
    clocks = {"cpu_mhz": (1510.4,), "gpu_mhz": (624.75,), "mem_mhz": (2133.0,)}
    loads = {"cpu_load": (0.41,), "gpu_load": (0.97,), "mem_load": (0.3,)}
    trace = Trace((at_s,), (1.0,), power_w=(7.1,), temperature_c=(46.5,), **clocks, **loads, rails_w=rails)
    work = {"device": "orin-nano-8gb", "run": "run", "round": 3, "steps": 400, "mode": "6c/1510.4/624.75/2133 MHz"}
    doing = BoardProgress(
        name, at_s=at_s, state="training", **work, steps_done=seq % 400, power_w=7.1, temperature_c=46.5
    )
    stream = "a1b2c3d4e5f60718"
    body = encode_batch(TelemetryBatch(VERSION, board=name, stream=stream, seq=seq, trace=trace, progress=doing))
    head = f"POST /telemetry HTTP/1.1\r\nHost: fleet\r\nX-Fedge-Board: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("ascii") + body


class ServerConnections:
    """Open connections to the server, each with at most one pending request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.took_s: list[float] = []

    async def open(self, count: int = CONNECTIONS) -> None:
        for _ in range(count):
            self._free.put_nowait(await asyncio.open_unix_connection(str(self._path)))

    async def post(self, request: bytes) -> None:
        """Send a request and wait for the answer; a status other than 200 is an error."""
        reader, writer = await self._free.get()
        if reader.at_eof():  # the server closes one that says nothing for seconds
            reader, writer = await asyncio.open_unix_connection(str(self._path))
        begun_s = time.monotonic()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        self.took_s.append(time.monotonic() - begun_s)
        self._free.put_nowait((reader, writer))
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head!r} {body!r}")


async def send_paced(connections: ServerConnections, seconds: float) -> int:
    """Send for every board once a second, evenly spaced, and return the number of answered messages."""
    begun_s, unix_s = time.monotonic(), time.time() - 2 * seconds - 10
    tasks = []
    for number in range(round(BOARDS * seconds)):
        ahead_s = begun_s + number / BOARDS - time.monotonic()
        if ahead_s > 0.002:
            await asyncio.sleep(ahead_s)
        seq, board = divmod(number, BOARDS)
        tasks.append(asyncio.create_task(connections.post(build_message(board, seq + 1, unix_s + seq))))
    await asyncio.gather(*tasks)
    return len(tasks)


async def send_unpaced(connections: ServerConnections, seconds: float) -> int:
    """Send as fast as answers come, and return the number of answered messages."""
    begun_s, unix_s, given = time.monotonic(), time.time() - seconds - 5, iter(range(10**9))

    async def one() -> int:
        done = 0
        while time.monotonic() < begun_s + seconds:
            round_, board = divmod(next(given), BOARDS)
            await connections.post(build_message(board, 10**6 + round_, unix_s + round_ * 1.0))
            done += 1
        return done

    return sum(await asyncio.gather(*(one() for _ in range(CONNECTIONS))))


def measure_server(
    way: Callable[[ServerConnections, float], Any], path: Path, process: int, seconds: float
) -> ServerCost:
    """Measure the server's cost while boards send in one way."""

    async def story() -> tuple[int, list[float]]:
        connections = ServerConnections(path)
        await connections.open()
        return await way(connections, seconds), connections.took_s

    cpu_s, begun_s = read_cpu_s(process), time.monotonic()
    done, took_s = asyncio.run(story())
    wall_s, spent_s = time.monotonic() - begun_s, read_cpu_s(process) - cpu_s
    ordered = sorted(took_s)
    return ServerCost(
        done,
        per_s=done / wall_s,
        cpu_ms=1e3 * spent_s / done,
        cores=spent_s / wall_s,
        median_ms=1e3 * ordered[len(ordered) // 2],
        worst_ms=1e3 * ordered[-1],
    )


def read_cpu_s(process: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_server(folder: Path, path: Path) -> None:
    """Run the server until SIGTERM."""
    import socket

    import uvicorn

    from server.dashboard.telemetry_ingest import ingest_app, open_ingest

    folder.mkdir()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(128)

    ingest = open_ingest(folder)
    try:
        uvicorn.Server(uvicorn.Config(ingest_app(ingest), log_level="warning", lifespan="off")).run(sockets=[listening])
    finally:
        ingest.close()


def measure_rates(where: Path, seconds: float) -> tuple[ServerCost, ServerCost, int]:
    """Measure the server at the paced and at the highest rate, and count the rows that it keeps."""
    folder, path = where / "store", where / "server.sock"
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(folder), str(path)])
    try:
        until_s = time.monotonic() + START_LIMIT_S
        while not path.exists():
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError("the server did not start")
            time.sleep(0.05)
        costs = [measure_server(each, path, process.pid, seconds) for each in (send_paced, send_unpaced)]
    finally:
        process.terminate()
        process.wait(60)
    return costs[0], costs[1], len(read_rows(folder, SampleRow))


def main(arguments: Sequence[str]) -> int:
    """Print the figures; return 1 if the server misses a goal."""
    if arguments[:1] == ["--serve"]:
        with suppress(KeyboardInterrupt):
            run_server(Path(arguments[1]), Path(arguments[2]))
        return 0
    seconds = float(arguments[0]) if arguments else DURATION_S
    with tempfile.TemporaryDirectory() as name:
        even, most, kept = measure_rates(Path(name), seconds)
    for title, cost in (("1,000 boards a second", even), ("as many as it can", most)):
        print(
            f"{title:22} {cost.per_s:7.0f} messages/s, {100 * cost.cores:3.0f} % of a core, "
            f"{cost.cpu_ms:.3f} ms each; answers: median {cost.median_ms:.1f} ms, worst {cost.worst_ms:.0f} ms"
        )
    print(f"kept {kept} of {even.messages + most.messages} messages that were answered")
    per_core = 1e3 / most.cpu_ms
    print(f"on one core: {per_core:.0f} messages/s; {MIN_MESSAGES_PER_S:.0f} are needed")
    return 0 if per_core >= MIN_MESSAGES_PER_S and even.per_s >= 0.95 * MIN_MESSAGES_PER_S else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
