"""Cost of a run's store: rows/s appended, seconds of a query over 50 million rows, and the rounds of a long run.

Samples (with three rails each) arrive as the traces of boards, as in a run; in the same process the same samples are
written as one JSON object per line and as CSV, and into SQLite, and queried for each board's joules and mean power; the
times of these for fewer rows are scaled up. They are compared in CPU time, so that other load on the machine does not
count; the store's query is given in wall time too. Last, 100 rounds of 1,000 boards: the store's appends, and, in every
tenth round, rewriting the tables, as a store without write-ahead files would after each. Everything is written to a
temporary folder, which is removed.

    OMP_NUM_THREADS=1 python benchmarks/store.py [MILLIONS_OF_ROWS]
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from figures import measure_s

from fedge.atomic_files import replace_file
from fedge.telemetry import open_run, store_files
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow, RoundTrace, SampleRow
from fedge.telemetry.store_schema import CLIENTS, ROUNDS, SAMPLES, rows_to_batch
from fedge.types import Trace

DEFAULT_MILLIONS = 50.0
BOARDS, STRETCHES = 1000, 100
WRITTEN, PLAIN = 1_000_000, 500_000
"""Rows appended to measure the writing, and rows in the other formats."""
ROUNDS_PLAYED = 100
AT_LEAST_ROWS_PER_S, AT_MOST_S = 100_000, 2.0
QUERY = """
    select board, sum(power_w * span_s) as energy_j, sum(power_w * span_s) / sum(span_s) as mean_w
    from samples group by board order by board
"""


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


def fill_store(folder: Path, rows: int) -> None:
    """Fill the store like a long run, each part with its own figures."""
    import numpy as np
    import pyarrow as pa

    source = pa.concat_tables([open_run(folder).arrow("samples")])
    where, chance = store_files.table_folder(folder, SAMPLES), np.random.default_rng(0)
    at = source.schema.get_field_index("power_w")
    number = store_files.list_store_files(where).last
    done = source.num_rows
    while done < rows:
        piece = source.slice(0, min(rows - done, 262_144))
        watts = pa.array(np.round(chance.uniform(3, 30, piece.num_rows), 3))
        number += 1
        store_files.write_part(
            store_files.numbered_path(where, number, store_files.PART), piece.set_column(at, "power_w", watts)
        )
        done += piece.num_rows


def build_plain_rows(rows: int) -> list[dict[str, Any]]:
    """Return the samples as dictionaries, the form in which a program writes JSON, CSV or SQL itself."""
    columns = [name for name in SampleRow.__slots__ if name not in {"at_s", "round", "board", "rails_w"}]
    return [
        {"at_s": at_s, "round": traced.round, "board": traced.board}
        | {name: getattr(traced.trace, name)[i] for name in columns}
        | {name: watts[i] for name, watts in traced.trace.rails_w.items()}
        for batch in generate_traces(rows)
        for traced in batch
        for i, at_s in enumerate(traced.trace.start_s)
    ]


def measure_lines(folder: Path, rows: list[dict[str, Any]], form: str) -> tuple[float, float]:
    """Return the CPU seconds to write and to query a file of one line per row, ``json`` or ``csv``."""
    import pandas as pd

    path = folder / f"samples.{form}"

    def write() -> None:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            if form == "csv":
                table.writeheader()
            for row in rows:
                table.writerow(row) if form == "csv" else file.write(json.dumps(row) + "\n")
                file.flush()

    read = pd.read_csv if form == "csv" else partial(pd.read_json, lines=True)
    return measure_s(write), measure_s(lambda: group_by_board(read(path)))


def measure_sqlite(folder: Path, rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the CPU seconds to write, with a transaction per trace, and to query."""
    base = sqlite3.connect(folder / "samples.db", isolation_level=None)
    base.execute("pragma journal_mode = wal")
    base.execute(f"create table samples ({', '.join(rows[0])})")
    places = ", ".join("?" for _ in rows[0])
    values = [tuple(row.values()) for row in rows]

    def write() -> None:
        for at in range(0, len(values), STRETCHES):
            base.execute("begin")
            base.executemany(f"insert into samples values ({places})", values[at : at + STRETCHES])
            base.execute("commit")

    seconds = measure_s(write), measure_s(lambda: base.execute(QUERY).fetchall())
    base.close()
    return seconds


def group_by_board(frame: Any) -> Any:
    """Run the query in pandas."""
    frame["energy_j"] = frame["power_w"] * frame["span_s"]
    sums = frame.groupby("board")[["energy_j", "span_s"]].sum()
    return sums["energy_j"] / sums["span_s"]


INTEGER_FIELDS = ("cores", "steps", "probes", "samples", "own_samples", "shared_samples", "asked_steps")
TEXT_FIELDS = {
    "device": "orin-nano",
    "status": "done",
    "error": None,
    "feasible": True,
    "why": "least joules within 30 s",
    "throttled": False,
    "mix_mode": None,
    "lowered": None,
    "mix_steps": None,
    "staleness": None,
}


