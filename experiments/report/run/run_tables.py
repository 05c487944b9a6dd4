"""Tables of one run's report (provenance, knowledge, last round, events), and what of it is emulated, in words."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from experiments.report.page import EMPTY, Section, render_badge, render_paragraph
from experiments.report.quantities import data_size, duration, energy, join_names, number
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_summary import LabelsByEntry
from experiments.report.tables import Cell, Column, Table, build_table, number_cell, swatch_cell, text_cell, value_cell
from fedge.costs.layer_estimate import describe_error
from fedge.decisions.planning import is_pinned
from fedge.errors import format_count
from fedge.experiment import Experiment
from fedge.groups import group_by
from fedge.knowledge.recall import RecalledOrigin, read_run_knowledge
from fedge.telemetry.store_records import ClientRow, EventRow
from fedge.workloads import NULL_TASK

MAX_EVENTS, MAX_CLIENTS = 200, 100
MAX_SOURCE = 120
"""Characters of a source shown at first; the rest can be unfolded."""
NO_EVENTS_NOTE = (
    "No events: no board failed, was dropped or throttled, and every goal was feasible. A round may still end slightly "
    "after its planned deadline, which is not a hard limit."
)
MEASURED_TEXT = Markup(
    "<b>{}:</b> the time, power and temperature of their work, and from their second round on the rate of their link, "
    "where <code>link</code> names none. <b>Emulated:</b> the rest of their network, and their energy while they wait, "
    "from their idle power. <b>Trained:</b> {}, by every board on its own samples. <b>Predicted as:</b> {}, batch {}."
)
EMULATED_TEXT = Markup(
    "<b>Emulated:</b> time, power, temperature and network of the boards, in simulated time; every step costs as much "
    "as a step of {}, batch {}. <b>Trained:</b> {}."
)
TRAINED_TEXT = Markup("{}, by every client on its own partition; {} is that of the aggregated model")
UNTRAINED_TEXT = Markup("nothing (task <code>none</code>): there are no data, no model and no accuracy")
FLOWER_TEXT = Markup(
    "<b>Reported</b> by the nodes of a Flower app, which trains its own model: time and energy of its steps, simulated "
    "on emulated boards, where a step costs as much as a step of {}, batch {}. Transfers are not included."
)
LINKS_TEXT = Markup(" <b>Moved:</b> {}.")


def describe_emulation(run: LoadedRun) -> Markup:
    """Describe what of a run is emulated, measured and trained."""
    work, moved = run.experiment.workload, describe_links(run.labels, encoded=can_encode(run.experiment))
    links = LINKS_TEXT.format(moved) if moved else EMPTY
    if run.experiment.backend == "flower":
        return FLOWER_TEXT.format(work.cost, work.batch_size)
    if run.experiment.backend != "fleet":
        trained = UNTRAINED_TEXT if work.task == NULL_TASK else TRAINED_TEXT.format(work.task, work.metric)
        return EMULATED_TEXT.format(work.cost, work.batch_size, trained) + links
    truths = {label.get("truth", {}).get("label") for label in run.labels.values()}
    some = "Reported by boards, of which some replay recorded folders and measure nothing"
    origin = "Measured by the boards themselves" if truths <= {"measured"} else some
    return MEASURED_TEXT.format(origin, work.task, work.cost, work.batch_size) + links


def can_encode(experiment: Experiment) -> bool:
    """Return whether updates may be sent encoded."""
    kind = experiment.compression.kind
    return kind not in {None, "none"} or (kind is None and experiment.policy.name == "joint")


def describe_origins(summary: Mapping[str, Any]) -> str:
    """Return how many boards have measured, calibrated and estimated figures: ``emulated boards: 2 estimated``."""
    counts = Counter[str]()
    for entry in summary["labels"].values():
        counts[entry.get("truth", {}).get("label", "unknown")] += entry["count"]
    boards = "boards" if summary.get("backend") in {"fleet", "flower"} else "emulated boards"
    return f"{boards}: " + ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))


def describe_estimates(labels: LabelsByEntry) -> Iterator[str]:
    """Yield, if steps are priced from layers, by how much they may be off and what that means for the savings."""
    truths = [label["truth"] for label in labels.values() if "time_error" in label.get("truth", {})]
    if truths:
        error = describe_error(*(max(truth[name] for truth in truths) for name in ("time_error", "power_error")))
        yield f"estimated from layers ({error}): savings are one draw, compare several seeds"


def describe_problems(summary: Mapping[str, Any]) -> str:
    """Describe what a run did not achieve, counted by boards and rounds; empty if there is nothing."""
    goal, turn = ("plan", "task") if summary["asynchronous"] else ("goal", "board round")
    problems = []
    if summary["infeasible"]:
        problems.append(f"{format_count(summary['infeasible'], goal)} that no known mode could meet")
    if summary["late"]:
        lost = f", {summary['late_lost']} of them lost (joined no round)" if summary["late_lost"] else ""
        problems.append(f"{format_count(summary['late'], 'reply')} late{lost}")
    if summary["failed"]:
        problems.append(f"{format_count(summary['failed'], turn)} failed")
    return f"{', '.join(problems)} (of {_describe_total(summary)})" if problems else ""


def _describe_total(summary: Mapping[str, Any]) -> str:
    """Describe the total: tasks in an asynchronous run, otherwise client rounds."""
    rounds, boards, tasks = summary["rounds"], summary["clients"], summary["asked"]
    if summary["asynchronous"]:
        return format_count(tasks, "task")
    if tasks == rounds * boards:
        return f"{format_count(rounds, 'round')} x {format_count(boards, 'board')}"
    return format_count(tasks, "board round")


def describe_links(labels: LabelsByEntry, *, encoded: bool = False) -> str:
    """Describe the model that a round moves and the one that is trained; empty for runs that did not record them."""
    links = {name: label["link"] for name, label in labels.items() if "link" in label}
    if not links:
        return ""
    before = " before the updates are encoded" if encoded else ""
    moved = {
        name: f"{data_size(link['moved_bytes'])} each way{before} ({link['source']})" for name, link in links.items()
    }
    trained = next(iter(links.values()))
    pruned = ", pruned as it is priced," if trained.get("pruned") else ""
    return f"{_join_by_entry(moved)}; the trained model{pruned} has {data_size(trained['trained_bytes'])}"


LOADED = {
    "workers": "image files, decoded during the step",
    "inline": "image files, decoded between steps",
    "cached": "samples in memory",
}
"""What each way of loading adds to the price of a step."""


def describe_costs(labels: LabelsByEntry) -> str:
    """Describe which cost profile and batch size a step is priced as, and how a network's samples are loaded."""
    links = {name: label["link"] for name, label in labels.items()}
    return _join_by_entry(
        {
            name: f"{link['cost']}, batch {link['batch_size']}"
            + (f", loading: {link['loading']} ({LOADED[link['loading']]})" if "loading" in link else "")
            for name, link in links.items()
        }
    )


