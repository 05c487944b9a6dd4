"""Longest silence of every command when its output is a pipe: what a log or a waiting person sees.

    python benchmarks/command_silence.py [WORDS ...] [--sim] [--most 3]

WORDS choose the commands that contain one of them. Commands run in order in a temporary folder, since later ones read
what earlier ones wrote; ``--sim`` adds those that start Ray or Flower, and with FEDGE_PROFILES those that need measured
tables are included. The hosts of the fleet answer nobody. A silence is the time from the start or a piece of output to
the next one, or to the end; servers are ended a while after they have printed their address, and the silence from then
on does not count. A silence is named if the line before it says what is under way: a line of
experiments/cli/heartbeat.py or of a round. Exits with 1 if one without a name is longer than ``--most`` seconds, the
goal, or a named one longer than the LONG_S of the heartbeat, or if a command of ``fedge --help`` is not in the list.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from experiments.cli.heartbeat import LONG_S  # noqa: E402

CONFIGS = ROOT / "experiments" / "configs"
QUICK = f"{CONFIGS}/characterisation/emulated-quick.yaml"
TABLE, SERVED = "agx-orin/train/resnet18-imagenet.csv", "agx-orin/infer/resnet18-imagenet.csv"
PROFILE = "profile --board emulated:agx-orin --workload resnet18-imagenet --modes 24 --explorer random"
COMMANDS = f"""
--help
--version
doctor
explain workload
schema experiment
new policy coolest
devices list
devices show agx-orin
devices modes agx-orin
devices record --out root.tar.gz
run {CONFIGS}/quickstart.yaml --dry-run
run {CONFIGS}/quickstart.yaml --folder runs/run
resume runs/run
status runs/run
runs
report runs/run --out r.html
query runs/run "select board, sum(energy_j) from clients group by board"
export runs/run --to tensorboard --folder events
board runs/run
replay runs/run --policy maxn --draws 2 --jobs 1
{PROFILE} --out {TABLE}
{PROFILE} --kind infer --batch-size 8 --out {SERVED}
calibrate {TABLE} --folder calibrated
knowledge import runs/run --knowledge k
knowledge import {TABLE} --knowledge k
knowledge list --knowledge k
knowledge show table --knowledge k
knowledge export table --knowledge k --folder k2
knowledge forget table --knowledge k2
predict fit {TABLE} --modes 10 --out m.safetensors
predict show m.safetensors
predict choose m.safetensors --max-power-w 30
predict pareto m.safetensors
predict eval --target {TABLE} --modes 5 --seeds 1
predict import CIFAR10.json --format bofl --out agx-xavier/train/cifar10.csv
predict train-reference {TABLE}
layers resnet50
select-board --workload resnet50 --batch-size 16
place resnet50 --board agx-orin --rate-hz 300
place-run digits-cnn --batch-sizes 1 --seconds 1
memory predict mobilenet_v2 --board tx2 --batch-size 16
roofline resnet50 --board agx-orin
roofline bench --board agx-orin
topology find squeezenet1_1 --board tx2 --batch-size 16 --max-memory-mb 3000 --input-shape 3x64x64 --folder small
topology show small/1
concurrent plan --board agx-orin --max-power-w 30 --train-workload resnet18-imagenet
concurrent run --train-task digits-cnn --infer-task digits-cnn --rate-hz 20 --max-latency-s 2 --seconds 3
concurrent eval --train-table {TABLE} --infer-table {SERVED} --problem-count 20
characterise {QUICK} --folder quick
characterise-report quick
characterise-predict quick --mode maxn
reproduce characterisation
study mode-choice --table {TABLE} --policies maxn,fedge --rounds 5 --seeds 1
study fleet {CONFIGS}/quickstart.yaml --policies balanced --rounds 3
power get
power modes
power set 15W
power restore
board-check
fleet keys --folder keys --host localhost
fleet proxy --keys keys
fleet firewall --account root
fleet provision --dry-run --inventory fleet.yml
fleet up --inventory fleet.yml
fleet status --inventory fleet.yml
fleet board --inventory fleet.yml
fleet run {CONFIGS}/quickstart.yaml --inventory fleet.yml
fleet profile --workload resnet18-imagenet --inventory fleet.yml
fleet logs --inventory fleet.yml
fleet upgrade --inventory fleet.yml
fleet down --inventory fleet.yml
chaos fleet.yml --yes
""".strip().splitlines()
MEASURED = f"""
memory fit --data {os.environ.get("FEDGE_PROFILES")}/perf4sight-tx2 --out memory.yaml
memory eval --data {os.environ.get("FEDGE_PROFILES")}/perf4sight-tx2
study transfer {os.environ.get("FEDGE_PROFILES")} --part memory --seeds 1 --jobs 1
""".strip().splitlines()
SIM = f"""
run {CONFIGS}/quickstart.yaml --set rounds=3 --folder sim
study fleet {CONFIGS}/quickstart.yaml --policies balanced,maxn --rounds 5
sweep {CONFIGS}/policies-sweep.yaml --folder swept
study arena swept
""".strip().splitlines()
NAMED = re.compile(r"(fedge: (?!note)|round [0-9]+/)")
"""The beginning of a line that names what is under way."""
SERVES_S = 12.0
"""How long a server is left to itself after its address: it should say nothing then."""


def write_inputs(folder: Path) -> None:
    """Write a table of another tool, and a fleet whose hosts answer nobody."""
    (folder / "CIFAR10.json").write_text(json.dumps({"1190400,675750000,1600000000": [0.5, 6.0]}), encoding="utf-8")
    keys = {"certificate": "server.crt", "key": "server.key", "ca_certificate": "ca.crt"}
    server = {f"superlink_{name}": str(folder / "keys" / file) for name, file in keys.items()}
    board = {"supernode_superlink": "localhost:9443", "supernode_ca_certificate": str(folder / "keys" / "ca.crt")}
    board["chaos"] = "allowed"
    fleet = {
        "all": {"vars": {"ansible_host": "127.0.0.1", "ansible_port": 1}},
        "server": {"hosts": {"hub": server}},
        "boards": {"vars": board, "hosts": {"nano-1": {}}},
    }
    (folder / "fleet.yml").write_text(json.dumps(fleet), encoding="utf-8")


def list_commands(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every command of ``fedge --help`` as its words."""
    from typer.main import get_command

    from experiments.cli.main import app

    command = command or get_command(app)
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words).removesuffix(" NETWORK")
        return
    for name, one in inner.items():
        yield from list_commands(one, (*words, name))


