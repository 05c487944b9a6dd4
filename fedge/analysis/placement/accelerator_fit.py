"""Fit of a board's parameters to measured placements, to predict others; and the table of the measurements (CSV).

One row per run of several instances together:

    instances,batch_sizes,precisions,images_per_s,watts
    cuda-cores,64,fp32,415.2,55.1
    cuda-cores+dla-0,8+8,fp32+fp16,346.0,

Cells of several instances are joined by ``+``; one batch size or precision stands for all. ``watts`` may be empty or
absent; further columns are ignored.

Fitted, as logarithms relative to the board's own figures: the speed of every accelerator in every measured precision,
its launches, its spill batch, the bandwidth, and the overlap if two kinds of cores of one GPU were measured together.
Cores of the same make share parameters. Parameters that no row touches keep their value and uncertainty. Outliers have
little weight (Student-t). If power was measured: idle power, and every accelerator's.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedge.analysis.placement.accelerators import Accelerator, Instance, Placement, PlacementBoard
from fedge.analysis.placement.placement_contention import (
    NO_DEMAND,
    InstanceDemand,
    build_contention_columns,
    compute_split_demand,
    split_network,
    stack_demands,
)
from fedge.analysis.placement.placement_outcome import OutcomeArrays, check_placement, evaluate_at_full_load
from fedge.costs.layers.network_cost import NetworkCost
from fedge.devices.tables.csv_sheet import decode_text, float_or_nan, parse_sheet, read_bytes
from fedge.errors import BadInput
from fedge.physics.robust_fit import Curve, GaussianPrior, differentiate, fit_curve, robust_sd
from fedge.types import Floats, Label

MEASUREMENT_COLUMNS = ("instances", "batch_sizes", "precisions", "images_per_s", "watts")
REQUIRED_COLUMNS = MEASUREMENT_COLUMNS[:4]
MOST_ROWS, MOST_INSTANCES, LARGEST_BATCH = 1000, 64, 4096
"""Upper limits of a table and of a row: a thousand rows already take minutes to fit."""
LEAST, MOST = 1e-3, 1e9
"""Plausible range of images per second and of watts, to catch wrong units."""


@dataclass(frozen=True, slots=True)
class PlacementMeasurement:
    """One run: images per second of all instances together, and the board's power in watts if measured."""

    placement: Placement
    images_per_s: float
    watts: float | None = None


def read_measurements(path: Path) -> tuple[PlacementMeasurement, ...]:
    """Read the rows of a file.

    Raises:
        BadInput: For an unreadable file, or the first error in it.
    """
    right = "a table of measurements (CSV)"
    return parse_measurements(decode_text(str(path), read_bytes(path, right), right), str(path))


def parse_measurements(text: str, where: str) -> tuple[PlacementMeasurement, ...]:
    """Parse the rows of a table; ``where`` is named in errors.

    Raises:
        BadInput: For the first error in the table.
    """
    rows = parse_sheet(where, text, REQUIRED_COLUMNS).rows
    if not 1 <= len(rows) <= MOST_ROWS:
        raise BadInput(where, f"{len(rows)} rows", f"1 to {MOST_ROWS}")
    return tuple(_parse_row(row.cells, f"{where}: line {row.line}") for row in rows)


def measurements_to_csv(rows: Sequence[PlacementMeasurement], more: Sequence[Mapping[str, object]] = ()) -> str:
    """Return the table as CSV; ``more`` has further columns of each row."""
    out = io.StringIO()
    extra = list(dict.fromkeys(name for each in more for name in each))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*MEASUREMENT_COLUMNS, *extra])
    for i, row in enumerate(rows):
        instances = row.placement.instances
        watts = "" if row.watts is None else f"{row.watts:.3f}"
        cells = [
            "+".join(str(getattr(one, name)) for one in instances)
            for name in ("accelerator", "batch_size", "precision")
        ]
        writer.writerow([*cells, f"{row.images_per_s:.4f}", watts, *(more[i].get(name, "") for name in extra)])
    return out.getvalue()


def _parse_row(row: Mapping[str, str], where: str) -> PlacementMeasurement:
    names, sizes, precisions = (
        [word.strip() for word in row[name].split("+")] for name in ("instances", "batch_sizes", "precisions")
    )
    if not all(names) or len(names) > MOST_INSTANCES:
        raise BadInput(f"{where}: instances", repr(row["instances"])[:80], f"up to {MOST_INSTANCES} names joined by +")
    sizes, precisions = (
        _broadcast(sizes, names, f"{where}: batch_sizes"),
        _broadcast(precisions, names, f"{where}: precisions"),
    )
    if not all(precisions):
        raise BadInput(f"{where}: precisions", repr(row["precisions"]), "precisions joined by +, e.g. fp32+fp16")
    placement = Placement(
        tuple(
            Instance(name, parse_batch_size(size, f"{where}: batch_sizes"), precision)
            for name, size, precision in zip(names, sizes, precisions, strict=True)
        )
    )
    watts = row.get("watts", "")
    return PlacementMeasurement(
        placement,
        _parse_number(row["images_per_s"], f"{where}: images_per_s"),
        _parse_number(watts, f"{where}: watts") if watts else None,
    )


def parse_batch_size(text: str, where: str) -> int:
    """Parse a batch size that a user typed.

    Raises:
        BadInput: If it is no whole number from 1 to ``LARGEST_BATCH``.
    """
    digits = len(text) <= len(str(LARGEST_BATCH)) and text.isascii() and text.isdigit()
    if not (digits and 1 <= int(text) <= LARGEST_BATCH):
        raise BadInput(where, repr(text)[:80], f"a whole number from 1 to {LARGEST_BATCH}")
    return int(text)


def _broadcast(words: list[str], names: list[str], where: str) -> list[str]:
    if len(words) == 1:
        return words * len(names)
    if len(words) != len(names):
        raise BadInput(where, f"{len(words)} values for {len(names)} instances", "one for each, or one for all")
    return words


def _parse_number(text: str, where: str) -> float:
    value = float_or_nan(text)
    if not LEAST <= value <= MOST:
        raise BadInput(where, repr(text)[:80], f"a number from {LEAST:g} to {MOST:g}")
    return value


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

    def log_images(at: Floats) -> Floats:
        return np.log(table.predict(apply_parameters(board, keys, at)).images_per_s)

    return lambda at: differentiate(log_images, at, _SLOPE_STEP)


def _fit_once(curve: Curve, data: Floats, keys: Sequence[ParameterKey], start: Floats, noise_sd: float) -> _FitResult:
    prior = GaussianPrior(np.zeros(len(keys)), np.diag([PRIOR_SD[key[0]] ** -2.0 for key in keys]))
    found = fit_curve(curve, data=data, noise_sd=noise_sd, prior=prior, start=start)
    return _FitResult(found.parameters, found.residuals, found.weights, noise_sd)


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

    found = _anneal_fit(lambda at: differentiate(log_watts, at, _SLOPE_STEP), data, keys)
    return apply_parameters(board, keys, found.parameters), _mape(np.expm1(found.residuals))


def _mape(relative: Floats) -> float:
    return 100.0 * float(np.mean(np.abs(relative)))