def _join_by_entry(texts: Mapping[str, str]) -> str:
    """Join the texts of fleet entries; entries are named only where texts differ."""
    names = group_by(texts, texts.__getitem__)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{text} for {', '.join(entries)}" for text, entries in names.items())


def provenance_table(run: LoadedRun) -> Table:
    """Build a table of the provenance of costs and priors per fleet entry."""
    rows = []
    for entry in run.experiment.fleet:
        name = entry.name or entry.device
        labels = run.labels.get(name) or run.labels.get(entry.device) or {}
        device = run.device_by_board[f"{name}-1"]
        words = name if name == device else f"{name} ({device})"
        origins = (_origin_cell(labels.get("truth")), _origin_cell(labels.get("prior")))
        rows.append((swatch_cell(run.styles[device].colour, words), value_cell(entry.count), *origins))
    origin = "time and power" if run.experiment.backend in {"fleet", "flower"} else "emulated time and power"
    return Table("boards", ("board", "count", origin, "prior of predictions"), tuple(rows))


def _origin_cell(origin: Mapping[str, str] | None) -> Cell:
    if not origin:
        return Cell(render_badge("not recorded"))
    label, source = origin.get("label", "not recorded"), origin.get("source", "")
    if len(source) <= MAX_SOURCE:
        return Cell(Markup("{} {}").format(render_badge(label), source))
    head = source[:MAX_SOURCE].rsplit(" ", 1)[0]
    folded = Markup("<details><summary>{} {} …</summary>{}</details>").format(render_badge(label), head, source)
    return Cell(folded, words=f"{label} {source}")


