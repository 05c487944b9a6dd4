"""The steps of every board in a round, and the experiments that give it as many."""

from __future__ import annotations

import math

from fedge.devices.board_kinds import build_kind
from fedge.devices.emulated_board import find_top_mode
from fedge.experiment import (
    EvaluationSpec,
    Experiment,
    FleetBoard,
    MemorySpec,
    PolicySpec,
    StrategySpec,
    list_boards,
)
from fedge.seeds import make_generator
from fedge.workloads import NULL_SAMPLES, NULL_TASK

TYPICAL_WORK_S = 30.0
STEP_SHARE_RANGE = (2.0 / 3.0, 4.0 / 3.0)
"""A board's work at MAXN takes ``TYPICAL_WORK_S`` times a draw from this range: boards hold different amounts of data.

The range is a default of the study; a wider one makes fleets less even and leaves more energy to save.
"""
AMPLE_MEMORY_MB = 1e9
"""Enough memory for any step, so that the memory guard never changes a batch size."""


def count_board_steps(experiment: Experiment, steps: int | None) -> dict[str, int]:
    """Return every board's steps in a round: ``steps``, or as many as take about ``TYPICAL_WORK_S`` seconds at MAXN."""
    if steps is not None:
        return {board.name: steps for board in list_boards(experiment)}
    return {board.name: _draw_steps(experiment, board) for board in list_boards(experiment)}


def _draw_steps(experiment: Experiment, board: FleetBoard) -> int:
    average = build_kind(board, experiment.workload).average
    share = make_generator(experiment.seed, board.name, "steps").uniform(*STEP_SHARE_RANGE)
    return max(1, round(share * TYPICAL_WORK_S / float(average.step_s[average.find_row(find_top_mode(average))])))


def build_run_experiment(experiment: Experiment, policy: PolicySpec, seed: int, rounds: int) -> Experiment:
    """Return the experiment of one run: its own fleet, policy and seed, no training, and ample memory.

    The study counts the costs of the requested steps: a board that reduced them would be compared by other work.
    """
    workload = experiment.workload.model_copy(update={"task": NULL_TASK, "memory": MemorySpec(guard=False)})
    fleet = tuple(entry.model_copy(update={"memory_mb": AMPLE_MEMORY_MB}) for entry in experiment.fleet)
    data = experiment.data.model_copy(update={"partition": "iid", "samples": None})
    changes = {"policy": policy, "seed": seed, "rounds": rounds, "fleet": fleet, "workload": workload, "data": data}
    changes |= {"strategy": StrategySpec(), "mods": (), "evaluation": EvaluationSpec()}
    return experiment.model_copy(update=changes)


def build_board_experiment(experiment: Experiment, board: FleetBoard, steps: int) -> Experiment:
    """Return the experiment as one board receives it, so that its share comes to ``steps`` steps."""
    count = len(list_boards(experiment))
    samples = NULL_SAMPLES // count + (board.index < NULL_SAMPLES % count)
    batches = math.ceil(samples / experiment.workload.batch_size)
    workload = experiment.workload.model_copy(update={"local_epochs": steps / batches})
    return experiment.model_copy(update={"workload": workload})
