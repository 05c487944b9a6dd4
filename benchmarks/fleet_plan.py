"""Gap between a planned fleet of forty boards and an oracle that knows every board, with measured tables as truth.

    FEDGE_PROFILES=folder/of/tables python benchmarks/fleet_plan.py [--seeds 10] [--rounds 20] [--model-mb MB]

The fleet of ``experiments/configs/fleet40.yaml``, each entry replaying ``<board>/train/<its cost>.csv``, under
``balanced`` and ``least-energy``, without training. Per policy: times and energies per round of the fleet and of its
baselines; mean and worst seed of the gap to the oracle and of the share of its saving. All rounds, and those from the
tenth on. The formulas: fedge/studies/fleet/__init__.py.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from figures import build_parser, find_profiles, report_progress

from experiments.backends.study_backend import FleetStudyOptions, build_fleet_study
from fedge.knowledge.table_background import find_board_spec
from fedge.yaml_files import read_yaml

CONFIG = Path(__file__).resolve().parents[1] / "experiments" / "configs" / "fleet40.yaml"
POLICIES = "balanced,least-energy"
FLEETS = {
    "fedge": "",
    "oracle": "oracle_",
    "MAXN": "maxn_",
    "best presets": "preset_",
    "best presets but MAXN": "preset_but_maxn_",
}
"""Name and prefix of the row's fields."""
METRICS: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "gap to the oracle, %": ("objective_gap_pct", max),
    "share of the oracle's saving, %": ("saving_share_pct", min),
    "deadlines missed": ("deadlines_missed", max),
}
"""Field of the row, and which seed is the worst."""

Row = dict[str, str | int | float | None]


def main(seeds: int, rounds: int, model_mb: float | None) -> None:
    """Run everything and print it."""
    size = [] if model_mb is None else [f"workload.model_mb={model_mb}"]
    overrides = (*list_fleet_entries(), *size)
    options = FleetStudyOptions(CONFIG, policies=POLICIES, rounds=rounds, seeds=seeds, steps=None, overrides=overrides)
    runs = build_fleet_study(options).run(report_progress)
    for policy in dict.fromkeys(run.policy for run in runs):
        rows = [run.row for run in runs if run.policy == policy]
        print(f"\n{policy}: {seeds} seeds, {rounds} rounds")
        print_report(rows, "all rounds", "")
        if rounds >= 10:
            print_report(rows, "rounds 10 on", "_settled")


def list_fleet_entries() -> list[str]:
    """Return the fleet's entries, each with its measured table as truth."""
    tables = {
        (board.name, path.stem): path.resolve()
        for path in find_profiles("train")
        if (board := find_board_spec(path.parents[1].name)) is not None
    }
    entries = read_yaml(CONFIG)["fleet"]
    if missing := [f"{e['device']} {e['cost']}" for e in entries if (e["device"], e["cost"]) not in tables]:
        sys.exit(f"FEDGE_PROFILES: a folder with tables of {', '.join(missing)}")
    return [f"fleet.{i}.truth=table:{tables[e['device'], e['cost']]}" for i, e in enumerate(entries)]


def print_report(rows: Sequence[Row], title: str, suffix: str) -> None:
    """Print one block: the fleet, the oracle, and the baselines."""
    print(f"  {title}")
    for name, prefix in FLEETS.items():
        times_s, joules = (list_values(rows, f"{prefix}{what}{suffix}") for what in ("round_s", "energy_j"))
        print(f"    {name:32s} {format_spread(times_s, 's')}   {format_spread([j / 1e3 for j in joules], 'kJ')}")
    for name, (field, worst) in METRICS.items():
        values = list_values(rows, field + suffix)
        print(f"    {name:32s} mean {statistics.mean(values):8.2f}   worst {worst(values):8.2f}")
    if not suffix:
        values = list_values(rows, "modes_explored_mean")
        print(f"    {'modes probed per board':32s} mean {statistics.mean(values):8.2f}   worst {max(values):8.2f}")


def list_values(rows: Sequence[Row], field: str) -> list[float]:
    """Return a field of all seeds; a missing figure ends the program, because it cannot be compared."""
    values = [float(value) for row in rows if (value := row[field]) is not None]
    if len(values) < len(rows):
        sys.exit(f"{field}: got nothing in a seed of {rows[0]['policy']}; a number in every seed")
    return values


def format_spread(values: Sequence[float], unit: str) -> str:
    """Format mean, least and largest."""
    return f"{statistics.mean(values):8.2f} {unit} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    parser = build_parser(__doc__, seeds=10, rounds=20)
    parser.add_argument("--model-mb", type=float, help="size of the model that links move; by default the priced one's")
    options = parser.parse_args()
    main(options.seeds, options.rounds, options.model_mb)
