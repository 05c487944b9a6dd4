"""Print what unequal local steps, encoded updates, narrow networks and batch sizes cost: figures of the joint plan.

    OMP_NUM_THREADS=1 python benchmarks/local_steps.py [--seeds 2] [--quick]

Eight clients, Dirichlet(1.0) and Dirichlet(0.1), the task digits with the quickstart's settings. Every round each
client trains a share of its steps, or rests, and the server averages. Other batch sizes train as many samples, with a
learning rate in proportion. Printed per variant: the accuracy after every round, mean over the seeds, and the fall of
the log loss in rounds 1 to 3, relative to that of whole shares. No boards are emulated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from figures import build_parser

from fedge import workloads
from fedge.client.round_state import count_steps
from fedge.experiment import DataSpec, Experiment, FleetEntry
from fedge.flower.update_codec import decode_result, encode_answer
from fedge.seeds import derive_seed, make_generator
from fedge.types import NOT_COMPRESSED, Compression, Floats32, NamedArrays, RoundGoal, TrainOptions, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from fedge.workloads.partitions import split_task
from server.aggregation.aggregator import Contribution
from server.aggregation.contribution_weights import LocalSgd, expand_contributions, normalise_contributions

ROUNDS, QUICK_ROUNDS = 12, 2
BATCH_SIZE, EPOCHS, LEARNING_RATE, MOMENTUM = 16, 2.0, 0.05, 0.9
WHOLE = (1.0,) * 8
UNEQUAL = (0.25, 0.25, 0.5, 0.5, 1.0, 1.0, 1.5, 1.5)


@dataclass(frozen=True, slots=True)
class StepsVariant:
    """Work of the clients.

    Attributes:
        shares: Shares of their steps; 0 rests.
        is_normalised: Whether results are weighted by their steps, as in FedNova.
        narrow: Number of clients that train half of the channels.
    """

    name: str
    shares: tuple[float, ...] = WHOLE
    is_normalised: bool = False
    compression: Compression = NOT_COMPRESSED
    narrow: int = 0
    batch_size: int = BATCH_SIZE


VARIANTS = (
    StepsVariant("whole shares"),
    StepsVariant("half shares", (0.5,) * 8),
    StepsVariant("quarter shares", (0.25,) * 8),
    StepsVariant("double shares", (2.0,) * 8),
    StepsVariant("fourfold shares", (4.0,) * 8),
    StepsVariant("unequal, averaged", UNEQUAL),
    StepsVariant("unequal, FedNova", UNEQUAL, is_normalised=True),
    StepsVariant("int8", compression=Compression("int8")),
    StepsVariant("topk 0.05", compression=Compression("topk")),
    StepsVariant("2 of 8 rest", (0.0,) * 2 + (1.0,) * 6),
    StepsVariant("2 of 8 half as wide", narrow=2),
    StepsVariant("4 of 8 rest", (0.0,) * 4 + (1.0,) * 4),
    StepsVariant("4 of 8 half as wide", narrow=4),
    StepsVariant("6 of 8 half as wide", narrow=6),
    StepsVariant("batch 8", batch_size=8),
    StepsVariant("batch 32", batch_size=32),
    StepsVariant("batch 64", batch_size=64),
)


def run_variant(variant: StepsVariant, alpha: float, seed: int, rounds: int) -> list[tuple[float, float]]:
    """Return test loss and accuracy of the initial model and after every round."""
    fleet = (FleetEntry(device="nano", count=len(variant.shares)),)
    experiment = Experiment(name="local-steps", seed=seed, fleet=fleet, data=DataSpec(alpha=alpha))
    task = workloads.load_experiment_task(experiment)
    parts = split_task(experiment.data, task, len(variant.shares), make_generator(seed, "partition"))
    model = task.initial_arrays(seed)
    tested = [task.evaluate(model) or (0.0, 0.0)]
    residuals: dict[int, Floats32] = {}
    for number in range(1, rounds + 1):
        results = []
        for i, (part, share) in enumerate(zip(parts, variant.shares, strict=True)):
            if share == 0.0:
                continue
            batch_size = variant.batch_size
            steps = max(1, round(share * count_steps(len(part), batch_size, EPOCHS)))
            width, rate = 0.5 if i < variant.narrow else 1.0, LEARNING_RATE * batch_size / BATCH_SIZE
            options = TrainOptions(steps, batch_size, rate, MOMENTUM, width=width)
            training = task.start(model, part, derive_seed(seed, i, number), options)
            training.advance(steps)
            sent = send(variant.compression, model, training.result(), residuals.get(i))
            if sent.residual is not None:
                residuals[i] = sent.residual
            arrays = decode_result(model, list(model), sent).arrays
            results.append(Contribution(f"{i}", arrays, len(part), loss=sent.loss, accuracy=sent.accuracy, steps=steps))
        model = average(model, results, is_normalised=variant.is_normalised)
        tested.append(task.evaluate(model) or (0.0, 0.0))
    return tested


def send(compression: Compression, model: NamedArrays, trained: TrainResult, residual: Floats32 | None) -> TrainResult:
    """Return what a client sends."""
    goal = RoundGoal("maxn", 1, compression=compression)
    request = RequestMessage("train", goal=goal, trainable=tuple(model))
    sent = encode_answer(request, model, residual, (ReplyMessage("client"), trained))[1]
    assert sent is not None
    return sent


def average(model: NamedArrays, results: Sequence[Contribution], *, is_normalised: bool) -> NamedArrays:
    """Return the mean by samples of the results, which may be normalised by their steps."""
    if is_normalised:
        results = normalise_contributions(model, list(model), results, LocalSgd(MOMENTUM))
    results = expand_contributions(model, results)
    total = sum(one.samples for one in results)
    return {
        name: sum(one.samples / total * np.asarray(one.arrays[name], np.float64) for one in results).astype(value.dtype)
        for name, value in model.items()
    }


def main() -> None:
    """Run every variant and print it."""
    parser = build_parser(__doc__, seeds=2)
    parser.add_argument("--quick", action="store_true", help=f"one seed, {QUICK_ROUNDS} rounds: only that it works")
    options = parser.parse_args()
    seeds, rounds = (1, QUICK_ROUNDS) if options.quick else (options.seeds, ROUNDS)
    for alpha in (1.0, 0.1):
        whole = 0.0
        for variant in VARIANTS:
            runs = np.array([run_variant(variant, alpha, seed, rounds) for seed in range(1, seeds + 1)])
            falls = np.mean(np.log(runs[:, :1, 0] / runs[:, 1:4, 0]), axis=0)
            fall = float(np.mean(falls))
            whole = whole or fall
            accuracies = (f"{accuracy:.3f}" for accuracy in np.mean(runs[:, 1:, 1], axis=0))
            print(f"{alpha:4.1f}  {variant.name:22s}", *accuracies, f"  {fall / whole:.2f}", flush=True)


if __name__ == "__main__":
    main()