def last_round_table(run: LoadedRun, most: int | None = None) -> Table:
    """Build a table of the boards in the last round, all or at most ``most``, with the reason for each mode."""
    last = run.rounds[-1].round
    rows = [row for row in run.clients if row.round == last]

    def work_s(row: ClientRow) -> float | None:
        return None if row.status == "failed" or row.cores is None else row.work_s

    def colour_of(row: ClientRow) -> str:
        return run.styles[row.device].colour if row.device in run.styles else "transparent"

    columns: tuple[Column[ClientRow], ...] = (
        ("board", lambda row: swatch_cell(colour_of(row), row.board)),
        ("status", lambda row: _status_cell(row.status)),
        ("cores", lambda row: value_cell(row.cores, ",.0f")),
        ("CPU MHz", lambda row: value_cell(row.cpu_mhz, ",.0f")),
        ("GPU MHz", lambda row: value_cell(row.gpu_mhz, ",.0f")),
        ("mem. MHz", lambda row: value_cell(row.mem_mhz, ",.0f")),
        ("work", lambda row: value_cell(work_s(row), duration, "s")),
        ("power", lambda row: number_cell(number(row.power_w, 3, "W"), row.power_w, "W")),
        ("energy", lambda row: value_cell(row.energy_j, energy, "J")),
        ("°C", lambda row: value_cell(row.temperature_c, ".0f")),
        ("why", lambda row: text_cell(row.error or row.why)),
    )
    return build_table("last-round", columns, rows[:most])


def _status_cell(status: str) -> Cell:
    return Cell(Markup('<span class="status {}">{}</span>').format(status, status))


def render_last_round(run: LoadedRun) -> Markup:
    """Render as much of the last round's table as a page shows."""
    count = sum(row.round == run.rounds[-1].round for row in run.clients)
    return last_round_table(run, MAX_CLIENTS).html + _truncation_note(count, MAX_CLIENTS, "boards")


def events_table(run: LoadedRun, most: int = 0) -> Table:
    """Build a table of the latest ``most`` events of a run (0: all), latest last."""
    columns: tuple[Column[EventRow], ...] = (
        ("round", lambda event: value_cell(event.round)),
        ("fleet clock", lambda event: value_cell(event.at_s, duration, "s")),
        ("board", lambda event: text_cell(event.board or "fleet")),
        ("kind", lambda event: _status_cell(event.kind)),
        ("message", lambda event: text_cell(event.message)),
    )
    return build_table("events", columns, run.events[-most:])


def render_events(run: LoadedRun) -> Markup:
    """Render as many of the events as a page shows."""
    if not run.events:
        return render_paragraph(NO_EVENTS_NOTE)
    return events_table(run, MAX_EVENTS).html + _truncation_note(len(run.events), MAX_EVENTS, "events: the latest")


def _truncation_note(count: int, limit: int, what: str) -> Markup:
    return render_paragraph(f"{limit} of {count:,} {what}.", "caption") if count > limit else EMPTY


LEAD = "Measurements of earlier runs and profiles that the boards started from."
MAX_NAMES = 5


def summarize_knowledge(experiment: Experiment, folder: Path, clients: Sequence[ClientRow]) -> dict[str, Any]:
    """Return what a run recalled, for its summary; empty if it took part in no knowledge.

    The probes saved are an upper bound: each recalled mode spares a probe, up to the most that a client may probe in
    these rounds, less the probes that were made all the same.
    """
    known = read_run_knowledge(folder)
    if not known.folder and not known.origins:
        return {}
    warm = {board: {one.mode for one in rows} for board, rows in known.own.items() if rows}
    rows = {board: [row for row in clients if row.board == board] for board in warm}
    contradicted: dict[str, int] = {}
    if not is_pinned(experiment.policy.name):
        for board, own in rows.items():
            # The board's own measurements contradicted what it recalled, and it dropped that.
            dropped = [row.round for row in own if row.own_samples is not None and not row.recalled_samples]
            if dropped:
                contradicted[board] = min(dropped)
    exploration = experiment.exploration
    saved = {
        board: max(
            0,
            min(len(modes), exploration.modes or len(modes), exploration.probes * len(rows[board]))
            - sum(row.probes for row in rows[board]),
        )
        for board, modes in warm.items()
        if board not in contradicted
    }
    return {
        "folder": known.folder,
        "boards": len(warm),
        "measurements": sum(map(len, known.own.values())),
        "peers": len(known.peers),
        "contradicted": contradicted,
        "probes_saved": sum(saved.values()),
        "origins": {board: [dataclasses.asdict(one) for one in origins] for board, origins in known.origins.items()},
        "notes": list(known.notes),
    }


