"""The saving of a policy in short and in long runs, against work at MAXN and waiting in the lowest mode.

A run has to pay for its probes within its own rounds, so short runs are where a policy can lose to boards that learn
nothing. Prints, per fleet and number of rounds, over the seeds: the mean and the least saving of energy, the oracle's
at the same round lengths, the rounds' length as a multiple of MAXN's, that of the first round, and the probes per
board. Everything is on emulated boards (calibrated and estimated, see docs/explanation/emulation.md).

    python benchmarks/run_lengths.py [--seeds 5] [--rounds 2,3,5,10,15] [--boards 8,60] [KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
from collections.abc import Mapping
from pathlib import Path

from figures import FOUR_KINDS

from experiments.report.run.run_summary import summarise_run
from experiments.spec.experiment_loader import load_experiment
from fedge import workloads
from fedge.client.emulated import ClientTask, answer_together
from fedge.experiment import Experiment, list_boards
from fedge.telemetry.store import MemoryTables
from fedge.telemetry.store_records import ClientRow, RoundRow
from server.rounds.coordinator import Coordinator
from server.transport.client_port import IncomingReply, LocalPort, OutgoingRequest

CONFIG = Path(__file__).resolve().parents[1] / "experiments" / "configs" / "quickstart.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", default="2,3,5,10,15")
    parser.add_argument("--boards", default="8,60")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("boards  rounds  saving   least  oracle's  length  first round  probes", flush=True)
    for boards in (int(text) for text in args.boards.split(",")):
        for rounds in (int(text) for text in args.rounds.split(",")):
            runs = [measure_run(boards, rounds, seed, args.settings) for seed in range(1, args.seeds + 1)]
            saving, oracle, length, first, probes = (statistics.mean(column) for column in zip(*runs, strict=True))
            least = min(run[0] for run in runs)
            line = f"{boards:6d}  {rounds:6d}  {saving:6.2%}  {least:6.2%}  {oracle:8.2%}  {length:6.3f}  {first:11.3f}"
            print(f"{line}  {probes:6.1f}", flush=True)


def measure_run(boards: int, rounds: int, seed: int, settings: list[str]) -> tuple[float, float, float, float, float]:
    """Run once, as ``--backend local`` does.

    Returns:
        Saving against MAXN with waiting low, the oracle's, mean length of the rounds and length of the first round as
        multiples of MAXN's, and probes per board.
    """
    fleet = json.dumps([{"device": kind, "count": boards // len(FOUR_KINDS)} for kind in FOUR_KINDS])
    sets = ["backend=local", f"seed={seed}", f"rounds={rounds}", f"fleet={fleet}", *settings]
    experiment = load_experiment(CONFIG, sets)
    tables = MemoryTables()
    task = workloads.load_experiment_task(experiment)
    Coordinator(experiment, build_port(experiment), task, tables).run()
    rows = [row for row in tables.rows if isinstance(row, RoundRow)]
    clients = [row for row in tables.rows if isinstance(row, ClientRow)]
    summary = summarise_run(experiment, rows, clients, wall_s=0.0)
    return (
        summary["saving_vs_maxn_parked"],
        summary["oracle_saving_vs_maxn_parked"],
        summary["round_vs_maxn"],
        rows[0].round_s / (rows[0].maxn_round_s or rows[0].round_s),
        sum(row.probes for row in clients) / boards,
    )


def build_port(experiment: Experiment) -> LocalPort:
    """Return a port whose clients predict together."""
    index = {board.name: board.index for board in list_boards(experiment)}

    def respond(questions: Mapping[str, OutgoingRequest]) -> Mapping[str, IncomingReply]:
        tasks = [ClientTask(experiment, index[name], asked.ask, asked.arrays) for name, asked in questions.items()]
        return dict(zip(questions, (IncomingReply(*answer) for answer in answer_together(tasks)), strict=True))

    return LocalPort(respond)


if __name__ == "__main__":
    main()
