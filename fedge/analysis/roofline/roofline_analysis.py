"""A network's batch on the rooflines of a board's modes, and the choice of the mode that follows.

The board's constants are fitted to measured inference tables, otherwise to shipped calibrated profiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedge.analysis.roofline.board_constants import (
    BoardConstants,
    activation_intensity,
    compute_rooflines,
    fit_constants,
)
from fedge.analysis.roofline.roofline_model import (
    DEFAULT_MAX_SLOWDOWN,
    BatchDurations,
    ModeRooflines,
    RooflineBatch,
    SlowdownChoice,
    batch_energy_j,
    batch_to_work,
    build_roofline_batch,
    choose_within_slowdown,
    compute_batch_times,
    explain_choice,
    parse_mode,
)
from fedge.costs.cost_profile import CostProfile, WorkloadKind, load_calibrated_inference, load_calibrated_training
from fedge.costs.cost_scaling import carry_to_board, find_nearest_profile
from fedge.costs.layer_estimate import load_timed_steps
from fedge.costs.layers.aten import RECURRENT
from fedge.costs.layers.network_cost import NetworkCost, sum_layers
from fedge.costs.layers.network_record import find_known_network, list_known_workloads
from fedge.costs.layers.network_source import load_network_cost, parse_input_shape
from fedge.costs.slowdown_margin import CostEvidence, PredictionErrors, rotate_predictions
from fedge.costs.table_calibration import build_planning_modes, predict_table
from fedge.devices.catalogue import find, load_catalogue
from fedge.devices.tables.mode_table import list_batch_sizes, parse_workload_kind, read_mode_table
from fedge.errors import BadInput
from fedge.modes import build_grid, find_mode_index
from fedge.pareto import front_mask
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import DeviceSpec, Floats, LayerWork, Modes, ProfileTable, Workload, fitted_label, weakest_label

PROFILE_STRIDE = 4
"""Every n-th mode of a calibrated profile is used for the fit: a default that saves time, as a profile is smooth."""


@dataclass(frozen=True, slots=True, eq=False)
class RooflineBasis:
    """A board's constants and the modes to choose from: those within the fitted clocks."""

    spec: DeviceSpec
    constants: BoardConstants
    modes: Modes
    maxn_row: int


def build_basis(spec: DeviceSpec, tables: Path | None) -> RooflineBasis:
    """Fit the constants of a board.

    Without a folder of inference ``tables``, the shipped profiles are used.

    Raises:
        BadInput: If the folder has no usable table.
    """
    return _build_from_tables(spec, tables) if tables is not None else _build_from_profiles(spec)


def find_networks(workloads: Sequence[str]) -> Mapping[str, NetworkCost]:
    """Return the networks of known workloads; unknown ones are omitted."""
    networks = {name: find_known_network(name) for name in dict.fromkeys(workloads)}
    return {name: network for name, network in networks.items() if network is not None}


def find_mode_row(basis: RooflineBasis, text: str) -> int:
    """Return the row of the mode named by ``--mode``: a preset, or cores and clocks.

    Raises:
        BadInput: If the board has no such mode.
    """
    spec, knobs = basis.spec, basis.modes.knobs
    presets = {name.lower(): mode for name, mode in spec.presets.items()}
    mode = presets.get(text.lower())
    if mode is None and "/" not in text:
        raise BadInput(
            "--mode",
            repr(text),
            f"{', '.join(spec.presets)}, or cores/CPU/GPU/memory in MHz, as {_format_top_mode(spec)}",
        )
    wanted = parse_mode(text) if mode is None else mode
    row = find_mode_index(basis.modes, wanted)
    if row is None:
        low, high = ("/".join(f"{v:g}" for v in ends) for ends in (knobs.min(axis=0), knobs.max(axis=0)))
        right = f"one of the {len(knobs):,} modes from {low} to {high} (fedge devices modes {spec.name} --all)"
        raise BadInput("--mode", str(wanted), right)
    return row


