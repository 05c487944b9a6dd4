"""Time of a run of emulated clients: fedge's local and sim backends against plain Flower's simulation.

    python benchmarks/simulation_speed.py [--clients 100] [--rounds 10] [--blocks 3] [--policies balanced,maxn]

Every side trains scikit-learn's digits with the same small CNN, samples, minibatches and one torch thread per process,
and tests the global model on the server after every round. Plain Flower is an app as Flower's quickstart makes it
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
from functools import partial
from pathlib import Path

import numpy as np
from figures import FOUR_KINDS, build_parser

ROOT = Path(__file__).resolve().parents[1]
SHORT_ROUNDS = 2
BATCH, RATE, MODEL = 16, 0.05, "digits-cnn"
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
from experiments.backends.simulation import simulate
app, run, nodes, rounds, samples, steps = sys.argv[1:]
config = {{"rounds": int(rounds), "nodes": int(nodes), "model": {model!r}, "channels": 1, "size": 8, "samples": samples,
          "batch-size": {batch}, "steps": int(steps), "learning-rate": {rate}, "momentum": 0.0}}
Path(run).mkdir()
simulate(Path(app), Path(run), config, int(nodes))
"""


def main() -> None:
    """Run all blocks and print the table."""
    parser = build_parser(__doc__, clients=100, rounds=10, blocks=3)
    parser.add_argument("--policies", default="balanced,maxn")
    options = parser.parse_args()
    policies = options.policies.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        steps = write_samples(folder / "samples", options.clients)
        sides = {"plain Flower": partial(time_plain, folder, options.clients, steps)}
        for backend in ("local", "sim"):
            for policy in policies:
                sides[f"fedge {backend}, {policy}"] = partial(
                    time_fedge, folder, options.clients, backend=backend, policy=policy
                )
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(options.blocks):
            for name, run in sides.items():
                found[name].append((run(SHORT_ROUNDS), run(options.rounds)))
    print_table(found, options.rounds, options.clients)


def write_samples(folder: Path, clients: int) -> int:
    """Write every client's samples and the test set as arrays; return the steps of a client's epoch."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = np.round(digits.images[:, None] * (255.0 / 16.0)).astype(np.uint8)
    train_x, test_x, train_y, test_y = train_test_split(images, digits.target, test_size=0.2, random_state=0)
    folder.mkdir()
    np.save(folder / "test_x.npy", test_x)
    np.save(folder / "test_y.npy", test_y)
    shares = np.array_split(np.random.default_rng(0).permutation(len(train_x)), clients)
    for number, share in enumerate(shares):
        (folder / str(number)).mkdir()
        np.save(folder / str(number) / "train_x.npy", train_x[share])
        np.save(folder / str(number) / "train_y.npy", train_y[share])
    return -(-len(shares[0]) // BATCH)


def time_plain(folder: Path, clients: int, steps: int, rounds: int) -> float:
    """Run the plain Flower app once."""
    run, app = folder / f"plain-{time.time_ns()}", Path(__file__).with_name("plain_flower")
    text = PLAIN.format(model=MODEL, batch=BATCH, rate=RATE)
    arguments = (str(app), str(run), str(clients), str(rounds), str(folder / "samples"), str(steps))
    return time_command([sys.executable, "-c", text, *arguments], folder / "plain.log")


def time_fedge(folder: Path, clients: int, rounds: int, *, backend: str, policy: str) -> float:
    """Run ``fedge run`` once."""
    counts = [len(share) for share in np.array_split(np.arange(clients), len(FOUR_KINDS))]
    pairs = zip(FOUR_KINDS, counts, strict=True)
    fleet = ", ".join(f"{{device: {kind}, count: {count}}}" for kind, count in pairs if count)
    experiment = folder / "experiment.yaml"
    experiment.write_text(
        EXPERIMENT.format(rounds=rounds, backend=backend, policy=policy, fleet=fleet, batch=BATCH, rate=RATE), "utf-8"
    )
    out = folder / f"run-{time.time_ns()}"
    command = [sys.executable, "-m", "experiments.cli.main", "run", str(experiment), "--folder", str(out)]
    return time_command(command, folder / "fedge.log")


def time_command(command: list[str], log: Path) -> float:
    """Run a command to its end and return its wall time in seconds; exits with the end of its output if it fails."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    begun_s = time.monotonic()
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=output, cwd=ROOT, env=env, check=False).returncode
    if code != 0:
        sys.exit(f"{command[0]} ... ended with {code}\n{log.read_text('utf-8', 'replace')[-3000:]}")
    return time.monotonic() - begun_s


def print_table(found: dict[str, list[tuple[float, float]]], rounds: int, clients: int) -> None:
    """Print medians over the blocks and the ratios to plain Flower."""
    blocks = len(found["plain Flower"])
    print(f"{clients} clients, {rounds} rounds, {blocks} blocks, {os.cpu_count()} cores; medians")
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