class Silence(NamedTuple):
    """The longest silences of a command, with and without a name, where the latter began, and how the command ended."""

    named_s: float
    unnamed_s: float
    after: str
    wall_s: float
    code: int
    chatter: str
    """What a server said while it waited."""


def measure_silence(command: str, folder: Path) -> Silence:
    """Run a command with a pipe for both streams."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0", "FEDGE_KNOWLEDGE": str(folder / "k")}
    env |= {"XDG_STATE_HOME": str(folder / "state"), "FEDGE_CACHE": str(folder / "cache")}
    words = [sys.executable, "-m", "experiments.cli", *shlex.split(command)]
    started_s = heard_s = time.monotonic()
    longest_s, after, last, chatter = {True: 0.0, False: 0.0}, "", "", ""
    with subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                serves = last.startswith("http://")
                if not selector.select(SERVES_S if serves else None):
                    process.send_signal(signal.SIGINT)
                    process.wait()
                    break
                piece = os.read(process.stdout.fileno(), 65536)
                now_s = time.monotonic()
                lines = piece.decode(errors="replace").strip().splitlines()
                if serves:
                    chatter += " | ".join(lines)
                    continue
                named = NAMED.match(last) is not None
                if now_s - heard_s > longest_s[named]:
                    longest_s[named], after = now_s - heard_s, after if named else last
                heard_s, last = now_s, (lines or [last])[-1]
                if not piece:
                    break
    wall_s = time.monotonic() - started_s
    return Silence(
        named_s=longest_s[True],
        unnamed_s=longest_s[False],
        after=after[:60],
        wall_s=wall_s,
        code=process.returncode,
        chatter=chatter,
    )


def main() -> int:
    """Print a line per command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only commands that contain one of these")
    parser.add_argument("--sim", action="store_true", help="also commands that start Ray or Flower")
    parser.add_argument("--most", type=float, default=3.0, help="longest silence that is allowed, in seconds")
    options = parser.parse_args()
    commands = [*COMMANDS, *(MEASURED if "FEDGE_PROFILES" in os.environ else ()), *(SIM if options.sim else ())]
    chosen = [one for one in commands if not options.words or any(word in one for word in options.words)]
    known = (*COMMANDS, *MEASURED, *SIM)
    absent = [name for name in list_commands() if not any(f"{one} ".startswith(f"{name} ") for one in known)]
    too_long = 0
    print("silence without a name | with one | wall time | exit code | command [what came before the first silence]")
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        for command in chosen:
            found = measure_silence(command, Path(folder))
            too_long += found.unnamed_s > options.most or found.named_s > LONG_S or bool(found.chatter)
            shown = command.replace(f"{CONFIGS}/", "") + (f"  [after: {found.after}]" if found.after else "")
            times = f"{found.unnamed_s:5.1f} s | {found.named_s:5.1f} s | {found.wall_s:6.1f} s | {found.code:3}"
            print(f"{times} | {shown} {found.chatter}".rstrip(), flush=True)
    for name in absent:
        print(f"not measured: {name}")
    return 1 if too_long or absent else 0


if __name__ == "__main__":
    raise SystemExit(main())
