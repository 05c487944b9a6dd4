"""Accuracy and energy with bad clients: one in five, by strategy and attack.

    OMP_NUM_THREADS=1 python benchmarks/bad_clients.py [--rounds 20] [--seeds 2] [--clients 10]

The quickstart's boards learn scikit-learn's digits under the policy ``balanced``. The bad clients train on labels
turned round (9 for 0, 8 for 1 ...): ``labels``. Under ``scale`` they also send ten times the change that they made, as
a client does that wants to decide the model alone; under ``explode`` a million times, and under ``nan`` numbers that
are none. Honest and bad clients otherwise do the same, in the same time. Printed: accuracy of the last round and energy
of the run, means over the seeds; the results refused; and over the rounds without an attack, the largest norm of a
client's change in medians of its round, with Dirichlet partitions of alpha 1 and 0.1 (cf. ``MAX_NORM_RATIO``).
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import tempfile
from pathlib import Path
from typing import Any

import fedge
from server.rounds import client_requests

STRATEGIES: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.2},
    "Krum": {"num_malicious_nodes": 2},
}
ATTACKS = {"none": 1.0, "labels": 1.0, "scale": 10.0, "explode": 1e6, "nan": float("nan")}
NUMBERS = itertools.count()
TASK = '''
"""The digits as some clients train them who turn the labels round and stretch their change."""

from fedge.experiment import DataSpec
from fedge.seeds import make_generator
from fedge.types import TrainResult
from fedge.worker import tasks
from fedge.workloads import datasets, load_task
from fedge.workloads.image_task import ImageTask
from fedge.workloads.partitions import split_task


class Turned:
    def __init__(self, data_dir, download):
        self._honest = load_task("digits-cnn")
        settings = DataSpec(partition="dirichlet", alpha={alpha})
        shares = split_task(settings, self._honest, {clients}, make_generator({seed}, "partition"))
        self._bad = {{share.tobytes() for share in shares[:{bad}]}}
        data = datasets.load_dataset("digits", data_dir, download=download)
        turned = data._replace(train_y=data.classes - 1 - data.train_y)
        self._turned = ImageTask(tasks.make_builtin_task("digits-cnn"), turned)

    def __getattr__(self, name):
        return getattr(self._honest, name)

    def start(self, arrays, share, seed, options):
        if share.tobytes() not in self._bad:
            return self._honest.start(arrays, share, seed, options)
        return Stretched(self._turned.start(arrays, share, seed, options), arrays)


class Stretched:
    def __init__(self, training, arrays):
        self._training, self._arrays = training, arrays
        self.advance = training.advance

    def result(self):
        found = self._training.result()
        sent = {{
            name: (old + float("{factor}") * (found.arrays[name] - old)).astype(old.dtype)
            for name, old in self._arrays.items()
        }}
        return TrainResult(sent, found.loss, found.accuracy)
'''
EXPERIMENT = """
name: bad-clients
rounds: {rounds}
backend: local
jobs: 1
fleet: [{{device: nano, count: {slow}}}, {{device: agx-orin-64gb, count: {fast}}}]
workload: {{task: "{module}:Turned", cost: resnet18-imagenet, batch_size: 16, local_epochs: 2, learning_rate: 0.05}}
data: {{partition: dirichlet, alpha: {alpha}}}
plugins: [{module}.py]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=10)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    bad = given.clients // 5
    print(f"{bad} of {given.clients} clients are bad; {given.rounds} rounds, {given.seeds} seeds")
    print(f"{'strategy':16} {'attack':10} {'accuracy':>9} {'energy (kJ)':>12} {'refused':>8}")
    for strategy, options in STRATEGIES.items():
        for attack in ATTACKS:
            runs = [
                play(given, attack, seed=seed, strategy=(strategy, options))[0] for seed in range(1, given.seeds + 1)
            ]
            accuracy, energy_j, refused = (statistics.fmean(column) for column in zip(*runs, strict=True))
            print(f"{strategy:16} {attack:10} {accuracy:9.3f} {energy_j / 1e3:12.1f} {refused:8.0f}", flush=True)
    for alpha in (1.0, 0.1):
        _, norms = play(given, "none", seed=1, strategy=("FedAvg", {}), alpha=alpha)
        print(f"honest clients, alpha {alpha:g}: largest change {find_largest(norms, given.clients):.1f} medians")


def play(
    given: argparse.Namespace, attack: str, seed: int, strategy: tuple[str, dict[str, Any]], alpha: float = 1.0
) -> tuple[tuple[float, float, int], list[float]]:
    """Return a run's accuracy in the last round, energy in joules and refused results; and the norms of all changes.

    Each run's plug-in has a name of its own, because a plug-in is loaded once per process.
    """
    module = f"bad_task_{next(NUMBERS)}"
    bad = given.clients // 5 if attack != "none" else 0
    task = TASK.format(alpha=alpha, clients=given.clients, seed=seed, bad=bad, factor=ATTACKS[attack])
    slow = given.clients // 2
    text = EXPERIMENT.format(rounds=given.rounds, slow=slow, fast=given.clients - slow, alpha=alpha, module=module)
    norms: list[float] = []
    compute = client_requests.compute_change_norm

    def compute_and_note(arrays: Any, trained: Any) -> float:
        norms.append(compute(arrays, trained))
        return norms[-1]

    with tempfile.TemporaryDirectory(prefix="fedge-bad-") as scratch:
        (Path(scratch) / f"{module}.py").write_text(task, encoding="utf-8")
        config = Path(scratch) / "bad.yaml"
        config.write_text(text, encoding="utf-8")
        overrides: dict[str, Any] = {"seed": seed, "strategy": {"name": strategy[0], "options": strategy[1]}}
        client_requests.compute_change_norm = compute_and_note
        try:
            summary = fedge.run(config, folder=Path(scratch) / "run", quiet=True, **overrides).summary
        finally:
            client_requests.compute_change_norm = compute
    return (summary["final_accuracy"], summary["energy_j"], summary["refused"]), norms


def find_largest(norms: list[float], clients: int) -> float:
    """Return the largest norm of a result in medians of its round."""
    rounds = [norms[first : first + clients] for first in range(0, len(norms), clients)]
    return max(max(one) / statistics.median(one) for one in rounds)


if __name__ == "__main__":
    main()
