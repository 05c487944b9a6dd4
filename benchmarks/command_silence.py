"""Longest silence of every command when its output is a pipe: what a log or a waiting person sees.

    python benchmarks/command_silence.py [WORDS ...] [--sim] [--most 3]

WORDS choose the commands that contain one of them. Commands run in order in a temporary folder, since later ones read
what earlier ones wrote; ``--sim`` adds those that start Ray or Flower. A silence is the time from the start or a piece
of output to the next one, or to the end. Exits with 1 if one is longer than ``--most`` seconds, the goal, apart from
phases of more than a minute, in which a line appears every ten seconds (experiments/cli/heartbeat.py).
"""

from __future__ import annotations

import argparse
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "experiments" / "configs"
QUICK = f"{CONFIGS}/characterisation/emulated-quick.yaml"
COMMANDS = f"""
--help
--version
doctor
explain workload
schema experiment
devices list
devices show agx-orin
devices modes agx-orin
run {CONFIGS}/quickstart.yaml --dry-run
run {CONFIGS}/quickstart.yaml --backend local --folder run
status run
resume run
report run --out r.html
query run "select board, sum(energy_j) from clients group by board"
replay run --policy maxn --draws 2 --jobs 1
knowledge import run --knowledge k
knowledge list --knowledge k
profile --board emulated:orin-nano --workload resnet18-imagenet --modes 24 --out orin-nano/train/resnet18-imagenet.csv
calibrate orin-nano/train/resnet18-imagenet.csv --folder calibrated
predict fit orin-nano/train/resnet18-imagenet.csv --modes 10 --out m.safetensors
predict show m.safetensors
predict choose m.safetensors --max-power-w 20
predict pareto m.safetensors
predict eval --target orin-nano/train/resnet18-imagenet.csv --modes 5 --seeds 1
layers resnet50
select-board --workload resnet50 --batch-size 16
place resnet50 --board agx-orin --rate-hz 300
place-run digits-cnn --batch-sizes 1 --seconds 1
memory predict mobilenet_v2 --board tx2 --batch-size 16
roofline resnet50 --board agx-orin
roofline bench --board agx-orin
topology find squeezenet1_1 --board tx2 --batch-size 16 --max-memory-mb 150 --input-shape 3x64x64
concurrent plan --board agx-orin --max-power-w 30 --train-workload resnet18-imagenet
concurrent run --train-task digits-cnn --infer-task digits-cnn --rate-hz 20 --max-latency-s 2 --seconds 3
characterise {QUICK} --folder quick
characterise-report quick
characterise-predict quick --mode maxn
study mode-choice --table orin-nano/train/resnet18-imagenet.csv --policies maxn --rounds 5 --seeds 1
study fleet {CONFIGS}/quickstart.yaml --policies balanced --rounds 3
fleet keys --folder keys --host localhost
fleet proxy --keys keys
fleet firewall --account root
""".strip().splitlines()
SIM = f"""
run {CONFIGS}/quickstart.yaml --set rounds=3 --folder sim
study fleet {CONFIGS}/quickstart.yaml --policies balanced,maxn --rounds 5
sweep {CONFIGS}/policies-sweep.yaml --folder swept
""".strip().splitlines()


class Silence(NamedTuple):
    """The longest silence of a command, where it began, and how the command ended."""

    longest_s: float
    after: str
    wall_s: float
    code: int


def measure_silence(command: str, folder: Path) -> Silence:
    """Run a command with a pipe for both streams."""
    import shlex

    env = {**os.environ, "PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0", "FEDGE_KNOWLEDGE": str(folder / "k")}
    words = [sys.executable, "-m", "experiments.cli", *shlex.split(command)]
    started_s = heard_s = time.monotonic()
    longest_s, after, last = 0.0, "the start", "the start"
    with subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                selector.select()
                piece = os.read(process.stdout.fileno(), 65536)
                now_s = time.monotonic()
                if now_s - heard_s > longest_s:
                    longest_s, after = now_s - heard_s, last
                heard_s, last = now_s, (piece.decode(errors="replace").strip().splitlines() or [last])[-1]
                if not piece:
                    break
    return Silence(longest_s, after[:60], time.monotonic() - started_s, process.returncode)


def main() -> int:
    """Print a line per command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only commands that contain one of these")
    parser.add_argument("--sim", action="store_true", help="also commands that start Ray or Flower")
    parser.add_argument("--most", type=float, default=3.0, help="longest silence that is allowed, in seconds")
    options = parser.parse_args()
    commands = [*COMMANDS, *(SIM if options.sim else ())]
    chosen = [one for one in commands if not options.words or any(word in one for word in options.words)]
    too_long = 0
    with tempfile.TemporaryDirectory() as folder:
        for command in chosen:
            found = measure_silence(command, Path(folder))
            too_long += found.longest_s > options.most
            shown = command.replace(f"{CONFIGS}/", "")
            print(f"{found.longest_s:6.1f} s of {found.wall_s:6.1f} s  {shown}  [after: {found.after}]", flush=True)
            if found.code:
                print(f"       exit code {found.code}", flush=True)
    return 1 if too_long else 0


if __name__ == "__main__":
    raise SystemExit(main())
