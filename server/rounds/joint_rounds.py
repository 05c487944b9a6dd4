"""The input of the policy ``joint`` for a round, and what a finished round shows of progress. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from fedge.decisions.planning import JOINT_POLICY
from fedge.decisions.planning.joint_planner import SENT, JointContext, UpdateEncoding
from fedge.decisions.planning.progress_model import ProgressFit, RoundShare, update_fit
from fedge.decisions.selection.client_figures import finite_or_none
from fedge.decisions.selection.planner_selector import compute_gains
from fedge.experiment import Experiment, list_boards
from fedge.flower.update_codec import compute_up_share
from fedge.telemetry.settlement import RoundSettlement
from fedge.telemetry.store_records import ClientRow
from fedge.types import Compression, FleetPlan, NamedArrays, SelectionContext
from server.rounds.client_selection import build_candidates
from server.state.checkpoint import FleetState, RunState
from server.state.fleet_availability import FleetAvailability

UNCERTAINTY = 0.1
"""Weight of a client's waiting against the utility of its samples, as of the selector ``planner``."""
CHOSEN = (Compression("none"), Compression("int8"), Compression("topk"))
"""Encodings that are chosen from; half precision sends twice the bytes of ``int8`` for the same progress."""
MAX_RESIDUAL_BYTES = 2**30
"""Bytes of the residuals of all emulated clients up to which ``topk`` is chosen from: they are in the server's memory
and written with every checkpoint. A default: a few seconds of a disk per round, 22 clients with a ResNet-18."""


def build_joint_context(
    experiment: Experiment,
    availability: FleetAvailability,
    fleet: FleetState,
    state: RunState,
    *,
    selected: Sequence[str],
    trainable: Collection[str],
) -> JointContext:
    """Return weights, encodings and the model of progress for the next round of ``selected`` clients."""
    clients = build_candidates(availability, fleet, selected)
    gains = compute_gains(clients, SelectionContext(state.round + 1, count=len(clients)), UNCERTAINTY)
    weights = {client.board: gain for client, gain in zip(clients, gains.tolist(), strict=True)}
    return JointContext(weights, list_encodings(experiment, state.arrays, trainable), state.progress)


def list_encodings(
    experiment: Experiment, arrays: NamedArrays, trainable: Collection[str]
) -> tuple[UpdateEncoding, ...]:
    """Return the encodings that the plan may choose: the experiment's own, if it fixes one.

    Otherwise ``topk`` is left out if the residuals of all emulated clients would have too many bytes.
    """
    spec = experiment.compression
    emulated = 0 if experiment.backend == "fleet" else len(list_boards(experiment))
    fits = 4 * sum(arrays[name].size for name in trainable) * emulated <= MAX_RESIDUAL_BYTES
    choice = CHOSEN if fits else tuple(one for one in CHOSEN if one.kind != "topk")
    kinds = choice if spec.kind is None else (Compression(spec.kind),)
    found = [replace(one, keep=spec.keep) for one in kinds]
    return tuple(UpdateEncoding(one, compute_up_share(one, arrays, trainable)) for one in found)


def update_progress(
    fit: ProgressFit, plan: FleetPlan, settled: RoundSettlement, fleet: FleetState, loss: float | None
) -> ProgressFit:
    """Return the fit after a round; without a test set, the loss is that of the clients' last trainings.

    Only rounds of the policy ``joint`` differ in the clients' steps, and only they use the fit.
    """
    if all(goal.policy != JOINT_POLICY for goal in plan.goals.values()):
        return fit
    samples = {name: history.samples or 0 for name, history in fleet.histories.items()}
    total = sum(samples.values()) or 1
    parts = [
        RoundShare(
            samples.get(row.board, 0) / total,
            share=plan.goals[row.board].share * _done_share(row),
            sent=SENT[plan.goals[row.board].compression.kind],
        )
        for row in settled.clients
        if row.board in settled.accepted and row.board in plan.goals
    ]
    return update_fit(fit, parts, _find_training_loss(fleet) if loss is None else loss)


def _done_share(row: ClientRow) -> float:
    return row.steps / row.asked_steps if row.asked_steps else 1.0


def _find_training_loss(fleet: FleetState) -> float | None:
    """Return the mean of the clients' last finite training losses, weighted by samples; None without any."""
    known = [
        (history.samples, loss)
        for history in fleet.histories.values()
        if history.samples and (loss := finite_or_none(history.loss)) is not None
    ]
    return sum(n * loss for n, loss in known) / sum(n for n, _ in known) if known else None
