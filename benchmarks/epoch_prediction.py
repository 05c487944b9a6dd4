"""Epoch predictions: the paper's simple predictor and fedge's, from the same few modes, evaluated on the others.

    python benchmarks/epoch_prediction.py [emulated|tables]...      (tables: FEDGE_PROFILES=folder/of/tables)

emulated   the emulated AGX Xavier in the modes a to n of the characterisation paper (SIGMETRICS 2022): both learn from
           two epochs each in e, f, i and j and predict the ten others
tables     measured tables, whose steps include loading: the rows nearest to e, f, i and j, evaluated on all others

The emulated board's loading is simulated by the input-pipeline model that fedge's prediction fits, and its computing
consists of the physical model's terms, which favours fedge's prediction. The measured tables do not. No prior was
fitted to the evaluated network or table.

The simple predictor's 21 % on the emulated board, where the paper has about 12 % over 40 predictions that it does not
list, comes from the seven modes with a slower CPU or GPU than the training modes (18 to 44 %; the others 4 to 6 %):
time grows as one over a clock, and a line falls short. Four modes leave its five unknowns open: other solutions that
were tried (raw MHz, standardised knobs, the intercept in the norm) give 18 to 49 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from figures import PAPER_MODES, build_table, find_profiles, run_parts
from rich.console import Console
from rich.table import Table

from fedge.characterisation.emulated_rig import build_emulated_rig
from fedge.characterisation.epoch_model import EpochModel, EpochSetting, MeasuredEpoch, predict_linear_epochs
from fedge.characterisation.observed_pipeline import PointObservation, extract_observations
from fedge.characterisation.plan_reader import read_resolved_plan
from fedge.characterisation.sweep_store import SweepResult
from fedge.devices import catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.knowledge.table_background import build_background
from fedge.modes import stack_modes
from fedge.pareto import find_nearest_row
from fedge.predictors import DEFAULT_PREDICTOR, load_predictor
from fedge.predictors.table_board import TableBoard
from fedge.types import Floats, PowerMode, ProfileTable

CONSOLE = Console(width=150)
PLAN = Path(__file__).resolve().parents[1] / "experiments" / "configs" / "characterisation" / "modes.yaml"
BOARD, SPEC = "agx-xavier-1", catalogue.find("agx-xavier")
TRAINED = ("e", "f", "i", "j")
PAPER_TIME, PAPER_ENERGY = "about 12 %, 31 of 40 below 10 %", "about 25 %, LeNet-5 60 %"


@dataclass(frozen=True, slots=True, eq=False)
class EpochPredictionErrors:
    """Ratios of predicted to measured values, less one; shape (n,)."""

    time: Floats
    energy: Floats | None

    def format_errors(self) -> tuple[str, str, str]:
        """Return the mean error of time, the number of predictions within 10 %, and the mean error of energy."""
        good = f"{int((np.abs(self.time) < 0.1).sum())} of {len(self.time)}"
        energy = "-" if self.energy is None else f"{100 * np.abs(self.energy).mean():.1f}"
        return f"{100 * np.abs(self.time).mean():.1f}", good, energy


def report_emulated() -> None:
    """Report the paper's experiment on the emulated board."""
    result = _run_sweep()
    near = {name: _find_mode(result, knobs) for name, knobs in PAPER_MODES.items()}
    trained = {near[name] for name in TRAINED}
    every = {
        name: [look for look in extract_observations(result, BOARD, name) if look.is_counted]
        for name in result.plan.workloads
    }
    seen = [
        MeasuredEpoch(name, one.point.mode, epoch.e2e_s, epoch.energy_j)
        for one in result.points
        for name in [one.point.workload]
        for epoch in one.epochs
        if one.point.mode in trained and epoch.epoch >= result.plan.course.discard and one.point.mode is not None
    ]
    table = _build_table("Trained on e, f, i, j; judged on the ten other modes; errors in percent")
    totals: dict[str, list[EpochPredictionErrors]] = {"simple": [], "fedge": []}
    for name, looks in every.items():
        others = [look for look in looks if look.mode not in trained]
        predicted = predict_linear_epochs(seen, name, stack_modes(look.mode for look in others), SPEC.maxn)
        judged = {"simple": _compute_errors(others, *predicted)}
        judged["fedge"] = _score_fedge(result, name, [look for look in looks if look.mode in trained], others)
        for method, one in judged.items():
            table.add_row(name, method, *one.format_errors())
            totals[method].append(one)
    for method, ones in totals.items():
        table.add_row("all", method, *_concatenate_errors(ones).format_errors())
    table.add_row("all, in the paper", "simple", PAPER_TIME, "", PAPER_ENERGY)
    CONSOLE.print(table)


