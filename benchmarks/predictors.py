"""Accuracy of predictors of all modes from few measured ones, compared with the alternatives.

    FEDGE_PROFILES=folder/of/tables python benchmarks/predictors.py [accuracy|few|baselines|choice|sharing|speed]...
        [--seeds 10]

accuracy   the default predictor with its own choice of modes, on every training table, from a reference of the same
           board or from none, compared with an exploratory recipe's figures (median of five seeds, one decimal)
few        hardly anything measured: with costs estimated from the network's layers, and with other workloads alone
baselines  PowerTrain, its network from scratch, and others on the same random modes
choice     the fastest mode within 17, 18 ... 50 W on the three AGX Orin tables: verified, with a margin, and PowerTrain
sharing    ten boards of a kind, each up to 10 % off in time and power, measuring three modes each
speed      one core: fit to 50 modes; predict 18,096 modes, build the front and choose; memory; compared with PowerTrain

No prior includes a table of the predicted workload, nor, where no reference is named, of the board. Errors are mean
absolute errors in percent over the modes that were not measured, time / power, mean over seeds (worst seed).
Set OMP_NUM_THREADS=1, as ``make bench`` does, so that processor seconds are those of one core.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedge.decisions.mode_objectives import find_fastest_within_power, find_front_rows
from fedge.devices.tables.mode_table import read_mode_table
from fedge.knowledge.table_background import build_background, find_board_spec
from fedge.modes import build_grid, find_mode_index
from fedge.predictors import load_predictor
from fedge.predictors.explorers import load_explorer
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.studies.power_budgets import PAPER_BUDGETS_W
from fedge.studies.prediction_cells import CellResult, PredictionRow, PredictionTarget, resolve_setup
from fedge.studies.prediction_study import PredictionStudy, run_prediction_study
from fedge.types import Floats, Measurement, ProfileTable

ORIN, XAVIER = "agx-orin/train", "agx-xavier/train"
MODE_COUNTS = (5, 10, 20, 50)
CONSOLE = Console(width=170)


@dataclass(frozen=True, slots=True)
class PredictorCase:
    """A table, its reference (None: the board is unknown), and the recipe's errors at ``MODE_COUNTS`` modes."""

    title: str
    target: str
    reference: str | None
    without: tuple[str, ...]
    recipe: tuple[tuple[float, float], ...]


