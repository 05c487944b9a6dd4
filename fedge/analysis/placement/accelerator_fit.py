"""Fit a board's parameters to measured placements, in order to predict placements that were not measured.

Fitted, as logarithms relative to the board's own figures: the speed of every accelerator in every measured precision,
its launches, its spill batch, the bandwidth, and the overlap if two kinds of cores of one GPU were measured together.
Cores of the same make share parameters. Parameters that no row touches keep their value and uncertainty. Outliers have
little weight (Student-t). If power was measured: idle power, and every accelerator's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.analysis.placement.accelerators import Accelerator, Instance, Placement, PlacementBoard
from fedge.analysis.placement.batch_demand import NO_DEMAND, InstanceDemand, compute_split_demand, split_network
from fedge.analysis.placement.placement_contention import build_contention_columns, stack_demands
from fedge.analysis.placement.placement_measurements import PlacementMeasurement
from fedge.analysis.placement.placement_outcome import OutcomeArrays, check_placement, evaluate_at_full_load
from fedge.costs.layers.network_cost import NetworkCost
from fedge.errors import BadInput
from fedge.physics.robust_fit import Curve, GaussianPrior, fit_curve, robust_sd
from fedge.types import Floats, Label

ParameterKey = tuple[str, ...]
"""A parameter: ("speed", kind, precision), ("launch", kind), ("spill", kind), ("hindrance", engine), ("bandwidth",),
("overlap",), ("watts", kind) or ("idle",).
"""
PRIOR_SD = {
    "speed": 1.5,
    "launch": 1.0,
    "spill": 0.7,
    "bandwidth": 0.5,
    "overlap": 0.5,
    "hindrance": 0.7,
    "watts": 0.7,
    "idle": 0.3,
}
"""Default prior standard deviations, in log units: how far a parameter may be off before anything is measured.

Smaller values trust the catalogue's figures more and need more rows to be corrected.
"""
NOISE_SD = 0.03
"""Least standard deviation of the noise from run to run, in log units, of images per second and of watts.

