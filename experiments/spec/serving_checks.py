"""Checks a fleet's inference services: costs must be known, and rates and latencies sustainable beside training."""

from __future__ import annotations

import math

import numpy as np

from fedge.client.inference_service import average_inference_costs, build_demand, first_step_s
from fedge.costs.inference_cost import estimate_inference_cost
from fedge.devices import catalogue
from fedge.devices.board_kinds import BoardKind, build_kind
from fedge.errors import BadInput, UnknownName
from fedge.experiment import Experiment, FleetBoard, ServingSpec, list_boards
from fedge.pareto import find_nearest_row
from fedge.serving.standing_service import (
    MAX_SHARE,
    InferenceCosts,
    ServiceDemand,
    build_service_table,
    min_latency_budget_s,
)
from fedge.types import DeviceSpec
from fedge.worker.builtin_tasks import TASKS

MAX_LATENCY_S = 1000.0
"""Upper end of the latency histograms, in seconds; a board also warms up for as long as its latency budget."""


def check_serving(experiment: Experiment) -> None:
    """Raise ``BadInput`` for the first service that its entry's average board cannot sustain.

    Training counts: no request is served during a step.
    """
    firsts = {board.entry: board for board in reversed(list_boards(experiment))}
    for i, entry in enumerate(experiment.fleet):
        if entry.serving is not None:
            _check_model(entry.serving, f"fleet[{i}].serving")
            if entry.serving.latency_s > MAX_LATENCY_S:
                got = f"{entry.serving.latency_s:g} s"
                raise BadInput(f"fleet[{i}].serving.latency_s", got, f"at most {MAX_LATENCY_S:g} s")
            kind = build_kind(firsts[entry], experiment.workload)
            inference = _estimate_inference(kind, entry.serving, f"fleet[{i}].serving")
            _check_sustainable(
                experiment, spec=entry.serving, kind=kind, inference=inference, where=f"fleet[{i}].serving"
            )


def _check_model(spec: ServingSpec, where: str) -> None:
    if spec.model is not None and spec.model not in TASKS:
        raise UnknownName(f"{where}.model", spec.model, tuple(TASKS))


def _estimate_inference(kind: BoardKind, spec: ServingSpec, where: str) -> InferenceCosts:
    """Estimate the costs of the service's batch sizes; messages are prefixed with the field."""
    try:
        return average_inference_costs(kind.spec, spec.cost, build_demand(spec).batch_sizes, kind.average.modes)
    except UnknownName as error:
        raise UnknownName(f"{where}.cost", spec.cost, error.known) from error
    except BadInput as error:
        raise BadInput(f"{where}.batch_sizes", error.got, error.right) from error


def _check_sustainable(
    experiment: Experiment, spec: ServingSpec, kind: BoardKind, inference: InferenceCosts, where: str
) -> None:
    demand, train_s = build_demand(spec), kind.average.step_s
    least_s = min_latency_budget_s(inference, demand, train_s, first_step_s(train_s))
    if math.isinf(least_s):
        most_hz = float((MAX_SHARE * np.array(inference.batch_sizes) / inference.infer_s).max())
        right = (
            f"at most {most_hz:.3g}: more requests of {spec.cost} would take {kind.spec.name} over {MAX_SHARE:.0%} of "
            "its time, which leaves too little for training"
        )
        raise BadInput(f"{where}.rate_hz", f"{spec.rate_hz:g}", right)
    if least_s > spec.latency_s:
        alone_s = min_latency_budget_s(inference, demand)
        right = (
            f"at least {_round_up(least_s):g} s: so long {kind.spec.name} needs at its best to collect and infer a "
            f"batch of "
            f"{spec.cost} ({_round_up(alone_s):g} s) and end the training minibatch before it, a round's first one too"
        )
        raise BadInput(f"{where}.latency_s", f"{spec.latency_s:g} s", right)
    policy = experiment.policy.name
    if policy.startswith("preset:"):
        _check_preset(policy.removeprefix("preset:"), spec=spec, kind=kind, inference=inference, demand=demand)


def _check_preset(
    preset: str, spec: ServingSpec, kind: BoardKind, inference: InferenceCosts, demand: ServiceDemand
) -> None:
    """Check that a preset policy, which pins every board to one mode, names a mode that sustains the service."""
    if preset not in kind.spec.presets:
        return  # an unknown preset is reported with the policy
    row = find_nearest_row(inference.modes, kind.spec.presets[preset])
    train_s = kind.average.step_s
    if not build_service_table(inference, demand, train_s, first_step_s(train_s)).holds[row]:
        right = f"a preset in which {kind.spec.name} holds {spec.cost}, {spec.rate_hz:g}/s within {spec.latency_s:g} s"
        raise BadInput("policy.name", f"preset:{preset}", right)


def _round_up(seconds: float) -> float:
    """Round up to two significant digits, so that the suggested number is sufficient."""
    scale = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / scale) * scale:.2g}")


def serving_label(board: FleetBoard, device: DeviceSpec) -> dict[str, dict[str, str]]:
    """Return the provenance of the service's cost as a label; empty if the board has no service."""
    spec = board.entry.serving
    if spec is None:
        return {}
    specs = catalogue.load_catalogue()
    costs = [estimate_inference_cost(device, spec.cost, size, specs) for size in build_demand(spec).batch_sizes]
    known = "calibrated" if all(cost.label == "calibrated" for cost in costs) else "estimated"
    return {"serving": {"label": known, "source": f"{spec.cost}: {costs[0].source}"}}
