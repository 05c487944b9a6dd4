"""Select the board and mode for a workload: estimate every board's modes, compare them with limits, and rank them.

Times and powers come from calibrated profiles if there are any, else from data-sheet ratios or layers; every offer says
which. Limits apply to expected values: an estimated board may still miss them by the error of its estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from fedge.costs.cost_priors import find_workload_cost
from fedge.costs.cost_profile import WorkloadKind
from fedge.costs.layered_work import find_named_workload
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.memory.step_need import find_largest_batch, predict_step_need
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.devices import catalogue
from fedge.errors import BadInput
from fedge.modes import build_grid
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import DeviceSpec, Floats, Label, Modes, PowerMode, Workload

RankingObjective = Literal["time", "energy", "both"]
"""The objective that ranks boards and modes: an epoch's seconds, its joules, or their product."""


@dataclass(frozen=True, slots=True)
class BoardLimits:
    """Limits on a board: power while it works in watts, and time of an epoch in seconds; None for no limit."""

    power_w: float | None = None
    epoch_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BoardSelectionRequest:
    """The workload to select a board for."""

    work: Workload
    network: NetworkCost | None
    samples: int
    limits: BoardLimits = BoardLimits()
    aim: RankingObjective = "time"


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Memory of a training step compared with the memory that a board leaves for it.

    Attributes:
        need_mb: Memory of a step in MB; None for inference, and for networks with unknown layers.
        batch_size: The largest batch size that fits, 0 for none, None if unknown.
    """

    need_mb: float | None
    allowed_mb: float
    batch_size: int | None
    label: Label = "estimated"

    @property
    def fits(self) -> bool:
        """Whether the step fits, or its memory is unknown."""
        return self.need_mb is None or self.need_mb <= self.allowed_mb


@dataclass(frozen=True, slots=True)
class BoardOffer:
    """A board's best mode for an epoch of a workload, and why it is suitable or not."""

    board: str
    mode: PowerMode
    epoch_s: float
    energy_j: float
    power_w: float
    memory: MemoryFit
    label: Label
    """Source of time and power."""
    source: str
    broken: tuple[str, ...] = ()
    """Limits that no mode of the board keeps; the mode is then the closest one."""

    @property
    def is_suitable(self) -> bool:
        """Whether every limit is kept and the step fits into memory."""
        return not self.broken and self.memory.fits

    @property
    def ranking_values(self) -> dict[RankingObjective, float]:
        """The value of each ranking objective; less is better."""
        return {"time": self.epoch_s, "energy": self.energy_j, "both": self.epoch_s * self.energy_j}


@dataclass(frozen=True, slots=True)
class BoardSelectionOptions:
    """The request of a selection.

    Attributes:
        workload: A known workload, or any network as ``load_network_cost`` takes it.
        batch_size: Samples per step; by default the workload's own, or 16.
        input_shape: Shape of one sample, such as ``3x224x224``; None for the network's own.
        boards: Names of the boards to compare; all of the catalogue if empty.
    """

    workload: str
    batch_size: int | None = None
    input_shape: str | None = None
    samples: int = 50_000
    limits: BoardLimits = BoardLimits()
    objective: str = "time"
    boards: tuple[str, ...] = ()
    kind: WorkloadKind = "train"


@dataclass(frozen=True, slots=True, eq=False)
class BoardSelection:
    """A ranking of boards, each in its best mode.

    Attributes:
        offers: One offer per board, suitable boards first, each group by the objective.
    """

    options: BoardSelectionOptions
    work: Workload
    offers: tuple[BoardOffer, ...]

    @property
    def best(self) -> BoardOffer | None:
        """The first suitable offer, or None if no board is suitable."""
        return next(iter(filter_suitable(self.offers)), None)


def select_board(options: BoardSelectionOptions, usable_mb: Callable[[DeviceSpec], float]) -> BoardSelection:
    """Rank boards and modes for a workload.

    Raises:
        BadInput: If an option or network is invalid.
    """
    if options.objective not in get_args(RankingObjective):
        raise BadInput("--objective", repr(options.objective), ", ".join(get_args(RankingObjective)))
    for option, value in (("--max-power-w", options.limits.power_w), ("--max-epoch-s", options.limits.epoch_s)):
        if value is not None and not 0 < value < math.inf:
            raise BadInput(option, f"{value:g}", "a finite number above 0")
    work, network = find_named_workload(
        options.workload, batch_size=options.batch_size, kind=options.kind, input_shape=options.input_shape
    )
    aim = cast("RankingObjective", options.objective)
    request = BoardSelectionRequest(work, network=network, samples=options.samples, limits=options.limits, aim=aim)
    boards = _find_boards(options.boards)
    return BoardSelection(options, work, rank_boards(boards, catalogue.load_catalogue(), request, usable_mb))