RESNET = f"{ORIN}/resnet18-imagenet.csv"
MOBILENET, YOLO = f"{ORIN}/mobilenetv3l-gld23k.csv", f"{ORIN}/yolov8n-coco.csv"
VIT, RESNET50 = f"{XAVIER}/vit-b16-cifar10.csv", f"{XAVIER}/resnet50-tinyimagenet224.csv"
TX2, NANO = "tx2/train/vit-b16-cifar10.csv", "orin-nano/train/resnet18-imagenet.csv"
CASES = (
    PredictorCase(
        "Orin MobileNet, ResNet known",
        target=MOBILENET,
        reference=RESNET,
        without=(),
        recipe=((6.1, 2.7), (4.3, 3.0), (3.2, 2.0), (2.4, 1.5)),
    ),
    PredictorCase(
        "Orin YOLO, ResNet known",
        target=YOLO,
        reference=RESNET,
        without=(),
        recipe=((14.0, 6.1), (6.0, 4.0), (4.3, 2.5), (3.9, 2.1)),
    ),
    PredictorCase(
        "Xavier ViT, ResNet-50 known",
        target=VIT,
        reference=RESNET50,
        without=(),
        recipe=((2.7, 2.1), (0.9, 2.3), (0.9, 1.7), (0.7, 1.3)),
    ),
    PredictorCase(
        "Xavier ResNet-50, ViT known",
        target=RESNET50,
        reference=VIT,
        without=(),
        recipe=((1.0, 1.8), (0.8, 2.0), (0.6, 1.4), (0.5, 1.1)),
    ),
    PredictorCase(
        "Orin MobileNet",
        target=MOBILENET,
        reference=None,
        without=("agx-orin",),
        recipe=((10.1, 4.3), (8.0, 3.8), (6.7, 2.9), (2.7, 1.6)),
    ),
    PredictorCase(
        "Orin YOLO",
        target=YOLO,
        reference=None,
        without=("agx-orin",),
        recipe=((24.1, 9.6), (8.0, 4.2), (5.4, 2.9), (4.0, 2.2)),
    ),
    PredictorCase(
        "TX2 ViT", target=TX2, reference=None, without=("tx2",), recipe=((2.8, 5.8), (1.7, 4.5), (1.1, 3.8), (0.8, 2.8))
    ),
    PredictorCase(
        "Orin Nano ResNet",
        target=NANO,
        reference=None,
        without=("orin-nano",),
        recipe=((4.8, 4.7), (3.6, 4.3), (3.2, 3.2), (2.0, 2.2)),
    ),
)
KNOWN_BOARDS = (
    PredictorCase("Orin ResNet, its board known", target=RESNET, reference=None, without=(), recipe=()),
    PredictorCase("Orin MobileNet, its board known", target=MOBILENET, reference=None, without=(), recipe=()),
    PredictorCase("Orin YOLO, its board known", target=YOLO, reference=None, without=(), recipe=()),
    PredictorCase("Xavier ViT, its board known", target=VIT, reference=None, without=(), recipe=()),
    PredictorCase("Xavier ResNet-50, its board known", target=RESNET50, reference=None, without=(), recipe=()),
)
"""Cases without a reference, but with calibrated profiles of other workloads on such a board."""
FEW_COUNTS = (2, 5, 10)
TRANSFERS = (
    ("Orin MobileNet from ResNet", MOBILENET, RESNET),
    ("Orin YOLO from ResNet", YOLO, RESNET),
    ("Xavier ViT from ResNet-50", VIT, RESNET50),
    ("Xavier ResNet-50 from ViT", RESNET50, VIT),
    ("TX2 ViT from Xavier ResNet-50", TX2, RESNET50),
    ("Orin Nano ResNet from Orin MobileNet", NANO, MOBILENET),
)
"""PowerTrain's networks come from the same board if there is a table of it, else from another one."""
BOARDS, EACH, OFFSET_SD = 10, 3, 0.05


def main() -> None:
    """Print the requested parts; all by default."""
    parts = {
        "accuracy": report_accuracy,
        "few": report_few_modes,
        "baselines": report_baselines,
        "choice": report_choice,
        "sharing": report_sharing,
        "speed": report_speed,
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(parts)}; all of them by default")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in parts]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(parts)}")
    if not os.environ.get("FEDGE_PROFILES"):
        sys.exit("FEDGE_PROFILES: got nothing; the folder of measured tables")
    for name in options.parts or parts:
        parts[name](options.seeds)


def load_table(path: str) -> ProfileTable:
    return read_mode_table(Path(os.environ["FEDGE_PROFILES"]) / path)


def build_target(path: str, reference: str | None, without: tuple[str, ...] = ()) -> PredictionTarget:
    """Return the table as ``fedge predict eval`` sees it, without power budgets, since they take time."""
    table = load_table(path)
    background = build_background(table, [load_table(reference)] if reference else [], without)
    return PredictionTarget(table, background, find_plausible_rows(table, background.knowledge.maxn), ())


def run_methods(
    targets: Sequence[PredictionTarget], methods: Sequence[str], counts: tuple[int, ...], seeds: int
) -> list[CellResult]:
    return run_setups(targets, [(method, None) for method in methods], counts, seeds)


def run_setups(
    targets: Sequence[PredictionTarget], ways: Sequence[tuple[str, str | None]], counts: tuple[int, ...], seeds: int
) -> list[CellResult]:
    """Run every method, with its own or the given setup, in as many processes as there are cores."""
    chosen = tuple(resolve_setup(method, None, choice) for method, choice in ways)
    outcomes = run_prediction_study(
        PredictionStudy(tuple(targets), chosen, counts, seeds), len(os.sched_getaffinity(0))
    )
    failed = [outcome.row.error for outcome in outcomes if outcome.row.error]
    if failed:
        sys.exit(f"a cell failed: {failed[0]}")
    return outcomes


