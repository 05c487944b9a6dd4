"""Energy saved by the roofline's choice of a power mode, compared with an oracle that knows the measured tables.

    FEDGE_PROFILES=folder/of/tables python benchmarks/roofline_choice.py [choices|findings|noise]...

choices    the choice in every case, by the tables of the fit; compared with Pagoda's five constants
findings   MAXN's rank in the tables, their implausible rows, and where time-efficient implies energy-efficient
noise      the share of the oracle's saving over the least noise that the fit assumes: its sensitivity to that

Tables: inference on AGX Orin, two networks at five batch sizes, 441 modes each. At most 5 % slower than MAXN. The
constants were fitted without the evaluated case (``case``), without its network (``network``), or with all (``none``).
ResNet-50 at batch sizes 32 and 64 is shown and not counted: there MAXN's row, or others, are implausible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
from figures import build_table, find_profiles, read_batch_sizes, run_parts
from numpy.typing import NDArray
from rich.console import Console

from fedge.analysis.roofline import board_constants_fit
from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.board_constants_fit import activation_intensity, fit_constants
from fedge.analysis.roofline.pagoda_fit import fit_per_mode
from fedge.analysis.roofline.roofline_model import (
    ModeRooflines,
    RooflineOverheads,
    batch_energy_j,
    build_roofline_batch,
    compute_batch_times,
)
from fedge.analysis.roofline.roofline_validation import (
    LeftOutProtocol,
    RooflineChoiceScore,
    RooflinePrediction,
    find_oracle_row,
    oracle_saving_share,
    predict_left_out,
    score_choice,
)
from fedge.analysis.roofline.slowdown_choice import DEFAULT_MAX_SLOWDOWN
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.devices.catalogue import find
from fedge.modes import find_mode_index
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.types import DeviceSpec, Modes, ProfileTable

CONSOLE = Console(width=190)
NETWORKS = ("mobilenetv3l-gld23k", "resnet50-imagenet")
NOT_COUNTED = {("resnet50-imagenet", 32), ("resnet50-imagenet", 64)}
MARGINS = (0.0, 0.005, 0.01, 0.02, 0.03)
MIN_NOISE_SDS = (0.005, 0.01, 0.02, 0.03)
FINDING_HEADINGS = (
    "network", "batch", "modes that need less than MAXN", "least", "saves %", "time x", "within 5 %: %",
    "next CPU clock: time x", "W there, at MAXN",
)  # fmt: skip
Record = TypeVar("Record", ModeRooflines, RooflineOverheads)
TOLERATED_EXCESS = 1.02
"""Factor on the allowed slowdown beyond which a case counts as too slow."""


def read_tables() -> tuple[list[ProfileTable], dict[str, NetworkCost], DeviceSpec]:
    """Return the tables of both networks at every batch size, the networks, and the board."""
    paths = [path for path in find_profiles("infer", "agx-orin") if path.stem in NETWORKS]
    networks = {name: network for name in NETWORKS if (network := find_known_network(name)) is not None}
    return [table for path in paths for table in read_batch_sizes(path)], networks, find("agx-orin")


def report_choices() -> None:
    """Report every protocol, and Pagoda's five constants per mode for comparison."""
    tables, networks, spec = read_tables()
    headings = ("model", "left out", *(f"{100 * margin:g} %" for margin in MARGINS), "error of time, power %")
    title = "All eight cases: share of the oracle's saving %, by margin on the predicted slowdown"
    summary = build_table(title, *headings, left=("left out",))
    protocols: tuple[LeftOutProtocol, ...] = ("case", "network", "none")
    for left_out in protocols:
        cases = predict_left_out(tables, networks, spec, left_out)
        print_scores(f"fedge, left out: {left_out}", [score_choice(case) for case in cases])
        summary.add_row("fedge", left_out, *_format_summary(cases))
        plausible = [_drop_implausible_rows(case, spec) for case in cases]
        summary.add_row("", "plausible rows", *_format_summary(plausible))
    for left_out in protocols:
        cases = predict_left_out(tables, networks=networks, spec=spec, left_out=left_out, method="pagoda")
        summary.add_row("five constants", left_out, *_format_summary(cases))
    CONSOLE.print(summary)
    CONSOLE.print("In brackets: cases slower than 1.02 x 1.05 of MAXN's measured time.")
    CONSOLE.print("Plausible rows: choice and oracle do without rows far off a smooth fit to their table; MAXN stays.")


