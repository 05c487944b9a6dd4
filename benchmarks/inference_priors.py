"""Error of inference predictions after few measured modes, by the priors of the predictor.

    FEDGE_PROFILES=folder/of/tables python benchmarks/inference_priors.py

Every ``<board>/infer/*.csv`` is predicted at each batch size by ``fedge`` from modes that ``active`` picks, with the
priors of inference, and with those of training alone. Neither includes the table's workload. Four seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from figures import build_table, compute_mape, find_profiles, read_batch_sizes
from rich.console import Console

from fedge.costs.cost_priors import build_priors
from fedge.costs.cost_profile import CostProfile
from fedge.costs.inference_cost import build_inference_priors
from fedge.devices.catalogue import find, load_catalogue
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors import DEFAULT_PREDICTOR, load_predictor
from fedge.predictors.explorers.active_explorer import ActiveExplorer
from fedge.types import DeviceSpec, Floats, Measurement, ProfileTable

MEASURED_COUNTS = (0, 5, 8, 10)
SEEDS = range(4)


def main() -> None:
    counts = (f"{count} modes" for count in MEASURED_COUNTS)
    shown = build_table("Mean absolute error over all rows, percent, time / power", "table", "batch", "priors", *counts)
    errors: dict[str, list[Floats]] = {"training": [], "inference": []}
    for table in (table for path in find_profiles("infer") for table in read_batch_sizes(path)):
        for name, by_count in _compute_errors(table).items():
            errors[name].append(by_count)
            shown.add_row(table.workload, str(table.batch_size), name, *_format_cells(by_count))
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
                [_compute_error(table, spec=spec, priors=costs, count=count, seed=seed) for count in MEASURED_COUNTS]
                for seed in SEEDS
            ],
            axis=0,
        )
        for name, costs in priors.items()
    }


def _compute_error(
    table: ProfileTable, spec: DeviceSpec, priors: Sequence[CostProfile], count: int, seed: int
) -> tuple[float, float]:
    knowledge = PriorKnowledge(spec.maxn, tuple(prior.coefficients for prior in priors), seed=seed)
    rows = {mode: row for row, mode in enumerate(table.modes)}
    measurements = [
        Measurement(mode, 40, float(table.step_s[rows[mode]]), float(table.power_w[rows[mode]]))
        for mode in (ActiveExplorer(table.modes, knowledge).ask(count) if count else ())
    ]
    predicted = load_predictor(DEFAULT_PREDICTOR, knowledge).fit(measurements).predict(table.modes)
    return compute_mape(predicted.step_s, table.step_s), compute_mape(predicted.power_w, table.power_w)


def _format_cells(errors: Floats) -> list[str]:
    return [f"{time:.1f} / {power:.1f}" for time, power in errors]


if __name__ == "__main__":
    main()
