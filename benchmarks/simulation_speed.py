"""Time of a run of emulated clients: fedge's local and sim backends against plain Flower's simulation, and pfl's.

    python benchmarks/simulation_speed.py [--clients 100] [--rounds 10] [--blocks 3] [--policies balanced,maxn]
    python benchmarks/simulation_speed.py --clients 1000 --sampled 50 --images --pfl /path/to/python

Every side trains scikit-learn's digits, or with ``--images`` 32 synthetic images of 32 x 32 pixels per client, with the
same small CNN, samples, minibatches and one torch thread per process, and tests the global model on the server after
every round. ``--sampled`` clients of each round are drawn at random. Plain Flower is an app as Flower's quickstart has
it (``plain_flower/``) under the same private SuperLink and Ray that the ``sim`` backend starts; pfl, beside it,
needs an environment with ``pip install torch pfl``. Only fedge decides on power modes, emulates boards and stores rows.

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

from fedge.workloads.synthetic import make_images

ROOT = Path(__file__).resolve().parents[1]
SHORT_ROUNDS = 2
MAX_BATCH, RATE, MODEL = 16, 0.05, "digits-cnn"
"""Samples of a minibatch, unless a client has fewer; learning rate and network."""
DIGITS, IMAGES = (1, 8), (3, 32)
"""Channels and side of a sample."""
IMAGES_PER_CLIENT, TEST_IMAGES = 32, 500
EXPERIMENT = """
name: speed
seed: 1
rounds: {rounds}
backend: {backend}
policy: {policy}
fleet: [{fleet}]
workload: {{task: {task}, cost: resnet18-imagenet, batch_size: {batch}, local_epochs: 1, learning_rate: {rate}}}
data: {{partition: iid}}
{selection}
"""
TASK = """
import numpy as np
from fedge.worker.architectures import MODELS
from fedge.worker.sources import Data

def model(shape):
    return MODELS[{model!r}](shape)

def data(source):
    parts = [np.load({folder!r} + f"/{{part}}_{{axis}}.npy") for part in ("train", "test") for axis in "xy"]
    return Data(*parts, mean=(127.5,) * 3, sd=(127.5,) * 3, classes=10)
"""
PLAIN = """
import sys
from pathlib import Path
from experiments.backends.sim_backend import simulate
app, run, nodes, sampled, rounds, samples, steps, channels, size = sys.argv[1:]
config = {{"rounds": int(rounds), "nodes": int(nodes), "sampled": int(sampled), "model": {model!r}, "samples": samples,
          "channels": int(channels), "size": int(size), "batch-size": {batch}, "steps": int(steps),
          "learning-rate": {rate}, "momentum": 0.0}}
Path(run).mkdir()
simulate(Path(app), Path(run), config, int(nodes))
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The run that every side makes.

    Attributes:
        folder: Folder of the samples and of the runs.
        clients: Clients in all.
        sampled: Clients of a round.
        shape: Channels and side of a sample.
        batch: Samples of a minibatch.
        steps: Minibatches of a client and round.
    """

    folder: Path
    clients: int
    sampled: int
    shape: tuple[int, int]
    batch: int
    steps: int

    @property
    def samples(self) -> Path:
        """Return the folder of the samples."""
        return self.folder / "samples"


def main() -> None:
    """Run all blocks and print the table."""
    parser = build_parser(__doc__, clients=100, rounds=10, blocks=3, sampled=0)
    parser.add_argument("--policies", default="balanced,maxn")
    parser.add_argument("--images", action="store_true", help="images of 32 x 32 pixels instead of digits")
    parser.add_argument("--pfl", help="Python of an environment with pfl, to run it as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, shape = Path(scratch), IMAGES if options.images else DIGITS
        samples = write_samples(folder / "samples", options.clients, images=options.images)
        batch = min(MAX_BATCH, samples)
        sampled = options.sampled or options.clients
        run = Comparison(
            folder, clients=options.clients, sampled=sampled, shape=shape, batch=batch, steps=-(-samples // batch)
        )
        sides = {"plain Flower": partial(time_plain, run)}
        if options.pfl:
            sides["pfl"] = partial(time_pfl, run, options.pfl)
        for backend in ("local", "sim"):
            for policy in options.policies.split(","):
                sides[f"fedge {backend}, {policy}"] = partial(time_fedge, run, backend=backend, policy=policy)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(options.blocks):
            for name, time_side in sides.items():
                found[name].append((time_side(SHORT_ROUNDS), time_side(options.rounds)))
    print_table(found, options.rounds, run)


def write_samples(folder: Path, clients: int, *, images: bool) -> int:
    """Write all samples, every client's and the test set as arrays; return the samples of the largest share."""
    train_x, train_y, test_x, test_y = draw_images(clients * IMAGES_PER_CLIENT) if images else load_digits_split()
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


def draw_images(count: int) -> tuple[np.ndarray, ...]:
    """Return ``count`` training images and labels, and test images and labels."""
    rng = np.random.default_rng(0)
    parts = [make_images(min(1000, count - start), rng) for start in range(0, count, 1000)]
    return *(np.concatenate(arrays) for arrays in zip(*parts, strict=True)), *make_images(TEST_IMAGES, rng)


def time_plain(run: Comparison, rounds: int) -> float:
    """Run the plain Flower app once."""
    out, app = run.folder / f"plain-{time.time_ns()}", Path(__file__).with_name("plain_flower")
    text = PLAIN.format(model=MODEL, batch=run.batch, rate=RATE)
    arguments = (app, out, run.clients, run.sampled, rounds, run.samples, run.steps, *run.shape)
    return time_command([sys.executable, "-c", text, *map(str, arguments)], run.folder / "plain.log")


def time_pfl(run: Comparison, python: str, rounds: int) -> float:
    """Run the program of pfl once."""
    arguments = (run.samples, run.clients, run.sampled, rounds, MODEL, *run.shape, run.batch, RATE)
    program = Path(__file__).parent / "plain_flower" / "plain" / "pfl_simulation.py"
    return time_command([python, *map(str, (program, *arguments))], run.folder / "pfl.log")


def time_fedge(run: Comparison, rounds: int, *, backend: str, policy: str) -> float:
    """Run ``fedge run`` once."""
    counts = [len(share) for share in np.array_split(np.arange(run.clients), len(FOUR_KINDS))]
    pairs = zip(FOUR_KINDS, counts, strict=True)
    fleet = ", ".join(f"{{device: {kind}, count: {count}}}" for kind, count in pairs if count)
    (run.folder / "images.py").write_text(TASK.format(model=MODEL, folder=str(run.samples)), "utf-8")
    text = EXPERIMENT.format(
        rounds=rounds,
        backend=backend,
        policy=policy,
        fleet=fleet,
        task="digits-cnn" if run.shape == DIGITS else "images.py",
        batch=run.batch,
        rate=RATE,
        selection=f"selection: {{name: random, count: {run.sampled}}}" if run.sampled < run.clients else "",
    )
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
    size = f"{run.clients} clients, {run.sampled} of them in each of {rounds} rounds"
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
