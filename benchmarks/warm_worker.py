"""Time that a resident worker saves: seconds from a request to train to the first minibatch's start, warm and cold.

    python benchmarks/warm_worker.py [--repeats 9] [--cold 3] [--python /path/to/python]

Warm: the second and later ``train`` on a worker that has its task loaded, as the worker measures it (from the request's
arrival) and from the client's side (from just before it sends, less the minibatch itself and the answer). Cold: a fresh
process for each, from its start over Python, torch and the load to the same point. Medians; the goal is 50 ms.
``--python`` runs both under another interpreter, which must have torch.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedge.worker.worker_client import WorkerClient, WorkerError

ROOT = Path(__file__).resolve().parents[1]
GOAL_S = 0.050
BATCH = 16
TASKS = {
    "digits-cnn": {"samples": 1000, "channels": 1, "side": 8, "classes": 10},
    "cifar10-resnet18": {"samples": 1000, "channels": 3, "side": 32, "classes": 10},
}
COLD_SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from fedge.worker import sources, tasks, trainer
sizes = {sizes!r}
trainer = trainer.Trainer(tasks.make_builtin_task({task!r}), sources.read({{"synthetic": sizes}}))
with open({model!r}, "rb") as file:
    import numpy
    arrays = dict(numpy.load(file))
options = {options!r}
from fedge.worker.optimizers import TrainingOptions
training = trainer.start(arrays, None, 0, TrainingOptions(**options))
begun = []
def stop():
    if not begun:
        begun.append(1)
        sys.stdout.write("begins\\n")
        sys.stdout.flush()
    return False
training.advance(1, stop)
"""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Median seconds to the start of the first step."""

    task: str
    model_mb: float
    warm_s: float
    warm_worst_s: float
    client_s: float
    cold_s: float


def main() -> int:
    """Measure and print; return 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cold", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    rows = [measure_task(task, options.python, options.repeats, options.cold) for task in TASKS]
    print(f"{'task':18s} {'model':>8s} {'warm':>9s} {'worst':>9s} {'client':>9s} {'cold':>9s} {'cold/client':>12s}")
    for row in rows:
        print(
            f"{row.task:18s} {row.model_mb:5.1f} MB {1e3 * row.warm_s:6.1f} ms {1e3 * row.warm_worst_s:6.1f} ms "
            f"{1e3 * row.client_s:6.1f} ms {1e3 * row.cold_s:6.0f} ms {row.cold_s / row.client_s:11.0f}x"
        )
    missed = [row.task for row in rows if max(row.warm_s, row.client_s) >= GOAL_S]
    print(f"goal of {1e3 * GOAL_S:.0f} ms: " + (f"missed by {', '.join(missed)}" if missed else "met"))
    return 1 if missed else 0


def measure_task(task: str, python: str, repeats: int, cold: int) -> StartTimes:
    """Return one task's figures."""
    with tempfile.TemporaryDirectory() as folder, start_worker(Path(folder), python) as client:
        client.load({"builtin": task}, {"synthetic": TASKS[task]}, "cpu")
        begin = {"seed": 0, "options": build_train_options()}
        _, arrays = client.train(begin, steps=1, finish=True)  # without arrays: the task's own
        client.train(begin, arrays, steps=1, finish=True)  # the first; what is measured is the second and later ones
        warm, outside = [], []
        for _ in range(repeats):
            asked_s = time.perf_counter()
            reply, _ = client.train(begin, arrays, steps=1)
            took_s = time.perf_counter() - asked_s
            warm.append(reply["first_step_after_s"])
            outside.append(took_s - sum(reply["seconds"]))
            client.train(finish=True)  # as a round does before the next one begins
        model = Path(folder) / "model.npz"
        np.savez(model, **arrays)
        colds = [measure_cold_start_s(task, python, model) for _ in range(cold)]
    size_mb = sum(array.nbytes for array in arrays.values()) / 1e6
    middle = statistics.median
    return StartTimes(
        task,
        model_mb=size_mb,
        warm_s=middle(warm),
        warm_worst_s=max(warm),
        client_s=middle(outside),
        cold_s=middle(colds),
    )


def build_train_options() -> dict[str, float]:
    return {"steps": 1, "batch_size": BATCH, "learning_rate": 0.01}


def measure_cold_start_s(task: str, python: str, model: Path) -> float:
    """Return the seconds from before a fresh process starts until it reports that its first step begins."""
    program = COLD_SCRIPT.format(
        root=str(ROOT), sizes=TASKS[task], task=task, model=str(model), options=build_train_options()
    )
    begun_s = time.perf_counter()
    with subprocess.Popen([python, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"begins\n":
            sys.exit(f"the fresh process under {python} did not train")
        return time.perf_counter() - begun_s


@contextmanager
def start_worker(folder: Path, python: str) -> Iterator[WorkerClient]:
    """Start a separate worker, and end it afterwards."""
    path = str(folder / "worker.sock")
    command = [python, "-m", "fedge.worker", "--socket", path, "--device", "cpu"]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        client = WorkerClient(path)
        ends_s = time.monotonic() + 60.0
        while not is_ready(client):
            if process.poll() is not None or time.monotonic() > ends_s:
                sys.exit(f"the worker under {python} does not start")
            time.sleep(0.05)
        with client:
            yield client
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.wait()


def is_ready(client: WorkerClient) -> bool:
    """Return whether the worker answers and has torch."""
    try:
        return client.status()["torch"] is not None
    except WorkerError:
        return False


if __name__ == "__main__":
    sys.exit(main())
