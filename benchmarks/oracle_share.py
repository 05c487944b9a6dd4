"""Share of the oracle's energy saving that `balanced` reaches on the quickstart fleet, against two baselines.

"vs MAXN" is against a run with every board working and waiting at MAXN, most of which is saved by waiting in a low mode
alone; "waiting low" is against boards that work at MAXN and wait in their lowest mode, so that only the choice of modes
counts.

Prints per seed, for each: the saving, the oracle's at the same round length, and the share reached; then the saving of
work alone and the rounds' length as a multiple of MAXN's. Everything is on the emulated fleet (calibrated and estimated
boards, see docs/explanation/emulation.md).

    python benchmarks/oracle_share.py [SEEDS] [KEY=VALUE ...]
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fedge.telemetry.savings import share_of_saving

CONFIG = Path(__file__).resolve().parents[1] / "experiments" / "configs" / "quickstart.yaml"


def main(seeds: int, overrides: list[str]) -> None:
    print("      vs MAXN                  MAXN, waiting low        work    rounds")
    print("seed  saving  oracle's  share  saving  oracle's  share  saving  vs MAXN  mean round")
    found = [compute_figures(seed, overrides) for seed in range(1, seeds + 1)]
    print(format_row("mean", [statistics.mean(column) for column in zip(*found, strict=True)]))
    high, low, lengths = ([one[i] for one in found] for i in (2, 5, 7))
    print(f"worst share {min(high):.1%} vs MAXN, {min(low):.1%} vs MAXN waiting low; longest rounds {max(lengths):.3f}")


def compute_figures(seed: int, overrides: list[str]) -> list[float]:
    """Return one seed's columns, and print them at once."""
    maxn, balanced = (run_policy(policy, seed, overrides) for policy in ("maxn", "balanced"))
    columns = [
        *compute_shares(maxn["energy_j"], balanced),
        *compute_shares(balanced["maxn_parked_energy_j"], balanced),
        1 - balanced["train_energy_j"] / maxn["train_energy_j"],
        balanced["mean_round_s"] / maxn["mean_round_s"],
        balanced["mean_round_s"],
    ]
    print(format_row(f"{seed:4d}", columns), flush=True)
    return columns


def compute_shares(baseline_j: float, played: dict[str, float]) -> tuple[float, float, float]:
    """Return the saving against a baseline, the oracle's, and the share reached; NaN where it means nothing."""
    saving, oracle = (1.0 - played[name] / baseline_j for name in ("energy_j", "oracle_energy_j"))
    share = share_of_saving(saving, oracle).share
    return saving, oracle, math.nan if share is None else share


def format_row(name: str, columns: list[float]) -> str:
    """Return one line of the table."""
    *parts, length, round_s = columns
    widths = (6, 8, 5, 6, 8, 5, 6)
    cells = (f"{part:{width}.1%}" for part, width in zip(parts, widths, strict=True))
    return "  ".join((name, *cells, f"{length:7.3f}", f"{round_s:8.1f} s"))


def run_policy(policy: str, seed: int, overrides: list[str]) -> dict[str, float]:
    """Return the summary of one run on the local backend, whose rows are those of sim."""
    with tempfile.TemporaryDirectory() as folder:
        sets = [part for override in overrides for part in ("--set", override)]
        command = [sys.executable, "-m", "experiments.cli.main", "run", str(CONFIG), "--backend", "local", "--json"]
        options = ["--seed", str(seed), "--set", f"policy={policy}", "--folder", f"{folder}/run", *sets]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.loads(done.stdout)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given[:1] and given[0].isdigit() else 5, [a for a in given if "=" in a])