def describe_knowledge(knowledge: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines for the terminal."""
    if not knowledge:
        return
    wrong, used = knowledge["contradicted"], ", ".join(_list_recalled(knowledge))
    if not knowledge["boards"] and not knowledge["peers"]:
        fits = f"only {used}" if used else f"nothing fits in {knowledge['folder']}"
        yield f"knowledge: {fits}; what this run measured is there for the next"
    elif used:
        probes = knowledge["probes_saved"]
        saved = f"; at most {format_count(probes, 'probe')} saved" if probes else ""
        yield f"knowledge: {used}{saved}"
    if wrong:
        names = ", ".join([*sorted(wrong)[:MAX_NAMES], *(["..."] if len(wrong) > MAX_NAMES else [])])
        yield f"note: what was known of {names} contradicts the first measurements and was dropped; see the report"
    yield from (f"note: {line}" for line in knowledge["notes"])


def _list_recalled(knowledge: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the boards started from; what none of them had is left out."""
    own, peers = knowledge["boards"] - len(knowledge["contradicted"]), knowledge["peers"]
    if own:
        yield f"{format_count(own, 'board')} started from {'its' if own == 1 else 'their'} own earlier measurements"
    if peers:
        yield f"measurements of {format_count(peers, 'other board')} of the same kinds"
    origins = (one for of_board in knowledge["origins"].values() for one in of_board)
    tables = len({one["entry"] for one in origins if one["relation"] == "other workload"})
    if tables:
        yield f"{format_count(tables, 'reference table')} of other workloads"


def origin_table(run: LoadedRun) -> Table:
    """Build a table of the entries that the boards started from."""
    known = run.summary.get("knowledge") or {}
    boards: dict[RecalledOrigin, list[str]] = {}
    for board, origins in (known.get("origins") or {}).items():
        for origin in origins:
            boards.setdefault(RecalledOrigin(**origin), []).append(board)
    wrong = known.get("contradicted") or {}

    columns: tuple[Column[tuple[RecalledOrigin, list[str]]], ...] = (
        ("board", lambda one: text_cell(join_names(one[1], MAX_NAMES))),
        ("measured on", lambda one: text_cell(f"{one[0].relation}: {one[0].board}")),
        ("rows", lambda one: value_cell(one[0].rows)),
        ("what", lambda one: _form_cell(one[0])),
        ("date", lambda one: text_cell(one[0].date[:10])),
        ("entry", lambda one: text_cell(one[0].entry)),
        ("use", lambda one: text_cell(_describe_use(*one, wrong))),
    )
    return build_table("knowledge", columns, boards.items())


def _form_cell(origin: RecalledOrigin) -> Cell:
    badge = Markup("{} {}").format(render_badge(origin.label), origin.form)
    return Cell(badge, words=f"{origin.label} {origin.form}")


def _describe_use(origin: RecalledOrigin, names: Sequence[str], wrong: Mapping[str, int]) -> str:
    if origin.relation == "other workload":
        return "as a reference table"
    if origin.relation == "same kind":
        return "as of another board, while it agrees"
    rounds = [f"{name} in round {wrong[name]}" for name in names if name in wrong]
    return f"contradicted and dropped: {', '.join(rounds)}" if rounds else "as its own"


def build_knowledge_sections(run: LoadedRun) -> Iterator[Section]:
    """Yield the section; none for a run that took part in no knowledge."""
    known = run.summary.get("knowledge")
    if known:
        lines = Markup().join(render_paragraph(line) for line in describe_knowledge(known))
        yield Section("Knowledge", LEAD, (), lines + origin_table(run).html)