def _format_top_mode(spec: DeviceSpec) -> str:
    top = spec.maxn
    return f"{top.cores}/{top.cpu_mhz:g}/{top.gpu_mhz:g}/{top.mem_mhz:g}"


# Measured tables ------------------------------------------------------------------------------------------------------


def _build_from_tables(spec: DeviceSpec, folder: Path) -> RooflineBasis:
    paths = _list_tables(folder)
    tables = [read_mode_table(path, spec.name, batch_size=size) for path in paths for size in list_batch_sizes(path)]
    networks = find_networks([table.workload for table in tables])
    unknown = [path for path in paths if path.stem not in networks]
    if unknown:
        right = f"tables named after a workload whose layers are known: {', '.join(list_known_workloads())}"
        raise BadInput("--profiles", str(unknown[0]), right)
    label = fitted_label(weakest_label(table.label for table in tables))
    modes = _common_modes(tables)
    row = find_mode_index(modes, spec.maxn)
    if row is None:
        raise BadInput(
            "--profiles", f"no row of MAXN, {spec.maxn}", f"tables of {spec.name} that hold it (see --board)"
        )
    return RooflineBasis(spec, fit_constants(tables, networks, spec, label), modes, row)


def _list_tables(folder: Path) -> list[Path]:
    """Return the inference tables in a folder or in its subfolder ``infer``."""
    if not folder.is_dir():
        raise BadInput("--profiles", str(folder), "a folder that holds tables of inference (CSV)")
    inner = folder / "infer"
    paths = sorted((inner if inner.is_dir() else folder).glob("*.csv"))
    training = [
        path for path in paths if parse_workload_kind(path) == "train" and path.resolve().parent.name == "train"
    ]
    if training or not paths:
        got = f"{folder}, which holds {'tables of training' if training else 'no table'}"
        raise BadInput("--profiles", got, "a folder of tables of inference, one CSV per workload, such as BOARD/infer")
    return paths


def _common_modes(tables: Sequence[ProfileTable]) -> Modes:
    """Return the modes that all tables share, in the order of the first."""
    known = [set(table.modes) for table in tables[1:]]
    keep = [all(mode in others for others in known) for mode in tables[0].modes]
    return Modes(tables[0].modes.knobs[np.array(keep)])


# Calibrated profiles --------------------------------------------------------------------------------------------------


def _build_from_profiles(spec: DeviceSpec) -> RooflineBasis:
    """Fit the board's own calibrated profiles, or those of the nearest board scaled by data-sheet ratios."""
    specs = load_catalogue()
    profiles = [profile for profile in load_calibrated_inference() if profile.device in specs]
    base = specs[find_nearest_profile(profiles, spec, specs).device]
    own = base.name == spec.name
    used = [carry_to_board(p, spec, specs) for p in profiles if p.device == base.name]
    grid = build_planning_modes(spec)
    tables = [predict_table(spec, Modes(grid.knobs[::PROFILE_STRIDE]), profile) for profile in used]
    source = f"the calibrated profiles of inference on {base.name} (" + ", ".join(_describe_profiles(used)) + ")"
    if not own:
        source += f", carried to {spec.name} by data-sheet ratios"
    networks = find_networks([table.workload for table in tables])
    known = [table for table in tables if table.workload in networks]
    constants = fit_constants(
        known, networks=networks, spec=spec, label="calibrated" if own else "estimated", source=source
    )
    low = grid.knobs.min(axis=0)
    every = build_grid(spec)
    modes = Modes(every.knobs[(every.knobs >= low - 1e-6).all(axis=1)])
    row = find_mode_index(modes, spec.maxn)
    return RooflineBasis(spec, constants, modes, 0 if row is None else row)


