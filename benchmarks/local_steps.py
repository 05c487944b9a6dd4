"""Cost in rounds of unequal local steps, their normalisation and encoded updates: the numbers behind the joint plan.

    OMP_NUM_THREADS=1 python benchmarks/local_steps.py [--seeds 2] [--quick]

Eight clients, Dirichlet(1.0) and Dirichlet(0.1), the task digits with the quickstart's settings. Every round each
client trains a share of its steps, and the server averages. Printed per variant: the accuracy after every round, mean
over the seeds. No boards are emulated.
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
from server.aggregation.contribution_weights import LocalSgd, normalise_contributions

ROUNDS, QUICK_ROUNDS = 12, 2
BATCH_SIZE, EPOCHS, LEARNING_RATE, MOMENTUM = 16, 2.0, 0.05, 0.9
WHOLE = (1.0,) * 8
UNEQUAL = (0.25, 0.25, 0.5, 0.5, 1.0, 1.0, 1.5, 1.5)


@dataclass(frozen=True, slots=True)
class StepsVariant:
    """Shares of the clients' steps, the normalisation's largest factor (None: plain averaging), and an encoding."""

    name: str
    shares: tuple[float, ...] = WHOLE
    most: float | None = None
    compression: Compression = NOT_COMPRESSED


VARIANTS = (
    StepsVariant("whole shares"),
    StepsVariant("half shares", (0.5,) * 8),
    StepsVariant("quarter shares", (0.25,) * 8),
    StepsVariant("double shares", (2.0,) * 8),
    StepsVariant("unequal, averaged", UNEQUAL),
    StepsVariant("unequal, factor to 2", UNEQUAL, 2.0),
    StepsVariant("unequal, FedNova", UNEQUAL, np.inf),
    StepsVariant("int8", compression=Compression("int8")),
    StepsVariant("topk 0.05", compression=Compression("topk")),
)


def run_variant(variant: StepsVariant, alpha: float, seed: int, rounds: int) -> list[float]:
    """Return the test accuracy after every round."""
    fleet = (FleetEntry(device="nano", count=len(variant.shares)),)
    experiment = Experiment(name="local-steps", seed=seed, fleet=fleet, data=DataSpec(alpha=alpha))
    task = workloads.load_experiment_task(experiment)
    parts = split_task(experiment.data, task, len(variant.shares), make_generator(seed, "partition"))
    model, accuracies = task.initial_arrays(seed), list[float]()
    residuals: dict[int, Floats32] = {}
    for number in range(1, rounds + 1):
        results = []
        for i, (part, share) in enumerate(zip(parts, variant.shares, strict=True)):
            steps = max(1, round(share * count_steps(len(part), BATCH_SIZE, EPOCHS)))
            options = TrainOptions(steps, BATCH_SIZE, LEARNING_RATE, MOMENTUM)
            training = task.start(model, part, derive_seed(seed, i, number), options)
            training.advance(steps)
            sent = send(variant.compression, model, training.result(), residuals.get(i))
            if sent.residual is not None:
                residuals[i] = sent.residual
            arrays = decode_result(model, list(model), sent).arrays
            results.append(Contribution(f"{i}", arrays, len(part), loss=sent.loss, accuracy=sent.accuracy, steps=steps))
        model = average(model, results, variant.most)
        tested = task.evaluate(model)
        accuracies.append(0.0 if tested is None else tested[1])
    return accuracies


def send(compression: Compression, model: NamedArrays, trained: TrainResult, residual: Floats32 | None) -> TrainResult:
    """Return what a client sends."""
    goal = RoundGoal("maxn", 1, compression=compression)
    request = RequestMessage("train", goal=goal, trainable=tuple(model))
    sent = encode_answer(request, model, residual, (ReplyMessage("client"), trained))[1]
    assert sent is not None
    return sent


def average(model: NamedArrays, results: Sequence[Contribution], most: float | None) -> NamedArrays:
    """Return the mean by samples, of results that are normalised by their steps unless ``most`` is None."""
    if most is not None:
        results = normalise_contributions(model, list(model), results, LocalSgd(MOMENTUM), most=most)
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
        for variant in VARIANTS:
            runs = [run_variant(variant, alpha, seed, rounds) for seed in range(1, seeds + 1)]
            print(f"{alpha:4.1f}  {variant.name:22s}", *(f"{a:.3f}" for a in np.mean(runs, axis=0)), flush=True)


if __name__ == "__main__":
    main()
