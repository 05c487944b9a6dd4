"""The tables of a report: of one run, and of several side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from experiments.report import predictions
from experiments.report.cells import Cell, Table, badge, figure, measured, swatch, text
from experiments.report.comparison import common_goal, differences
from experiments.report.palette import colours
from experiments.report.quantities import UNKNOWN, duration, energy, mean, number, percent, ratio
from experiments.report.runs import Run
from fedge.telemetry.rows import ClientRow

MAX_EVENTS, MAX_CLIENTS = 200, 100
MAX_SOURCE = 120
"""Characters of a source shown at once; the rest unfolds."""


def provenance(run: Run) -> Table:
    """Per fleet entry: where its boards' costs and their predictors' start come from."""
    colour = colours(run.devices)
    rows = []
    for entry in run.experiment.fleet:
        name = entry.name or entry.device
        labels = run.labels.get(name) or run.labels.get(entry.device) or {}
        device = run.kinds[f"{name}-1"]
        shown = name if name == device else f"{name} ({device})"
        origins = (_origin(labels.get("truth")), _origin(labels.get("prior")))
        rows.append((swatch(colour[device], shown), measured(str(entry.count), entry.count), *origins))
    origin = "time and power are" if run.experiment.backend == "fleet" else "emulated time and power are"
    return Table("boards", ("board", "count", origin, "predictions start from"), tuple(rows))


def _origin(found: Mapping[str, str] | None) -> Cell:
    if not found:
        return Cell(badge("not recorded"))
    label, source = badge(found.get("label", "not recorded")), found.get("source", "")
    if len(source) <= MAX_SOURCE:
        return Cell(f"{label} {escape(source)}")
    head = source[:MAX_SOURCE].rsplit(" ", 1)[0]
    folded = f"<details><summary>{label} {escape(head)} …</summary>{escape(source)}</details>"
    return Cell(folded, words=f"{found.get('label', 'not recorded')} {source}")


def last_round(run: Run, most: int | None = None) -> Table:
    """Every board in the last round (or the first ``most`` of them), and why it chose its mode."""
    last = run.rounds[-1].round
    rows = [row for row in run.clients if row.round == last]
    colour = colours(run.devices)
    heads = ("board", "status", "cores", "CPU MHz", "GPU MHz", "mem. MHz", "work", "power", "energy", "°C", "why")
    return Table("last-round", heads, tuple(_client(row, colour.get(row.device, "transparent")) for row in rows[:most]))


def _client(row: ClientRow, colour: str) -> tuple[Cell, ...]:
    unknown = row.status == "failed" or row.cores is None
    clocks = (row.cores, row.cpu_mhz, row.gpu_mhz, row.mem_mhz)
    work_s = None if unknown else row.work_s
    return (
        swatch(colour, row.board),
        Cell(f'<span class="status {row.status}">{row.status}</span>'),
        *(measured(UNKNOWN if value is None else f"{value:,.0f}", value) for value in clocks),
        measured(duration(work_s), work_s, "s"),
        measured(number(row.power_w, 3, "W"), row.power_w, "W"),
        measured(energy(row.energy_j), row.energy_j, "J"),
        measured(UNKNOWN if row.temperature_c is None else f"{row.temperature_c:.0f}", row.temperature_c),
        text(row.error or row.why),
    )


def shown_last_round(run: Run) -> str:
    """As much of it as a page shows."""
    count = sum(row.round == run.rounds[-1].round for row in run.clients)
    return last_round(run, MAX_CLIENTS).html + _more(count, MAX_CLIENTS, "boards")


def events(run: Run, most: int = 0) -> Table:
    """What went otherwise than planned, latest last; with ``most``, so many of the last."""
    rows = tuple(
        (
            measured(str(event.round), event.round),
            measured(duration(event.at_s), event.at_s, "s"),
            text(event.board or "fleet"),
            Cell(f'<span class="status {escape(event.kind)}">{escape(event.kind)}</span>'),
            text(event.message),
        )
        for event in run.events[-most:]
    )
    return Table("events", ("round", "fleet's clock", "board", "what", "message"), rows)


def shown_events(run: Run) -> str:
    """As many of them as a page shows."""
    if not run.events:
        return (
            "<p>Nothing: no board failed, was dropped or throttled, and every goal was in reach. "
            "A round may still end a little after its planned deadline, which is a plan and not a limit.</p>"
        )
    return events(run, MAX_EVENTS).html + _more(len(run.events), MAX_EVENTS, "events; the last ones are shown")


def _more(count: int, limit: int, what: str) -> str:
    return f'<p class="caption">{limit} of {count:,} {what}.</p>' if count > limit else ""


def errors_by_samples(run: Run) -> Table:
    """How far off predictions were, by how many measurements of its own a board had; no row where it is not known."""
    heads = ("own measurements", "rounds", "time, where it worked", "power", "time, over all modes", "power, all modes")
    rows = tuple(
        (
            text(errors.samples),
            measured(str(errors.rows), errors.rows),
            *(_percentage(e) for e in (errors.worked_time, errors.worked_power)),
            *(_percentage(e) for e in (errors.every_time, errors.every_power)),
        )
        for errors in predictions.by_samples(run)
    )
    return Table("errors-by-measurements", heads, rows)


def shown_errors_by_samples(run: Run) -> str:
    """The table, or a note where it is not known."""
    found, missing = errors_by_samples(run), predictions.note(run)
    said = (
        "Median errors of all boards: where they worked, against the meter; over all modes, against the emulated truth."
    )
    told = f'<p class="caption">{said}</p>{found.html}' if found.rows else ""
    return told + (f'<p class="caption">{missing}</p>' if missing else "")


def _percentage(share: float | None) -> Cell:
    return measured(percent(share), None if share is None else 100 * share, "%")


# Several runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A figure that runs are compared by; ``better`` is ``max``, ``min`` or None."""

    head: str
    value: Callable[[Run], float | None]
    shown: Callable[[float | None], str]
    better: Callable[[Sequence[float]], float] | None = None
    unit: str = ""
    """Of the value."""

    def cells(self, runs: Sequence[Run]) -> list[Cell]:
        values = [self.value(run) for run in runs]
        given = [value for value in values if value is not None]
        best = self.better(given) if self.better and len(set(given)) > 1 else None
        return [
            Cell(escape(self.shown(v)), True, best=v is not None and v == best, value=v, unit=self.unit) for v in values
        ]