def report_tables() -> None:
    """Report measured tables, in which a step with its stall represents an epoch."""
    shown = _build_table(
        "Measured tables: trained on the rows nearest to e, f, i, j; judged on all others; errors in percent"
    )
    for path in find_profiles("train"):
        table = read_mode_table(path)
        rows = _find_nearest_rows(table)
        others = np.setdiff1d(np.arange(len(table.modes)), rows)
        board = TableBoard(table)
        seen = board.measure_rows(rows)
        background = build_background(table)
        epochs = [MeasuredEpoch(table.workload, one.mode, one.step_s, one.step_s * one.power_w) for one in seen]
        rest = stack_modes(table.modes[int(row)] for row in others)
        epoch_s, energy_j = predict_linear_epochs(epochs, table.workload, rest, background.knowledge.maxn)
        assert energy_j is not None
        joules = table.step_s * table.power_w
        name = f"{path.parent.parent.name} {table.workload}"
        judged = EpochPredictionErrors(epoch_s / table.step_s[others] - 1, energy_j / joules[others] - 1)
        shown.add_row(name, f"simple, {len(rows)} rows", *judged.format_errors())
        ours = load_predictor(DEFAULT_PREDICTOR, background.knowledge).fit(seen).predict(rest)
        judged = EpochPredictionErrors(
            ours.step_s / table.step_s[others] - 1, ours.step_s * ours.power_w / joules[others] - 1
        )
        shown.add_row("", "fedge", *judged.format_errors())
    CONSOLE.print(shown)


def _find_nearest_rows(table: ProfileTable) -> list[int]:
    """Return the rows nearest to the paper's four modes, as shares of the table's top clocks on another board."""
    top, paper = table.modes.knobs.max(axis=0), np.array([8, 2265, 1377, 2133])
    wished = [np.array(PAPER_MODES[name]) / paper * top for name in TRAINED]
    rows = [find_nearest_row(table.modes, PowerMode(round(k[0]), *map(float, k[1:]))) for k in wished]
    return list(dict.fromkeys(rows))


def _score_fedge(
    result: SweepResult, workload: str, seen: Sequence[PointObservation], judged: Sequence[PointObservation]
) -> EpochPredictionErrors:
    """Score fedge's predictions of ``judged`` from ``seen``."""
    model = EpochModel(SPEC, workload, result.plan.storages).fit(seen)
    time, energy = [], []
    for look in judged:
        point = look.point
        setting = EpochSetting(
            point.batch_size,
            steps=look.steps,
            workers=point.workers,
            prefetch=point.prefetch,
            storage=point.storage,
            cached=look.cached,
        )
        predicted = model.predict(setting, stack_modes([look.mode]))
        assert predicted.energy_j is not None
        time.append(float(predicted.e2e_s[0]))
        energy.append(float(predicted.energy_j[0]))
    return _compute_errors(judged, np.array(time), np.array(energy))


def _compute_errors(looks: Sequence[PointObservation], e2e_s: Floats, energy_j: Floats | None) -> EpochPredictionErrors:
    seen_j = [look.energy_j for look in looks if look.energy_j is not None]
    energy = None if energy_j is None or len(seen_j) < len(looks) else energy_j / np.array(seen_j) - 1
    return EpochPredictionErrors(e2e_s / np.array([look.e2e_s for look in looks]) - 1, energy)


def _concatenate_errors(ones: Sequence[EpochPredictionErrors]) -> EpochPredictionErrors:
    energies = [one.energy for one in ones if one.energy is not None]
    return EpochPredictionErrors(
        np.concatenate([one.time for one in ones]), np.concatenate(energies) if energies else None
    )


def _build_table(title: str) -> Table:
    return build_table(title, "what", "method", "time %", "below 10 %", "energy %", left=("method",))


def _run_sweep() -> SweepResult:
    """Run the shipped plan of modes on the emulated board, with whole epochs."""
    plan = read_resolved_plan(PLAN).plan
    course = plan.course.model_copy(update={"minibatches": None})
    plan = replace(plan, course=course)
    rig = build_emulated_rig(plan, BOARD)
    seen = (rig.measure(point, plan.workloads[point.workload], course, lambda _: None) for point in plan.points)
    return SweepResult(plan, folder=Path(), points=tuple(one for one in seen), skipped=(), failed=())


def _find_mode(result: SweepResult, knobs: tuple[int, ...]) -> PowerMode:
    """Return the mode of the sweep with these knobs."""
    modes = stack_modes(dict.fromkeys(one.point.mode for one in result.points if one.point.mode is not None))
    return modes[find_nearest_row(modes, PowerMode(knobs[0], *map(float, knobs[1:])))]


PARTS = {"emulated": report_emulated, "tables": report_tables}

if __name__ == "__main__":
    run_parts(__doc__, PARTS)
