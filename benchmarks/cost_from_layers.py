"""Error of costs estimated from layers, for workloads without a table: every measured table is left out in turn.

    FEDGE_PROFILES=folder/of/tables python benchmarks/cost_from_layers.py

For every ``<board>/train/*.csv`` and ``<board>/infer/*.csv`` the profile calibrated to it is left out (``table``), or
every profile of its network on any board (``network``); the time of the top mode, the shape over all modes after
scaling by the median, and the whole are compared with the table. The baseline is the nearest workload's profile, scaled
by the ratio of sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from figures import build_table, compute_mape, find_profiles, read_batch_sizes
from rich.console import Console

from fedge.costs.cost_priors import transfer_priors
from fedge.costs.cost_profile import CostProfile, WorkloadKind, load_calibrated_inference, load_calibrated_training
from fedge.costs.inference_cost import build_inference_priors
from fedge.costs.layer_estimate import estimate_network_cost
from fedge.costs.layered_work import build_profile_batch, find_known_layers
from fedge.devices.catalogue import find, load_catalogue
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import ProfileTable, Workload

HEADINGS = ("board", "workload", "batch", "top mode", "shape", "whole", "power", "before: top", "shape")


def main() -> None:
    kinds: tuple[WorkloadKind, ...] = ("train", "infer")
    for kind in kinds:
        tables = [table for path in find_profiles(kind) for table in read_batch_sizes(path)]
        for left_out in ("table", "network"):
            _print_errors(tables, kind, left_out)


def _print_errors(tables: Sequence[ProfileTable], kind: WorkloadKind, left_out: str) -> None:
    shown = build_table(f"{kind}: errors in percent where the {left_out} is left out", *HEADINGS)
    for table in tables:
        if find_known_layers(table.workload, kind) is None:
            shown.add_row(table.device, table.workload, str(table.batch_size), "its network is not known")
            continue
        layered = _format_errors(table, _estimate_by_layers(table, kind, left_out))
        baseline = _format_errors(table, _estimate_by_data_sheet(table, kind))[:2]
        shown.add_row(find(table.device).name, table.workload, str(table.batch_size), *layered, *baseline)
    Console(width=120).print(shown)


def _estimate_by_layers(table: ProfileTable, kind: WorkloadKind, left_out: str) -> CostProfile:
    layers = find_known_layers(table.workload, kind)
    device = find(table.device)
    profiles = [
        profile
        for profile in (*load_calibrated_training(), *load_calibrated_inference())
        if not _is_left_out(profile, table, kind, left_out == "network")
    ]
    work = Workload(table.workload, table.batch_size, kind, layers)
    return estimate_network_cost(device, work, load_catalogue(), profiles)


def _is_left_out(profile: CostProfile, table: ProfileTable, kind: WorkloadKind, network: bool) -> bool:
    """Return whether a profile is left out; the batch sizes of one inference table are left out together."""
    same = profile.workload == table.workload and profile.kind == kind and profile.device == find(table.device).name
    batch, layers = build_profile_batch(profile), find_known_layers(table.workload, kind)
    alike = batch is not None and layers is not None and batch.layers.network == layers.network
    return same or (network and alike)


def _estimate_by_data_sheet(table: ProfileTable, kind: WorkloadKind) -> CostProfile:
    spec, specs = find(table.device), load_catalogue()
    if kind == "train":
        return transfer_priors(spec, table.workload, specs)[0]
    return build_inference_priors(spec, table.workload, table.batch_size, specs)[0]


def _format_errors(table: ProfileTable, cost: CostProfile) -> tuple[str, ...]:
    """Return the errors of the top mode's time (signed), of the shape, of all times and of all powers, in percent."""
    time = compute_step_s(cost.coefficients, table.maxn, table.modes)
    watts = compute_power_w(cost.coefficients, table.maxn, table.modes)
    top = int(np.argmax((table.modes.knobs / table.modes.knobs.max(axis=0)).sum(axis=1)))
    scaled = time * np.exp(np.median(np.log(table.step_s / time)))
    pairs = ((scaled, table.step_s), (time, table.step_s), (watts, table.power_w))
    errors = (f"{compute_mape(predicted, measured):.1f}" for predicted, measured in pairs)
    return (f"{100.0 * float(time[top] / table.step_s[top] - 1.0):+.1f}", *errors)


if __name__ == "__main__":
    main()