def _describe_profiles(profiles: Sequence[CostProfile]) -> list[str]:
    names = dict.fromkeys(profile.workload for profile in profiles)
    sizes = {name: [str(p.batch_size) for p in profiles if p.workload == name] for name in names}
    return [f"{name} at batch {'/'.join(sizes[name])}" for name in names]


def is_fitted(constants: BoardConstants, intensity: float) -> bool:
    """Return whether the constants were fitted to a network of this intensity (FLOP per byte), to 2 %."""
    return any(abs(one.intensity / intensity - 1.0) <= 0.02 for one in constants.networks)


def label_for_network(constants: BoardConstants, intensity: float) -> BoardConstants:
    """Relabel the constants for a network: estimated, unless a network of this intensity was fitted."""
    return constants if is_fitted(constants, intensity) else replace(constants, label="estimated")


KIND_NAMES: Mapping[WorkloadKind, str] = {"infer": "inference", "train": "training"}
ROOFLINE_FORMAT = "fedge-roofline"
FITTED_MARGIN = 0.03
"""Margin on the slowdown of a network that is among the user's own tables, log units. With its batch size left out
(``fedge study transfer --part roofline``) the choice then stays within 5 % in 9 of 9 tables and saves 33 % of the
oracle's energy; without a margin in 6, and 81 %. Chosen on these tables."""
DEFAULT_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class RooflineOptions:
    """The request of an analysis.

    Attributes:
        board: Name of the board, or the path of a board's file.
        mode: The mode to show, a preset or cores and clocks; by default the chosen one.
        kind: Whether the batch is a training step.
        max_slowdown: Largest time of the chosen mode, as a multiple of MAXN's.
        confidence: Probability with which the chosen mode keeps it; not used for a network among ``profiles``.
        profiles: Folder with measured inference tables, or None for the shipped profiles.
    """

    network: str
    board: str
    mode: str | None = None
    input_shape: str | None = None
    batch_size: int = 1
    kind: WorkloadKind = "infer"
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN
    confidence: float = DEFAULT_CONFIDENCE
    profiles: Path | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RooflineAnalysis:
    """A network's batch on every mode's rooflines, and the choice; arrays are of shape (modes,)."""

    options: RooflineOptions
    network: NetworkCost
    basis: RooflineBasis
    lines: ModeRooflines
    batch: RooflineBatch
    batch_times: BatchDurations
    joules: Floats
    choice: SlowdownChoice
    shown_row: int
    """The requested mode, else the chosen one."""
    caution: str = ""
    """What the choice promises, or why none is made."""
    is_refused: bool = False
    """Whether MAXN stands for want of measurements."""

    @property
    def front(self) -> list[int]:
        """Rows of the Pareto front of time and energy, from fastest to slowest."""
        rows = np.flatnonzero(front_mask(self.batch_times.total_s, self.joules))
        return [int(row) for row in rows[np.argsort(self.batch_times.total_s[rows])]]

    @property
    def implying_mode_count(self) -> int:
        """Number of modes in which time-efficient implies energy-efficient."""
        return sum(self.lines.mode_roofline(row).time_implies_energy for row in range(len(self.basis.modes)))

    @property
    def explanation(self) -> str:
        """Why the mode is chosen, in words; empty if none is."""
        if self.is_refused:
            return ""
        maxn = self.lines.mode_roofline(self.choice.maxn_row)
        return explain_choice(
            self.choice, modes=self.basis.modes, roofline=maxn, batch=self.batch, spent=self.batch_times
        )


