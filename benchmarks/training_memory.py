"""Accuracy of a training step's memory and time predicted from the geometry of the layers.

    FEDGE_PROFILES=folder/of/tables python benchmarks/training_memory.py [floor|pairs|speed]...

floor      the remaining error within a network after removing every evaluated level's own median offset
pairs      fedge with two networks left out at a time: the accuracy from half of the tables
speed      one prediction

Errors are mean absolute errors in percent. The tables are measured TX2 steps of pruned networks; the accuracy on them:
``fedge memory eval --leave-network-out``.
"""

from __future__ import annotations

import itertools

import numpy as np
from figures import build_table, compute_mape, measure_s, profiles_folder, run_parts
from rich.console import Console

from fedge.costs.layers.network_record import find_known_network
from fedge.costs.memory.memory_study import (
    TARGETS,
    TRAIN_LEVELS,
    MeasuredSteps,
    TargetName,
    gather_steps,
    predict_fedge,
)
from fedge.costs.memory.step_need import predict_step_need
from fedge.costs.memory.step_table import StepTable, read_step_tables
from fedge.devices.catalogue import find

CONSOLE = Console(width=120, highlight=False)


def load_step_tables() -> tuple[StepTable, ...]:
    return read_step_tables(profiles_folder() / "perf4sight-tx2")


def report_error_floor() -> None:
    """Report errors within a network, with and without each evaluated level's own median offset."""
    title = "within, ours: error, and without every level's own offset, %"
    shown = build_table(title, "network", *TARGETS, left=TARGETS)
    for table in load_step_tables():
        cells = []
        for target in TARGETS:
            judge, off = _predict_left_out(table.network, target)
            own = np.array([np.median(off[judge.level == level]) for level in judge.level])
            errors = (compute_mape(np.exp(logs), np.ones(len(logs))) for logs in (off, off - own))
            cells.append(" -> ".join(f"{error:.1f}" for error in errors))
        shown.add_row(table.network, *cells)
    CONSOLE.print(shown)


def _predict_left_out(network: str, target: TargetName) -> tuple[MeasuredSteps, np.ndarray]:
    """Return the steps of the evaluated levels, and the log ratios of predicted to measured."""
    steps = gather_steps(load_step_tables())
    measured_steps = steps[np.isfinite(steps.measured[target])]
    trained = np.isin(measured_steps.level, TRAIN_LEVELS)
    judge = measured_steps[(measured_steps.network == network) & ~trained]
    off: np.ndarray = np.log(
        predict_fedge(measured_steps[trained], judge=judge, target=target, split="within", seed=0)
        / judge.measured[target]
    )
    return judge, off


def report_pairs() -> None:
    """Report predictions learnt from two networks, evaluated on each of the other two."""
    shown = build_table("two networks left out, ours, %: each of the pair", "pair", *TARGETS, left=TARGETS)
    steps = gather_steps(load_step_tables())
    for pair in itertools.combinations([table.network for table in load_step_tables()], 2):
        cells = []
        for target in TARGETS:
            measured_steps = steps[np.isfinite(steps.measured[target])]
            learn = measured_steps[~np.isin(measured_steps.network, pair)]
            cells.append(
                " / ".join(
                    f"{_compute_error(learn, measured_steps[measured_steps.network == name], target):.1f}"
                    for name in pair
                )
            )
        shown.add_row(", ".join(pair), *cells)
    CONSOLE.print(shown)


def _compute_error(learn: MeasuredSteps, judge: MeasuredSteps, target: TargetName) -> float:
    predicted = predict_fedge(learn, judge=judge, target=target, split="left-out", seed=0)
    return compute_mape(predicted, judge.measured[target])


def report_speed() -> None:
    """Report CPU milliseconds of a prediction."""
    network, device = find_known_network("resnet50-imagenet"), find("tx2")
    assert network is not None
    first_s = measure_s(lambda: predict_step_need(network, device, 1))
    each_s = measure_s(lambda: [predict_step_need(network, device, batch) for batch in range(1, 201)]) / 200
    CONSOLE.print(f"a prediction: {1e3 * first_s:.1f} ms the first time, then {1e3 * each_s:.2f} ms")


PARTS = {
    "floor": report_error_floor,
    "pairs": report_pairs,
    "speed": report_speed,
}


if __name__ == "__main__":
    run_parts(__doc__, PARTS)
