"""Accuracy of a training step's memory and time predicted from the geometry of two networks' layers, on two others.

    FEDGE_PROFILES=folder/of/tables python benchmarks/training_memory.py

Errors are mean absolute errors in percent. The tables are measured TX2 steps of pruned networks; the accuracy on them:
``fedge memory eval --leave-network-out``.
"""

from __future__ import annotations

import itertools

import numpy as np
from figures import build_table, compute_mape, profiles_folder
from rich.console import Console

from fedge.costs.memory.memory_study import (
    TARGETS,
    MeasuredSteps,
    TargetName,
    gather_steps,
    predict_fedge,
)
from fedge.costs.memory.step_table import StepTable, read_step_tables

CONSOLE = Console(width=120, highlight=False)


def load_step_tables() -> tuple[StepTable, ...]:
    return read_step_tables(profiles_folder() / "perf4sight-tx2")


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


if __name__ == "__main__":
    report_pairs()