def build_client_rows(number: int) -> list[ClientRow]:
    """Return the thousand client rows of a round."""
    figures = (
        {name: float(number) for name in ClientRow.__slots__} | dict.fromkeys(INTEGER_FIELDS, number) | TEXT_FIELDS
    )
    return [ClientRow(**{**figures, "round": number, "board": f"board-{i}"}) for i in range(BOARDS)]


def build_round_row(number: int) -> RoundRow:
    """Return a round's own row."""
    figures = dict.fromkeys(RoundRow.__slots__, 1.0)
    whole = dict.fromkeys(("selected", "done", "late", "failed", "cancelled", "available", "stale"), BOARDS)
    return RoundRow(**{**figures, **whole, "round": number, "straggler": "board-1"})


def measure_long_run(folder: Path) -> tuple[list[float], list[float]]:
    """Return CPU seconds of each round's appends to the store, and of every tenth one's with the tables rewritten."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = RunTables(folder / "store-run")
    clients: list[ClientRow] = []
    rounds: list[RoundRow] = []
    ours, anew = [], []

    def rewrite() -> None:
        for name, table, rows in (("clients", CLIENTS, clients), ("rounds", ROUNDS, rounds)):
            with replace_file(folder / f"{name}.parquet") as part:
                pq.write_table(pa.Table.from_batches([rows_to_batch(table, rows)]), part)

    def append(now: list[ClientRow], row: RoundRow) -> None:
        tables.append(now)
        tables.append([row])

    for number in range(1, ROUNDS_PLAYED + 1):
        now, row = build_client_rows(number), build_round_row(number)
        ours.append(measure_s(lambda now=now, row=row: append(now, row)))
        clients += now
        rounds.append(row)
        if number == 1 or number % 10 == 0:
            anew.append(measure_s(rewrite))
    tables.close()
    assert len(read_rows(folder / "store-run", ClientRow)) == ROUNDS_PLAYED * BOARDS
    return ours, anew


def report_writing(folder: Path) -> float:
    """Print and return rows/s."""
    per_s = WRITTEN / measure_store_cpu_s(folder / "run", WRITTEN)
    print(f"append: {per_s:,.0f} sample rows/s on one core, parts included ({WRITTEN:,} rows)")
    shutil.rmtree(folder / "run")
    return per_s


def report_asking(folder: Path, rows: int) -> tuple[float, float]:
    """Print the seconds of the query; return the median of three in wall time, and in CPU time."""
    measure_store_cpu_s(folder / "run", WRITTEN)
    fill_store(folder / "run", rows)
    size = sum(path.stat().st_size for path in (folder / "run").rglob("*.parquet"))
    real, cpu = [], []
    for _ in range(3):
        with open_run(folder / "run") as run:
            started_s = time.perf_counter()
            cpu.append(measure_s(lambda run=run: run.query(QUERY)))
            real.append(time.perf_counter() - started_s)
    shown = ", ".join(f"{one:.2f}" for one in real)
    print(
        f"joules and mean power of {BOARDS} boards over {rows:,} rows ({size / 2**30:.2f} GiB): {shown} s, "
        f"{sorted(cpu)[1]:.2f} s of CPU time"
    )
    return sorted(real)[1], sorted(cpu)[1]


def report_rounds(ours: list[float], anew: list[float]) -> None:
    """Print the times of a long run's first and last rounds."""
    all_anew = 10 * sum(anew[1:])
    first, last = (f"round {number} {1e3 * one:.0f} ms" for number, one in ((1, ours[0]), (ROUNDS_PLAYED, ours[-1])))
    print(f"{ROUNDS_PLAYED} rounds of {BOARDS} boards appended: {sum(ours):.2f} s of CPU time ({first}, {last})")
    first, last = (f"round {number} {1e3 * one:.0f} ms" for number, one in ((1, anew[0]), (ROUNDS_PLAYED, anew[-1])))
    print(f"with all written anew: about {all_anew:.0f} s ({first}, {last}), {all_anew / sum(ours):.0f} times")


def main(millions: float) -> int:
    """Print every figure; return 1 if a limit is missed."""
    rows = int(millions * 1e6)
    with tempfile.TemporaryDirectory(prefix="fedge-store-") as name:
        folder = Path(name)
        per_s = report_writing(folder)
        taken_s, cpu_s = report_asking(folder, rows)
        same = build_plain_rows(PLAIN)
        for form, work in (
            ("JSON lines, pandas", partial(measure_lines, form="json")),
            ("CSV, pandas", partial(measure_lines, form="csv")),
            ("SQLite", measure_sqlite),
        ):
            write_s, ask_s = work(folder, same)
            scaled_s = ask_s * rows / PLAIN
            print(
                f"{form}: {PLAIN / write_s:,.0f} rows/s ({per_s * write_s / PLAIN:.1f} times slower to write); "
                f"{ask_s:.2f} s for {PLAIN:,} rows, {scaled_s:.0f} s for {rows:,} if it grows with the rows "
                f"({scaled_s / cpu_s:.0f} times slower to ask)"
            )
        del same
        report_rounds(*measure_long_run(folder))
    kept = per_s >= AT_LEAST_ROWS_PER_S and taken_s < AT_MOST_S
    print("limits kept" if kept else f"MISSED: {AT_LEAST_ROWS_PER_S:,} rows/s and {AT_MOST_S:g} s")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_MILLIONS))