A default: a smaller one lets a few lucky rows dominate the fit.
"""
ANNEALING_SD = (0.5, 0.15)
"""Noise of the preceding fits: far from the solution, a fit with small noise treats half of the rows as outliers."""
DOUBTFUL_WEIGHT = 0.4
"""Default weight, out of at most 1.25, below which a row is reported as doubtful."""
FEWEST_ROWS, MOST_REFITS = 3, 30
_SLOPE_STEP = 1e-4


@dataclass(frozen=True, slots=True)
class FittedBoard:
    """The board with fitted parameters. Errors are mean absolute ones in percent, None if they are unknown."""

    board: PlacementBoard
    rows: int
    error: float
    left_out_error: float | None
    """Error of each row predicted from a fit to all others."""
    power_error: float | None
    measured: frozenset[tuple[str, str]]
    """Kinds of accelerators and precisions with rows."""
    doubtful: tuple[int, ...]
    """Numbers, from 1, of rows that lie so far off that they hardly count."""

    def label_placement(self, placement: Placement) -> Label:
        """Return ``calibrated`` if everything in use was measured, else ``estimated``."""
        used = {(accelerator_kind(one.accelerator), one.precision) for one in placement.instances}
        return "calibrated" if used <= self.measured else "estimated"


def accelerator_kind(name: str) -> str:
    """Return the kind of an accelerator, shared by those of the same make: ``dla`` for ``dla-1``."""
    return re.sub(r"-\d+$", "", name)


def fit_board(board: PlacementBoard, network: NetworkCost, rows: Sequence[PlacementMeasurement]) -> FittedBoard:
    """Fit the board's parameters to measured placements of a network.

    Raises:
        BadInput: For fewer than three rows, or a placement that the board does not have.
    """
    if len(rows) < FEWEST_ROWS:
        raise BadInput("--measurements", f"{len(rows)} rows", f"{FEWEST_ROWS} or more")
    for i, row in enumerate(rows, 1):
        check_placement(board, network, row.placement, f"--measurements: row {i}")
    table = _PlacementTable(network, tuple(rows))
    keys = tuple(find_parameter_keys(board, rows))
    found = _anneal_fit(_build_images_curve(board, table, keys), table.log_images, keys)
    best = apply_parameters(board, keys, found.parameters)
    watts, power_error = _fit_watts(best, table)
    measured = frozenset(
        (accelerator_kind(one.accelerator), one.precision) for row in rows for one in row.placement.instances
    )
    offered = _offer_measured_precisions(watts, measured)
    return FittedBoard(
        board=replace(offered, label="calibrated", source=f"fitted to {len(rows)} measured rows"),
        rows=len(rows),
        error=_mape(np.expm1(found.residuals)),
        left_out_error=_compute_left_out_error(board, table, keys, found),
        power_error=power_error,
        measured=measured,
        doubtful=tuple(int(i) + 1 for i in np.flatnonzero(found.weights < DOUBTFUL_WEIGHT)),
    )


def predict_images_per_s(board: PlacementBoard, network: NetworkCost, placements: Sequence[Placement]) -> Floats:
    """Return images per second of placements, shape (n,)."""
    return (
        _PlacementTable(network, tuple(PlacementMeasurement(one, 1.0) for one in placements))
        .predict(board)
        .images_per_s
    )


def apply_parameters(board: PlacementBoard, keys: Sequence[ParameterKey], values: Floats) -> PlacementBoard:
    """Return the board with the parameters ``keys`` scaled by exp(``values``)."""
    moved = dict(zip(keys, np.exp(values).tolist(), strict=True))
    return replace(
        board,
        accelerators=tuple(_scale_accelerator(place, moved) for place in board.accelerators),
        bandwidth=board.bandwidth * moved.get(("bandwidth",), 1.0),
        overlap=min(1.0, board.overlap * moved.get(("overlap",), 1.0)),
        idle_w=board.idle_w * moved.get(("idle",), 1.0),
    )


def _scale_accelerator(place: Accelerator, moved: dict[ParameterKey, float]) -> Accelerator:
    kind = accelerator_kind(place.name)
    launch, watts = moved.get(("launch", kind), 1.0), moved.get(("watts", kind), 1.0)
    speeds = tuple(
        replace(
            speed,
            flop_per_s=speed.flop_per_s * moved.get(("speed", kind, speed.precision), 1.0),
            launch_s=speed.launch_s * launch,
            batch_s=speed.batch_s * launch,
        )
        for speed in place.speeds
    )
    return replace(
        place,
        hindrance=min(1.0, place.hindrance * moved.get(("hindrance", place.engine), 1.0)),
        speeds=speeds,
        spill_batch=place.spill_batch * moved.get(("spill", kind), 1.0),
        full_w=place.full_w * watts,
        waiting_w=place.waiting_w * watts,
    )


def _offer_measured_precisions(board: PlacementBoard, measured: frozenset[tuple[str, str]]) -> PlacementBoard:
    places = tuple(
        replace(
            place,
            speeds=tuple(
                replace(speed, offered=speed.offered or (accelerator_kind(place.name), speed.precision) in measured)
                for speed in place.speeds
            ),
        )
        for place in board.accelerators
    )
    return replace(board, accelerators=places)


def find_parameter_keys(board: PlacementBoard, rows: Sequence[PlacementMeasurement]) -> Iterator[ParameterKey]:
    """Yield the parameters that these rows depend on."""
    used = {(one.accelerator, one.precision) for row in rows for one in row.placement.instances}
    yield from dict.fromkeys(("speed", accelerator_kind(name), precision) for name, precision in sorted(used))
    kinds = dict.fromkeys(accelerator_kind(name) for name, _ in sorted(used))
    yield from (("launch", kind) for kind in kinds)
    spilling = {accelerator_kind(place.name) for place in board.accelerators if np.isfinite(place.spill_batch)}
    yield from (("spill", kind) for kind in kinds if kind in spilling)
    yield from dict.fromkeys(
        ("hindrance", place.engine)
        for place in board.accelerators
        if place.hindrance < 1
        and any(len(_list_engine_instances(board, row.placement, place.engine)) > 1 for row in rows)
    )
    yield ("bandwidth",)
    if any(_uses_two_kinds(board, row.placement) for row in rows):
        yield ("overlap",)


def _list_engine_instances(board: PlacementBoard, placement: Placement, engine: str) -> list[str]:
    """Return the accelerators of a placement's instances on one engine, one for each instance."""
    return [one.accelerator for one in placement.instances if board.accelerator(one.accelerator).engine == engine]


def _uses_two_kinds(board: PlacementBoard, placement: Placement) -> bool:
    engines = {place.engine for place in board.accelerators}
    return any(len(set(_list_engine_instances(board, placement, engine))) > 1 for engine in engines)


class _PlacementTable:
    """Rows as arrays over the board's accelerators: built once, evaluated for many boards with other parameters."""

    def __init__(self, network: NetworkCost, rows: tuple[PlacementMeasurement, ...]) -> None:
        self.rows = rows
        self.log_images = np.log([row.images_per_s for row in rows])
        self._network = network
        widest: dict[str, int] = {}
        for row in rows:
            names = [one.accelerator for one in row.placement.instances]
            for name in set(names):
                widest[name] = max(widest.get(name, 0), names.count(name))
        self.names = [name for name in sorted(widest) for _ in range(widest[name])]

    def select_rows(self, which: Sequence[int]) -> _PlacementTable:
        """Return the table of some of the rows."""
        return _PlacementTable(self._network, tuple(self.rows[i] for i in which))

    def predict(self, board: PlacementBoard) -> OutcomeArrays:
        """Return the outcomes at full load that a board predicts for the n rows."""
        return evaluate_at_full_load(build_contention_columns(board, self.names), stack_demands(self._demands(board)))

    def _demands(self, board: PlacementBoard) -> list[list[tuple[int, InstanceDemand]]]:
        places = {name: board.accelerator(name) for name in self.names}
        parts = {name: split_network(self._network, place.supported) for name, place in places.items()}

        def demand(one: Instance) -> InstanceDemand:
            name, speed = one.accelerator, places[one.accelerator].speed(one.precision)
            return compute_split_demand(
                board, parts=parts[name], accelerator=places[name], speed=speed, batch_size=one.batch_size
            )

        table = []
        for row in self.rows:
            queues = {name: [one for one in row.placement.instances if one.accelerator == name] for name in places}
            instances = [queues[name].pop(0) if queues[name] else None for name in self.names]
            table.append([(0, NO_DEMAND) if one is None else (1, demand(one)) for one in instances])
        return table


