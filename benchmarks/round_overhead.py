"""A round's wall time on loopback: fedge's fleet backend against plain Flower, on the same four SuperNodes.

    python benchmarks/round_overhead.py [ROUNDS] [--blocks 2] [--model small-cnn] [--steps 16] [--keep FOLDER]

One SuperLink and four SuperNodes without TLS, each a recorded board with its real power daemon and resident worker. On
them run in turn, ``--blocks`` times each: a plain Flower app made as Flower's quickstart is (``plain_flower/``:
FedAvg's own loop, torch imported and the model loaded in every ClientApp), and ``fedge run``. Both have the same
network, the same samples on each board, the same number and size of minibatches and one torch thread; both have one
phase of messages per round (train) and test the global model on the server. ``tracing/`` notes when each round's
messages leave and return, in both alike. SuperExec looks for work ten times a second on both sides, as it does on
boards that fedge provisions.

The SuperNodes run with process isolation, as on provisioned boards, and one runner of ClientApps at a time is attached
to each: plain Flower's own ``flower-superexec`` in its blocks; in fedge's the same, with the stand-in of fedge's role
first on its PATH and a process of each board that waits and forks (``ansible/roles/supernode/files/ready.py``).

Printed, over ROUNDS (6) rounds of each block after its first, as medians with the smallest and the largest: the time of
the boards and of the server, and the wall time from one round's push to the next one's, with the ratio. The goal is
0.7. Where the machine has fewer cores than boards, or other work, their processes wait for each other: repeat it on an
idle one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MAX_OVERHEAD_RATIO = 0.7
BOARDS = ("nano", "xavier-nx", "agx-orin-jp6", "orin-nano-jp6")
BATCH, RATE, MOMENTUM = 16, 0.01, 0.9
TEST_SAMPLES = 200
TASK = "from fedge.worker.architectures import MODELS\n\n\ndef model(shape):\n    return MODELS[{model!r}](shape)\n"
EXPERIMENT = """
name: overhead
seed: 1
rounds: {rounds}
backend: fleet
fleet: [{{device: orin-nano, name: board, count: {boards}}}]
workload: {{task: {task}, batch_size: {batch}, local_epochs: 1, learning_rate: {rate}, momentum: {momentum}}}
data: {{dir: {data}}}
superlink: {{address: "{address}", connect_timeout_s: 60}}
reply_timeout_s: 120
"""
PARTS = ("boards", "server", "wall")


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds of one round: until the last reply arrived, until the next push starts, and both."""

    boards: float
    server: float

    @property
    def wall(self) -> float:
        return self.boards + self.server


def main() -> int:
    """Measure and print."""
    options = _parse_arguments()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder = Path(options.keep or tempfile.mkdtemp(prefix="overhead-"))
    try:
        plain, ours = _run_both(options, folder)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    _print_rounds(plain, ours)
    ratio = statistics.median(r.wall for r in ours) / statistics.median(r.wall for r in plain)
    print(f"fedge / plain Flower, medians of a round's wall time: {ratio:.2f} (goal: {MAX_OVERHEAD_RATIO} at most)")
    print(f"load of the machine: {' '.join(f'{load:.1f}' for load in os.getloadavg())}, {os.cpu_count()} cores")
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rounds", type=int, nargs="?", default=6)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--model", default="small-cnn", help="a network of fedge.worker.architectures")
    parser.add_argument("--steps", type=int, default=16, help="minibatches of a board's round")
    parser.add_argument("--keep", help="keep the run's files in this folder")
    return parser.parse_args()


def _run_both(options: argparse.Namespace, folder: Path) -> tuple[list[RoundTimes], list[RoundTimes]]:
    """Return the rounds of plain Flower's runs and of fedge's, on one fleet."""
    from contracts.loopback_fleet import loopback_fleet
    from contracts.runners import runners

    folder.mkdir(parents=True, exist_ok=True)
    plain: list[RoundTimes] = []
    ours: list[RoundTimes] = []
    with _trace_processes(folder / "trace.jsonl") as trace, loopback_fleet(BOARDS, folder, "process") as fleet:
        for name in fleet.desks:
            _configure_samples(folder / name, options.steps * BATCH)
        _write_samples(folder / "test", TEST_SAMPLES, seed=0)
        for block in range(1, options.blocks + 1):
            with runners(fleet.runtimes, folder / f"plain-{block}-runners", ready=False):
                _run_plain(options, folder, fleet.address, block)
            plain += _read_rounds(trace)
            with runners(fleet.runtimes, folder / f"fedge-{block}-runners", ready=True):
                _run_fedge(options, folder, fleet.address, block)
            ours += _read_rounds(trace)
    return plain, ours


@contextmanager
def _trace_processes(path: Path) -> Iterator[Path]:
    """Let all processes started inside write their trace to ``path``."""
    before = os.environ.copy()
    os.environ["FEDGE_ROUND_TRACE"] = str(path)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # it would have both apps compiled for every message
    os.environ["PYTHONPATH"] = str(Path(__file__).with_name("tracing"))
    try:
        yield path
    finally:
        os.environ.clear()
        os.environ.update(before)