def collect_figures(outcomes: list[CellResult], target: int, method: str, count: int, *names: str) -> Floats:
    """Return the fields ``names`` of all seeds, shape (seeds, names)."""
    rows = [o.row for o in outcomes if (o.cell.target, o.cell.setup.method, o.cell.modes) == (target, method, count)]
    return np.array([[getattr(row, name) for name in names] for row in rows], dtype=np.float64)


def format_errors(errors: Floats) -> str:
    mean, worst = errors.mean(axis=0), errors.max(axis=0)
    return f"{mean[0]:.1f}/{mean[1]:.1f} ({worst[0]:.1f}/{worst[1]:.1f})"


def report_accuracy(seeds: int) -> None:
    """Report the default predictor with the recipe, and the share of true values within its 90 % intervals."""
    outcomes = run_methods(
        [build_target(c.target, c.reference, c.without) for c in CASES], ["fedge"], MODE_COUNTS, seeds
    )
    table = Table(title=f"fedge, time / power, mean of {seeds} seeds (worst); recipe; cover of the 90 % interval")
    table.add_column("table")
    for count in MODE_COUNTS:
        table.add_column(f"{count} modes", justify="right")
    ratios = np.empty((len(CASES), len(MODE_COUNTS), 2))
    for i, case in enumerate(CASES):
        cells = []
        for j, count in enumerate(MODE_COUNTS):
            errors = collect_figures(outcomes, i, "fedge", count, "time_mape", "power_mape")
            cover = collect_figures(outcomes, i, "fedge", count, "coverage90").mean()
            ratios[i, j] = errors.mean(axis=0) / np.array(case.recipe[j])
            cells.append(f"{format_errors(errors)}; {case.recipe[j][0]}/{case.recipe[j][1]}; {cover:.0f}")
        table.add_row(case.title, *cells)
    CONSOLE.print(table)
    for j, count in enumerate(MODE_COUNTS):
        mean = np.exp(np.log(ratios[:, j]).mean(axis=0))
        CONSOLE.print(f"{count} modes: error relative to the recipe, geometric mean: {mean[0]:.2f}/{mean[1]:.2f}")
    worse = [(CASES[i].title, MODE_COUNTS[j], q) for i, j, q in np.argwhere(ratios > 1.05).tolist()]
    CONSOLE.print(f"cells more than 5 % above the recipe: {len(worse)} of {ratios.size}")


def report_few_modes(seeds: int) -> None:
    """Report the benefit of the estimate by layers for the default predictor, from no measurement on."""
    table = Table(title=f"fedge, time / power, mean of {seeds} seeds: with layers | with other workloads alone")
    for heading in ("table", "0 modes", *(f"{count} modes" for count in FEW_COUNTS)):
        table.add_column(heading, justify="left" if heading == "table" else "right")
    targets = [build_target(case.target, case.reference, case.without) for case in (*CASES, *KNOWN_BOARDS)]
    both = [targets, [_drop_layer_priors(target) for target in targets]]
    outcomes = run_methods([target for some in both for target in some], ["fedge"], FEW_COUNTS, seeds)
    errors = np.empty((2, len(targets), 1 + len(FEW_COUNTS), 2))
    for variant, some in enumerate(both):
        for i, target in enumerate(some):
            errors[variant, i, 0] = _compute_prior_errors(target)
            for j, count in enumerate(FEW_COUNTS):
                figures = collect_figures(
                    outcomes, variant * len(targets) + i, "fedge", count, "time_mape", "power_mape"
                )
                errors[variant, i, j + 1] = figures.mean(axis=0)
    for i, case in enumerate((*CASES, *KNOWN_BOARDS)):
        cells = (" | ".join(f"{t:.1f}/{p:.1f}" for t, p in errors[:, i, j]) for j in range(1 + len(FEW_COUNTS)))
        table.add_row(case.title, *cells)
    CONSOLE.print(table)
    ratios = np.exp(np.log(errors[0] / errors[1]).mean(axis=0))
    for count, (time_ratio, power_ratio) in zip((0, *FEW_COUNTS), ratios, strict=True):
        CONSOLE.print(f"{count} modes: error with layers beside that without, {time_ratio:.2f}/{power_ratio:.2f}")


