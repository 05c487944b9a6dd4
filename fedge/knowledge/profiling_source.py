"""The sources that a model can be learnt from: a measured table, or an emulated board that is profiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.costs.cost_profile import WorkloadKind
from fedge.costs.layered_work import find_named_workload
from fedge.devices import catalogue
from fedge.devices.board_kinds import build_surface, build_workload_kind
from fedge.devices.emulated_board import EmulatedBoard
from fedge.devices.thermal_model import build_thermal_model
from fedge.errors import BadInput
from fedge.experiment import FleetBoard, FleetEntry
from fedge.knowledge.table_background import TableBackground, build_background
from fedge.modes import build_grid
from fedge.predictors.explorers.budgeted_explorer import STEPS
from fedge.predictors.table_board import TableBoard
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Label, LabelledValue, Measurement, Modes, PowerMode, ProfileTable, Workload

CLOCK_TOLERANCE = 0.02
# Relative difference up to which a table's clock matches the catalogue's; neighbouring clocks differ by at least 3 %.


@dataclass(frozen=True, slots=True, eq=False)
class ProfilingSource:
    """The modes that can be profiled, how one is measured, and prior knowledge.

    Attributes:
        truth: Measured table, or the emulated board's true surface; apart from ``measure``, only error figures use its
            times and powers.
        candidates: Modes to choose among later.
        candidates_from: Where the candidates come from, in words.
        source: Where the measurements come from, in words.
        idle: Power at rest in the top mode; None if it is unknown.
    """

    truth: ProfileTable
    measure: Callable[[PowerMode], Measurement]
    background: TableBackground
    candidates: Modes
    candidates_from: str
    label: Label
    source: str
    idle: LabelledValue | None = None

    @property
    def sha256(self) -> str | None:
        """Return the table's hash, or None for an emulated board."""
        return self.truth.sha256 or None


def source_from_table(
    table: ProfileTable,
    spec: DeviceSpec | None,
    name: str,
    references: Sequence[ProfileTable] = (),
    without: Sequence[str] = (),
    kind: WorkloadKind = "train",
) -> ProfilingSource:
    """Build the source of a measured table of steps of this kind.

    ``without`` names workloads and boards whose calibrated profiles are left out of the prior.
    """
    own = table if spec is None else replace(table, device=spec.name)
    candidates, origin = list_candidates(own, spec)
    background = build_background(own, references, without, kind=kind)
    return ProfilingSource(
        own,
        measure=TableBoard(own).measure,
        background=background,
        candidates=candidates,
        candidates_from=origin,
        label=table.label,
        source=name,
    )


def list_candidates(table: ProfileTable, spec: DeviceSpec | None) -> tuple[Modes, str]:
    """Return every mode of the board and a description of the list; the table's modes if its clocks do not fit the
    board.

    Nearly equal clocks are replaced by the table's, since the table comes from the board itself.
    """
    if spec is None:
        return table.modes, "the table's modes"
    known = (spec.cores, spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz)
    axes = [
        _merge_clocks(values, np.unique(seen).tolist()) for values, seen in zip(known, table.modes.knobs.T, strict=True)
    ]
    if not all(axes):
        return table.modes, f"the table's modes: it has clocks that the catalogue's {spec.name} lacks"
    cores, cpu_mhz, gpu_mhz, mem_mhz = axes
    modes = build_grid(spec, cores=[round(count) for count in cores], cpu_mhz=cpu_mhz, gpu_mhz=gpu_mhz, mem_mhz=mem_mhz)
    return modes, f"every mode of the catalogue's {spec.name}"


def _merge_clocks(known: Sequence[float], seen: Sequence[float]) -> list[float]:
    """Return the known values with each seen value in place of the nearest; empty if a seen value matches none."""
    merged = {value: float(value) for value in known}
    for value in seen:
        near = min(known, key=lambda one: abs(one - value))
        if abs(value / near - 1.0) > CLOCK_TOLERANCE:
            return []
        merged[near] = value
    return sorted(merged.values())


def source_from_board(
    device: str,
    workload: str,
    seed: int,
    references: Sequence[ProfileTable] = (),
    without: Sequence[str] = (),
    batch_size: int | None = None,
) -> ProfilingSource:
    """Build the source of an emulated board.

    The board's deviation from its kind and the measurement noise follow from ``seed``. ``without`` names workloads and
    boards whose calibrated profiles are left out of the prior.

    Raises:
        BadInput: If the board or the workload is unknown.
    """
    work, _ = find_named_workload(workload, batch_size=batch_size)
    board = FleetBoard(name=f"{device}-1", index=0, entry=FleetEntry(device=device))
    kind = build_workload_kind(catalogue.find(device, "--board").name, work)
    surface = build_surface(board, kind, seed)
    noise = make_generator(seed, board.name, "profiling")
    ambient_c = board.entry.ambient_c
    emulated = EmulatedBoard(
        kind.spec,
        surface=surface,
        thermal=build_thermal_model(kind.spec, ambient_c),
        temperature_c=ambient_c,
        rng=noise,
    )
    truth = ProfileTable(
        kind.spec.name,
        workload=work.name,
        batch_size=work.batch_size,
        modes=surface.modes,
        step_s=surface.step_s,
        power_w=surface.power_w,
        sha256="",
        path="",
        label=kind.truth_label,
    )
    idle_w, known = emulated.idle_w(kind.spec.maxn), kind.spec.idle_w
    return ProfilingSource(
        truth,
        measure=lambda mode: _measure_mode(emulated, work, mode),
        background=build_background(truth, references, without),
        candidates=surface.modes,
        candidates_from=f"every mode of the catalogue's {kind.spec.name}",
        label=kind.truth_label,
        source=f"an emulated {kind.spec.name} (time and power: {kind.truth_source})",
        idle=LabelledValue(
            idle_w, "estimated", f"the emulated board's own, about its kind's {known.value:g} W: {known.source}"
        ),
    )


def _measure_mode(board: EmulatedBoard, work: Workload, mode: PowerMode) -> Measurement:
    """Measure ``STEPS`` steps in ``mode``.

    Raises:
        BadInput: If the board does not have the mode.
    """
    try:
        with board.use_mode(mode):
            return board.measure(work, STEPS, lambda _: None)
    except LookupError as error:
        raise BadInput("--explorer", f"the mode {mode}", "one of the candidates that it was given") from error
