"""Tables of a report, for one run and for several side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from experiments.report.html_elements import (
    ReportTable,
    TableCell,
    label_badge,
    number_cell,
    swatch_cell,
    text_cell,
    value_cell,
)
from experiments.report.palette import assign_colours
from experiments.report.quantities import UNKNOWN, duration, energy, mean, number, percent, ratio
from experiments.report.run import prediction_charts
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_comparison import find_common_goal, find_experiment_differences
from fedge.telemetry.store_records import ClientRow

MAX_EVENTS, MAX_CLIENTS = 200, 100
MAX_SOURCE = 120
"""Characters of a source shown at first; the rest can be unfolded."""


def provenance_table(run: LoadedRun) -> ReportTable:
    """Build a table of the provenance of costs and priors per fleet entry."""
    colour = assign_colours(run.devices)
    rows = []
    for entry in run.experiment.fleet:
        name = entry.name or entry.device
        labels = run.labels.get(name) or run.labels.get(entry.device) or {}
        device = run.device_by_board[f"{name}-1"]
        shown = name if name == device else f"{name} ({device})"
        origins = (_origin_cell(labels.get("truth")), _origin_cell(labels.get("prior")))
        rows.append((swatch_cell(colour[device], shown), value_cell(str(entry.count), entry.count), *origins))
    origin = "time and power are" if run.experiment.backend == "fleet" else "emulated time and power are"
    return ReportTable("boards", ("board", "count", origin, "predictions start from"), tuple(rows))


def _origin_cell(found: Mapping[str, str] | None) -> TableCell:
    if not found:
        return TableCell(label_badge("not recorded"))
    label, source = label_badge(found.get("label", "not recorded")), found.get("source", "")
    if len(source) <= MAX_SOURCE:
        return TableCell(f"{label} {escape(source)}")
    head = source[:MAX_SOURCE].rsplit(" ", 1)[0]
    folded = f"<details><summary>{label} {escape(head)} …</summary>{escape(source)}</details>"
    return TableCell(folded, words=f"{found.get('label', 'not recorded')} {source}")


def last_round_table(run: LoadedRun, most: int | None = None) -> ReportTable:
    """Build a table of the boards in the last round, with the reason for each mode.

    Args:
        run: The run.
        most: Maximum number of boards, or None for all.
    """
    last = run.rounds[-1].round
    rows = [row for row in run.clients if row.round == last]
    colour = assign_colours(run.devices)
    heads = ("board", "status", "cores", "CPU MHz", "GPU MHz", "mem. MHz", "work", "power", "energy", "°C", "why")
    return ReportTable(
        "last-round", heads, tuple(_client_row(row, colour.get(row.device, "transparent")) for row in rows[:most])
    )


def _client_row(row: ClientRow, colour: str) -> tuple[TableCell, ...]:
    unknown = row.status == "failed" or row.cores is None
    clocks = (row.cores, row.cpu_mhz, row.gpu_mhz, row.mem_mhz)
    work_s = None if unknown else row.work_s
    return (
        swatch_cell(colour, row.board),
        TableCell(f'<span class="status {row.status}">{row.status}</span>'),
        *(value_cell(UNKNOWN if value is None else f"{value:,.0f}", value) for value in clocks),
        value_cell(duration(work_s), work_s, "s"),
        value_cell(number(row.power_w, 3, "W"), row.power_w, "W"),
        value_cell(energy(row.energy_j), row.energy_j, "J"),
        value_cell(UNKNOWN if row.temperature_c is None else f"{row.temperature_c:.0f}", row.temperature_c),
        text_cell(row.error or row.why),
    )


def render_last_round(run: LoadedRun) -> str:
    """Render as much of the last round's table as a page shows."""
    count = sum(row.round == run.rounds[-1].round for row in run.clients)
    return last_round_table(run, MAX_CLIENTS).html + _truncation_note(count, MAX_CLIENTS, "boards")


def events_table(run: LoadedRun, most: int = 0) -> ReportTable:
    """Build a table of the run's events, latest last.

    Args:
        run: The run.
        most: Maximum number of events, the latest ones; 0 for all.
    """
    rows = tuple(
        (
            value_cell(str(event.round), event.round),
            value_cell(duration(event.at_s), event.at_s, "s"),
            text_cell(event.board or "fleet"),
            TableCell(f'<span class="status {escape(event.kind)}">{escape(event.kind)}</span>'),
            text_cell(event.message),
        )
        for event in run.events[-most:]
    )
    return ReportTable("events", ("round", "fleet's clock", "board", "what", "message"), rows)