def _drop_layer_priors(target: PredictionTarget) -> PredictionTarget:
    knowledge = target.background.knowledge
    background = replace(target.background, knowledge=replace(knowledge, priors=knowledge.priors[1:]))
    return replace(target, background=background)


def _compute_prior_errors(target: PredictionTarget) -> tuple[float, float]:
    """Return the errors over all modes before anything is measured."""
    predicted = load_predictor("fedge", target.background.knowledge).fit([]).predict(target.table.modes)
    return _compute_mape(predicted.step_s, target.table.step_s), _compute_mape(predicted.power_w, target.table.power_w)


def report_baselines(seeds: int) -> None:
    """Report PowerTrain and others with the default predictor, from the same reference."""
    targets = [build_target(path, reference) for _, path, reference in TRANSFERS]
    methods = ("powertrain", "mlp", "forest", "gp", "linear", "physical", "fedge")
    outcomes = run_methods(targets, methods, MODE_COUNTS[1:], seeds)
    table = Table(title=f"time / power, mean of {seeds} seeds (worst)")
    for heading in ("transfer", "method", *(f"{count} modes" for count in MODE_COUNTS[1:])):
        table.add_column(heading, justify="left" if heading in {"transfer", "method"} else "right")
    for i, (title, _, _) in enumerate(TRANSFERS):
        for method in methods:
            errors = [
                collect_figures(outcomes, i, method, count, "time_mape", "power_mape") for count in MODE_COUNTS[1:]
            ]
            table.add_row(title, method, *map(format_errors, errors), end_section=method == methods[-1])
        best = collect_figures(outcomes, i, "powertrain", 50, "time_mape", "power_mape").mean(axis=0)
        ten, twenty = (
            collect_figures(outcomes, i, "fedge", n, "time_mape", "power_mape").mean(axis=0) for n in (10, 20)
        )
        CONSOLE.print(
            f"{title}: fedge beats PowerTrain's 50 modes in time with 10: {ten[0] < best[0]}, in power with 20: "
            f"{twenty[1] < best[1]}, in both with 10: {bool((ten < best).all())}"
        )
    CONSOLE.print(table)


def report_choice(seeds: int) -> None:
    """Report the penalty over the observed optimum, and how often the limit was exceeded by more than 1 W."""
    paths = ((RESNET, MOBILENET), (MOBILENET, RESNET), (YOLO, RESNET))
    targets = [replace(build_target(path, reference), budgets_w=PAPER_BUDGETS_W) for path, reference in paths]
    table = Table(title=f"17..50 W, three AGX Orin tables, {seeds} seeds; implausible rows left out (with them)")
    for heading in (
        "way",
        "table",
        "modes",
        "penalty median %",
        "mean %",
        "excess W",
        "over %",
        "over by 1 W %",
        "measured",
    ):
        table.add_column(heading, justify="left" if heading in {"way", "table"} else "right")
    ways = (("fedge", "verified"), ("fedge", "margin"), ("fedge", "plain"), ("powertrain", "plain"))
    names = ("penalty_median", "penalty_mean", "excess_w", "over_limit", "over_limit_1w", "verify_modes")
    for method, how in ways:
        outcomes = run_setups(targets, [(method, how)], (10, 50), seeds)
        for count in (10, 50):
            for place, (path, _) in enumerate(paths):
                rows = [o.row for o in outcomes if (o.cell.target, o.cell.modes) == (place, count)]
                table.add_row(
                    f"{method} {how}", Path(path).stem, str(count), *(_format_with_implausible(rows, n) for n in names)
                )
            rows = [o.row for o in outcomes if o.cell.modes == count]
            shown = (_format_with_implausible(rows, name) for name in names)
            table.add_row(f"{method} {how}", "mean of the three", str(count), *shown, end_section=True)
    CONSOLE.print(table)


