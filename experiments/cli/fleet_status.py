"""``fedge fleet status``: queries every host, prints a table of the boards, and the problems with remedies."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.cli import fleet_options
from experiments.cli.command_output import check_output
from experiments.cli.fleet_options import FleetOptions
from experiments.cli.fleet_options import SelectedFleet as Chosen
from experiments.cli.fleet_playbook import log_path
from experiments.fleet import inventory
from experiments.fleet.answer_progress import AnswerProgress
from experiments.fleet.playbook_events import PlaybookEvent, PlaybookState
from experiments.fleet.playbook_runner import PlaybookCall, PlaybookOutcome, execute_playbook
from experiments.fleet.status.clock_offset import format_duration
from experiments.fleet.status.fleet_assessment import assess_fleet
from experiments.fleet.status.status_records import BoardStatus, ControlNode, FleetHosts, FleetStatus, ServerStatus
from fedge import __version__, powerd, worker
from fedge.errors import BadInput, RunFailed

STATUS_PLAYBOOK = "status.yml"
TABLE_WIDTH = 100
DAY_S = 86_400.0
MAX_NAMES = 8
"""Boards that a note names before it counts the rest; a default that keeps a note on one line."""


def _state_word(board: BoardStatus) -> str:
    if not board.is_healthy:
        return "wrong" if board.state == "up" else board.state
    return "noted" if board.findings else "well"


def _format_whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _format_clock_offset(board: BoardStatus) -> str:
    """Format the clock offset; zero if it is within its uncertainty."""
    if board.offset_s is None or board.give_s is None:
        return ""
    if abs(board.offset_s) <= board.give_s:
        return "same"
    return f"{'+' if board.offset_s > 0 else '-'}{format_duration(abs(board.offset_s))}"


def _format_message_age(board: BoardStatus) -> str:
    return "" if board.heard_s is None else format_duration(max(0.0, board.heard_s))


def _format_days(left_s: float | None) -> str:
    """Format the remaining whole days; zero if expired."""
    return "" if left_s is None else f"{max(0.0, left_s) // DAY_S:.0f} d"


VERSION_COLUMNS = ("fedge", "flwr")
STATUS_COLUMNS: Sequence[tuple[str, Callable[[BoardStatus], str]]] = (
    ("board", lambda board: board.name),
    ("is", _state_word),
    ("node", lambda board: board.node or ""),
    *((name, lambda board, name=name: board.versions.get(name, "")) for name in VERSION_COLUMNS),
    ("powerd", lambda board: board.powerd or ""),
    ("worker", lambda board: board.worker or ""),
    ("mode", lambda board: board.preset or ("own" if board.mode else "")),
    ("C", lambda board: _format_whole(board.temperature_c)),
    ("free", lambda board: "" if board.free_mb is None else f"{board.free_mb / 1000:.1f}G"),
    ("clock", _format_clock_offset),
    ("heard", _format_message_age),
    ("cert", lambda board: _format_days(board.certificate_left_s)),
    # "NAME (FOLDER, TOKEN)": the JSON file has the full text.
    ("run", lambda board: (board.run or "").partition(" (")[0]),
)
"""Columns of the table: heading and cell."""
MAX_NAME_WIDTH = 16
"""Width of the name column; a default that leaves room for the other columns on 80 characters."""

PlaybookRunner = Callable[[PlaybookCall, Path, Callable[[PlaybookState, PlaybookEvent], None]], PlaybookOutcome]


@dataclass(frozen=True, slots=True)
class FleetAnswers:
    """Facts collected from the hosts.

    Attributes:
        fleet: Names in the inventory.
        answers: Collected record by host.
        unreachable: Reason by host without a record.
    """

    fleet: FleetHosts
    answers: Mapping[str, Any] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)


def report_status(options: FleetOptions, out: Path | None = None) -> bool:
    """Query the hosts, print table and findings, and optionally write JSON.

    Args:
        options: The fleet.
        out: JSON file, or None.

    Returns:
        Whether the fleet is healthy.
    """
    check_output("--json", out, "{")
    chosen = fleet_options.read_fleet(options)
    log = log_path(os.environ, "status", time.time(), os.getpid())
    asked = query_hosts(chosen, log, Console(stderr=True))
    status = assess_fleet(asked.fleet, asked.answers, local_versions(), asked.unreachable)
    print_status(Console(), status)
    if out is not None:
        write_status(out, status)
    return status.is_healthy


def local_versions() -> ControlNode:
    """Return the versions and protocols of this control node."""
    return ControlNode(__version__, version("flwr"), powerd.PROTOCOL, worker.PROTOCOL)


def query_hosts(chosen: Chosen, log: Path, console: Console, run: PlaybookRunner = execute_playbook) -> FleetAnswers:
    """Run the status playbook and read the records it wrote; unreachable hosts do not make it fail.

    Args:
        chosen: The fleet.
        log: File for Ansible's output.
        console: Console for the progress line.
        run: Runs the playbook.
    """
    server = chosen.inventory.server.name
    gone: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="fedge-status-") as temporary:
        folder = Path(temporary)

        def hear(state: PlaybookState, _event: PlaybookEvent) -> None:
            gone.update(state.failures_by_host)

        def done() -> frozenset[str]:
            return frozenset((*gone, *(path.stem for path in folder.glob("*.json"))))

        with AnswerProgress(console, (server, *chosen.boards), done):
            outcome = run(_build_status_call(chosen, folder), log, hear)
        told = dict(read_answers(folder))
    lost = {name: event.text for name, event in outcome.state.failures_by_host.items()}
    if not told and not lost:
        said = outcome.words or f"Ansible ended with {outcome.code}"
        raise RunFailed(f"no host could be asked: {said}; all of it is in {log}")
    return FleetAnswers(FleetHosts(chosen.inventory.board_names, chosen.boards, server), told, lost)


def _build_status_call(chosen: Chosen, folder: Path) -> PlaybookCall:
    call = chosen.build_call(STATUS_PLAYBOOK)
    # The server is always queried, because its view of a board is part of the board's status.
    limit = f"{call.limit},{inventory.SERVER}" if call.limit else None
    return replace(call, limit=limit, variables={"status_to": str(folder)})


def read_answers(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield host and content of each file that the playbook wrote."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield path.stem, json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError):
            yield path.stem, {"facts": {"kind": "failed", "text": "its answer is no JSON"}}


# Shown


def print_status(console: Console, status: FleetStatus) -> None:
    """Print the table of boards, a line on the server, and the findings of unhealthy hosts."""
    used = [(head, cell) for head, cell in STATUS_COLUMNS if _is_informative(head, cell, status.boards)]
    table = Table(box=None, padding=(0, 1, 0, 0))
    for head, _ in used:
        table.add_column(head, overflow="ellipsis", no_wrap=True, max_width=MAX_NAME_WIDTH)
    for board in status.boards:
        style = "" if board.is_healthy else "red"
        table.add_row(*(Text(cell(board), style=style) for _, cell in used))
    console.print(table, width=min(TABLE_WIDTH, console.width))
    if status.server is not None:
        console.print(Text(_describe_server(status.server)))
    hosts: list[BoardStatus | ServerStatus] = [*([status.server] if status.server else []), *status.boards]
    for host in hosts:
        if not host.is_healthy:
            _print_findings(console, host)
    _print_notes(console, [host for host in hosts if host.is_healthy])
    unwell = sum(not board.is_healthy for board in status.boards)
    console.print(Text(f"\n{len(status.boards)} boards, {unwell} with something wrong"))


def _is_informative(head: str, cell: Callable[[BoardStatus], str], boards: Sequence[BoardStatus]) -> bool:
    """Return whether a column is worth showing; a version that is equal everywhere is not."""
    said = {cell(board) for board in boards} - {""}
    return len(said) > (1 if head in VERSION_COLUMNS else 0)


def _describe_server(server: ServerStatus) -> str:
    services = ", ".join(f"{name} {state}" for name, state in server.services.items()) or server.state
    return f"server {server.name}: {services}; runs: {', '.join(server.runs) or 'none'}"


def _print_findings(console: Console, host: BoardStatus | ServerStatus) -> None:
    """Print all findings of an unhealthy host."""
    console.print(Text(f"\n{host.name}"))
    for finding in host.findings:
        console.print(Text(f"  {finding.severity}: {finding.what}"), soft_wrap=True)
        if finding.cure:
            console.print(Text(f"    do: {finding.cure}"), soft_wrap=True)


def _print_notes(console: Console, hosts: Sequence[BoardStatus | ServerStatus]) -> None:
    """Print the notes on healthy hosts, each once with the hosts that it applies to."""
    noted: dict[str, list[str]] = {}
    for host in hosts:
        for finding in host.findings:
            noted.setdefault(finding.what, []).append(host.name)
    for what, names in noted.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        console.print(Text(f"note: {', '.join(names[:MAX_NAMES])}{more}: {what}"), soft_wrap=True)


def write_status(out: Path, status: FleetStatus) -> None:
    """Write the records as JSON, atomically."""
    made = out.with_name(f".{out.name}.new")
    hosts = [{**asdict(board), "well": board.is_healthy} for board in status.boards]
    server = None if status.server is None else {**asdict(status.server), "well": status.server.is_healthy}
    text = json.dumps(
        _to_json_value({"well": status.is_healthy, "server": server, "boards": hosts}), indent=2, allow_nan=False
    )
    try:
        made.write_text(f"{text}\n", encoding="utf-8")
        made.replace(out)
    except OSError as error:
        raise BadInput("--json", f"{out} ({error.strerror})", "a file that you may write") from error
    finally:
        made.unlink(missing_ok=True)


def _to_json_value(value: Any) -> Any:
    """Convert a value to valid JSON: lone surrogates, which a host may have sent, and infinities are replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_to_json_value(str(key)): _to_json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
