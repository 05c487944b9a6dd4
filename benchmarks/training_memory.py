"""Accuracy of a training step's memory and time predicted from the geometry of the layers.

    FEDGE_PROFILES=folder/of/tables python benchmarks/training_memory.py [accuracy|floor|levels|pairs|boards|speed]...

accuracy   perf4sight and fedge: pruning levels left out (five seeds of the trees, worst in brackets), networks left out
floor      the remaining error within a network after removing every evaluated level's own median offset
levels     the latency errors within a network: the worst level, the scatter over batch sizes, the worst step
pairs      fedge with two networks left out at a time: the accuracy from half of the tables
boards     the shipped coefficients on the power-mode tables at the top mode: other boards, other networks
speed      one prediction, and the whole study

Errors are mean absolute errors in percent. The tables are measured TX2 steps of pruned networks.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedge.costs.layers.known_networks import find_known_network
from fedge.costs.memory.memory_study import (
    TARGETS,
    TRAIN_LEVELS,
    MeasuredSteps,
    TargetName,
    evaluate_methods,
    gather_steps,
    predict_fedge,
)
from fedge.costs.memory.step_need import predict_step_need
from fedge.costs.memory.step_table import StepTable, read_step_tables
from fedge.devices.catalogue import find
from fedge.devices.tables.mode_table import read_mode_table

CONSOLE = Console(width=120, highlight=False)
SEEDS = 5
POWER_TABLES = (
    "agx-orin/train/resnet18-imagenet",
    "agx-orin/train/mobilenetv3l-gld23k",
    "agx-orin/train/yolov8n-coco",
    "agx-xavier/train/vit-b16-cifar10",
    "agx-xavier/train/resnet50-tinyimagenet224",
    "orin-nano/train/resnet18-imagenet",
    "tx2/train/vit-b16-cifar10",
)


def main() -> None:
    """Print the requested parts; all by default."""
    parts = {
        "accuracy": report_accuracy,
        "floor": report_error_floor,
        "levels": report_levels,
        "pairs": report_pairs,
        "boards": report_boards,
        "speed": report_speed,
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(parts)}; all of them by default")
    asked = parser.parse_args()
    if unknown := [name for name in asked.parts if name not in parts]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(parts)}")
    if not os.environ.get("FEDGE_PROFILES"):
        sys.exit("FEDGE_PROFILES: got nothing; the folder of measured tables")
    for name in asked.parts or parts:
        parts[name]()


def profiles_folder() -> Path:
    return Path(os.environ["FEDGE_PROFILES"])


def load_step_tables() -> tuple[StepTable, ...]:
    return read_step_tables(profiles_folder() / "perf4sight-tx2")


def report_accuracy() -> None:
    """Report both methods and both splits, memory / latency."""
    runs = [evaluate_methods(load_step_tables(), ["perf4sight"], left_out=True, seed=seed) for seed in range(SEEDS)]
    runs += [evaluate_methods(load_step_tables(), ["fedge"], left_out=True)]
    for split in ("within", "left-out"):
        shown = Table(title=f"{split}: memory / latency, %")
        shown.add_column("network")
        means: dict[str, list[list[float]]] = {"perf4sight": [], "fedge": []}
        for method in means:
            shown.add_column(method, justify="right")
        for table in load_step_tables():
            cells = []
            for method, found in means.items():
                errors = [
                    [row.mape for row in rows if (row.method, row.network, row.split, row.target) == cell]
                    for cell in ((method, table.network, split, target) for target in TARGETS)
                    for rows in [list(itertools.chain(*runs))]
                ]
                found.append([float(np.mean(e)) for e in errors])
                cells.append(" / ".join(f"{np.mean(e):.1f} ({max(e):.1f})" for e in errors))
            shown.add_row(table.network, *cells)
        shown.add_row("mean", *(" / ".join(f"{m:.2f}" for m in np.mean(found, axis=0)) for found in means.values()))
        CONSOLE.print(shown)


def report_error_floor() -> None:
    """Report errors within a network, with and without each evaluated level's own median offset."""
    shown = Table(title="within, ours: error, and without every level's own offset, %")
    for heading in ("network", *TARGETS):
        shown.add_column(heading)
    for table in load_step_tables():
        cells = []
        for target in TARGETS:
            judge, off = _predict_left_out(table.network, target)
            own = np.array([np.median(off[judge.level == level]) for level in judge.level])
            cells.append(f"{_compute_mape(off):.1f} -> {_compute_mape(off - own):.1f}")
        shown.add_row(table.network, *cells)
    CONSOLE.print(shown)


