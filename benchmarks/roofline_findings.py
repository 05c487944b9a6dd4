"""Pagoda's findings on measured tables: MAXN's rank, and where time-efficient implies energy-efficient.

    FEDGE_PROFILES=folder/of/tables python benchmarks/roofline_findings.py

Tables: inference on AGX Orin, two networks at five batch sizes, 441 modes each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from figures import build_table, find_profiles, read_batch_sizes
from rich.console import Console

from fedge.analysis.roofline.board_constants import activation_intensity, compute_rooflines, fit_constants
from fedge.analysis.roofline.microbenchmark import fit_per_mode
from fedge.analysis.roofline.roofline_model import ModeRooflines, find_oracle_row
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.devices.catalogue import find
from fedge.modes import find_mode_index
from fedge.types import DeviceSpec, ProfileTable

CONSOLE = Console(width=190)
NETWORKS = ("mobilenetv3l-gld23k", "resnet50-imagenet")
FINDING_HEADINGS = (
    "network", "batch", "modes that need less than MAXN", "least", "saves %", "time x", "within 5 %: %",
    "next CPU clock: time x", "W there, at MAXN",
)  # fmt: skip


def read_tables() -> tuple[list[ProfileTable], dict[str, NetworkCost], DeviceSpec]:
    """Return the tables of both networks at every batch size, the networks, and the board."""
    paths = [path for path in find_profiles("infer", "agx-orin") if path.stem in NETWORKS]
    networks = {name: network for name in NETWORKS if (network := find_known_network(name)) is not None}
    return [table for path in paths for table in read_batch_sizes(path)], networks, find("agx-orin")


def main() -> None:
    tables, networks, spec = read_tables()
    table = build_table("MAXN and the mode of least measured energy", *FINDING_HEADINGS, left=("least",))
    for one in tables:
        row = find_mode_index(one.modes, spec.maxn) or 0
        joules = one.step_s * one.power_w
        least, near = int(np.argmin(joules)), find_oracle_row(one.step_s, joules, row)
        table.add_row(
            one.workload,
            str(one.batch_size),
            f"{int((joules < joules[row]).sum())} of {len(joules)}",
            str(one.modes[least]),
            f"{100 * (1 - joules[least] / joules[row]):.1f}",
            f"{one.step_s[least] / one.step_s[row]:.2f}",
            f"{100 * (1 - joules[near] / joules[row]):.1f}",
            *_compare_next_clock(one, row),
        )
    CONSOLE.print(table)
    constants = fit_constants(tables, networks, spec)
    fits = {
        f"fedge, {name}": compute_rooflines(constants, tables[0].modes, activation_intensity(networks[name]))
        for name in networks
    }
    fits["five constants per mode"] = fit_per_mode(tables, networks)
    for name, lines in fits.items():
        CONSOLE.print(
            f"{name}: time-efficient implies energy-efficient in {_count_time_implies_energy(lines)} of "
            f"{len(lines.tau_f)} modes"
        )


def _compare_next_clock(table: ProfileTable, maxn_row: int) -> tuple[str, str]:
    """Compare MAXN with the next lower CPU clock at its other knobs: the ratio of times, and both powers."""
    maxn = table.modes[maxn_row]
    lower = [mode for mode in table.modes if replace(mode, cpu_mhz=maxn.cpu_mhz) == maxn and mode != maxn]
    lower_row = find_mode_index(table.modes, max(lower, key=lambda mode: mode.cpu_mhz)) or 0
    slower = table.step_s[lower_row] / table.step_s[maxn_row]
    return f"{slower:.2f}", f"{table.power_w[lower_row]:.1f}, {table.power_w[maxn_row]:.1f}"


def _count_time_implies_energy(lines: ModeRooflines) -> int:
    return sum(lines.mode_roofline(row).time_implies_energy for row in range(len(lines.tau_f)))


if __name__ == "__main__":
    main()
