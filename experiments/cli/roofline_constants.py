"""Roofline constants of a board: fitted to measured inference tables, otherwise to shipped calibrated profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.cli.concurrent_jobs import planning_modes
from fedge.analysis.roofline.board_constants import BoardConstants
from fedge.analysis.roofline.board_constants_fit import fit_constants
from fedge.analysis.roofline.roofline_analysis import RooflineBasis
from fedge.analysis.roofline.slowdown_choice import parse_mode
from fedge.costs.cost_profile import CostProfile, load_calibrated_inference
from fedge.costs.cost_scaling import find_nearest_profile, scale_to_board
from fedge.costs.layers.known_networks import find_known_network, list_known_workloads
from fedge.costs.layers.network_cost import NetworkCost
from fedge.devices.catalogue import load_catalogue
from fedge.devices.tables.mode_table import list_batch_sizes, parse_workload_kind, read_mode_table, read_table_label
from fedge.errors import BadInput
from fedge.modes import build_grid, find_mode_index
from fedge.physics import time_power_model
from fedge.types import DeviceSpec, Label, Modes, ProfileTable

PROFILE_STRIDE = 4
"""Every n-th mode of a calibrated profile is used for the fit: a default that saves time, as a profile is smooth."""


def build_basis(spec: DeviceSpec, tables: Path | None) -> RooflineBasis:
    """Fit the constants of a board.

    Args:
        spec: The board.
        tables: Folder with inference tables, or None for the shipped profiles.

    Raises:
        BadInput: If the folder has no usable table.
    """
    return _build_from_tables(spec, tables) if tables is not None else _build_from_profiles(spec)


def find_networks(workloads: Sequence[str]) -> Mapping[str, NetworkCost]:
    """Return the networks of known workloads; unknown ones are omitted."""
    found = {name: find_known_network(name) for name in dict.fromkeys(workloads)}
    return {name: network for name, network in found.items() if network is not None}


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
        raise BadInput("--tables", str(unknown[0]), right)
    labels = {read_table_label(path) for path in paths}
    label: Label = "calibrated" if labels <= {"measured", "calibrated"} else "estimated"
    modes = _common_modes(tables)
    row = find_mode_index(modes, spec.maxn)
    if row is None:
        raise BadInput("--tables", f"no row of MAXN, {spec.maxn}", f"tables of {spec.name} that hold it (see --device)")
    return RooflineBasis(spec, fit_constants(tables, networks, spec, label), modes, row)


def _list_tables(folder: Path) -> list[Path]:
    """Return the inference tables in a folder or in its subfolder ``infer``."""
    if not folder.is_dir():
        raise BadInput("--tables", str(folder), "a folder that holds tables of inference (CSV)")
    inner = folder / "infer"
    paths = sorted((inner if inner.is_dir() else folder).glob("*.csv"))
    training = [
        path for path in paths if parse_workload_kind(path) == "train" and path.resolve().parent.name == "train"
    ]
    if training or not paths:
        got = f"{folder}, which holds {'tables of training' if training else 'no table'}"
        raise BadInput("--tables", got, "a folder of tables of inference, one CSV per workload, such as BOARD/infer")
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
    used = [p if own else scale_to_board(p, base, spec) for p in profiles if p.device == base.name]
    fitted = planning_modes(spec)
    tables = [_predict_table(spec, Modes(fitted.knobs[::PROFILE_STRIDE]), profile) for profile in used]
    source = f"the calibrated profiles of inference on {base.name} (" + ", ".join(_describe_profiles(used)) + ")"
    if not own:
        source += f", carried to {spec.name} by data-sheet ratios"
    networks = find_networks([table.workload for table in tables])
    known = [table for table in tables if table.workload in networks]
    constants = fit_constants(
        known, networks=networks, spec=spec, label="calibrated" if own else "estimated", source=source
    )
    low = fitted.knobs.min(axis=0)
    every = build_grid(spec)
    modes = Modes(every.knobs[(every.knobs >= low - 1e-6).all(axis=1)])
    row = find_mode_index(modes, spec.maxn)
    return RooflineBasis(spec, constants, modes, 0 if row is None else row)


def _predict_table(spec: DeviceSpec, modes: Modes, profile: CostProfile) -> ProfileTable:
    """Predict the modes with a cost profile, as a table."""
    seconds = time_power_model.compute_step_s(profile.coefficients, spec.maxn, modes)
    watts = time_power_model.compute_power_w(profile.coefficients, spec.maxn, modes)
    sha256 = profile.evidence.sha256 if profile.evidence else ""
    return ProfileTable(
        spec.name,
        workload=profile.workload,
        batch_size=profile.batch_size,
        modes=modes,
        step_s=seconds,
        power_w=watts,
        sha256=sha256,
        path=profile.source,
    )


def _describe_profiles(profiles: Sequence[CostProfile]) -> list[str]:
    names = dict.fromkeys(profile.workload for profile in profiles)
    sizes = {name: [str(p.batch_size) for p in profiles if p.workload == name] for name in names}
    return [f"{name} at batch {'/'.join(sizes[name])}" for name in names]


def is_fitted(constants: BoardConstants, intensity: float, near: float = 0.02) -> bool:
    """Return whether the constants were fitted to a network of this intensity (FLOP per byte)."""
    return any(abs(one.intensity / intensity - 1.0) <= near for one in constants.networks)


def label_for_network(constants: BoardConstants, intensity: float) -> BoardConstants:
    """Relabel the constants for a network: estimated, unless a network of this intensity was fitted."""
    return constants if is_fitted(constants, intensity) else replace(constants, label="estimated")
