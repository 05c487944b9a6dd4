"""Advise a placement of a network's instances on a board's accelerators: goal, plan, and remaining uncertainty."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedge.analysis.placement.accelerator_fit import (
    FittedBoard,
    PlacementMeasurement,
    accelerator_kind,
    fit_board,
    parse_batch_size,
    read_measurements,
)
from fedge.analysis.placement.accelerators import MAX_POWER_FIGURE, PlacementBoard, build_placement_board
from fedge.analysis.placement.inference_jobs import HOST_BOARD, build_host_board
from fedge.analysis.placement.placement_contention import split_network
from fedge.analysis.placement.placement_outcome import (
    USER_OBJECTIVES,
    CombinationCurve,
    PlacementGoal,
    PlacementObjective,
    PlacementOutcome,
    compute_combination_curves,
)
from fedge.analysis.placement.placement_planner import PlacementPlan, RelaxedLimit, plan_placement, relax_limits
from fedge.analysis.placement.planned_service import PLACEMENT_FORMAT
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_source import MODEL_FILES, load_network_cost, parse_input_shape
from fedge.devices.catalogue import find
from fedge.errors import BadInput
from fedge.types import Label

MAX_BATCHES = 16
"""Upper limit of the number of batch sizes in one request."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """The options of the command, unparsed."""

    network: str
    board: str
    rate_hz: float | None = None
    objective: str | None = None
    max_power_w: float | None = None
    max_latency_s: float | None = None
    batch_sizes: str = "1,2,4,8,16,32,64,128"
    max_instances: int = 1
    on: str | None = None
    measurements: Path | None = None
    input_shape: str | None = None


@dataclass(frozen=True, slots=True)
class PlacementAdvice:
    """A plan with everything that the renderings show."""

    options: PlacementOptions
    network: NetworkCost
    board: PlacementBoard
    """The board with the accelerators that may be used."""
    board_fitted: PlacementBoard
    """The board with all accelerators, as measured rows may use any."""
    plan: PlacementPlan
    chosen: PlacementOutcome
    curves: tuple[CombinationCurve, ...]
    fitted: FittedBoard | None
    measured: tuple[PlacementMeasurement, ...]
    planning_s: float
    notes: tuple[str, ...]

    @property
    def label(self) -> Label:
        """Source label of the chosen placement's figures."""
        return self.find_label(self.chosen)

    @property
    def knows_watts(self) -> bool:
        """Whether power is known; for this machine it is known only from measurements."""
        return _knows_watts(self.board, self.fitted)

    def find_label(self, outcome: PlacementOutcome) -> Label:
        """Return ``calibrated`` if everything that an outcome uses was measured, else ``estimated``."""
        return "estimated" if self.fitted is None else self.fitted.label_placement(outcome.placement)


def advise_placement(options: PlacementOptions) -> PlacementAdvice:
    """Plan a placement for the given options.

    Raises:
        BadInput: For an invalid option, or limits that no placement keeps.
    """
    goal, sizes = parse_goal(options), parse_batch_sizes(options.batch_sizes)
    rows = () if options.measurements is None else read_measurements(options.measurements)
    board = _find_board(options)
    network = load_network_cost(options.network, parse_input_shape(options.input_shape))
    fitted = fit_board(board, network, rows) if rows else None
    if not _knows_watts(board, fitted) and (goal.objective == "energy" or goal.max_power_w is not None):
        raise BadInput("--measurements", "no watts", "rows with watts (fedge place-run --sensor): none are known here")
    fitted_board = _restrict_accelerators(fitted.board if fitted else board, options.on)
    begin = time.perf_counter()
    plan = plan_placement(
        fitted_board, network=network, goal=goal, batch_sizes=sizes, most_instances=options.max_instances
    )
    took_s = time.perf_counter() - begin
    if plan.chosen is None:
        raise _infeasible_error(
            options,
            goal,
            relax_limits(
                fitted_board, network=network, goal=goal, batch_sizes=sizes, most_instances=options.max_instances
            ),
        )
    return PlacementAdvice(
        options=options,
        network=network,
        board=fitted_board,
        board_fitted=fitted.board if fitted else board,
        plan=plan,
        chosen=plan.chosen,
        curves=compute_combination_curves(fitted_board, network, sizes),
        fitted=fitted,
        measured=rows,
        planning_s=took_s,
        notes=(
            *_describe_unmeasured(fitted, plan.chosen),
            *_describe_excess_power(fitted_board, plan.chosen),
            *_describe_fallback(fitted_board, network),
        ),
    )


def placement_advice_to_dict(advice: PlacementAdvice) -> dict[str, Any]:
    """Return the plan for JSON."""
    fitted, watts, model = advice.fitted, advice.knows_watts, advice.options.network
    return {
        "format": PLACEMENT_FORMAT,
        "model": str(Path(model).resolve()) if model.endswith(MODEL_FILES) else model,
        "network": advice.network.name,
        "input": list(advice.network.input_shape),
        "device": advice.board.name,
        "label": advice.label,
        "source": advice.board.source,
        "goal": asdict(advice.plan.goal),
        "chosen": _outcome_to_dict(advice.chosen, watts),
        "considered": advice.plan.considered,
        "computed": advice.plan.computed,
        "planned_s": advice.planning_s,
        "combinations": [
            {"combination": curve.combination, "label": advice.find_label(one), **_outcome_to_dict(one, watts)}
            for curve in advice.curves
            for one in curve.outcomes
        ],
        "fit": None
        if fitted is None
        else {
            "rows": fitted.rows,
            "error": fitted.error,
            "left_out_error": fitted.left_out_error,
            "power_error": fitted.power_error,
            "doubtful_rows": list(fitted.doubtful),
        },
        "notes": list(advice.notes),
        "figures": [{"name": name, **asdict(figure)} for name, figure in advice.board.figures],
    }


