"""How much of the oracle's energy saving `balanced` reaches on the quickstart fleet, against every board at MAXN.

Prints per seed: the saving, the oracle's saving at the same round length, the share reached, and the rounds' length as
a multiple of MAXN's. Everything is on the emulated fleet (calibrated and estimated boards, see docs/emulation.md).

    python benchmarks/oracle_share.py [SEEDS] [KEY=VALUE ...]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = Path(__file__).resolve().parents[1] / "experiments" / "configs" / "quickstart.yaml"


def main(seeds: int, overrides: list[str]) -> None:
    print("seed  saving  oracle's  share  work only  rounds vs MAXN  mean round")
    shares, lengths, savings = [], [], []
    for seed in range(1, seeds + 1):
        maxn, balanced = (run(policy, seed, overrides) for policy in ("maxn", "balanced"))
        saved = maxn["energy_j"] - balanced["energy_j"]
        savings.append(saved / maxn["energy_j"])
        oracle = (maxn["energy_j"] - balanced["oracle_energy_j"]) / maxn["energy_j"]
        shares.append(savings[-1] / oracle)
        lengths.append(balanced["mean_round_s"] / maxn["mean_round_s"])
        work = 1 - balanced["train_energy_j"] / maxn["train_energy_j"]
        print(
            f"{seed:4d}  {savings[-1]:6.1%}  {oracle:8.1%}  {shares[-1]:5.1%}  {work:9.1%}  {lengths[-1]:14.3f}"
            f"  {balanced['mean_round_s']:8.1f} s",
            flush=True,
        )
    print(
        f"mean  {statistics.mean(savings):6.1%}            {statistics.mean(shares):5.1%}             "
        f"{statistics.mean(lengths):14.3f}   (worst share {min(shares):.1%}, longest {max(lengths):.3f})"
    )


def run(policy: str, seed: int, overrides: list[str]) -> dict[str, float]:
    """The summary of one run on the local backend, whose rows are those of sim."""
    with tempfile.TemporaryDirectory() as folder:
        sets = [part for override in overrides for part in ("--set", override)]
        command = [sys.executable, "-m", "experiments.cli", "run", str(CONFIG), "--backend", "local", "--json"]
        options = ["--seed", str(seed), "--set", f"policy={policy}", "--out", f"{folder}/run", *sets]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.loads(done.stdout)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given[:1] and given[0].isdigit() else 5, [a for a in given if "=" in a])