def report_levels() -> None:
    """Report latency within a network, measured by predicted: worst level, scatter over batch sizes, worst step."""
    shown = Table(title="within, ours, latency: measured by predicted")
    for heading in ("network", "worst level: median", "from one batch size to the next", "worst step"):
        shown.add_column(heading, justify="left" if heading == "network" else "right")
    for table in load_step_tables():
        judge, off = _predict_left_out(table.network, "latency")
        medians = {level: float(np.median(off[judge.level == level])) for level in np.unique(judge.level)}
        worst = max(medians, key=lambda level: abs(medians[level]))
        steps = np.concatenate(
            [_neighbour_differences(judge.batch[here], off[here]) for here in map(judge.level.__eq__, medians)]
        )
        cells = (f"{worst:g} %: x {np.exp(-medians[worst]):.2f}", f"{100 * np.median(np.abs(steps)):.1f} % (median)")
        shown.add_row(table.network, *cells, f"x {np.exp(-off.min()):.1f}")
    CONSOLE.print(shown)


def _neighbour_differences(batch: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Return differences between a level's neighbouring batch sizes."""
    return np.diff(off[np.argsort(batch)])


def _predict_left_out(network: str, target: TargetName) -> tuple[MeasuredSteps, np.ndarray]:
    """Return the steps of the evaluated levels, and the log ratios of predicted to measured."""
    steps = gather_steps(load_step_tables())
    there = steps[np.isfinite(steps.measured[target])]
    trained = np.isin(there.level, TRAIN_LEVELS)
    judge = there[(there.network == network) & ~trained]
    off: np.ndarray = np.log(
        predict_fedge(there[trained], judge=judge, target=target, split="within", seed=0) / judge.measured[target]
    )
    return judge, off


def report_pairs() -> None:
    """Report predictions learnt from two networks, evaluated on each of the other two."""
    shown = Table(title="two networks left out, ours, %: each of the pair")
    for heading in ("pair", *TARGETS):
        shown.add_column(heading)
    steps = gather_steps(load_step_tables())
    for pair in itertools.combinations([table.network for table in load_step_tables()], 2):
        cells = []
        for target in TARGETS:
            there = steps[np.isfinite(steps.measured[target])]
            learn = there[~np.isin(there.network, pair)]
            cells.append(
                " / ".join(f"{_compute_error(learn, there[there.network == name], target):.1f}" for name in pair)
            )
        shown.add_row(", ".join(pair), *cells)
    CONSOLE.print(shown)


def _compute_error(learn: MeasuredSteps, judge: MeasuredSteps, target: str) -> float:
    predicted = predict_fedge(learn, judge=judge, target=target, split="left-out", seed=0)  # type: ignore[arg-type]
    return _compute_mape(np.log(predicted / judge.measured[target]))  # type: ignore[index]


def _compute_mape(off: np.ndarray) -> float:
    return 100.0 * float(np.mean(np.abs(np.exp(off) - 1.0)))


def report_boards() -> None:
    """Report seconds of a step at the top mode: by the shipped coefficients, and in the table."""
    shown = Table(title="shipped coefficients at the top mode")
    for heading in ("table", "batch", "measured s", "predicted s", "ratio", "spread", "label"):
        shown.add_column(heading, justify="left" if heading == "table" else "right")
    for path in POWER_TABLES:
        table = read_mode_table(profiles_folder() / f"{path}.csv")
        network = find_known_network(table.workload)
        if network is None:
            continue
        found = predict_step_need(network, find(table.device), table.batch_size)
        measured_s = float(table.step_s[int(np.lexsort(table.modes.knobs.T[::-1])[-1])])
        figures = (f"{measured_s:.3f}", f"{found.step_s:.3f}", f"{found.step_s / measured_s:.2f}")
        shown.add_row(path, str(table.batch_size), *figures, f"{found.step_sd_log:.2f}", found.label)
    CONSOLE.print(shown)


def report_speed() -> None:
    """Report CPU milliseconds of a prediction, and seconds of the study."""
    network, device = find_known_network("resnet50-imagenet"), find("tx2")
    assert network is not None
    began = time.process_time()
    predict_step_need(network, device, 1)
    first = time.process_time() - began
    began = time.process_time()
    for batch in range(1, 201):
        predict_step_need(network, device, batch)
    each = (time.process_time() - began) / 200
    CONSOLE.print(f"a prediction: {1e3 * first:.1f} ms the first time, then {1e3 * each:.2f} ms")
    for method in ("perf4sight", "fedge"):
        began = time.process_time()
        evaluate_methods(load_step_tables(), [method], left_out=True)
        CONSOLE.print(f"the study with {method}: {time.process_time() - began:.1f} s")


if __name__ == "__main__":
    main()