def _outcome_to_dict(outcome: PlacementOutcome, knows_watts: bool) -> dict[str, Any]:
    """Return an outcome for JSON; unknown power and energy are null."""
    return {
        "placement": [asdict(one) for one in outcome.placement.instances],
        "images_per_s": outcome.images_per_s,
        "latency_s": outcome.latency_s,
        "power_w": outcome.power_w if knows_watts else None,
        "full_load_w": outcome.full_load_w if knows_watts else None,
        "joules_per_image": outcome.joules_per_image if knows_watts else None,
        "rate_hz": outcome.rate_hz,
        "instances": [
            {"images_per_s": one.images_per_s, "batch_s": one.batch_s, "alone_s": one.alone_s}
            for one in outcome.instances
        ],
    }


def parse_goal(options: PlacementOptions) -> PlacementGoal:
    """Return the goal; with a rate the default objective is least latency, else most throughput."""
    name = options.objective or ("throughput" if options.rate_hz is None else "latency")
    if name not in USER_OBJECTIVES:
        raise BadInput("--objective", repr(name), f"one of {', '.join(USER_OBJECTIVES)}")
    objective: PlacementObjective = next(choice for choice in USER_OBJECTIVES if choice == name)
    return PlacementGoal(objective, options.rate_hz, options.max_power_w, options.max_latency_s)


def parse_batch_sizes(text: str) -> tuple[int, ...]:
    """Parse the value of ``--batch-sizes``, in ascending order."""
    sizes = tuple(sorted({parse_batch_size(word.strip(), "--batch-sizes") for word in text.split(",")}))
    if len(sizes) > MAX_BATCHES:
        raise BadInput("--batch-sizes", f"{len(sizes)} sizes", f"up to {MAX_BATCHES}, separated by commas")
    return sizes


def _find_board(options: PlacementOptions) -> PlacementBoard:
    if options.board != HOST_BOARD:
        return build_placement_board(find(options.board))
    if options.measurements is None:
        right = "--measurements FILE too: nothing is known of this machine before (fedge place-run writes one)"
        raise BadInput("--board", HOST_BOARD, right)
    return build_host_board()


def _knows_watts(board: PlacementBoard, fitted: FittedBoard | None) -> bool:
    return board.name != HOST_BOARD or (fitted is not None and fitted.power_error is not None)


def _restrict_accelerators(board: PlacementBoard, on: str | None) -> PlacementBoard:
    if on is None:
        return board
    names = [word.strip() for word in on.split(",")]
    for name in names:
        if name not in board.accelerator_names:
            dla = name.startswith("dla") and not any(known.startswith("dla") for known in board.accelerator_names)
            why = f"{board.name} has no DLA; " if dla else ""
            raise BadInput("--on", repr(name), f"{why}one of {', '.join(board.accelerator_names)}")
    return replace(board, accelerators=tuple(place for place in board.accelerators if place.name in names))


def _infeasible_error(options: PlacementOptions, goal: PlacementGoal, near: Sequence[RelaxedLimit]) -> BadInput:
    """Return a one-line error with the request, and for each limit the value that would be feasible."""
    limits = {"--rate-hz": goal.rate_hz, "--max-power-w": goal.max_power_w, "--max-latency-s": goal.max_latency_s}
    given = ", ".join(f"{option} {value:g}" for option, value in limits.items() if value is not None)
    words = {"--rate-hz": "at most", "--max-power-w": "at least", "--max-latency-s": "at least"}
    others = ", the other limits kept" if sum(value is not None for value in limits.values()) > 1 else ""
    changes = [f"{one.option} {words[one.option]} {one.reachable:.4g}, by {one.outcome.placement}" for one in near]
    right = f"{'; or '.join(changes)}{others}" if changes else "looser limits: loosening a single one is not enough"
    return BadInput(f"no placement on {options.board} holds the limits", given, right)


def _describe_unmeasured(fitted: FittedBoard | None, chosen: PlacementOutcome) -> list[str]:
    """Return a note on the parts of a plan without measured rows."""
    if fitted is None or fitted.label_placement(chosen.placement) == "calibrated":
        return []
    used = dict.fromkeys((one.accelerator, one.precision) for one in chosen.placement.instances)
    without = [f"{name} ({how})" for name, how in used if (accelerator_kind(name), how) not in fitted.measured]
    return [f"Not measured, hence estimated: {', '.join(without)}; --on keeps to accelerators that you name."]


def _describe_excess_power(board: PlacementBoard, chosen: PlacementOutcome) -> list[str]:
    """Return a note if a plan draws more than the module's maximum power."""
    most_w = next((figure.value for name, figure in board.figures if name == MAX_POWER_FIGURE), None)
    if most_w is None or chosen.power_w <= most_w:
        return []
    more = f"{chosen.power_w:.1f} W are more than the module's {most_w:g} W: it would lower its clocks"
    return [f"{more}; --max-power-w {most_w:g} plans within it."]


def _describe_fallback(board: PlacementBoard, network: NetworkCost) -> list[str]:
    """Return notes on operators that a DLA does not run."""
    notes = []
    dla = next((place for place in board.accelerators if place.supported is not None), None)
    if dla is not None:
        parts = split_network(network, dla.supported)
        if parts.fallen:
            own, fallback = parts.own, parts.fallback
            share = fallback.flop / max(own.flop + fallback.flop, 1.0)
            notes.append(
                f"{dla.name} does not run {', '.join(parts.fallen)}: {fallback.launches} of "
                f"{own.launches + fallback.launches} operators ({share:.1%} of the FLOP) fall back to the GPU, "
                f"with {parts.switches} changes of place per batch (estimated from NVIDIA's list)."
            )
    return notes
