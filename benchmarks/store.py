"""Cost of a run's store: rows of samples appended in a second of CPU time, which other load does not change.

Samples (with three rails each) arrive as the traces of boards, as in a run. They are written to a temporary folder.

    OMP_NUM_THREADS=1 python benchmarks/store.py
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import measure_s

from fedge.telemetry.store import RunTables
from fedge.telemetry.store_records import RoundTrace
from fedge.types import Trace

BOARDS, STRETCHES = 1000, 100
WRITTEN = 1_000_000
AT_LEAST_ROWS_PER_S = 100_000


def draw_trace(chance: random.Random, start_s: float) -> Trace:
    """Return ten seconds of a board at 10 Hz."""

    def figures(low: float, high: float) -> tuple[float, ...]:
        return tuple(round(chance.uniform(low, high), 3) for _ in range(STRETCHES))

    return Trace(
        start_s=tuple(start_s + i / 10 for i in range(STRETCHES)),
        span_s=(0.1,) * STRETCHES,
        power_w=figures(3, 30),
        temperature_c=figures(30, 70),
        cpu_mhz=figures(300, 2200),
        gpu_mhz=figures(100, 1300),
        mem_mhz=(3199.0,) * STRETCHES,
        cpu_load=figures(0, 1),
        gpu_load=figures(0, 1),
        mem_load=(None,) * STRETCHES,
        rails_w={name: figures(0, 10) for name in ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")},
    )


def generate_traces(rows: int) -> Iterator[list[RoundTrace]]:
    """Yield the traces of ``rows`` rows, a hundred boards at a time."""
    chance = random.Random(0)
    traces = [draw_trace(chance, 0.0) for _ in range(100)]
    for at in range(rows // (100 * STRETCHES)):
        first = at * 100 % BOARDS
        yield [RoundTrace(1 + at, f"board-{first + i}", one) for i, one in enumerate(traces)]


def measure_store_cpu_s(folder: Path, rows: int) -> float:
    """Return the CPU seconds of this process to append and close."""
    batches = list(generate_traces(rows))
    tables = RunTables(folder)

    def write() -> None:
        for batch in batches:
            tables.append(batch)
        tables.close()

    return measure_s(write)


def main() -> int:
    """Print the figure; return 1 if it misses the limit."""
    with tempfile.TemporaryDirectory(prefix="fedge-store-") as folder:
        per_s = WRITTEN / measure_store_cpu_s(Path(folder), WRITTEN)
    print(f"append: {per_s:,.0f} sample rows/s on one core, parts included ({WRITTEN:,} rows)")
    kept = per_s >= AT_LEAST_ROWS_PER_S
    print("limit kept" if kept else f"MISSED: {AT_LEAST_ROWS_PER_S:,} rows/s")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
