"""Tables that compare runs: accuracy, energy and time, savings, prediction errors, provenance, differing settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from experiments.report.page import render_badge, render_paragraph
from experiments.report.quantities import UNKNOWN, duration, energy, percent
from experiments.report.run.loaded_runs import LoadedRun, find_common_goal
from experiments.report.run.prediction_errors import percent_cell
from experiments.report.run.run_names import flatten_experiment
from experiments.report.tables import Cell, Table, number_cell, swatch_cell, text_cell


def format_count(value: float | None) -> str:
    """Format a count."""
    return UNKNOWN if value is None else f"{value:.0f}"


def format_whole_percent(value: float | None) -> str:
    """Format a share in whole percent."""
    return percent(value, 0)


@dataclass(frozen=True, slots=True)
class RunColumn:
    """A column of the table that compares runs.

    Attributes:
        find_best: Selects the best value (``max`` or ``min``), or None.
    """

    heading: str
    value: Callable[[LoadedRun], float | None]
    format: Callable[[float | None], str]
    find_best: Callable[[Sequence[float]], float] | None = None
    unit: str = ""

    def build_cells(self, runs: Sequence[LoadedRun]) -> list[Cell]:
        """Build the column's cells."""
        values = [self.value(run) for run in runs]
        given = [value for value in values if value is not None]
        best = self.find_best(given) if self.find_best and len(set(given)) > 1 else None
        return [
            Cell(self.format(v), numeric=True, best=v is not None and v == best, value=v, unit=self.unit)
            for v in values
        ]


def _list_cost_columns(runs: Sequence[LoadedRun]) -> tuple[RunColumn, ...]:
    goal = find_common_goal(runs)
    reached = f"{100 * goal.accuracy:.1f}\u00a0%"
    return (
        RunColumn("accuracy", lambda run: run.summary["final_accuracy"], percent, max),
        RunColumn("energy", lambda run: run.summary["energy_j"], energy, min, unit="J"),
        RunColumn("mean round", lambda run: run.summary["mean_round_s"], duration, min, unit="s"),
        RunColumn("makespan", lambda run: run.summary["makespan_s"], duration, min, unit="s"),
        RunColumn(f"energy to {reached}", goal.energy_to_goal_j, energy, min, unit="J"),
        RunColumn(f"time to {reached}", goal.time_to_goal_s, duration, min, unit="s"),
    )


SAVING_COLUMNS = (
    RunColumn("saving vs MAXN", lambda run: run.summary["saving_vs_maxn"], percent, max),
    RunColumn("of oracle's saving", lambda run: run.share_of_oracle_saving("maxn"), format_whole_percent, max),
    RunColumn("saving vs MAXN, low idle", lambda run: run.summary["saving_vs_maxn_parked"], percent, max),
    RunColumn(
        "of oracle's saving, low idle", lambda run: run.share_of_oracle_saving("maxn_parked"), format_whole_percent, max
    ),
    RunColumn("late", lambda run: float(run.summary["late"]), format_count, min),
    RunColumn("failed", lambda run: float(run.summary["failed"]), format_count, min),
    RunColumn("cancelled", lambda run: float(run.summary["cancelled"]), format_count),
)


def cost_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table with accuracy, energy and time of every run, the best value of each column highlighted."""
    return _runs_table("runs", runs, _list_cost_columns(runs))


def saving_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table with every run's savings against MAXN and its lost clients."""
    return _runs_table("savings", runs, SAVING_COLUMNS)


def _runs_table(key: str, runs: Sequence[LoadedRun], columns: Sequence[RunColumn]) -> Table:
    by_column = [column.build_cells(runs) for column in columns]
    rows = tuple(
        (swatch_cell(run.colour, run.name), _rounds_cell(run), *(cells[i] for cells in by_column))
        for i, run in enumerate(runs)
    )
    return Table(key, ("run", "rounds", *(column.heading for column in columns)), rows)


def _rounds_cell(run: LoadedRun) -> Cell:
    """Create a cell with the number of rounds and, if it is smaller, the number that savings cover."""
    count = len(run.rounds)
    return number_cell(f"{count}" + (f" (savings: {len(run.compared_rounds)})" if run.compared_note else ""), count)


def differences_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table of the experiment fields that differ, with the longer side down; without rows if none differs."""
    differences = find_experiment_differences(runs)
    if 0 < len(differences) < len(runs):
        rows = tuple(
            (swatch_cell(run.colour, run.name), *(text_cell(values[i]) for values in differences.values()))
            for i, run in enumerate(runs)
        )
        return Table("differences", ("run", *differences), rows)
    rows = tuple((text_cell(key), *(text_cell(value) for value in values)) for key, values in differences.items())
    return Table("differences", ("field", *(run.name for run in runs)), rows)


def render_differences(runs: Sequence[LoadedRun]) -> Markup:
    """Render the table of differences, or a sentence if there are none."""
    table = differences_table(runs)
    return table.html if table.rows else render_paragraph("These runs come from the same experiment, field by field.")


def find_experiment_differences(runs: Sequence[LoadedRun]) -> dict[str, tuple[str, ...]]:
    """Return the experiment fields that differ, each with its value per run."""
    flat = [dict(flatten_experiment(run.experiment)) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    values = {key: tuple(str(one.get(key, "")) for one in flat) for key in keys}
    return {key: texts for key, texts in values.items() if len(set(texts)) > 1}


def labels_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table of each run's provenance: its kinds of board by the label of their costs and priors."""
    rows = tuple(
        (swatch_cell(run.colour, run.name), *(_labels_cell(run, which) for which in ("truth", "prior"))) for run in runs
    )
    return Table("labels", ("run", "time and power", "prior of predictions"), rows)


def _labels_cell(run: LoadedRun, which: str) -> Cell:
    boards: dict[str, list[str]] = {}
    for entry in run.experiment.fleet:
        name = entry.name or entry.device
        labels = run.labels.get(name) or run.labels.get(entry.device) or {}
        boards.setdefault((labels.get(which) or {}).get("label", "not recorded"), []).append(name)
    listed = {label: ", ".join(dict.fromkeys(names)) for label, names in sorted(boards.items())}
    content = Markup("<br>").join(render_badge(label) + f" {names}" for label, names in listed.items())
    return Cell(content, words="; ".join(f"{label}: {names}" for label, names in listed.items()))


def prediction_errors_table(runs: Sequence[LoadedRun]) -> Table:
    """Build a table of each run's prediction errors before the first and in the last round."""
    parts = [name for key in ("time", "power") for name in (f"prior_{key}_mape", f"last_{key}_mape", f"last_{key}_ape")]
    rows = tuple(
        (swatch_cell(run.colour, run.name), *(percent_cell(run.summary[part]) for part in parts)) for run in runs
    )
    heads = [f"{key}: {what}" for key in ("time", "power") for what in ("prior", "last round", "modes used")]
    return Table("prediction-errors", ("run", *heads), rows)