def render_events(run: LoadedRun) -> str:
    """Render as many of the events as a page shows."""
    if not run.events:
        return (
            "<p>Nothing: no board failed, was dropped or throttled, and every goal was in reach. "
            "A round may still end a little after its planned deadline, which is a plan and not a limit.</p>"
        )
    return events_table(run, MAX_EVENTS).html + _truncation_note(
        len(run.events), MAX_EVENTS, "events; the last ones are shown"
    )


def _truncation_note(count: int, limit: int, what: str) -> str:
    return f'<p class="caption">{limit} of {count:,} {what}.</p>' if count > limit else ""


def errors_by_samples_table(run: LoadedRun) -> ReportTable:
    """Build a table of prediction errors by a board's own measurements; without rows if they are unknown."""
    heads = ("own measurements", "rounds", "time, where it worked", "power", "time, over all modes", "power, all modes")
    rows = tuple(
        (
            text_cell(errors.samples),
            value_cell(str(errors.rows), errors.rows),
            *(_percent_cell(e) for e in (errors.worked_time, errors.worked_power)),
            *(_percent_cell(e) for e in (errors.every_time, errors.every_power)),
        )
        for errors in prediction_charts.errors_by_samples(run)
    )
    return ReportTable("errors-by-measurements", heads, rows)


def render_errors_by_samples(run: LoadedRun) -> str:
    """Render the table of errors, or a note if they are unknown."""
    found, missing = errors_by_samples_table(run), prediction_charts.explain_missing_errors(run)
    said = (
        "Median errors of all boards: where they worked, against the meter; over all modes, against the emulated truth."
    )
    told = f'<p class="caption">{said}</p>{found.html}' if found.rows else ""
    return told + (f'<p class="caption">{missing}</p>' if missing else "")


def _percent_cell(share: float | None) -> TableCell:
    return value_cell(percent(share), None if share is None else 100 * share, "%")


# Several runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunColumn:
    """A column of the table that compares runs.

    Attributes:
        heading: Column heading.
        value: The column's value of a run.
        format: Formats a value.
        find_best: Selects the best value (``max`` or ``min``), or None.
    """

    heading: str
    value: Callable[[LoadedRun], float | None]
    format: Callable[[float | None], str]
    find_best: Callable[[Sequence[float]], float] | None = None
    unit: str = ""
    """Unit of the value."""

    def build_cells(self, runs: Sequence[LoadedRun]) -> list[TableCell]:
        values = [self.value(run) for run in runs]
        given = [value for value in values if value is not None]
        best = self.find_best(given) if self.find_best and len(set(given)) > 1 else None
        return [
            TableCell(escape(self.format(v)), True, best=v is not None and v == best, value=v, unit=self.unit)
            for v in values
        ]


def list_run_columns(runs: Sequence[LoadedRun]) -> tuple[RunColumn, ...]:
    """Return the columns of the comparison table."""
    goal = find_common_goal(runs)
    reached = f"{100 * goal.accuracy:.1f}\u00a0%"
    return (
        RunColumn("accuracy", lambda run: run.summary["final_accuracy"], percent, max),
        RunColumn("energy", value=lambda run: run.summary["energy_j"], format=energy, find_best=min, unit="J"),
        RunColumn("saving vs MAXN", lambda run: run.summary["saving_vs_maxn"], percent, max),
        RunColumn("of oracle's saving", lambda run: share_of_oracle_saving(run, "maxn"), lambda v: percent(v, 0), max),
        RunColumn("saving vs MAXN, waiting low", lambda run: run.summary["saving_vs_maxn_parked"], percent, max),
        RunColumn(
            "of oracle's, waiting low",
            lambda run: share_of_oracle_saving(run, "maxn_parked"),
            lambda v: percent(v, 0),
            max,
        ),
        RunColumn(
            "mean round", value=lambda run: run.summary["mean_round_s"], format=duration, find_best=min, unit="s"
        ),
        RunColumn("makespan", value=lambda run: run.summary["makespan_s"], format=duration, find_best=min, unit="s"),
        RunColumn(f"time to {reached}", value=goal.time_to_goal_s, format=duration, find_best=min, unit="s"),
        RunColumn(f"energy to {reached}", value=goal.energy_to_goal_j, format=energy, find_best=min, unit="J"),
        RunColumn("late", lambda run: float(run.summary["late"]), _format_count, min),
        RunColumn("failed", lambda run: float(run.summary["failed"]), _format_count, min),
        RunColumn("cancelled", lambda run: float(run.summary["cancelled"]), _format_count),
    )