@dataclass(frozen=True, slots=True, eq=False)
class _FitResult:
    parameters: Floats
    residuals: Floats
    weights: Floats
    noise_sd: float


def _anneal_fit(curve: Curve, data: Floats, keys: Sequence[ParameterKey]) -> _FitResult:
    """Fit with decreasing noise, at last with the noise that the rows show, but no less than ``NOISE_SD``."""
    start = np.zeros(len(keys))
    for noise_sd in ANNEALING_SD:
        found = _fit_once(curve, data=data, keys=keys, start=start, noise_sd=noise_sd)
        start = found.parameters
    noise_sd = max(NOISE_SD, robust_sd(found.residuals))
    return _fit_once(curve, data=data, keys=keys, start=start, noise_sd=noise_sd)


def _build_images_curve(board: PlacementBoard, table: _PlacementTable, keys: Sequence[ParameterKey]) -> Curve:
    """Return the function from parameters to the log images per second of the table's rows."""
    return lambda values: _differentiate(
        lambda at: np.log(table.predict(apply_parameters(board, keys, at)).images_per_s), values
    )


def _fit_once(curve: Curve, data: Floats, keys: Sequence[ParameterKey], start: Floats, noise_sd: float) -> _FitResult:
    prior = GaussianPrior(np.zeros(len(keys)), np.diag([PRIOR_SD[key[0]] ** -2.0 for key in keys]))
    found = fit_curve(curve, data=data, noise_sd=noise_sd, prior=prior, start=start)
    return _FitResult(found.parameters, found.residuals, found.weights, noise_sd)


def _differentiate(function: Callable[[Floats], Floats], values: Floats) -> tuple[Floats, Floats]:
    """Return a function's values, shape (n,), and its slopes by finite differences, shape (k, n)."""
    here = function(values)
    slopes = [(function(values + _SLOPE_STEP * axis) - here) / _SLOPE_STEP for axis in np.eye(len(values))]
    return here, np.array(slopes)


def _compute_left_out_error(
    board: PlacementBoard, table: _PlacementTable, keys: Sequence[ParameterKey], full: _FitResult
) -> float | None:
    """Return the cross-validated error: every row is left out once, in at most ``MOST_REFITS`` parts."""
    count = len(table.rows)
    if count <= FEWEST_ROWS:
        return None
    parts = min(count, MOST_REFITS)
    off = []
    for part in range(parts):
        inside = [i for i in range(count) if i % parts != part]
        left = [i for i in range(count) if i % parts == part]
        some = table.select_rows(inside)
        curve = _build_images_curve(board, some, keys)
        found = _fit_once(curve, data=some.log_images, keys=keys, start=full.parameters, noise_sd=full.noise_sd)
        judged = table.select_rows(left)
        predicted = judged.predict(apply_parameters(board, keys, found.parameters)).images_per_s
        off += (predicted / np.exp(judged.log_images) - 1.0).tolist()
    return _mape(np.array(off))


def _fit_watts(board: PlacementBoard, table: _PlacementTable) -> tuple[PlacementBoard, float | None]:
    """Fit idle power and every accelerator's power; the board is unchanged if too few rows have a power."""
    known = [i for i, row in enumerate(table.rows) if row.watts is not None]
    if len(known) < FEWEST_ROWS:
        return board, None
    some = table.select_rows(known)
    data = np.log([row.watts or 1.0 for row in some.rows])
    kinds = dict.fromkeys(accelerator_kind(one.accelerator) for row in some.rows for one in row.placement.instances)
    keys: tuple[ParameterKey, ...] = (("idle",), *(("watts", kind) for kind in kinds))

    def log_watts(at: Floats) -> Floats:
        moved = apply_parameters(board, keys, at)
        return np.log(moved.idle_w + some.predict(moved).dynamic_w)

    found = _anneal_fit(lambda at: _differentiate(log_watts, at), data, keys)
    return apply_parameters(board, keys, found.parameters), _mape(np.expm1(found.residuals))


def _mape(relative: Floats) -> float:
    return 100.0 * float(np.mean(np.abs(relative)))
