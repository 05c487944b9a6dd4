"""Telemetry of 100 boards while others hold 2,000 half-open connections and 50 clients send rubbish.

    OMP_NUM_THREADS=1 python benchmarks/hostile_connections.py [--seconds 30] [--half-open 2000] [--bad 50]

The service of a fleet, those who attack it and the boards have a process each: page on a TCP port, telemetry on a Unix
socket as behind the proxy.
Half-open connections send the beginning of a request to the page, say no more, and are opened again whenever the
service closes them. The bad clients sit behind the proxy, where only a registered board can be, and send in turn what
is no JSON, a message of another board, one of 2 MB, an unfinished one, and an endless head. Each board sends a stretch
a second on a connection of its own. Printed: rows lost and doubled, the time from a stretch to its
acknowledgement, which comes after it is stored, and what the page answered to a reader.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from live_channel import build_message, read_cpu_s

from experiments.backends.dashboard_service import FleetDashboard, ListenAddress, serve_fleet
from experiments.backends.sim_backend import find_free_port
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import SampleRow

BOARDS = 100
RUBBISH = (
    b"POST /telemetry HTTP/1.1\r\nHost: x\r\nX-Fedge-Board: bad\r\nContent-Length: 4\r\n\r\n{{{{",
    build_message(1, 1, 1e9).replace(b"X-Fedge-Board: orin-nano-1", b"X-Fedge-Board: bad"),
    b"POST /telemetry HTTP/1.1\r\nHost: x\r\nX-Fedge-Board: bad\r\nContent-Length: 2000000\r\n\r\n" + 2_000_000 * b"x",
    b"POST /telemetry HTTP/1.1\r\nHost: x\r\nX-Fedge-Board: bad\r\nContent-Length: 500\r\n\r\n{",
    b"POST /telemetry HTTP/1.1\r\nHost: x\r\nx-endless: " + 200_000 * b"y",
)
HEAD_BEGUN = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


class Attack:
    """A service under attack, and what its boards and its reader saw."""

    def __init__(self, ingest: Path, port: int, seconds: float) -> None:
        self._ingest, self._port, self._ends_s = ingest, port, time.monotonic() + seconds
        self.delays_s: list[float] = []
        self.told: Counter[str] = Counter()

    async def attack(self, half_open: int, bad: int) -> None:
        """Let those who attack do their part until the time is over."""
        parts: list[Coroutine[Any, Any, None]] = [self._hold_open() for _ in range(half_open)]
        await asyncio.gather(*parts, *(self._send_rubbish(number) for number in range(bad)))

    async def use(self) -> None:
        """Let boards and a reader do theirs."""
        await asyncio.gather(*(self._tell(number) for number in range(BOARDS)), self._read_page())

    def _goes_on(self) -> bool:
        return time.monotonic() < self._ends_s

    async def _tell(self, board: int) -> None:
        begun_s = time.monotonic() + board / BOARDS
        unix_s = time.time() - time.monotonic()
        reader, writer = await asyncio.open_unix_connection(str(self._ingest))
        for seq in itertools.count(1):
            at_s = begun_s + seq
            if at_s >= self._ends_s - 2.0:
                break
            await asyncio.sleep(at_s - time.monotonic())
            writer.write(build_message(board, seq, unix_s + at_s - 1.0))
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
            self.delays_s.append(time.monotonic() - at_s)
            self.told["stored" if head.startswith(b"HTTP/1.1 200") else head.split(b"\r\n")[0].decode()] += 1
        writer.close()

    async def _hold_open(self) -> None:
        while self._goes_on():
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                self.told["half-open connections"] += 1
                writer.write(HEAD_BEGUN)
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), max(0.0, self._ends_s - time.monotonic()))
                writer.close()
            await asyncio.sleep(1.0)

    async def _send_rubbish(self, number: int) -> None:
        for what in itertools.count(number):
            if not self._goes_on():
                return
            with suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_unix_connection(str(self._ingest))
                writer.write(RUBBISH[what % len(RUBBISH)])
                self.told["rubbish"] += 1
                await asyncio.wait_for(reader.read(4096), 2.0)
                writer.close()
            await asyncio.sleep(0.2)

    async def _read_page(self) -> None:
        while self._goes_on():
            answer = b""
            with suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.write(b"GET /api/view HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = await asyncio.wait_for(reader.read(20), 5.0)
                writer.close()
            self.told["page answered" if answer.startswith(b"HTTP/1.1 200") else "page refused"] += 1
            await asyncio.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--half-open", type=int, default=2_000)
    parser.add_argument("--bad", type=int, default=50)
    parser.add_argument("--serve", nargs=2, metavar=("FOLDER", "PORT"), help=argparse.SUPPRESS)
    parser.add_argument("--attack", nargs=2, metavar=("FOLDER", "PORT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        story = Attack(Path(given.attack[0]) / "in", int(given.attack[1]), given.seconds)
        asyncio.run(story.attack(given.half_open, given.bad))
        print(json.dumps(story.told))
        return
    if given.serve:
        folder = Path(given.serve[0])
        service = FleetDashboard(folder / "store", None, folder / "in", store_bytes=10**10, store_age_s=1e9)
        serve_fleet(service, ListenAddress(port=int(given.serve[1])), print)
        return
    with tempfile.TemporaryDirectory(prefix="fedge-hostile-") as scratch:
        attack_service(given, Path(scratch))


def attack_service(given: argparse.Namespace, folder: Path) -> None:
    """Start the service, attack it, and print what came of it."""
    port = find_free_port()
    command = [sys.executable, __file__, "--serve", str(folder), str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        while not (folder / "in").is_socket():
            time.sleep(0.05)
            assert service.poll() is None, "the service ended"
        numbers = [f"--seconds={given.seconds}", f"--half-open={given.half_open}", f"--bad={given.bad}"]
        command = [sys.executable, __file__, *numbers, "--attack", str(folder), str(port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as bad:
            attack = Attack(folder / "in", port, given.seconds)
            asyncio.run(attack.use())
            assert bad.stdout is not None
            attack.told.update(json.loads(bad.stdout.read()))
        memory_kb = next(
            line.split()[1]
            for line in Path(f"/proc/{service.pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        cpu_s = read_cpu_s(service.pid)
        service.terminate()
        assert service.stderr is not None
        log = service.stderr.read()
    stored = Counter((row.board, round(row.at_s, 3)) for row in read_rows(folder / "store", SampleRow))
    stored = Counter({key: count for key, count in stored.items() if key[0].startswith("orin-nano-")})
    sent, delays_s = len(attack.delays_s), sorted(attack.delays_s)
    print(f"messages of {BOARDS} boards  {sent}, acknowledged {attack.told['stored']}")
    print(f"rows lost                {sent - len(stored)}")
    print(f"rows doubled             {sum(stored.values()) - len(stored)}")
    print(f"delay                    median {delays_s[sent // 2]:.3f} s, longest {delays_s[-1]:.3f} s")
    for what in ("half-open connections", "rubbish", "page answered", "page refused"):
        print(f"{what:24} {attack.told[what]}")
    used = f"{cpu_s:.1f} s of computing, at most {int(memory_kb) / 1024:.0f} MB, log {len(log) / 1e3:.1f} kB"
    print(f"service                  {used}")


if __name__ == "__main__":
    main()
