"""What boards' traces add to a round of emulated boards in this process: seconds of a round, bytes of an answer.

    python benchmarks/trace_cost.py [BOARDS] [--rounds 2] [--local-epochs 20]

Plays the quickstart's task on BOARDS (1,000) boards of its four kinds and times, within the very run, what makes the
traces on the boards (``build_emulated_trace``), what books them on the server (``book_traces``) and what appends their
rows to
the store. Printed: a round's wall time, each share of it, the stretches and the JSON bytes of an answer's trace. The
goal is 3 % for making and booking, and 100 KB. The first round, which fills caches, is not counted.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import server.rounds.coordinator
from experiments.spec.experiment_loader import load_experiment
from fedge.client import emulated
from fedge.client.emulated import ClientTask
from fedge.experiment import list_boards
from fedge.telemetry.store import Row, RunTables
from fedge.telemetry.store_records import RoundTrace
from fedge.wire import to_json
from server.run import build_coordinator
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "experiments/configs/quickstart.yaml"


class FunctionTimer:
    """Seconds spent in given functions since the end of the last round, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.rounds: list[dict[str, float]] = []
        self._began_s = time.perf_counter()

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began_s

        return timed

    def end_round(self, number: int) -> None:
        self.rounds.append(self.seconds | {"round": time.perf_counter() - self._began_s})
        self.seconds, self._began_s = {}, time.perf_counter()


class SeparateTraceTables:
    """A run's tables that store traces separately from other rows, so that their time can be measured separately."""

    def __init__(self, folder: Path, timed: FunctionTimer) -> None:
        self._tables = RunTables(folder)
        self._append = timed.wrap("store", self._tables.append)

    def append(self, rows: Iterable[Row]) -> None:
        kept = list(rows)
        self._tables.append(row for row in kept if not isinstance(row, RoundTrace))
        if traces := [row for row in kept if isinstance(row, RoundTrace)]:
            self._append(traces)


def main(count: int, rounds: int, epochs: float) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    entries = [f"fleet.{i}.count={count // 4}" for i in range(4)]
    wanted = [
        *entries,
        f"rounds={rounds + 1}",
        f"workload.local_epochs={epochs}",
        "backend=local",
        "data.partition=iid",
    ]
    experiment = load_experiment(QUICKSTART, wanted)
    timed, traces = FunctionTimer(), list[tuple[int, int]]()

    index = {board.name: board.index for board in list_boards(experiment)}

    def respond(questions: Mapping[str, OutgoingRequest]) -> dict[str, IncomingReply]:
        tasks = [ClientTask(experiment, index[name], asked.ask, asked.arrays) for name, asked in questions.items()]
        answers = dict(zip(questions, emulated.answer_together(tasks), strict=True))
        for name, (answer, _) in answers.items():
            if index[name] % 50 == 0 and len(answer.trace):
                traces.append((len(answer.trace), len(to_json(answer.trace))))
        return {name: IncomingReply(*answer) for name, answer in answers.items()}

    emulated.build_emulated_trace = timed.wrap("make", emulated.build_emulated_trace)  # type: ignore[attr-defined]
    coordinator = server.rounds.coordinator
    coordinator.book_traces = timed.wrap("book", coordinator.book_traces)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        tables = SeparateTraceTables(Path(folder), timed)
        build_coordinator(
            experiment,
            port=LocalPort(respond),
            tables=tables,
            checkpoints=Path(folder) / "checkpoints",
            on_round=timed.end_round,
        ).run()
    print_report(timed.rounds[1:], traces)


def print_report(rounds: list[dict[str, float]], traces: list[tuple[int, int]]) -> None:
    whole_s = statistics.median(each["round"] for each in rounds)
    print(f"round: {whole_s:.2f} s")
    for name in ("make", "book", "store"):
        seconds = statistics.median(each.get(name, 0.0) for each in rounds)
        print(f"{name}: {seconds:.3f} s, {seconds / whole_s:.2%} of the round")
    longest, largest = max(traces)
    print(f"trace: {statistics.median(n for n, _ in traces):.0f} stretches, at most {longest} ({largest / 1e3:.1f} KB)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("boards", nargs="?", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--local-epochs", type=float, default=20.0)
    options = parser.parse_args()
    main(options.boards, options.rounds, options.local_epochs)