def _format_count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def share_of_oracle_saving(run: LoadedRun, baseline: str) -> float | None:
    """Return the saving as a share of the oracle's saving, or None if unknown.

    Args:
        run: The run.
        baseline: ``maxn`` or ``maxn_parked`` (MAXN that waits at low clocks).
    """
    return ratio(run.summary[f"saving_vs_{baseline}"], run.summary[f"oracle_saving_vs_{baseline}"])


def runs_table(runs: Sequence[LoadedRun]) -> ReportTable:
    """Build a table with one row per run, the best value of each column highlighted."""
    colour = assign_colours([run.name for run in runs])
    shown = list_run_columns(runs)
    by_column = [column.build_cells(runs) for column in shown]
    rows = tuple(
        (
            swatch_cell(colour[run.name], run.name),
            number_cell(_describe_rounds(run)),
            *(cells[i] for cells in by_column),
        )
        for i, run in enumerate(runs)
    )
    return ReportTable("runs", ("run", "rounds", *(column.heading for column in shown)), rows)


def _describe_rounds(run: LoadedRun) -> str:
    """Describe the number of rounds and, if it is smaller, the number that savings cover."""
    return f"{len(run.rounds)}" + (f" (savings: {len(run.compared_rounds)})" if run.compared_note else "")


def differences_table(runs: Sequence[LoadedRun]) -> ReportTable:
    """Build a table of the experiment fields that differ; without rows if none does."""
    rows = tuple(
        (text_cell(key), *(text_cell(value) for value in values))
        for key, values in find_experiment_differences(runs).items()
    )
    return ReportTable("differences", ("field", *(run.name for run in runs)), rows)


def render_differences(runs: Sequence[LoadedRun]) -> str:
    """Render the table of differences, or a sentence if there are none."""
    found = differences_table(runs)
    return found.html if found.rows else "<p>These runs come from the same experiment, field by field.</p>"


def labels_table(runs: Sequence[LoadedRun]) -> ReportTable:
    """Build a table of each run's provenance: its kinds of board by the label of their costs and priors."""
    colour = assign_colours([run.name for run in runs])
    rows = tuple(
        (swatch_cell(colour[run.name], run.name), *(_labels_cell(run, which) for which in ("truth", "prior")))
        for run in runs
    )
    return ReportTable("labels", ("run", "time and power are", "predictions start from"), rows)


def _labels_cell(run: LoadedRun, which: str) -> TableCell:
    boards: dict[str, list[str]] = {}
    for entry in run.experiment.fleet:
        name = entry.name or entry.device
        told = run.labels.get(name) or run.labels.get(entry.device) or {}
        boards.setdefault((told.get(which) or {}).get("label", "not recorded"), []).append(name)
    parts = [
        f"{label_badge(label)} {escape(', '.join(dict.fromkeys(names)))}" for label, names in sorted(boards.items())
    ]
    return TableCell(
        "<br>".join(parts), words="; ".join(f"{k}: {', '.join(dict.fromkeys(v))}" for k, v in boards.items())
    )


def prediction_errors_table(runs: Sequence[LoadedRun]) -> ReportTable:
    """Build a table of each run's prediction errors before the first and in the last round."""
    colour = assign_colours([run.name for run in runs])
    parts = (
        "prior_time_mape",
        "last_time_mape",
        "last_time_ape",
        "prior_power_mape",
        "last_power_mape",
        "last_power_ape",
    )
    rows = tuple(
        (swatch_cell(colour[run.name], run.name), *(_percent_cell(mean([run.summary[part]])) for part in parts))
        for run in runs
    )
    heads = [f"{key}: {what}" for key in ("time", "power") for what in ("prior", "last round", "where it worked")]
    return ReportTable("prediction-errors", ("run", *heads), rows)
