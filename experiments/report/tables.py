"""The tables of a report as HTML; every text that came from a user or a board is escaped here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from experiments.report import predictions
from experiments.report.comparison import common_goal, differences
from experiments.report.palette import colours
from experiments.report.quantities import UNKNOWN, duration, energy, mean, number, percent, ratio
from experiments.report.runs import Run
from fedge.telemetry.rows import ClientRow

MAX_EVENTS, MAX_CLIENTS = 200, 100
MAX_SOURCE = 120
"""Characters of a source shown at once; the rest unfolds."""
LABELS = ("measured", "calibrated", "estimated")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its HTML (already escaped) and whether it is a number, for which it is set flush right."""

    html: str
    numeric: bool = False
    best: bool = False


def text(value: object) -> Cell:
    """A cell of words."""
    return Cell(escape(str(value)) if value not in (None, "") else UNKNOWN)


def figure(value: str) -> Cell:
    """A cell of digits."""
    return Cell(escape(value), numeric=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Plain HTML; a column of numbers has its head flush right too."""
    numeric = [cell.numeric for cell in rows[0]] if rows else [False] * len(heads)
    head = "".join(f"<th{_classes(n, False)}>{escape(h)}</th>" for h, n in zip(heads, numeric, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{_classes(c.numeric, c.best)}>{c.html}</td>" for c in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _classes(numeric: bool, best: bool) -> str:
    names = [name for name, holds in (("n", numeric), ("best", best)) if holds]
    return f' class="{" ".join(names)}"' if names else ""


def swatch(colour: str, name: str) -> Cell:
    """A name with its colour in the charts before it."""
    return Cell(f'<i class="swatch" style="background:{colour}"></i>{escape(name)}')


def badge(label: str) -> str:
    """How a number came about."""
    kind = label if label in LABELS else "unknown"
    return f'<span class="badge {kind}">{escape(label)}</span>'


def provenance(run: Run) -> str:
    """Per fleet entry: where its boards' costs and their predictors' start come from."""
    colour = colours(run.devices)
    rows = []
    for entry in run.experiment.fleet:
        name = entry.name or entry.device
        labels = run.labels.get(name) or run.labels.get(entry.device) or {}
        device = run.kinds[f"{name}-1"]
        shown = name if name == device else f"{name} ({device})"
        origins = (_origin(labels.get("truth")), _origin(labels.get("prior")))
        rows.append((swatch(colour[device], shown), figure(str(entry.count)), *origins))
    origin = "time and power are" if run.experiment.backend == "fleet" else "emulated time and power are"
    return table(("board", "count", origin, "predictions start from"), rows)


def _origin(found: Mapping[str, str] | None) -> Cell:
    if not found:
        return Cell(badge("not recorded"))
    label, source = badge(found.get("label", "not recorded")), found.get("source", "")
    if len(source) <= MAX_SOURCE:
        return Cell(f"{label} {escape(source)}")
    head = source[:MAX_SOURCE].rsplit(" ", 1)[0]
    return Cell(f"<details><summary>{label} {escape(head)} …</summary>{escape(source)}</details>")


def last_round(run: Run) -> str:
    """Every board in the last round, and why it chose its mode."""
    last = run.rounds[-1].round
    rows = [row for row in run.clients if row.round == last]
    colour = colours(run.devices)
    heads = ("board", "status", "cores", "CPU MHz", "GPU MHz", "mem. MHz", "work", "power", "energy", "°C", "why")
    cells = [_client(row, colour.get(row.device, "transparent")) for row in rows[:MAX_CLIENTS]]
    return table(heads, cells) + _more(len(rows), MAX_CLIENTS, "boards")


def _client(row: ClientRow, colour: str) -> tuple[Cell, ...]:
    unknown = row.status == "failed" or row.cores is None
    clocks = (row.cores, row.cpu_mhz, row.gpu_mhz, row.mem_mhz)
    return (
        swatch(colour, row.board),
        Cell(f'<span class="status {row.status}">{row.status}</span>'),
        *(figure(UNKNOWN if value is None else f"{value:,.0f}") for value in clocks),
        figure(UNKNOWN if unknown else duration(row.work_s)),
        figure(number(row.power_w, 3, "W")),
        figure(energy(row.energy_j)),
        figure(UNKNOWN if row.temperature_c is None else f"{row.temperature_c:.0f}"),
        text(row.error or row.why),
    )


def events(run: Run) -> str:
    """What went otherwise than planned, latest last."""
    if not run.events:
        return (
            "<p>Nothing: no board failed, was dropped or throttled, and every goal was in reach. "
            "A round may still end a little after its planned deadline, which is a plan and not a limit.</p>"
        )
    rows = [
        (
            figure(str(event.round)),
            figure(duration(event.at_s)),
            text(event.board or "fleet"),
            Cell(f'<span class="status {escape(event.kind)}">{escape(event.kind)}</span>'),
            text(event.message),
        )
        for event in run.events[-MAX_EVENTS:]
    ]
    return table(("round", "fleet's clock", "board", "what", "message"), rows) + _more(
        len(run.events), MAX_EVENTS, "events; the last ones are shown"
    )


def _more(count: int, limit: int, what: str) -> str:
    return f'<p class="caption">{limit} of {count:,} {what}.</p>' if count > limit else ""


def errors_by_samples(run: Run) -> str:
    """How far off predictions were, by how many measurements of its own a board had; a note where it is not known."""
    found, missing = predictions.by_samples(run), predictions.note(run)
    heads = ("own measurements", "rounds", "time, where it worked", "power", "time, over all modes", "power")
    rows = [
        (
            text(errors.samples),
            figure(str(errors.rows)),
            *(figure(percent(e)) for e in (errors.worked_time, errors.worked_power)),
            *(figure(percent(e)) for e in (errors.every_time, errors.every_power)),
        )
        for errors in found
    ]
    said = (
        "Median errors of all boards: where they worked, against the meter; over all modes, against the emulated truth."
    )
    told = f'<p class="caption">{said}</p>{table(heads, rows)}' if rows else ""
    return told + (f'<p class="caption">{missing}</p>' if missing else "")


# Several runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A figure that runs are compared by; ``better`` is ``max``, ``min`` or None."""

    head: str
    value: Callable[[Run], float | None]
    shown: Callable[[float | None], str]
    better: Callable[[Sequence[float]], float] | None = None

    def cells(self, runs: Sequence[Run]) -> list[Cell]:
        values = [self.value(run) for run in runs]
        given = [value for value in values if value is not None]
        best = self.better(given) if self.better and len(set(given)) > 1 else None
        return [Cell(escape(self.shown(v)), numeric=True, best=v is not None and v == best) for v in values]


def columns(runs: Sequence[Run]) -> tuple[Column, ...]:
    """What the table of several runs shows."""
    goal = common_goal(runs)
    reached = f"{100 * goal.accuracy:.1f}\u00a0%"
    return (
        Column("accuracy", lambda run: run.summary["final_accuracy"], percent, max),
        Column("energy", lambda run: run.summary["energy_j"], energy, min),
        Column("saving vs MAXN", lambda run: run.summary["saving_vs_maxn"], percent, max),
        Column("of oracle's saving", lambda run: oracle_share(run, "maxn"), lambda v: percent(v, 0), max),
        Column("saving vs MAXN, waiting low", lambda run: run.summary["saving_vs_maxn_parked"], percent, max),
        Column("of oracle's, waiting low", lambda run: oracle_share(run, "maxn_parked"), lambda v: percent(v, 0), max),
        Column("mean round", lambda run: run.summary["mean_round_s"], duration, min),
        Column("makespan", lambda run: run.summary["makespan_s"], duration, min),
        Column(f"time to {reached}", goal.reached_s, duration, min),
        Column(f"energy to {reached}", goal.reached_j, energy, min),
        Column("late", lambda run: float(run.summary["late"]), _count, min),
        Column("failed", lambda run: float(run.summary["failed"]), _count, min),
        Column("cancelled", lambda run: float(run.summary["cancelled"]), _count),
    )


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def oracle_share(run: Run, baseline: str) -> float | None:
    """How much of the saving that a planner knowing the truth would reach was reached; ``maxn`` or ``maxn_parked``."""
    return ratio(run.summary[f"saving_vs_{baseline}"], run.summary[f"oracle_saving_vs_{baseline}"])


def side_by_side(runs: Sequence[Run]) -> str:
    """One row per run, the best figure of each column marked."""
    colour = colours([run.name for run in runs])
    shown = columns(runs)
    by_column = [column.cells(runs) for column in shown]
    rows = [
        (swatch(colour[run.name], run.name), figure(_rounds(run)), *(cells[i] for cells in by_column))
        for i, run in enumerate(runs)
    ]
    return table(("run", "rounds", *(column.head for column in shown)), rows)


def _rounds(run: Run) -> str:
    """How many, and how many of them the savings are over, where that is fewer."""
    return f"{len(run.rounds)}" + (f" (savings: {len(run.compared)})" if run.compared_note else "")


def setup(runs: Sequence[Run]) -> str:
    """The fields in which the experiments differ."""
    found = differences(runs)
    if not found:
        return "<p>These runs come from the same experiment, field by field.</p>"
    rows = [(text(key), *(text(value) for value in values)) for key, values in found.items()]
    return table(("field", *(run.name for run in runs)), rows)


def prediction_errors(runs: Sequence[Run]) -> str:
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
    rows = [
        (swatch(colour[run.name], run.name), *(figure(percent(mean([run.summary[part]]))) for part in parts))
        for run in runs
    ]
    heads = [f"{key}: {what}" for key in ("time", "power") for what in ("prior", "last round", "where it worked")]
    return table(("run", *heads), rows)