def _format_with_implausible(rows: Sequence[PredictionRow], name: str) -> str:
    """Format the mean without implausible rows and, in brackets, with them."""
    left_out, all_in = (np.mean([getattr(row, field) for row in rows]) for field in (name, f"{name}_all"))
    return f"{left_out:.2f} ({all_in:.2f})"


def report_sharing(seeds: int) -> None:
    """Report ten boards, each off by a constant factor, that measure three modes each: errors on their own truths."""
    table = Table(title=f"{BOARDS} boards, each {OFFSET_SD:.0%} (one sd) off in time and in power, {seeds} seeds")
    for heading in ("table", "10 modes, alone", "3 modes each, shared", "3 modes, alone"):
        table.add_column(heading, justify="left" if heading == "table" else "right")
    for case in CASES[:4]:
        target = build_target(case.target, case.reference, case.without)
        found = np.array([_compute_sharing_errors(target, seed) for seed in range(seeds)]).mean(axis=0)
        table.add_row(case.title, *(f"{t:.1f}/{p:.1f}" for t, p in found))
    CONSOLE.print(table)


def _compute_sharing_errors(target: PredictionTarget, seed: int) -> Floats:
    """Return errors with ten own modes, three shared and three own, in time and power: (3, 2), mean over the boards."""
    table = target.table
    knowledge = replace(target.background.knowledge, seed=seed)
    factors = np.exp(OFFSET_SD * np.random.default_rng(seed).standard_normal((BOARDS, 2)))
    design = load_explorer("active", table.modes, knowledge).ask(BOARDS * EACH)
    rows = [find_mode_index(table.modes, mode) for mode in design]

    def seen(board: int, some: Sequence[int | None], by: str | None) -> list[Measurement]:
        time_factor, power_factor = factors[board]
        return [
            Measurement(table.modes[i], 40, table.step_s[i] * time_factor, table.power_w[i] * power_factor, board=by)
            for i in some
            if i is not None
        ]

    errors = []
    for board in range(BOARDS):
        # Assigned in turn, so that every board has some of the most informative modes.
        own = seen(board, rows[board::BOARDS], None)
        others = [m for b in range(BOARDS) if b != board for m in seen(b, rows[b::BOARDS], f"board-{b}")]
        alone = seen(board, rows[:10], None)
        each = [
            load_predictor("fedge", knowledge).fit(some).predict(table.modes) for some in (alone, own + others, own)
        ]
        truth = table.step_s * factors[board, 0], table.power_w * factors[board, 1]
        errors.append([[_compute_mape(p.step_s, truth[0]), _compute_mape(p.power_w, truth[1])] for p in each])
    mean: Floats = np.array(errors).mean(axis=0)
    return mean


def _compute_mape(predicted: Floats, true: Floats) -> float:
    return 100.0 * float(np.mean(np.abs(predicted / true - 1.0)))


def report_speed(seeds: int) -> None:
    """Report CPU seconds of this process, which other load hardly affects: the least of ``seeds`` runs."""
    target = build_target(MOBILENET, RESNET)
    table, spec = target.table, find_board_spec(target.table.device)
    assert spec is not None
    every = build_grid(spec)
    rows = np.random.default_rng(0).permutation(len(table.modes))[:50]
    measurements = [Measurement(table.modes[i], 40, float(table.step_s[i]), float(table.power_w[i])) for i in rows]
    for method in ("fedge", "powertrain"):
        before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        predictor = load_predictor(method, target.background.knowledge).fit(measurements)
        predictor.predict(every)
        tries = []
        for _ in range(seeds if method == "fedge" else 2):
            began = time.process_time()
            predictor.fit(measurements)
            fitted = time.process_time()
            predictions = predictor.predict(every)
            find_front_rows(predictions, "power")
            find_fastest_within_power(predictions, 30.0)
            tries.append((fitted - began, time.process_time() - fitted))
        fit_s, use_s = np.min(tries, axis=0)
        mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
        CONSOLE.print(
            f"{method}: fit to 50 modes {fit_s:.3f} s; predict {len(every)} modes, front and choice "
            f"{1e3 * use_s:.0f} ms; memory grew by {mb:.0f} MB (imports of {method} included)"
        )


if __name__ == "__main__":
    main()
