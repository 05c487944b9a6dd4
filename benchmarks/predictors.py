"""Accuracy of predictors of all modes from few measured ones, compared with the alternatives.

    FEDGE_PROFILES=folder/of/tables python benchmarks/predictors.py [--seeds 10]

PowerTrain, its network from scratch, and others on the same random modes. No prior includes a table of the predicted
workload. Errors are mean absolute errors in percent over the modes that were not measured, time / power, mean over
seeds (worst seed).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from figures import build_parser, build_table, profiles_folder
from rich.console import Console

from fedge.devices.tables.mode_table import read_mode_table
from fedge.knowledge.table_background import build_background
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.studies.prediction_study import (
    CellResult,
    PredictionStudy,
    PredictionTarget,
    resolve_setup,
    run_prediction_study,
)
from fedge.types import Floats, ProfileTable

CONSOLE = Console(width=170)
ORIN, XAVIER = "agx-orin/train", "agx-xavier/train"
RESNET, NANO = f"{ORIN}/resnet18-imagenet.csv", "orin-nano/train/resnet18-imagenet.csv"
MOBILENET, YOLO = f"{ORIN}/mobilenetv3l-gld23k.csv", f"{ORIN}/yolov8n-coco.csv"
VIT, RESNET50 = f"{XAVIER}/vit-b16-cifar10.csv", f"{XAVIER}/resnet50-tinyimagenet224.csv"
TX2 = "tx2/train/vit-b16-cifar10.csv"


@dataclass(frozen=True, slots=True)
class PredictorCase:
    """A table, its reference (None: none), and boards whose calibrated profiles are unknown."""

    title: str
    target: str
    reference: str | None = None
    without: tuple[str, ...] = ()


TRANSFERS = (
    PredictorCase("Orin MobileNet from ResNet", MOBILENET, RESNET),
    PredictorCase("Orin YOLO from ResNet", YOLO, RESNET),
    PredictorCase("Xavier ViT from ResNet-50", VIT, RESNET50),
    PredictorCase("Xavier ResNet-50 from ViT", RESNET50, VIT),
    PredictorCase("TX2 ViT from Xavier ResNet-50", TX2, RESNET50),
    PredictorCase("Orin Nano ResNet from Orin MobileNet", NANO, MOBILENET),
)
"""PowerTrain's networks come from the same board if there is a table of it, else from another one."""
TRANSFER_COUNTS = (10, 20, 50)
METHODS = ("powertrain", "mlp", "forest", "gp", "linear", "physical", "fedge")


def load_table(path: str) -> ProfileTable:
    return read_mode_table(profiles_folder() / path)


def build_target(case: PredictorCase) -> PredictionTarget:
    """Return the table as ``fedge predict eval`` sees it, without power budgets, since they take time."""
    table = load_table(case.target)
    background = build_background(table, [load_table(case.reference)] if case.reference else [], case.without)
    return PredictionTarget(table, background, find_plausible_rows(table, background.knowledge.maxn), ())


def run_methods(
    targets: Sequence[PredictionTarget], methods: Sequence[str], counts: tuple[int, ...], seeds: int
) -> list[CellResult]:
    """Run every method with its own setup, in as many processes as there are cores."""
    setups = tuple(resolve_setup(method, None, None) for method in methods)
    study = PredictionStudy(tuple(targets), setups, counts, seeds)
    outcomes = run_prediction_study(study, len(os.sched_getaffinity(0)))
    if failed := [outcome.row.error for outcome in outcomes if outcome.row.error]:
        sys.exit(f"a cell failed: {failed[0]}")
    return outcomes


def collect_errors(outcomes: list[CellResult], target: int, method: str, count: int) -> Floats:
    """Return the errors of time and power of all seeds, shape (seeds, 2)."""
    rows = [o.row for o in outcomes if (o.cell.target, o.cell.setup.method, o.cell.modes) == (target, method, count)]
    return np.array([(row.time_mape, row.power_mape) for row in rows], dtype=np.float64)


def format_errors(errors: Floats) -> str:
    mean, worst = errors.mean(axis=0), errors.max(axis=0)
    return f"{mean[0]:.1f}/{mean[1]:.1f} ({worst[0]:.1f}/{worst[1]:.1f})"


def report_baselines(seeds: int) -> None:
    """Report PowerTrain and others with the default predictor, from the same reference."""
    outcomes = run_methods([build_target(case) for case in TRANSFERS], METHODS, TRANSFER_COUNTS, seeds)
    headings = ("transfer", "method", *(f"{count} modes" for count in TRANSFER_COUNTS))
    table = build_table(f"time / power, mean of {seeds} seeds (worst)", *headings, left=("method",))
    for i, case in enumerate(TRANSFERS):
        for method in METHODS:
            cells = (format_errors(collect_errors(outcomes, i, method, count)) for count in TRANSFER_COUNTS)
            table.add_row(case.title, method, *cells, end_section=method == METHODS[-1])
        best = collect_errors(outcomes, i, "powertrain", 50).mean(axis=0)
        ten, twenty = (collect_errors(outcomes, i, "fedge", n).mean(axis=0) for n in (10, 20))
        CONSOLE.print(
            f"{case.title}: fedge beats PowerTrain's 50 modes in time with 10: {ten[0] < best[0]}, in power with 20: "
            f"{twenty[1] < best[1]}, in both with 10: {bool((ten < best).all())}"
        )
    CONSOLE.print(table)


if __name__ == "__main__":
    report_baselines(build_parser(__doc__, seeds=10).parse_args().seeds)
