"""Who works how much: every board's minibatches in a round, and the experiments that give it as many."""

from __future__ import annotations

import math

from fedge.devices.emulated import top_mode
from fedge.experiment import Board, Experiment, MemorySpec, PolicySpec, StrategySpec, boards
from fedge.fleetsim.boards import kind_of
from fedge.seeds import generator
from fedge.studies.fleet.nothing import SAMPLES, TASK

USUAL_S = 30.0
SHARES = (2.0 / 3.0, 4.0 / 3.0)
"""A board's work takes ``USUAL_S`` at MAXN times a draw from here: boards hold different amounts of data. Chosen by
us."""
ENOUGH_MB = 1e9
"""No minibatch runs out of so much memory. Chosen by us."""


def steps_of_boards(experiment: Experiment, steps: int | None) -> dict[str, int]:
    """Minibatches in every board's round: ``steps``, or as many as take it about ``USUAL_S`` seconds at MAXN."""
    if steps is not None:
        return {board.name: steps for board in boards(experiment)}
    return {board.name: _usual_steps(experiment, board) for board in boards(experiment)}


def _usual_steps(experiment: Experiment, board: Board) -> int:
    average = kind_of(board, experiment.workload).average
    share = generator(experiment.seed, board.name, "steps").uniform(*SHARES)
    return max(1, round(share * USUAL_S / float(average.step_s[average.row(top_mode(average))])))


def as_asked(experiment: Experiment, policy: PolicySpec, seed: int, rounds: int) -> Experiment:
    """The experiment of one run: its own fleet, policy and seed, nothing to learn, and memory enough.

    The study's costs are those of the minibatches that are asked for: a board that lowered them would be judged by what
    it did not do.
    """
    workload = experiment.workload.model_copy(update={"task": TASK, "memory": MemorySpec(guard=False)})
    fleet = tuple(entry.model_copy(update={"memory_mb": ENOUGH_MB}) for entry in experiment.fleet)
    data = experiment.data.model_copy(update={"partition": "iid"})
    changes = {"policy": policy, "seed": seed, "rounds": rounds, "fleet": fleet, "workload": workload, "data": data}
    changes["strategy"] = StrategySpec()
    return experiment.model_copy(update=changes)


def as_played_by(experiment: Experiment, board: Board, steps: int) -> Experiment:
    """The experiment as one board is told it, so that its share comes to ``steps`` minibatches."""
    count = len(boards(experiment))
    samples = SAMPLES // count + (board.index < SAMPLES % count)
    batches = math.ceil(samples / experiment.workload.batch_size)
    workload = experiment.workload.model_copy(update={"local_epochs": steps / batches})
    return experiment.model_copy(update={"workload": workload})
