"""The gain of a run from the fleet's knowledge: the quickstart fleet cold, and with knowledge of two kinds.

- warm: a second run of the same boards, with what the first one measured
- profiled: the same, and a profile of every board in 50 modes that the latin explorer picks

Prints per seed the mean error of time and power over all modes before any measurement, the number of probes, energy
above the oracle's from round 2 and from round 4 on, the share of its saving against MAXN, and the boards that
contradicted what they recalled. Everything is on the emulated fleet (docs/explanation/emulation.md).

    python benchmarks/warm_start.py [SEEDS] [KEY=VALUE ...]
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from experiments.backends import launcher
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import load_experiment
from fedge.devices.board_kinds import build_kind, build_surface
from fedge.experiment import Experiment, FleetBoard, list_boards
from fedge.knowledge.evidence_files import emulated_board
from fedge.knowledge.knowledge_folder import (
    RunMeasurements,
    add_entry,
    encode_measurements,
    hash_content,
    list_entries,
    read_content,
    read_measurements,
)
from fedge.modes import stack_modes
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers import load_explorer
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.types import Measurement

CONFIG = Path(__file__).resolve().parents[1] / "experiments" / "configs" / "quickstart.yaml"
PROFILED_MODES = 50
HEADS = ("time", "power", "probes", "from 2", "from 4", "share", "contradicted")
Change = Callable[[RunMeasurements], RunMeasurements]


def main(seeds: int, overrides: list[str]) -> None:
    print(f"{'seed':4}  {'knowledge':13}" + "".join(f"{head:>13}" for head in HEADS))
    found: dict[str, list[list[float]]] = {}
    for seed in range(1, seeds + 1):
        for name, figures in run_seed(seed, overrides):
            found.setdefault(name, []).append(figures)
            print(format_row(str(seed), name, figures), flush=True)
    for name, rows in found.items():
        print(format_row("mean", name, [statistics.mean(column) for column in zip(*rows, strict=True)]))


def run_seed(seed: int, overrides: list[str]) -> list[tuple[str, list[float]]]:
    """Run one seed's three runs and return their figures by name."""
    with tempfile.TemporaryDirectory() as temp:
        root = Path(temp)

        def run(name: str, change: Change | None = None) -> list[float]:
            if change is not None:
                copy_entries(root / "cold" / "knowledge", root / name / "knowledge", change)
            sets = [f"seed={seed}", "backend=local", "jobs=1", f"knowledge={root / name / 'knowledge'}"]
            return compute_figures(load_experiment(CONFIG, [*sets, *overrides]), root / name / "run")

        experiment = load_experiment(CONFIG, [f"seed={seed}", *overrides])
        boards = {emulated_board(board.name, seed): board for board in list_boards(experiment)}
        return [
            ("cold", run("cold")),
            ("warm", run("warm", lambda measured: measured)),
            ("profiled", run("profiled", lambda measured: add_profiles(experiment, boards, measured))),
        ]


def compute_figures(experiment: Experiment, folder: Path) -> list[float]:
    """Run an experiment and return the figures of ``HEADS``."""
    experiment_checks.check_experiment(experiment)
    summary = launcher.start_run(experiment, folder, lambda: None)
    rounds, clients = read_rows(folder, RoundRow), read_rows(folder, ClientRow)
    return [
        summary["prior_time_mape"],
        summary["prior_power_mape"],
        sum(row.probes for row in clients),
        _energy(rounds, 2) / _energy(rounds, 2, "oracle_energy_j") - 1,
        _energy(rounds, 4) / _energy(rounds, 4, "oracle_energy_j") - 1,
        (_energy(rounds, 2, "maxn_energy_j") - _energy(rounds, 2))
        / (_energy(rounds, 2, "maxn_energy_j") - _energy(rounds, 2, "oracle_energy_j")),
        len(summary["knowledge"]["contradicted"]),
    ]


def _energy(rounds: list[RoundRow], first: int, column: str = "energy_j") -> float:
    return sum(getattr(row, column) for row in rounds if row.round >= first)


def copy_entries(source: Path, target: Path, change: Change) -> None:
    """Copy a knowledge folder with changed measurements."""
    for entry in list_entries(source).entries:
        assert read_content(source, entry)
        content = encode_measurements(change(read_measurements(source, entry)).boards)
        add_entry(target, dataclasses.replace(entry, sha256=hash_content(content)), content)


def add_profiles(experiment: Experiment, boards: dict[str, FleetBoard], measured: RunMeasurements) -> RunMeasurements:
    """Add the true figures of modes that the latin explorer picks, which `fedge profile` would measure."""
    found = {}
    for name, rows in measured.boards.items():
        kind = build_kind(boards[name], experiment.workload)
        surface = build_surface(boards[name], kind, experiment.seed)
        explorer = load_explorer("latin", surface.modes, PriorKnowledge(kind.spec.maxn, seed=experiment.seed))
        found[name] = (*measure_true(experiment, boards[name], explorer.ask(PROFILED_MODES)), *rows)
    return RunMeasurements(found)


def measure_true(experiment: Experiment, board: FleetBoard, modes: list) -> tuple[Measurement, ...]:
    """Return the true figures of a board in some modes."""
    surface = build_surface(board, build_kind(board, experiment.workload), experiment.seed)
    rows = [surface.find_row(mode) for mode in stack_modes(modes)]
    return tuple(
        Measurement(surface.modes[row], 100, float(surface.step_s[row]), float(surface.power_w[row])) for row in rows
    )


def format_row(seed: str, name: str, figures: list[float]) -> str:
    """Return one line of the table."""
    time, power, probes, second, fourth, share, wrong = figures
    cells = (f"{time:.1%}", f"{power:.1%}", f"{probes:.0f}", f"{second:+.2%}", f"{fourth:+.2%}", f"{share:.1%}")
    return f"{seed:4}  {name:13}" + "".join(f"{cell:>13}" for cell in (*cells, f"{wrong:.0f}"))


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given[:1] and given[0].isdigit() else 3, [a for a in given if "=" in a])