def print_scores(title: str, scores: Sequence[RooflineChoiceScore]) -> None:
    """Print one line per case; ratios to MAXN as measured."""
    counted = _filter_counted(scores)
    headings = ("network", "batch", "chosen", "time x", "saved %", "oracle", "time x", "saved %", "predicted")
    title = f"{title}; share of the oracle's saving {100 * oracle_saving_share(counted):.0f} %"
    table = build_table(title, *headings, left=("chosen", "oracle"))
    for one in scores:
        table.add_row(
            one.workload + ("" if one in counted else " (not counted)"),
            str(one.batch_size),
            str(one.chosen),
            f"{one.slowdown:.3f}",
            f"{100 * one.saving:.1f}",
            str(one.oracle),
            f"{one.oracle_slowdown:.3f}",
            f"{100 * one.oracle_saving:.1f}",
            f"{one.predicted_slowdown:.3f}, {100 * one.predicted_saving:.1f} %",
        )
    CONSOLE.print(table)


def _filter_counted(scores: Sequence[RooflineChoiceScore]) -> list[RooflineChoiceScore]:
    return [one for one in scores if (one.workload, one.batch_size) not in NOT_COUNTED]


def _format_summary(cases: Sequence[RooflinePrediction]) -> list[str]:
    return [*(_format_oracle_share(cases, margin) for margin in MARGINS), _format_errors(cases)]


def _format_oracle_share(cases: Sequence[RooflinePrediction], margin: float) -> str:
    scores = _filter_counted([score_choice(case, margin=margin) for case in cases])
    slow = sum(one.slowdown > TOLERATED_EXCESS * DEFAULT_MAX_SLOWDOWN for one in scores)
    return f"{100 * oracle_saving_share(scores):.0f} ({slow})"


def _drop_implausible_rows(case: RooflinePrediction, spec: DeviceSpec) -> RooflinePrediction:
    """Return the case without implausible rows, except MAXN's."""
    keep = find_plausible_rows(case.table, spec.maxn).copy()
    keep[case.maxn_row] = True
    modes = Modes(case.table.modes.knobs[keep])
    table = replace(case.table, modes=modes, step_s=case.table.step_s[keep], power_w=case.table.power_w[keep])
    lines = _select_rows(case.lines, keep)
    extra = None if lines.overheads is None else _select_rows(lines.overheads, keep)
    return replace(case, table=table, lines=replace(lines, overheads=extra), maxn_row=int(keep[: case.maxn_row].sum()))


def _select_rows(record: Record, keep: NDArray[np.bool_]) -> Record:
    arrays = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{name: rows[keep] for name, rows in arrays.items() if isinstance(rows, np.ndarray)})


def _format_errors(cases: Sequence[RooflinePrediction]) -> str:
    """Format the median over each table's rows, as a mean over the tables."""
    off = []
    for case in cases:
        batch = build_roofline_batch(case.network, case.table.batch_size)
        seconds = compute_batch_times(case.lines, batch).total_s
        watts = batch_energy_j(case.lines, batch, seconds) / seconds
        off.append(
            [np.median(np.abs(seconds / case.table.step_s - 1)), np.median(np.abs(watts / case.table.power_w - 1))]
        )
    time, power = 100 * np.mean(off, axis=0)
    return f"{time:.1f}, {power:.1f}"


def report_findings() -> None:
    """Report Pagoda's findings on these tables: MAXN's rank, and how often time implies energy."""
    tables, networks, spec = read_tables()
    table = build_table("MAXN and the mode of least measured energy", *FINDING_HEADINGS, left=("least",))
    for one in tables:
        row = find_mode_index(one.modes, spec.maxn) or 0
        joules = one.step_s * one.power_w
        least, near = int(np.argmin(joules)), find_oracle_row(one, row)
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


def report_noise() -> None:
    """Report the case left out, with other values of the least noise of a row in time and power."""
    tables, networks, spec = read_tables()
    judged = [one for one in tables if (one.workload, one.batch_size) not in NOT_COUNTED]
    usual = board_constants_fit.NOISE_TIME_SD, board_constants_fit.NOISE_POWER_SD
    for least_sd in MIN_NOISE_SDS:
        board_constants_fit.NOISE_TIME_SD = board_constants_fit.NOISE_POWER_SD = least_sd
        share = _format_oracle_share(predict_left_out(tables, networks, spec, judged=judged), 0.0)
        CONSOLE.print(f"least noise {100 * least_sd:g} %: {share} % of the oracle's saving")
    board_constants_fit.NOISE_TIME_SD, board_constants_fit.NOISE_POWER_SD = usual


def _count_time_implies_energy(lines: ModeRooflines) -> int:
    return sum(lines.mode_roofline(row).time_implies_energy for row in range(len(lines.tau_f)))


PARTS = {"choices": report_choices, "findings": report_findings, "noise": report_noise}

if __name__ == "__main__":
    run_parts(__doc__, PARTS)
