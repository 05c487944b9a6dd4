"""Terminal view of a running experiment: round, simulated time, energy, and every board's last mode."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from experiments.report.quantities import (
    UNKNOWN,
    duration,
    energies,
    energy,
    format_metric,
    join_names,
    mean,
    number,
    percent,
)
from experiments.report.tables import print_facts, print_lines
from fedge import phases
from fedge.experiment import Experiment, list_boards
from fedge.telemetry.run_folder import STORE
from fedge.telemetry.savings import Baseline, share_of_saving
from fedge.telemetry.store_reader import compute_store_stamp, read_new_rounds, read_rows
from fedge.telemetry.store_records import WAITING, ClientRow, EventRow, RoundRow, relative_error

STATUS_STYLES = {"late": "red", "failed": "red", "cancelled": "magenta"}
MAX_ROWS = 20
"""Largest fleet listed board by board; larger ones are shown by kind."""
MAX_LOWERED_NAMES = 3
"""Boards with reduced memory settings that the summary names; a default that keeps the list on one line."""


class LiveView:
    """Live table on a terminal, or one plain line per round otherwise.

    ``refresh`` may be called as often as desired; the store is read again only after it changed.
    """

    def __init__(self, folder: Path, experiment: Experiment, console: Console) -> None:
        self._folder, self._experiment, self._console = folder, experiment, console
        self._started_s = time.monotonic()
        self._live: Live | None = None
        self._cell: Any = None
        """Output of a notebook's cell that is replaced after every round."""
        self._stamp: tuple[tuple[str, int, int], ...] = ()
        self._rounds: list[RoundRow] = []
        self._clients: list[ClientRow] = []
        self._last_printed = 0
        self._phase = ""

    def __enter__(self) -> Self:
        self._read()
        self._last_printed = self._rounds[-1].round if self._rounds else 0
        phases.add_listener(self._note_phase)
        if self._console.is_jupyter:
            from IPython.display import display

            self._cell = display(self._render(), display_id=True)  # type: ignore[no-untyped-call]
        elif self._console.is_terminal:
            self._live = Live(self._render(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_error: object) -> None:
        phases.remove_listener(self._note_phase)
        self.refresh()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def refresh(self) -> None:
        """Show the current contents of the run folder."""
        changed = self._read()
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
        elif self._cell is not None:
            if changed:
                self._cell.update(self._render())
        elif changed:
            self._print_new_rounds()

    def _note_phase(self, name: str, *, announce: bool) -> None:
        self._phase = name
        if self._cell is not None and not self._rounds:
            self._cell.update(self._render())

    def _read(self) -> bool:
        """Read the store if there is a new round, whose row is written after its clients' rows."""
        stamp = compute_store_stamp(self._folder, *((RoundRow,) if self._rounds else (RoundRow, EventRow)))
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self._rounds = read_new_rounds(self._folder, self._rounds)
        done = self._rounds[-1].round if self._rounds else 0
        waiting = [] if done else [row for row in read_rows(self._folder, EventRow) if row.kind == WAITING]
        if waiting:
            phases.begin_phase(waiting[-1].message, announce=True)
        elif done < self._experiment.rounds and (self._folder / STORE).is_dir():
            # The first one is announced: it also loads the data and the networks.
            phases.begin_phase(f"round {done + 1} of {self._experiment.rounds}", announce=done == 0)
        elif done == self._experiment.rounds:
            phases.begin_phase("ending the run")  # clients and servers stop
        if self._rounds:  # without reading the rows of other rounds
            rows = read_rows(self._folder, ClientRow, since_round=done)
            self._clients = [row for row in rows if row.round == done]
        return True

    def _render(self) -> RenderableType:
        elapsed_s = time.monotonic() - self._started_s
        return render_fleet(self._experiment, self._rounds, self._clients, elapsed_s, phase=self._phase)

    def _print_new_rounds(self) -> None:
        spent_j = 0.0
        for row in self._rounds:
            spent_j += row.energy_j
            if row.round > self._last_printed:
                print_lines(self._console, [_format_round(row, self._experiment, spent_j)])
                self._last_printed = row.round


def _format_round(row: RoundRow, experiment: Experiment, spent_j: float) -> str:
    deadline = "" if row.deadline_s is None else f" of {duration(row.deadline_s)}"
    trouble = "".join(f"  {count} {word}" for count, word in _count_losses(row))
    metric = experiment.workload.metric
    reached = "" if row.accuracy is None else f"  {metric} {format_metric(metric, row.accuracy)}"
    reached += "" if row.client_accuracy is None else f"  on clients {format_metric(metric, row.client_accuracy)}"
    return (
        f"round {row.round}/{experiment.rounds}{reached}  time {duration(row.round_s)}{deadline}"
        f"  energy {energy(row.energy_j)} (sum {energy(spent_j)})  clock {duration(row.end_s)}"
        f"  straggler {row.straggler or UNKNOWN}{trouble}"
    )


def _count_losses(row: RoundRow) -> tuple[tuple[int, str], ...]:
    """Return the nonzero numbers of late, failed and cancelled clients, each with its word."""
    counts = ((row.late, "late"), (row.failed, "failed"), (row.cancelled, "cancelled"))
    return tuple((count, word) for count, word in counts if count)


def render_fleet(
    experiment: Experiment,
    rounds: Sequence[RoundRow],
    clients: Sequence[ClientRow],
    elapsed_s: float,
    phase: str = "",
) -> RenderableType:
    """Render the fleet's line and the table of boards after the last round, whose rows are ``clients``.

    Before the first round, ``phase`` says what is being done.
    """
    done = rounds[-1].round if rounds else 0
    head = Table.grid(padding=(0, 2))
    title = Text.assemble(
        (experiment.name, "bold"),
        f"  {experiment.policy.name}  ",
        (duration(int(elapsed_s), 1), "dim"),
    )
    head.add_row(title, Text(f"round {done}/{experiment.rounds}"), ProgressBar(experiment.rounds, done, width=24))
    parts = (
        (_format_fleet(rounds, experiment.workload.metric), _board_table(experiment, clients))
        if rounds
        else (Text(phase or "waiting for the first round", style="dim"),)
    )
    view = Table.grid()  # not a Group, which a notebook cannot show
    for part in (head, *parts):
        view.add_row(part)
    return view


def _format_fleet(rounds: Sequence[RoundRow], metric: str) -> RenderableType:
    last = rounds[-1]
    deadline = "no deadline" if last.deadline_s is None else f"deadline {duration(last.deadline_s)}"
    facts = (
        *([] if last.accuracy is None else [(metric, format_metric(metric, last.accuracy))]),
        ("fleet clock", duration(last.end_s)),
        ("last round", f"{duration(last.round_s)} ({deadline})"),
        ("energy", f"{energy(sum(row.energy_j for row in rounds))}"),
        ("straggler", last.straggler or UNKNOWN),
    )
    line = Text("  ").join(Text.assemble((f"{name} ", "dim"), value) for name, value in facts)
    if last.available is not None and last.available > last.selected:
        line.append(f"  {last.selected} of {last.available} boards", style="dim")
    for count, word in _count_losses(last):
        line.append(f"  {count} {word}", style="magenta" if word == "cancelled" else "bold red")
    return line


def _board_table(experiment: Experiment, clients: Sequence[ClientRow]) -> Table:
    kinds = {board.name: board.entry.device for board in list_boards(experiment)}
    if len(clients) > MAX_ROWS:
        return _kind_table(kinds, clients)
    place = {board: i for i, board in enumerate(kinds)}
    # Most boards are named after their kind; a column that repeats it would not fit 80 characters.
    show_kind = any(not board.startswith(kind) for board, kind in kinds.items())
    heads = ("cores/CPU/GPU/mem. MHz", "work", "power", "time error", "power error")
    table = _make_table("board", *(("kind",) if show_kind else ()), *heads)
    for row in sorted(clients, key=lambda row: place.get(row.board, len(place))):
        style = STATUS_STYLES.get(row.status, "")
        names = [Text(row.board), *([Text(row.device or kinds.get(row.board, ""))] if show_kind else [])]
        if row.status == "failed" or row.cores is None:
            table.add_row(*names, Text(f"{row.status}: {row.error or ''}", style))
            continue
        if style:
            names[0].append(f" {row.status}", style)
        mode = f"{row.cores}/{row.cpu_mhz or 0:.0f}/{row.gpu_mhz or 0:.0f}/{row.mem_mhz or 0:.0f}"
        table.add_row(*names, mode, *_format_figures([row]))
    return table


def _kind_table(kinds: dict[str, str], clients: Sequence[ClientRow]) -> Table:
    table = _make_table("kind", "boards", "mean work", "mean power", "time error", "power error")
    for kind in dict.fromkeys(kinds.values()):
        rows = [row for row in clients if (row.device or kinds.get(row.board)) == kind]
        if rows:
            count = Text(f"{len(rows)}")
            lost = sum(row.status in {"late", "failed"} for row in rows)
            stopped = sum(row.status == "cancelled" for row in rows)
            for number_, word, status in ((lost, "late or failed", "late"), (stopped, "cancelled", "cancelled")):
                if number_:
                    count.append(f" ({number_} {word})", STATUS_STYLES[status])
            known = [row for row in rows if row.status != "failed" and row.cores is not None]
            table.add_row(Text(kind), count, *_format_figures(known))
    return table


def _make_table(*heads: str) -> Table:
    """Create a table whose cells wrap on a narrow terminal; none is cut."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in {"board", "kind"} else "right", overflow="fold")
    return table


def _format_figures(rows: Sequence[ClientRow]) -> tuple[str, str, str, str]:
    return (
        duration(mean(row.work_s for row in rows)),
        number(mean(row.power_w for row in rows), 3, "W"),
        percent(mean(relative_error(row.predicted_step_s, row.step_s) for row in rows)),
        percent(mean(relative_error(row.predicted_power_w, row.power_w) for row in rows)),
    )


def print_run_summary(console: Console, summary: dict[str, Any]) -> None:
    """Print a finished run's headline figures, as in its report."""
    rounds = summary.get("rounds", 0)
    length = f"{rounds} round{'s' * (rounds != 1)}"
    print_lines(console, [f"{summary.get('name', '')}: {summary.get('policy', '')}, {length}"], "bold")
    facts = [*_list_headline_facts(summary), *_list_special_facts(summary)]
    if summary.get("report") is not None:
        facts.append(("report", str(summary["report"])))
    print_facts(console, facts, label_style="dim")


def _list_headline_facts(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    length, metric = summary.get("round_vs_maxn"), summary.get("metric", "accuracy")
    if summary.get("final_accuracy") is not None:
        yield metric, format_metric(metric, summary["final_accuracy"])
    if summary.get("evaluation_energy_j") is not None:
        cost = f"{energy(summary['evaluation_energy_j'])}, {duration(summary['evaluation_s'])}"
        reached = format_metric(metric, summary["final_client_accuracy"])
        yield f"{metric} on clients", f"{reached} (all evaluations: {cost})"
    spent_j, resting_j = summary.get("energy_j"), summary.get("resting_energy_j")
    idle = f", plus {energy(resting_j)} of idle boards" if spent_j is not None and resting_j else ""
    yield "energy", energy(spent_j) + idle
    if summary.get("energy_cost") is not None:
        cost = number(summary["energy_cost"], unit=summary["energy_cost_unit"])
        yield "cost of the energy", f"{cost}, computed from the given signal"
    yield "saving vs MAXN", _format_saving(summary, "maxn")
    yield "saving vs MAXN, low idle", _format_saving(summary, "maxn_parked")
    against_maxn = "" if length is None else f", {length:.2f} × MAXN's"
    yield "mean round", duration(summary.get("mean_round_s")) + against_maxn
    yield "makespan", f"{duration(summary.get('makespan_s'))} on the fleet clock"
    if summary.get("wall_s") is not None:
        yield "wall time", duration(summary["wall_s"])


def _list_special_facts(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    lost = [str(summary.get(key) or 0) for key in ("late", "failed", "cancelled")]
    if set(lost) != {"0"}:
        yield "late, failed, cancelled", ", ".join(lost)
    if refused := summary.get("refused"):
        spent = energy(summary.get("refused_energy_j"))
        yield "refused", f"results of {refused} clients' rounds ({spent}), for what they held; see the events"
    if staleness := summary.get("mean_staleness"):
        yield "mean staleness", f"{number(staleness, 3)} models"
    if budget_j := summary.get("budget_j"):
        resting_j = summary.get("resting_energy_j") or 0.0
        budget, resting = energies(budget_j, resting_j)
        besides = f", {resting} of it by boards at rest" if resting_j else ""
        yield "energy budget", f"{percent(summary.get('budget_spent'))} of {budget} spent{besides}"
    requests = summary.get("requests")
    if requests is not None:
        held, unanswered = percent(summary.get("latency_held"), 0), summary.get("dropped_requests") or 0
        dropped = f", {unanswered:,} dropped" if unanswered else ""
        late = f"{requests:,} requests, {summary.get('late_requests') or 0:,} late{dropped}"
        yield "served", f"{late}; 99th percentile within its budget in {held} of board-rounds"
    yield from _list_memory_facts(summary)
    if summary.get("ended") is not None:
        yield "ended", summary["ended"]


def _list_memory_facts(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    lowered, failures = summary.get("lowered"), summary.get("out_of_memory")
    boards: dict[str, list[str]] = {}
    for board, one in (lowered or {}).items():
        until = f", until round {one['round']}" if one["round"] < summary["rounds"] else ""
        boards.setdefault(f"{one['why']}{until}", []).append(board)
    if boards or failures:
        reduced = "; ".join(f"{join_names(names, MAX_LOWERED_NAMES)} {why}" for why, names in boards.items())
        yield "reduced for memory", reduced or f"none; out of memory {failures} times"
    if summary.get("link_mbps") is not None:
        yield "links", f"about {number(summary['link_mbps'], 3)} Mbit/s, estimated from the transfers"
    left_out = (summary.get("left_out") or {}).items()
    named = [f"{board} after round {one['round']}: {one['why']}" for board, one in left_out]
    if named:
        more = f"; and {len(named) - MAX_LOWERED_NAMES} more" if len(named) > MAX_LOWERED_NAMES else ""
        yield "left out", "; ".join(named[:MAX_LOWERED_NAMES]) + more


def _format_saving(summary: dict[str, Any], baseline: Baseline) -> str:
    """Format the saving, its share of the oracle's saving or why there is none, and the rounds that it covers."""
    saving, oracle = summary.get(f"saving_vs_{baseline}"), summary.get(f"oracle_saving_vs_{baseline}")
    found = share_of_saving(saving, oracle, summary.get("policy", ""))
    why = f" ({found.why})" if found.why else ""
    if saving is None:
        return f"{UNKNOWN}{why}"
    rounds, compared = summary.get("rounds"), summary.get("compared_rounds")
    over = f", over {compared} of {rounds} rounds" if compared and compared != rounds else ""
    share = "" if found.share is None else f", {percent(found.share, 0)} of the oracle's saving"
    return f"{percent(saving)}{share}{over}{why}"