def _find_boards(names: Sequence[str]) -> Sequence[DeviceSpec]:
    """Return the boards to compare; the whole catalogue if none is named."""
    if not names:
        return tuple(catalogue.load_catalogue().values())
    return tuple({spec.name: spec for spec in (catalogue.find(name, where="--board") for name in names)}.values())


def board_selection_to_dict(selection: BoardSelection) -> dict[str, Any]:
    """Return the ranking for JSON."""
    options, work = selection.options, selection.work
    return {
        "workload": work.name,
        "kind": work.kind,
        "batch_size": work.batch_size,
        "samples": options.samples,
        "by": options.objective,
        "limits": asdict(options.limits),
        "offers": [asdict(offer) | {"suits": offer.is_suitable} for offer in selection.offers],
    }


def rank_boards(
    boards: Sequence[DeviceSpec],
    specs: Mapping[str, DeviceSpec],
    job: BoardSelectionRequest,
    allowed_mb: Callable[[DeviceSpec], float],
) -> tuple[BoardOffer, ...]:
    """Return each board's best mode for an epoch, suitable boards first, each group by the objective."""
    found = [_build_offer(spec, specs, job, allowed_mb(spec)) for spec in boards]
    return tuple(sorted(found, key=lambda offer: (not offer.is_suitable, offer.ranking_values[job.aim], offer.board)))


def _build_offer(
    spec: DeviceSpec, specs: Mapping[str, DeviceSpec], job: BoardSelectionRequest, allowed_mb: float
) -> BoardOffer:
    cost = find_workload_cost(spec, job.work, specs)
    every = build_grid(spec)
    modes = Modes(every.knobs[mask_above_floor(every)])
    seconds = math.ceil(job.samples / job.work.batch_size) * compute_step_s(cost.coefficients, spec.maxn, modes)
    watts = compute_power_w(cost.coefficients, spec.maxn, modes)
    row, broken = find_best_row(seconds, watts, job.limits, job.aim)
    return BoardOffer(
        spec.name,
        mode=modes[row],
        epoch_s=float(seconds[row]),
        energy_j=float(seconds[row] * watts[row]),
        power_w=float(watts[row]),
        memory=_estimate_memory_fit(spec, job, allowed_mb),
        label=cost.label,
        source=cost.source,
        broken=broken,
    )


def find_best_row(
    seconds: Floats, watts: Floats, limits: BoardLimits, aim: RankingObjective
) -> tuple[int, tuple[str, ...]]:
    """Return the best mode within the limits, or, if there is none, the closest one and the limits that it breaks.

    Seconds of an epoch and watts are of shape (modes,). The excess of a limit is measured as a ratio, and ratios of
    both limits are multiplied.
    """
    over = np.maximum(1.0, watts / (limits.power_w or np.inf)) * np.maximum(1.0, seconds / (limits.epoch_s or np.inf))
    worth: dict[RankingObjective, Floats] = {
        "time": seconds,
        "energy": seconds * watts,
        "both": seconds * seconds * watts,
    }
    within: NDArray[np.bool_] = over <= over.min()
    row = int(np.flatnonzero(within)[np.argmin(worth[aim][within])])
    return row, _describe_broken_limits(float(seconds[row]), float(watts[row]), limits)


def _describe_broken_limits(seconds: float, watts: float, limits: BoardLimits) -> tuple[str, ...]:
    held = (("power", watts, limits.power_w, "W"), ("epoch", seconds, limits.epoch_s, "s"))
    return tuple(
        f"{name} {value:,.{0 if value >= 100 else 2}f} {unit} above {limit:,.6g} {unit}"
        for name, value, limit, unit in held
        if limit is not None and value > limit
    )


def _estimate_memory_fit(spec: DeviceSpec, job: BoardSelectionRequest, allowed_mb: float) -> MemoryFit:
    work, network = job.work, job.network
    if network is None or work.kind == "infer":
        return MemoryFit(None, allowed_mb, None)
    step, largest = predict_step_need(network, spec, work.batch_size), work.batch_size
    if step.memory_mb > allowed_mb:
        largest = find_largest_batch(lambda size: predict_step_need(network, spec, size).memory_mb <= allowed_mb)
    return MemoryFit(step.memory_mb, allowed_mb, largest, step.label)


def filter_suitable(found: Sequence[BoardOffer]) -> tuple[BoardOffer, ...]:
    """Return the offers that keep every limit and fit into memory."""
    return tuple(offer for offer in found if offer.is_suitable)
