"""Gap between a planned fleet of forty boards and an oracle that knows every board, with measured tables as truth.

    FEDGE_PROFILES=folder/of/tables python benchmarks/fleet_plan.py [SEEDS] [ROUNDS] [KEY=VALUE ...]

The fleet of ``experiments/configs/fleet40.yaml``, each entry replaying ``<board>/train/<its cost>.csv``, under
``balanced`` and ``least-energy``, without training. Per policy: mean and worst seed of the gap to the oracle, of the
share of its saving against all boards at MAXN, and rounds and energy compared with the best preset per board, with and
without MAXN among the presets. All rounds, and those from the tenth on. The formulas: docs/studies.md.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.cli.study_fleet import FleetStudyOptions, build_fleet_jobs, run_fleet_job
from experiments.cli.study_jobs import run_jobs
from experiments.spec.experiment_loader import read_yaml
from fedge.knowledge.table_background import find_board_spec

CONFIG = Path(__file__).resolve().parents[1] / "experiments" / "configs" / "fleet40.yaml"
POLICIES = "balanced,least-energy"

Row = dict[str, str | int | float | None]


def main(seeds: int, rounds: int, overrides: Sequence[str]) -> None:
    """Run everything and print it."""
    asked = FleetStudyOptions(
        CONFIG, policies=POLICIES, rounds=rounds, seeds=seeds, steps=None, overrides=(*list_fleet_entries(), *overrides)
    )
    jobs = build_fleet_jobs(asked)
    runs = run_jobs(run_fleet_job, jobs, lambda name: print(f"done: {name}", file=sys.stderr, flush=True))
    for policy in dict.fromkeys(run.policy for run in runs):
        rows = [run.row for run in runs if run.policy == policy]
        print(f"\n{policy}: {seeds} seeds, {rounds} rounds")
        print_report(rows, "all rounds", "")
        if rounds >= 10:
            print_report(rows, "rounds 10 on", "_settled")


def list_fleet_entries() -> list[str]:
    """Return the fleet's entries, each with its measured table as truth."""
    root = os.environ.get("FEDGE_PROFILES")
    if not root:
        sys.exit("FEDGE_PROFILES: got nothing; the folder of measured tables")
    found = {
        (board.name, path.stem): path.resolve()
        for path in sorted(Path(root).glob("*/train/*.csv"))
        if (board := find_board_spec(path.parents[1].name)) is not None
    }
    entries = read_yaml(CONFIG)["fleet"]
    missing = [f"{e['device']} {e['cost']}" for e in entries if (e["device"], e["cost"]) not in found]
    if missing:
        sys.exit(f"FEDGE_PROFILES: got {root}; a folder with tables of {', '.join(missing)}")
    return [f"fleet.{i}.truth=table:{found[e['device'], e['cost']]}" for i, e in enumerate(entries)]


def print_report(rows: Sequence[Row], title: str, suffix: str) -> None:
    """Print one block: the fleet, the oracle, and all baselines."""
    print(f"  {title}")
    ways = {
        "fedge": "",
        "oracle": "oracle_",
        "oracle, implausible rows too": "oracle_all_rows_",
        "MAXN": "maxn_",
        "MAXN, waiting low": "maxn_low_",
        "best presets": "preset_",
        "best presets but MAXN": "preset_but_maxn_",
        "fedge, as measured": "played_",
    }
    for name, prefix in ways.items():
        times, joules = (list_values(rows, f"{prefix}{what}{suffix}") for what in ("round_s", "energy_j"))
        print(f"    {name:28s} {format_spread(times, 's')}   {format_spread([j / 1e3 for j in joules], 'kJ')}")
    lines: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
        "gap to the oracle, %": ("objective_gap_pct", max),
        "gap, implausible rows too, %": ("objective_gap_all_rows_pct", max),
        "oracle's saving, %": ("oracle_saving_pct", min),
        "saving, %": ("saving_pct", min),
        "share of the oracle's, %": ("saving_share_pct", min),
        "deadlines missed": ("deadlines_missed", max),
        "missed as measured": ("deadlines_missed_played", max),
    }
    for name, (field, worst) in lines.items():
        found = list_values(rows, field + suffix)
        print(f"    {name:28s} mean {statistics.mean(found):8.2f}   worst {worst(found):8.2f}")
    if not suffix:
        print(
            f"    {'modes tried per board':28s} mean {statistics.mean(list_values(rows, 'modes_explored_mean')):8.1f}"
        )
    for prefix, name in (("preset_", "best presets"), ("preset_but_maxn_", "best presets but MAXN")):
        better = [
            all(is_below(row, prefix + what + suffix, what + suffix) for what in ("round_s", "energy_j"))
            for row in rows
        ]
        print(f"    better than {name} in time and energy: {sum(better)} of {len(better)} seeds")


def list_values(rows: Sequence[Row], field: str) -> list[float]:
    """Return a field of all seeds."""
    return [read_value(row, field) for row in rows]


def read_value(row: Row, field: str) -> float:
    """Return a field of one seed; a missing figure is an error, because it cannot be compared."""
    known = row[field]
    if known is None:
        sys.exit(f"{field}: got nothing in a seed of {row.get('policy')}; a number in every seed")
    return float(known)


def format_spread(found: Sequence[float], unit: str) -> str:
    """Format mean, least and largest."""
    return f"{statistics.mean(found):8.2f} {unit} ({min(found):.2f} to {max(found):.2f})"


def is_below(row: Row, other: str, own: str) -> bool:
    """Return whether the fleet's figure is below another's."""
    return read_value(row, own) < read_value(row, other)


if __name__ == "__main__":
    given = sys.argv[1:]
    numbers = [int(word) for word in given if word.isdigit()]
    main(numbers[0] if numbers else 10, numbers[1] if len(numbers) > 1 else 20, [w for w in given if "=" in w])
