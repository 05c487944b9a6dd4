"""A planned round before its requests: goals, the energy budget, input and progress of the policy ``joint``. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import replace

from fedge.client.memory_scaling import can_narrow_clients, explain_narrowing_failure
from fedge.decisions.planning import BUDGET_POLICY, JOINT_POLICY
from fedge.decisions.planning.front_columns import board_round_energy_j, find_least_energy_point
from fedge.decisions.planning.joint_planner import SENT, BoardSupply, JointContext, UpdateEncoding
from fedge.decisions.planning.progress_model import ProgressFit, RoundShare, update_fit
from fedge.decisions.planning.round_plan import resting_power_w
from fedge.decisions.selection.client_figures import finite_or_none
from fedge.decisions.selection.planner_selector import compute_gains
from fedge.experiment import DEFAULT_WIDTHS, Experiment, list_boards
from fedge.flower.update_codec import compute_up_share
from fedge.protocols import LearningTask
from fedge.telemetry.round_columns import deadline_with_grace_s
from fedge.telemetry.settlement import RoundSettlement
from fedge.telemetry.store_records import ClientRow, EventRow
from fedge.types import Compression, FleetPlan, NamedArrays, RoundGoal, SelectionContext
from server.rounds.client_selection import build_candidates
from server.state.checkpoint import FleetState, RunState
from server.state.fleet_availability import FleetAvailability


def complete_goals(experiment: Experiment, plan: FleetPlan, number: int) -> dict[str, RoundGoal]:
    """Return the plan's goals for round ``number``; clients may stop by themselves only if partial work counts."""
    late, left = experiment.late, experiment.rounds - number
    partial = late.action == "partial"
    stop_s = deadline_with_grace_s(late, plan.deadline_s) if partial and plan.deadline_s is not None else None
    return {name: dataclasses.replace(goal, stop_s=stop_s, rounds_left=left) for name, goal in plan.goals.items()}


def find_budget_event(experiment: Experiment, state: RunState, fleet: FleetState, plan: FleetPlan) -> EventRow | None:
    """Return an event if the planned round, with the evaluation due after it, would exceed the energy budget."""
    policy, number = experiment.policy, state.round + 1
    if policy.name != BUDGET_POLICY or policy.budget_j is None:
        return None
    next_j = state.last_j if (planned_j := _planned_energy_j(fleet, plan)) is None else planned_j
    if experiment.evaluation.is_due(number, experiment.rounds):
        next_j += state.evaluation_j
    if plan.goals and state.spent_j + next_j <= policy.budget_j:
        return None
    spent = f"{state.spent_j:.0f} J of {policy.budget_j:.0f} J are spent"
    why = f"round {number} would take {next_j:.0f} J" if plan.goals else "no board can work for the rest"
    return EventRow(fleet.clock_s, round=number, board=None, kind="budget", message=f"{spent}; {why}")


def _planned_energy_j(fleet: FleetState, plan: FleetPlan) -> float | None:
    """Return the expected energy of the planned round in joules, or None if it is unknown.

    If only the deadline is known, it is the energy of the cheapest modes that meet it, and of the boards at rest.
    """
    fronts = [fleet.fronts[name] for name in plan.goals if name in fleet.fronts]
    if plan.energy_j is not None:
        return plan.energy_j
    if plan.deadline_s is None or len(fronts) < len(plan.goals):
        return None
    return resting_power_w(fleet.fronts, list(plan.goals)) * plan.deadline_s + sum(
        front.radio_j + board_round_energy_j(front, find_least_energy_point(front, plan.deadline_s), plan.deadline_s)
        for front in fronts
    )


UNCERTAINTY = 0.1
"""Weight of a client's waiting against its samples, as of the selector ``planner``."""
NARROW_ROUNDS = 2 / 3
"""Part of a run's rounds, from the first, in which clients may be asked for narrow networks. Channels that a client
never trains do not learn its data: with the slowest two of eight clients at half of the channels, the digits end 0.6
points below whole networks, with a quarter of their steps instead 0.1, and with the former in the first third of the
rounds only 0.2 (``run_variant`` of benchmarks/local_steps.py, 10 rounds, three seeds). On twenty boards whole networks
take a quarter more time for the same accuracy (joint-sweep.yaml), so that they begin late."""
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
    task: LearningTask,
) -> JointContext:
    """Return weights, encodings, widths and the model of progress for the next round of ``selected`` clients.

    Weights are gains without losses: the server averages by samples, and losses of narrow networks and of short parts
    are higher, so that such clients would be asked for ever more of the same.
    """
    clients = [replace(one, loss=None) for one in build_candidates(availability, fleet, selected)]
    gains = compute_gains(clients, SelectionContext(state.round + 1, count=len(clients)), UNCERTAINTY)
    weights = {client.board: gain for client, gain in zip(clients, gains.tolist(), strict=True)}
    encodings = list_encodings(experiment, state.arrays, trainable)
    may_be_narrow = state.round < NARROW_ROUNDS * experiment.rounds
    widths = list_widths(experiment, task) if may_be_narrow else ()
    supplies, resting_price = _describe_supplies(availability, fleet, selected)
    return JointContext(
        weights, encodings, state.progress, widths=widths, supplies=supplies, resting_price=resting_price
    )


def _describe_supplies(
    availability: FleetAvailability, fleet: FleetState, selected: Sequence[str]
) -> tuple[dict[str, BoardSupply], float]:
    """Return the supplies of the selected clients and the price of what the others draw, at the round's start."""
    signal, charges = availability.signal, availability.charges(fleet)
    price = {name: signal.find_price(name, fleet.clock_s) for name in fleet.fronts} if signal else {}
    supplies = {}
    for name in selected:
        own = BoardSupply(price.get(name, 1.0))
        if (charge := charges.get(name)) is not None:
            floor_j = charge.spec.floor * charge.capacity_j
            spare_j, full_j = charge.left_j - floor_j, charge.capacity_j - floor_j
            own = replace(own, spare_j=spare_j, full_j=full_j, charging_w=charge.spec.charging_w)
        supplies[name] = own
    resting_w = {name: front.idle_w for name, front in fleet.fronts.items() if name not in supplies}
    total_w = sum(resting_w.values())
    priced_w = sum(price.get(name, 1.0) * watts for name, watts in resting_w.items())
    return supplies, priced_w / total_w if total_w else 1.0


def list_widths(experiment: Experiment, task: LearningTask) -> tuple[float, ...]:
    """Return the widths below 1 that clients may be asked for; none if the task or the strategy does not allow them."""
    widths = experiment.workload.memory.widths or DEFAULT_WIDTHS
    possible = can_narrow_clients(experiment) and not explain_narrowing_failure(task, widths)
    return tuple(sorted({width for width in widths if width < 1.0 and possible}))


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
            width=plan.goals[row.board].width if row.width is None else row.width,
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
