"""``fedge fleet status``: queries every host, prints a table of the boards, and the problems with remedies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.cli.command_output import Outputs, make_progress_console
from experiments.cli.fleet_playbook import log_path
from experiments.fleet.fleet_assessment import fleet_status_to_dict, inspect_fleet
from experiments.fleet.selected_fleet import FleetOptions
from experiments.fleet.status_records import (
    ON_BOARD,
    ON_SERVER,
    BoardStatus,
    FleetStatus,
    ServerStatus,
    format_duration,
)
from experiments.report.tables import print_lines
from fedge.errors import format_count
from fedge.groups import group_pairs

TABLE_WIDTH = 100
DAY_S = 86_400.0
MAX_NAMES = 8
"""Boards that a note names before it counts the rest; a default that keeps a note on one line."""


def _state_word(board: BoardStatus) -> str:
    if not board.is_healthy:
        return "fault" if board.state == "up" else board.state
    return "note" if board.findings else "ok"


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
    ("state", _state_word),
    ("node", lambda board: board.node or ""),
    *((name, lambda board, name=name: board.versions.get(name, "")) for name in VERSION_COLUMNS),
    ("powerd", lambda board: board.powerd or ""),
    ("worker", lambda board: board.worker or ""),
    ("mode", lambda board: board.preset or ("own" if board.mode else "")),
    ("°C", lambda board: _format_whole(board.temperature_c)),
    ("free", lambda board: "" if board.free_mb is None else f"{board.free_mb / 1000:.1f}G"),
    ("clock", _format_clock_offset),
    ("seen", _format_message_age),
    ("cert", lambda board: _format_days(board.certificate_left_s)),
    # "NAME (FOLDER, TOKEN)": the JSON file has the full text.
    ("run", lambda board: (board.run or "").partition(" (")[0]),
)
"""Columns of the table: heading and cell."""
MAX_NAME_WIDTH = 16
"""Width of the name column; a default that leaves room for the other columns on 80 characters."""


def report_status(options: FleetOptions, outputs: Outputs) -> bool:
    """Query the hosts and deliver their state; return whether the fleet is healthy."""
    outputs.check("{")
    log = log_path(os.environ, "status", time.time(), os.getpid())
    status = inspect_fleet(options, log, make_progress_console())
    outputs.deliver(fleet_status_to_dict(status), lambda console: print_status(console, status))
    return status.is_healthy


def print_status(console: Console, status: FleetStatus) -> None:
    """Print the table of boards, a line on the server, and the findings of unhealthy hosts."""
    used = [(head, cell) for head, cell in STATUS_COLUMNS if _is_informative(head, cell, status.boards)]
    table = Table(box=None, padding=(0, 1, 0, 0))
    most = MAX_NAME_WIDTH if console.is_terminal else None
    for head, _ in used:
        table.add_column(head, overflow="ellipsis", no_wrap=True, max_width=most)
    for board in status.boards:
        style = "" if board.is_healthy else "red"
        table.add_row(*(Text(cell(board), style=style) for _, cell in used))
    console.print(table, width=min(TABLE_WIDTH, console.width) if console.is_terminal else None, crop=False)
    if status.server is not None:
        console.print(Text(_describe_server(status.server)))
    hosts: list[BoardStatus | ServerStatus] = [*([status.server] if status.server else []), *status.boards]
    for host in hosts:
        if not host.is_healthy:
            _print_findings(console, host, status.server.login if status.server is not None else "")
    _print_notes(console, [host for host in hosts if host.is_healthy])
    unwell = sum(not board.is_healthy for board in status.boards)
    console.print(Text(f"\n{format_count(len(status.boards), 'board')}, {unwell} with a fault"))


def _is_informative(head: str, cell: Callable[[BoardStatus], str], boards: Sequence[BoardStatus]) -> bool:
    """Return whether a column is worth showing; a version that is equal everywhere is not."""
    values = {cell(board) for board in boards} - {""}
    return len(values) > (1 if head in VERSION_COLUMNS else 0)


def _describe_server(server: ServerStatus) -> str:
    services = ", ".join(f"{name} {state}" for name, state in server.services.items()) or server.state
    return f"server {server.name}: {services}; runs: {', '.join(server.runs) or 'none'}"


def _print_findings(console: Console, host: BoardStatus | ServerStatus, server_login: str) -> None:
    """Print the findings with their remedies, and how to log in where a remedy needs it."""
    console.print(Text(f"\n{host.name}"))
    for finding in host.findings:
        print_lines(console, [f"  {finding.severity}: {finding.what}"])
        if finding.cure:
            print_lines(console, [f"    do: {finding.cure}"])
    for where, login in ((ON_BOARD, host.login), (ON_SERVER, server_login)):
        if any(f"{where}:" in finding.cure for finding in host.findings):
            print_lines(console, [f"  {where}: ssh {login}"])


def _print_notes(console: Console, hosts: Sequence[BoardStatus | ServerStatus]) -> None:
    """Print the notes on healthy hosts, each once with the hosts that it applies to."""
    noted = group_pairs((finding.what, host.name) for host in hosts for finding in host.findings)
    for what, names in noted.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        print_lines(console, [f"note: {', '.join(names[:MAX_NAMES])}{more}: {what}"])