def analyse_roofline(options: RooflineOptions) -> RooflineAnalysis:
    """Compute time and energy of a network's batch in every mode, and choose a mode.

    Raises:
        BadInput: If an option, network or table is invalid.
    """
    if options.batch_size < 1:
        raise BadInput("--batch-size", str(options.batch_size), "1 or more samples")
    spec = find(options.board)
    shape = parse_input_shape(options.input_shape)
    network = (None if shape else find_known_network(options.network)) or load_network_cost(options.network, shape)
    basis = build_basis(spec, options.profiles)
    intensity = activation_intensity(network)
    constants = label_for_network(basis.constants, intensity)
    if options.kind == "train":
        constants = replace(constants, label="estimated")
    lines = compute_rooflines(constants, basis.modes, intensity)
    batch = build_roofline_batch(network, options.batch_size, options.kind)
    refusal = _find_missing_measurement(basis, network, options)
    priced = _price_modes(basis, network, options, batch=batch, lines=lines)
    choose = partial(
        choose_within_slowdown,
        basis.modes,
        time_s=priced.times.total_s,
        joules=priced.joules,
        maxn_row=basis.maxn_row,
        max_slowdown=options.max_slowdown,
    )
    choice = choose(margin=np.inf if refusal else priced.margin)
    if not refusal and choice.row == basis.maxn_row != choose().row:
        refusal = f"no lower mode keeps this limit with enough certainty ({priced.promise})"
    promise = f"The choice has {priced.promise}."
    return RooflineAnalysis(
        options,
        network=network,
        basis=basis,
        lines=lines,
        batch=batch,
        batch_times=priced.times,
        joules=priced.joules,
        choice=choice,
        shown_row=choice.row if options.mode is None else find_mode_row(basis, options.mode),
        caution=priced.source + (_describe_measurements(refusal, options) if refusal else promise),
        is_refused=bool(refusal),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _PricedModes:
    """Times and joules of a batch in every mode, the margin on the slowdown (log units), and both in words."""

    times: BatchDurations
    joules: Floats
    margin: Floats | float
    promise: str
    source: str = ""


def _price_modes(
    basis: RooflineBasis, network: NetworkCost, options: RooflineOptions, batch: RooflineBatch, lines: ModeRooflines
) -> _PricedModes:
    """Price a network among the user's tables by its rooflines, any other by its measured batch sizes or its layers."""
    times, spec = compute_batch_times(lines, batch), basis.spec
    if options.profiles is not None and _is_in_fit(basis, network, options):
        joules = batch_energy_j(lines, batch, times.total_s)
        return _PricedModes(times, joules, FITTED_MARGIN, _describe_record(options))
    layers = LayerWork(network.name, sum_layers(network, training=options.kind == "train"), loading="cached")
    work = Workload(network.name, options.batch_size, options.kind, layers)
    calibrated = (*load_calibrated_training(), *load_calibrated_inference())
    evidence = CostEvidence(calibrated, load_timed_steps(), load_catalogue())
    cost, errors = evidence.predict(spec, work), rotate_predictions(evidence, evidence.find_left_out(spec, work))
    step_s, power_w = (f(cost.coefficients, spec.maxn, basis.modes) for f in (compute_step_s, compute_power_w))
    margin = errors.compute_margin(cost, spec.maxn, basis.modes, maxn_row=basis.maxn_row, confidence=options.confidence)
    source = "its measured batch sizes" if errors.left_out == "batch" else "the network's layers"
    return _PricedModes(
        replace(times, total_s=step_s),
        joules=step_s * power_w,
        margin=margin,
        promise=_describe_promise(options, errors),
        source=f"Times, powers and choice are those of {source}. ",
    )


def _describe_promise(options: RooflineOptions, errors: PredictionErrors) -> str:
    left_out = "batch size" if errors.left_out == "batch" else errors.left_out
    return (
        f"a margin for each mode, with which it is at most {100 * (options.max_slowdown - 1):.3g} % slower with "
        f"{100 * options.confidence:g} % probability, by the errors on {errors.cases} measured workloads, each "
        f"predicted without its {left_out}"
    )


def _describe_record(options: RooflineOptions) -> str:
    """Return how often the margin for a network among the user's tables was enough; known for the default alone."""
    known = options.max_slowdown == DEFAULT_MAX_SLOWDOWN
    record = "of 9 measured tables whose batch size was left out, 9 stayed within 5 %"
    return (
        f"a margin of {100 * FITTED_MARGIN:g} % on the slowdown: "
        f"{record if known else 'how often it is enough is known for 5 % alone'}"
    )


def _is_in_fit(basis: RooflineBasis, network: NetworkCost, options: RooflineOptions) -> bool:
    """Return whether the constants were fitted to such batches: inference of a network of this intensity."""
    return options.kind == "infer" and is_fitted(basis.constants, activation_intensity(network))


def _find_missing_measurement(basis: RooflineBasis, network: NetworkCost, options: RooflineOptions) -> str:
    """Return why no mode can be chosen with any margin; empty if one can."""
    if not _is_in_fit(basis, network, options) and any(layer.kind in RECURRENT for layer in network.layers):
        return "none of the measured networks is recurrent"
    unmeasured = basis.constants.label == "estimated"
    if options.kind == "train":
        unmeasured = all(profile.device != basis.spec.name for profile in load_calibrated_training())
    return f"no {KIND_NAMES[options.kind]} was measured on {basis.spec.name}" if unmeasured else ""


def _describe_measurements(refusal: str, options: RooflineOptions) -> str:
    """Return why no mode is chosen, and the measurements and commands that mend it."""
    fit = f"fedge predict fit TABLE --board {options.board} --kind {options.kind} --out MODEL"
    choose = f"fedge predict choose MODEL --max-slowdown {options.max_slowdown:g} --confidence {options.confidence:g}"
    return (
        f"No mode is chosen but MAXN, because {refusal}. Measure MAXN and two lower modes first, with your own program "
        f"and batches of {options.batch_size}, and write them into a table; then: {fit}, and {choose}."
    )


def roofline_analysis_to_dict(analysis: RooflineAnalysis) -> dict[str, Any]:
    """Return the analysis for JSON; ``asked`` is the shown mode."""
    work, choice = batch_to_work(analysis.batch), analysis.choice
    return {
        "format": ROOFLINE_FORMAT,
        "device": analysis.basis.spec.name,
        "network": analysis.network.name,
        "batch_size": analysis.options.batch_size,
        "kind": analysis.options.kind,
        "label": analysis.lines.label,
        "source": analysis.basis.constants.source,
        "work": {**asdict(work), "intensity": work.intensity, "layers": len(analysis.network.layers)},
        "constants": asdict(analysis.basis.constants),
        "maxn": _mode_to_dict(analysis, choice.maxn_row),
        "chosen": _mode_to_dict(analysis, choice.row),
        "asked": _mode_to_dict(analysis, analysis.shown_row),
        "max_slowdown": analysis.options.max_slowdown,
        "confidence": analysis.options.confidence,
        "refused": analysis.is_refused,
        "slowdown": choice.slowdown,
        "saving": choice.saving,
        "why": analysis.explanation,
        "caution": analysis.caution,
        "time_implies_energy": {"modes": analysis.implying_mode_count, "of": len(analysis.basis.modes)},
        "front": [_cost_to_dict(analysis, row) for row in analysis.front],
    }


def _mode_to_dict(analysis: RooflineAnalysis, row: int) -> dict[str, Any]:
    line = analysis.lines.mode_roofline(row)
    return {
        **_cost_to_dict(analysis, row),
        "gpu_s": float(analysis.batch_times.gpu_s[row]),
        "launch_s": float(analysis.batch_times.launch_s[row]),
        "roofline": asdict(line),
        "balance": line.balance,
        "energy_balance": line.energy_balance,
        "time_implies_energy": line.time_implies_energy,
    }


def _cost_to_dict(analysis: RooflineAnalysis, row: int) -> dict[str, Any]:
    return {
        "mode": asdict(analysis.basis.modes[row]),
        "step_s": float(analysis.batch_times.total_s[row]),
        "energy_j": float(analysis.joules[row]),
    }