def columns(runs: Sequence[Run]) -> tuple[Column, ...]:
    """What the table of several runs shows."""
    goal = common_goal(runs)
    reached = f"{100 * goal.accuracy:.1f}\u00a0%"
    return (
        Column("accuracy", lambda run: run.summary["final_accuracy"], percent, max),
        Column("energy", lambda run: run.summary["energy_j"], energy, min, "J"),
        Column("saving vs MAXN", lambda run: run.summary["saving_vs_maxn"], percent, max),
        Column("of oracle's saving", lambda run: oracle_share(run, "maxn"), lambda v: percent(v, 0), max),
        Column("saving vs MAXN, waiting low", lambda run: run.summary["saving_vs_maxn_parked"], percent, max),
        Column("of oracle's, waiting low", lambda run: oracle_share(run, "maxn_parked"), lambda v: percent(v, 0), max),
        Column("mean round", lambda run: run.summary["mean_round_s"], duration, min, "s"),
        Column("makespan", lambda run: run.summary["makespan_s"], duration, min, "s"),
        Column(f"time to {reached}", goal.reached_s, duration, min, "s"),
        Column(f"energy to {reached}", goal.reached_j, energy, min, "J"),
        Column("late", lambda run: float(run.summary["late"]), _count, min),
        Column("failed", lambda run: float(run.summary["failed"]), _count, min),
        Column("cancelled", lambda run: float(run.summary["cancelled"]), _count),
    )


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def oracle_share(run: Run, baseline: str) -> float | None:
    """How much of the saving that a planner knowing the truth would reach was reached; ``maxn`` or ``maxn_parked``."""
    return ratio(run.summary[f"saving_vs_{baseline}"], run.summary[f"oracle_saving_vs_{baseline}"])


def side_by_side(runs: Sequence[Run]) -> Table:
    """One row per run, the best figure of each column marked."""
    colour = colours([run.name for run in runs])
    shown = columns(runs)
    by_column = [column.cells(runs) for column in shown]
    rows = tuple(
        (swatch(colour[run.name], run.name), figure(_rounds(run)), *(cells[i] for cells in by_column))
        for i, run in enumerate(runs)
    )
    return Table("runs", ("run", "rounds", *(column.head for column in shown)), rows)


def _rounds(run: Run) -> str:
    """How many, and how many of them the savings are over, where that is fewer."""
    return f"{len(run.rounds)}" + (f" (savings: {len(run.compared)})" if run.compared_note else "")


def setup(runs: Sequence[Run]) -> Table:
    """The fields in which the experiments differ; no row where they do not."""
    rows = tuple((text(key), *(text(value) for value in values)) for key, values in differences(runs).items())
    return Table("differences", ("field", *(run.name for run in runs)), rows)


def shown_setup(runs: Sequence[Run]) -> str:
    """The table, or a sentence."""
    found = setup(runs)
    return found.html if found.rows else "<p>These runs come from the same experiment, field by field.</p>"


def labels(runs: Sequence[Run]) -> Table:
    """How each run's figures came about: its kinds of board by the label of their costs, and of their priors."""
    colour = colours([run.name for run in runs])
    rows = tuple(
        (swatch(colour[run.name], run.name), *(_labelled(run, which) for which in ("truth", "prior"))) for run in runs
    )
    return Table("labels", ("run", "time and power are", "predictions start from"), rows)


def _labelled(run: Run, which: str) -> Cell:
    boards: dict[str, list[str]] = {}
    for entry in run.experiment.fleet:
        name = entry.name or entry.device
        told = run.labels.get(name) or run.labels.get(entry.device) or {}
        boards.setdefault((told.get(which) or {}).get("label", "not recorded"), []).append(name)
    parts = [f"{badge(label)} {escape(', '.join(dict.fromkeys(names)))}" for label, names in sorted(boards.items())]
    return Cell("<br>".join(parts), words="; ".join(f"{k}: {', '.join(dict.fromkeys(v))}" for k, v in boards.items()))


def prediction_errors(runs: Sequence[Run]) -> Table:
    """Errors before the first and in the last round, per run."""
    colour = colours([run.name for run in runs])
    parts = (
        "prior_time_mape",
        "last_time_mape",
        "last_time_ape",
        "prior_power_mape",
        "last_power_mape",
        "last_power_ape",
    )
    rows = tuple(
        (swatch(colour[run.name], run.name), *(_percentage(mean([run.summary[part]])) for part in parts))
        for run in runs
    )
    heads = [f"{key}: {what}" for key in ("time", "power") for what in ("prior", "last round", "where it worked")]
    return Table("prediction-errors", ("run", *heads), rows)
