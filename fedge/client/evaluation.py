"""A client's evaluation of the global model on its own test samples: one piece of work like any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fedge.client.client_setup import ClientSetup
from fedge.client.inference_service import InferenceWork
from fedge.experiment import FleetEntry, WorkloadSpec
from fedge.protocols import Device
from fedge.types import EvaluationReport, PowerMode
from fedge.wire import ReplyMessage, RequestMessage

MAX_BATCH = 64
"""Largest batch that is priced: the largest one for which inference was measured."""


def describe_evaluation(work: WorkloadSpec, entry: FleetEntry) -> InferenceWork:
    """Return what a batch of an evaluation is priced as: inference with the network whose steps are priced."""
    network = work.network if entry.cost is None else None
    return InferenceWork(entry.cost or work.cost, network, (min(work.batch_size, MAX_BATCH),))


def choose_evaluation_mode(setup: ClientSetup, request: RequestMessage) -> PowerMode:
    """Return the mode in which a client evaluates: that of its last training, or the fastest before the first one."""
    measured = request.state.measurements
    return measured[-1].mode if measured else setup.fastest_mode


def answer_evaluation(
    setup: ClientSetup,
    request: RequestMessage,
    device: Device,
    *,
    batches: int,
    evaluate: Callable[[], tuple[float, float, int]],
) -> ReplyMessage:
    """Evaluate on a device and return the reply, with the client's state as it was.

    Args:
        setup: The client.
        request: The request.
        device: The board.
        batches: Batches that the evaluation counts as.
        evaluate: Evaluates the model and returns loss, accuracy and the number of test samples; called once.
    """
    found = list[tuple[float, float, int]]()

    def work(_batches: int) -> None:
        if not found:
            found.append(evaluate())

    with device.use_mode(choose_evaluation_mode(setup, request)):
        measured = device.measure(setup.workload, batches, work)
    loss, accuracy, samples = found[0]
    down_bytes = request.model_bytes if setup.model_bytes is None else setup.model_bytes
    link = setup.link.transfer(down_bytes, 0.0)
    report = EvaluationReport(
        setup.board.name,
        device=setup.spec.name,
        samples=samples,
        loss=loss,
        accuracy=accuracy,
        measured=measured,
        link=link,
    )
    state = dataclasses.replace(request.state, rested_at_s=request.start_s + report.busy_s)
    return ReplyMessage(setup.board.name, evaluation=report, state=state)
