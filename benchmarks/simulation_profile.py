"""Where the time and the memory of a run of emulated clients go, by py-spy and memray.

    python benchmarks/simulation_profile.py --tools /path/to/python [--clients 100] [--rounds 10] [--policy balanced]

The ``local`` backend in one process, digits-cnn, boards of four kinds. The tools are in an environment of their own,
with fedge's version of Python (``pip install py-spy memray``); ``--tools`` is its Python. Time: a sample of the stack
belongs to the first function in it that ``PARTS`` names; importing counts apart wherever it happens. Memory: what is
allocated at the peak, used or not, by the innermost function of fedge.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import FOUR_KINDS, build_parser, build_table
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENT = """
name: profile
rounds: {rounds}
backend: local
jobs: 1
policy: {policy}
fleet: [{fleet}]
workload: {{task: digits-cnn, batch_size: {batch}, local_epochs: 1}}
data: {{partition: iid}}
"""
TRAINING_SAMPLES = 1437
"""Training images of scikit-learn's digits."""
PARTS = {
    "importing": ("_find_and_load ",),
    "training the clients": ("DeferredTraining.result ",),
    "fitting predictors": ("fit_predictors ",),
    "predicting modes": ("_predict_modes ",),
    "choosing modes and trials": ("observe_round ", "choose_trial "),
    "offering fronts": ("build_offer ", "build_front "),
    "sharing measurements": ("FleetRequests._build_requests ",),
    "aggregating and testing": ("merge_replies ", "ImageTask.evaluate "),
    "storing rows and checkpoints": ("Coordinator._settle ", "RunLoop.finish_round ", "ProgressReporter."),
    "the page": ("render_report ",),
}
"""Parts of a run, and how their functions begin in a stack of py-spy: name and a space."""
PEAK = """
import collections, json, sys, memray
sizes = collections.Counter()
for record in memray.FileReader(sys.argv[1]).get_high_watermark_allocation_records(merge_threads=True):
    stack = [(function, file) for function, file, _ in record.stack_trace()]
    if any("importlib" in file for _, file in stack):
        name = "importing"
    else:
        own = [f"{file.partition(sys.argv[2])[2]}: {function}" for function, file in stack if sys.argv[2] in file]
        own = [name for name in own if "site-packages" not in name]
        name = own[0] if own else "other"
    sizes[name] += record.size
print(json.dumps(sizes.most_common()))
"""
MOST_LINES = 8


def main() -> None:
    """Profile one run for time and one for memory, and print a table of each."""
    parser = build_parser(__doc__, clients=100, rounds=10)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--tools", type=Path, default=Path(sys.executable), help="Python of the tools' environment")
    options = parser.parse_args()
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        experiment = folder / "profile.yaml"
        counts = [len(range(place, options.clients, len(FOUR_KINDS))) for place in range(len(FOUR_KINDS))]
        fleet = ", ".join(f"{{device: {kind}, count: {n}}}" for kind, n in zip(FOUR_KINDS, counts, strict=True) if n)
        batch = max(1, min(16, TRAINING_SAMPLES // options.clients))
        text = EXPERIMENT.format(rounds=options.rounds, policy=options.policy, fleet=fleet, batch=batch)
        experiment.write_text(text, "utf-8")
        size = f"{options.clients} clients, {options.rounds} rounds, {options.policy}"
        for title, measure in (("time", profile_time), ("memory at the peak", profile_memory)):
            amounts = measure(options.tools, experiment)
            if amounts:
                print_shares(console, f"{title}: {size}", amounts)


def profile_time(tools: Path, experiment: Path) -> dict[str, float]:
    """Return seconds by part of a run; none without py-spy."""
    samples, py_spy = experiment.with_name("samples.txt"), tools.with_name("py-spy")
    if not py_spy.exists():
        print(f"{py_spy} is not there: pip install py-spy beside {tools}, or name another Python by --tools")
        return {}
    run_command([str(py_spy), "record", "--format", "raw", "--rate", "100", "-o", str(samples), "--"], experiment, {})
    seconds: collections.Counter[str] = collections.Counter()
    for stack, count in read_samples(samples):
        seconds[find_part(stack)] += count / 100
    return dict(seconds)


def read_samples(path: Path) -> Iterator[tuple[list[str], int]]:
    """Yield stacks of the main thread, the outermost function first, and how many samples have each."""
    for line in path.read_text("utf-8", "replace").splitlines():
        stack, _, count = line.rpartition(" ")
        if "Thread._bootstrap" not in stack:  # threads of this run only wait
            yield stack.split(";"), int(count)


def find_part(stack: list[str]) -> str:
    """Return the part of a run that a sample belongs to."""
    if any(frame.startswith(PARTS["importing"]) for frame in stack):
        return "importing"
    found = (part for frame in stack for part, names in PARTS.items() if frame.startswith(names))
    return next(found, "other")


def profile_memory(tools: Path, experiment: Path) -> dict[str, float]:
    """Return MB at the peak of a run by the function of fedge that allocated them; none without memray."""
    capture = experiment.with_name("memory.bin")
    found = subprocess.run(
        [tools, "-c", "import memray; print(memray.__path__[0])"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        print(f"{tools} has no memray: pip install memray there, or name another Python by --tools")
        return {}
    packages = {"PYTHONPATH": str(Path(found.stdout.strip()).parent)}
    program = [sys.executable, "-m", "memray", "run", "--force", "--quiet", "-o", str(capture), "-m"]
    run_command(program, experiment, packages)
    peak = subprocess.run([tools, "-c", PEAK, capture, f"{ROOT}/"], capture_output=True, text=True, check=True)
    return {name: size / 1e6 for name, size in json.loads(peak.stdout)}


def run_command(profiler: list[str], experiment: Path, variables: dict[str, str]) -> None:
    """Run ``fedge run`` under a profiler; exits with the end of its output if it fails."""
    folder = experiment.with_name(Path(profiler[0]).name)
    module = ["experiments.cli.main", "run", str(experiment), "--folder", str(folder)]
    command = [*profiler, *([] if profiler[-1] == "-m" else [sys.executable, "-m"]), *module]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if not (folder / "summary.json").exists():  # py-spy ends with 0 whatever the run ends with
        sys.exit(
            f"{' '.join(command[:3])} ... ended with {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        )


def print_shares(console: Console, title: str, amounts: dict[str, float]) -> None:
    """Print the largest parts with their shares in percent."""
    whole = sum(amounts.values())
    unit = "s" if title.startswith("time") else "MB"
    table = build_table(f"{title}, {whole:.0f} {unit}", "part", unit, "%", left=("part",))
    ranked = sorted(amounts.items(), key=lambda item: -item[1])
    for part, amount in ranked[:MOST_LINES]:
        table.add_row(part, f"{amount:.1f}", f"{100.0 * amount / whole:.0f}")
    rest = sum(amount for _, amount in ranked[MOST_LINES:])
    if rest:
        table.add_row("the rest", f"{rest:.1f}", f"{100.0 * rest / whole:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
