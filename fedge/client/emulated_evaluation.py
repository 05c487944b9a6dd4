"""The evaluation of the global model on an emulated board: the true cost of its batches, in simulated time."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from fedge.client.client_setup import ClientSetup, plan_conditions
from fedge.client.emulated_service import cached_average_costs
from fedge.client.evaluation import answer_evaluation, describe_evaluation
from fedge.devices.board_kinds import BoardKind
from fedge.devices.emulated_board import EmulatedBoard
from fedge.devices.mode_surface import ModeSurface, draw_board_surface
from fedge.devices.thermal_model import build_thermal_model
from fedge.errors import FedgeError
from fedge.experiment import Experiment, choose_training_device
from fedge.seeds import make_generator
from fedge.types import NamedArrays
from fedge.wire import ReplyMessage, RequestMessage
from fedge.workloads import load_experiment_task


def evaluate_emulated(
    experiment: Experiment,
    setup: ClientSetup,
    kind: BoardKind,
    request: RequestMessage,
    *,
    arrays: NamedArrays,
    share: NDArray[np.int64],
) -> ReplyMessage:
    """Evaluate ``arrays`` on the test samples ``share``, at least one, and return the reply of an emulated board.

    Raises:
        FedgeError: The task gives no result.
    """
    name, entry, state = setup.board.name, setup.board.entry, request.state
    surface, batch_size = _draw_surface(experiment, setup, kind)
    board = EmulatedBoard(
        kind.spec,
        surface=surface,
        thermal=build_thermal_model(kind.spec, entry.ambient_c),
        temperature_c=entry.ambient_c if state.temperature_c is None else state.temperature_c,
        rng=make_generator(experiment.seed, name, request.round, "evaluation noise"),
    )
    board.idle_for(max(0.0, request.start_s - state.rested_at_s), plan_conditions(setup, request, None).waiting_mode)

    def evaluate() -> tuple[float, float, int]:
        task = load_experiment_task(experiment, choose_training_device(experiment))
        result = task.evaluate(arrays, share)
        if result is None:
            raise FedgeError(f"the task {experiment.workload.task} has test samples but evaluates no model on them")
        return *result, len(share)

    reply = answer_evaluation(setup, request, board, batches=math.ceil(len(share) / batch_size), evaluate=evaluate)
    assert reply.state is not None
    return dataclasses.replace(reply, state=dataclasses.replace(reply.state, temperature_c=board.temperature_c))


def _draw_surface(experiment: Experiment, setup: ClientSetup, kind: BoardKind) -> tuple[ModeSurface, int]:
    """Return the board's true time and power of a batch, and the batch size."""
    work = describe_evaluation(experiment.workload, setup.board.entry)
    average, spreads = cached_average_costs(setup.board.entry.device, work, kind.average.modes)
    column = ModeSurface(average.modes, average.infer_s[:, 0], average.power_w[:, 0], kind.average.idle_w)
    rng = make_generator(experiment.seed, setup.board.name, "evaluation")
    return draw_board_surface(column, *spreads[0], rng), work.batch_sizes[0]