def _configure_samples(place: Path, count: int) -> None:
    """Store a board's own samples, and name them in its settings."""
    own = place / "state" / "own"
    _write_samples(own, count, seed=int(place.name.rpartition("-")[2]))
    settings = place / "node.yaml"
    node_settings = json.loads(settings.read_text(encoding="utf-8")) | {"data_folder": str(own)}
    settings.write_text(json.dumps(node_settings), encoding="utf-8")


def _write_samples(folder: Path, count: int, seed: int) -> None:
    from fedge.worker import sources

    folder.mkdir(parents=True, exist_ok=True)
    data = sources.make_synthetic(count, channels=3, side=32, classes=10, seed=seed)
    if seed == 0:
        data = data._replace(test_x=data.train_x, test_y=data.train_y)
    for part in sources.ARRAY_NAMES:
        np.save(folder / f"{part}.npy", getattr(data, part))


def _run_plain(options: argparse.Namespace, folder: Path, address: str, block: int) -> None:
    """Run the plain app with Flower's own command."""
    from experiments.backends.flower_app import run_config_toml
    from experiments.backends.run_processes import Launch, end_processes_on_exit, private_environment
    from experiments.backends.run_submission import open_serverapp_log, submit, write_connection
    from fedge.experiment import SuperlinkSpec

    place = folder / f"plain-{block}"
    app = place / "app"
    shutil.copytree(Path(__file__).with_name("plain_flower"), app, ignore=shutil.ignore_patterns("__pycache__"))
    home = place / ".flwr"
    home.mkdir()
    write_connection(home, SuperlinkSpec(address=address))
    samples = str(folder / "test")
    config = {"rounds": options.rounds + 2, "nodes": len(BOARDS), "model": options.model, "samples": samples}
    config |= {"batch-size": BATCH, "steps": options.steps, "learning-rate": RATE, "momentum": MOMENTUM}
    (home / "run-config.toml").write_text(run_config_toml(config), encoding="utf-8")
    launch = Launch(
        app, flwr_home=home, logs=place / "logs", env=private_environment(os.environ, place), on_poll=lambda: None
    )
    with end_processes_on_exit(launch):
        submit(
            launch, log=open_serverapp_log(launch), config_file=home / "run-config.toml", options=[], check=lambda: None
        )


def _run_fedge(options: argparse.Namespace, folder: Path, address: str, block: int) -> None:
    """Run the same with ``fedge run``."""
    task, experiment = folder / "bench_task.py", folder / f"fedge-{block}.yaml"
    task.write_text(TASK.format(model=options.model), encoding="utf-8")
    training = {"task": task, "batch": BATCH, "rate": RATE, "momentum": MOMENTUM, "data": folder / "test"}
    text = EXPERIMENT.format(rounds=options.rounds + 2, boards=len(BOARDS), address=address, **training)
    experiment.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "experiments.cli.main", "run", str(experiment)]
    command += ["--folder", str(folder / f"fedge-{block}")]
    log = folder / f"fedge-{block}.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT) as process:
        try:
            process.wait()
        finally:
            process.terminate()  # it ends what it has started, where this program is interrupted
    if process.returncode != 0:
        sys.exit(f"fedge run ended with {process.returncode}\n{log.read_text(encoding='utf-8')}")


def _read_rounds(trace: Path) -> list[RoundTimes]:
    """Return the trace since the last call as rounds, without the first, and up to the last push."""
    events = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    trace.rename(trace.with_name(f"trace-{time.time_ns()}.jsonl"))
    pushes = [event for event in events if event["what"] == "pushed" and event["kind"] == "train"]
    pulled_s = {number: event["at_s"] for event in events if event["what"] == "pulled" for number in event["ids"]}
    rounds = []
    for push, following in itertools.pairwise(pushes):
        last_s = max(pulled_s[each] for each in push["ids"])
        rounds.append(RoundTimes(last_s - push["begun_s"], following["begun_s"] - last_s))
    return rounds[1:]


def _print_rounds(plain: Sequence[RoundTimes], ours: Sequence[RoundTimes]) -> None:
    print(f"{'seconds':26s} {'plain Flower':>24s} {'fedge':>24s}")
    for part in PARTS:
        columns = ([getattr(r, part) for r in rounds] for rounds in (plain, ours))
        print(f"{'round: ' + part:26s} " + " ".join(map(_format_spread, columns)))
    print(f"{len(plain)} and {len(ours)} rounds; medians (smallest to largest)")


def _format_spread(seconds: Iterable[float]) -> str:
    values = list(seconds)
    return f"{statistics.median(values):8.2f} ({min(values):5.2f} to {max(values):5.2f})"


if __name__ == "__main__":
    sys.exit(main())
