"""Error of inference predictions after few measured modes, by the priors of the predictor.

    FEDGE_PROFILES=folder/of/tables python benchmarks/inference_priors.py

Every ``<board>/infer/*.csv`` is predicted at each batch size by ``fedge`` from modes that ``active`` picks, with the
priors of inference, and with those of training alone. Neither includes the table's workload. Four seeds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedge.costs.cost_priors import build_priors
from fedge.costs.cost_profile import CostProfile
from fedge.costs.inference_cost import build_inference_priors
from fedge.devices.catalogue import find, load_catalogue
from fedge.devices.tables.mode_table import list_batch_sizes, read_mode_table
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors import DEFAULT_PREDICTOR, load_predictor
from fedge.predictors.explorers.active_explorer import ActiveExplorer
from fedge.types import DeviceSpec, Floats, Measurement, ProfileTable

MEASURED_COUNTS = (0, 5, 8, 10)
SEEDS = range(4)


def main() -> None:
    folder = os.environ.get("FEDGE_PROFILES")
    paths = sorted(Path(folder).glob("*/infer/*.csv")) if folder else []
    if not paths:
        sys.exit(f"FEDGE_PROFILES: got {folder or 'nothing'}; a folder that holds <board>/infer/<workload>.csv")
    tables = [read_mode_table(path, batch_size=size) for path in paths for size in list_batch_sizes(path)]
    shown = Table(title="Mean absolute error over all rows, percent, time / power")
    for heading in ("table", "batch", "priors", *(f"{count} modes" for count in MEASURED_COUNTS)):
        shown.add_column(heading, justify="right")
    errors: dict[str, list[Floats]] = {"training": [], "inference": []}
    for table in tables:
        for name, found in _compute_errors(table).items():
            errors[name].append(found)
            shown.add_row(table.workload, str(table.batch_size), name, *_format_cells(found))
    for name, every in errors.items():
        shown.add_row("all", "", name, *_format_cells(np.mean(every, axis=0)))
    Console(width=120).print(shown)


def _compute_errors(table: ProfileTable) -> dict[str, Floats]:
    """Return, by priors, time and power errors per number of measured modes, shape (4, 2)."""
    spec, specs = find(table.device, where="FEDGE_PROFILES"), load_catalogue()
    priors = {
        "training": build_priors(spec, table.workload, specs, unseen=table.sha256, layered=False),
        "inference": build_inference_priors(spec, table.workload, table.batch_size, specs, unseen=table.sha256),
    }
    return {
        name: np.mean(
            [
                [_compute_error(table, spec=spec, priors=found, count=count, seed=seed) for count in MEASURED_COUNTS]
                for seed in SEEDS
            ],
            axis=0,
        )
        for name, found in priors.items()
    }


def _compute_error(
    table: ProfileTable, spec: DeviceSpec, priors: Sequence[CostProfile], count: int, seed: int
) -> tuple[float, float]:
    knowledge = PriorKnowledge(spec.maxn, tuple(prior.coefficients for prior in priors), seed=seed)
    rows = {mode: row for row, mode in enumerate(table.modes)}
    seen = [
        Measurement(mode, 40, float(table.step_s[rows[mode]]), float(table.power_w[rows[mode]]))
        for mode in (ActiveExplorer(table.modes, knowledge).ask(count) if count else ())
    ]
    predicted = load_predictor(DEFAULT_PREDICTOR, knowledge).fit(seen).predict(table.modes)
    return (
        float(np.mean(np.abs(predicted.step_s / table.step_s - 1))),
        float(np.mean(np.abs(predicted.power_w / table.power_w - 1))),
    )


def _format_cells(found: Floats) -> list[str]:
    return [f"{100 * time:.1f} / {100 * power:.1f}" for time, power in found]


if __name__ == "__main__":
    main()
