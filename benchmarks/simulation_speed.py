"""Time of a run of emulated clients: fedge's local and sim backends against plain Flower's simulation.

    python benchmarks/simulation_speed.py [--clients 100] [--rounds 10] [--blocks 3] [--policies balanced,maxn]

Every side trains scikit-learn's digits with the same small CNN, samples, minibatches and one torch thread per process,
and tests the global model on the server after every round. Plain Flower is an app as Flower's quickstart has it
(``plain_flower/``) under the same private SuperLink and Ray that the ``sim`` backend starts. Only fedge decides on
power modes, emulates boards and stores rows.

Each block runs every side once with 2 rounds and once with all rounds, one after the other. Printed are medians over
the blocks: the wall time of the whole command, its start-up (what does not grow with the rounds) and the time of a
round; then the ratios to plain Flower. Other work on the machine changes all sides: compare within one call only.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from figures import FOUR_KINDS, build_parser

ROOT = Path(__file__).resolve().parents[1]
SHORT_ROUNDS = 2
MAX_BATCH, RATE, MODEL = 16, 0.05, "digits-cnn"
"""Samples of a minibatch, unless a client has fewer; learning rate and network."""
EXPERIMENT = """
name: speed
seed: 1
rounds: {rounds}
backend: {backend}
policy: {policy}
fleet: [{fleet}]
workload: {{task: digits-cnn, cost: resnet18-imagenet, batch_size: {batch}, local_epochs: 1, learning_rate: {rate}}}
data: {{partition: iid}}
"""
PLAIN = """
import sys
from pathlib import Path
from experiments.backends.sim_backend import simulate
app, run, nodes, rounds, samples, steps = sys.argv[1:]
config = {{"rounds": int(rounds), "nodes": int(nodes), "model": {model!r}, "samples": samples,
          "channels": 1, "size": 8, "batch-size": {batch}, "steps": int(steps),
          "learning-rate": {rate}, "momentum": 0.0}}
Path(run).mkdir()
simulate(Path(app), Path(run), config, int(nodes))
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The run that every side makes.

    Attributes:
        folder: Folder of the samples and of the runs.
        clients: Clients, all of them in every round.
        batch: Samples of a minibatch.
        steps: Minibatches of a client and round.
    """

    folder: Path
    clients: int
    batch: int
    steps: int

    @property
    def samples(self) -> Path:
        """Return the folder of the samples."""
        return self.folder / "samples"


def main() -> None:
    """Run all blocks and print the table."""
    parser = build_parser(__doc__, clients=100, rounds=10, blocks=3)
    parser.add_argument("--policies", default="balanced,maxn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        samples = write_samples(folder / "samples", options.clients)
        batch = min(MAX_BATCH, samples)
        run = Comparison(folder, clients=options.clients, batch=batch, steps=-(-samples // batch))
        sides = {"plain Flower": partial(time_plain, run)}
        for backend in ("local", "sim"):
            for policy in options.policies.split(","):
                sides[f"fedge {backend}, {policy}"] = partial(time_fedge, run, backend=backend, policy=policy)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(options.blocks):
            for name, time_side in sides.items():
                found[name].append((time_side(SHORT_ROUNDS), time_side(options.rounds)))
    print_table(found, options.rounds, run)


def write_samples(folder: Path, clients: int) -> int:
    """Write all samples, every client's and the test set as arrays; return the samples of the largest share."""
    train_x, train_y, test_x, test_y = load_digits_split()
    folder.mkdir()
    for name, array in (("train_x", train_x), ("train_y", train_y), ("test_x", test_x), ("test_y", test_y)):
        np.save(folder / f"{name}.npy", array)
    shares = np.array_split(np.random.default_rng(0).permutation(len(train_x)), clients)
    for number, share in enumerate(shares):
        (folder / str(number)).mkdir()
        np.save(folder / str(number) / "train_x.npy", train_x[share])
        np.save(folder / str(number) / "train_y.npy", train_y[share])
    return len(shares[0])


def load_digits_split() -> tuple[np.ndarray, ...]:
    """Return scikit-learn's digits as training images and labels, test images and labels."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = np.round(digits.images[:, None] * (255.0 / 16.0)).astype(np.uint8)
    train_x, test_x, train_y, test_y = train_test_split(images, digits.target, test_size=0.2, random_state=0)
    return train_x, train_y, test_x, test_y


def time_plain(run: Comparison, rounds: int) -> float:
    """Run the plain Flower app once."""
    out, app = run.folder / f"plain-{time.time_ns()}", Path(__file__).with_name("plain_flower")
    text = PLAIN.format(model=MODEL, batch=run.batch, rate=RATE)
    arguments = (app, out, run.clients, rounds, run.samples, run.steps)
    return time_command([sys.executable, "-c", text, *map(str, arguments)], run.folder / "plain.log")


def time_fedge(run: Comparison, rounds: int, *, backend: str, policy: str) -> float:
    """Run ``fedge run`` once."""
    counts = [len(share) for share in np.array_split(np.arange(run.clients), len(FOUR_KINDS))]
    pairs = zip(FOUR_KINDS, counts, strict=True)
    fleet = ", ".join(f"{{device: {kind}, count: {count}}}" for kind, count in pairs if count)
    names = {"rounds": rounds, "backend": backend, "policy": policy, "fleet": fleet}
    text = EXPERIMENT.format(**names, batch=run.batch, rate=RATE)
    experiment = run.folder / "experiment.yaml"
    experiment.write_text(text, "utf-8")
    out = run.folder / f"run-{time.time_ns()}"
    command = [sys.executable, "-m", "experiments.cli.main", "run", str(experiment), "--folder", str(out)]
    return time_command(command, run.folder / "fedge.log")


def time_command(command: list[str], log: Path) -> float:
    """Run a command to its end and return its wall time in seconds; exits with the end of its output if it fails."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    begun_s = time.monotonic()
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=output, cwd=ROOT, env=env, check=False).returncode
    if code != 0:
        sys.exit(f"{command[0]} ... ended with {code}\n{log.read_text('utf-8', 'replace')[-3000:]}")
    return time.monotonic() - begun_s


def print_table(found: dict[str, list[tuple[float, float]]], rounds: int, run: Comparison) -> None:
    """Print medians over the blocks and the ratios to plain Flower."""
    blocks = len(found["plain Flower"])
    size = f"{run.clients} clients in each of {rounds} rounds"
    print(f"{size}, {blocks} blocks, {os.cpu_count()} cores; medians")
    print(f"{'':24s} {'whole run':>10s} {'start-up':>9s} {'a round':>8s}   plain Flower takes")
    medians = {
        name: (
            statistics.median(long_s for _, long_s in times),
            statistics.median((long_s - short_s) / (rounds - SHORT_ROUNDS) for short_s, long_s in times),
        )
        for name, times in found.items()
    }
    plain_s, plain_round_s = medians["plain Flower"]
    for name, (whole_s, round_s) in medians.items():
        start_s = whole_s - rounds * round_s
        ratios = f"{plain_s / whole_s:.2f} x whole, {plain_round_s / round_s:.2f} x a round"
        print(f"{name:24s} {whole_s:8.1f} s {start_s:7.1f} s {round_s:6.2f} s   {ratios}")


if __name__ == "__main__":
    main()
