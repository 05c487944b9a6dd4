"""``fedge fleet status``: ask every host, then a table of the boards and, below it, what is wrong and what to do."""

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

from experiments.commands import fleet_choice
from experiments.commands.fleet_choice import Fleet as Chosen
from experiments.commands.fleet_choice import Options
from experiments.commands.fleet_playbook import log_path
from experiments.commands.outputs import check_output
from experiments.fleet import inventory
from experiments.fleet.events import Event, State
from experiments.fleet.playbooks import Call, Outcome, play
from experiments.fleet.status.clocks import duration
from experiments.fleet.status.judging import judged
from experiments.fleet.status.records import Board, Fleet, Own, Server, Status
from experiments.fleet.waiting import Waiting
from fedge import __version__, powerd, worker
from fedge.errors import BadInput, RunFailed

PLAYBOOK = "status.yml"
WIDTH = 100
DAY_S = 86_400.0
MOST_NAMES = 8
"""Boards that a note names before it counts them. Chosen by us."""


def _is(board: Board) -> str:
    if not board.well:
        return "wrong" if board.state == "up" else board.state
    return "noted" if board.findings else "well"


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _offset(board: Board) -> str:
    """The clock's offset, or that it is nought as far as can be told."""
    if board.offset_s is None or board.give_s is None:
        return ""
    if abs(board.offset_s) <= board.give_s:
        return "same"
    return f"{'+' if board.offset_s > 0 else '-'}{duration(abs(board.offset_s))}"


def _heard(board: Board) -> str:
    return "" if board.heard_s is None else duration(max(0.0, board.heard_s))


def _days(left_s: float | None) -> str:
    """Whole days that are left; none of one that has ended."""
    return "" if left_s is None else f"{max(0.0, left_s) // DAY_S:.0f} d"


VERSIONS = ("fedge", "flwr")
COLUMNS: Sequence[tuple[str, Callable[[Board], str]]] = (
    ("board", lambda board: board.name),
    ("is", _is),
    ("node", lambda board: board.node or ""),
    *((name, lambda board, name=name: board.versions.get(name, "")) for name in VERSIONS),
    ("powerd", lambda board: board.powerd or ""),
    ("worker", lambda board: board.worker or ""),
    ("mode", lambda board: board.preset or ("own" if board.mode else "")),
    ("C", lambda board: _rounded(board.temperature_c)),
    ("free", lambda board: "" if board.free_mb is None else f"{board.free_mb / 1000:.1f}G"),
    ("clock", _offset),
    ("heard", _heard),
    ("cert", lambda board: _days(board.certificate_left_s)),
    # "NAME (FOLDER, TOKEN)": its file has all of it.
    ("run", lambda board: (board.run or "").partition(" (")[0]),
)
"""A column's head, and what stands in it."""
NAME_WIDTH = 16
"""Names may be longer; every column has to fit beside them. Chosen by us."""

Play = Callable[[Call, Path, Callable[[State, Event], None]], Outcome]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the hosts told, and why those without an answer could not be reached."""

    fleet: Fleet
    told: Mapping[str, Any] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)


def fleet_status(options: Options, out: Path | None = None) -> bool:
    """Ask the hosts, print the table and the findings, write the records to ``out``; whether all is well."""
    check_output("--json", out, "{")
    chosen = fleet_choice.read(options)
    log = log_path(os.environ, "status", time.time(), os.getpid())
    asked = ask(chosen, log, Console(stderr=True))
    status = judged(asked.fleet, asked.told, here(), asked.lost)
    show(Console(), status)
    if out is not None:
        write(out, status)
    return status.well


def here() -> Own:
    """What this control node has."""
    return Own(__version__, version("flwr"), powerd.PROTOCOL, worker.PROTOCOL)


def ask(chosen: Chosen, log: Path, console: Console, run: Play = play) -> Asked:
    """Run the playbook and read what it wrote; hosts that could not be reached are no failure of it."""
    server = chosen.inventory.server.name
    gone: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="fedge-status-") as temporary:
        folder = Path(temporary)

        def hear(state: State, _event: Event) -> None:
            gone.update(state.failed)

        def done() -> frozenset[str]:
            return frozenset((*gone, *(path.stem for path in folder.glob("*.json"))))

        with Waiting(console, (server, *chosen.boards), done):
            outcome = run(_asking(chosen, folder), log, hear)
        told = dict(read(folder))
    lost = {name: event.text for name, event in outcome.state.failed.items()}
    if not told and not lost:
        said = outcome.words or f"Ansible ended with {outcome.code}"
        raise RunFailed(f"no host could be asked: {said}; all of it is in {log}")
    return Asked(Fleet(chosen.inventory.board_names, chosen.boards, server), told, lost)


def _asking(chosen: Chosen, folder: Path) -> Call:
    call = chosen.call(PLAYBOOK)
    # What the server says of a board belongs to the board: it is asked whatever the limit is.
    limit = f"{call.limit},{inventory.SERVER}" if call.limit else None
    return replace(call, limit=limit, variables={"status_to": str(folder)})


def read(folder: Path) -> Iterator[tuple[str, Any]]:
    """The files that the playbook wrote, by host."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield path.stem, json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError):
            yield path.stem, {"facts": {"kind": "failed", "text": "its answer is no JSON"}}


# Shown


def show(console: Console, status: Status) -> None:
    """The table of the boards, a line for the server, and what is wrong; boards that are well get no lines below."""
    used = [(head, cell) for head, cell in COLUMNS if _tells(head, cell, status.boards)]
    table = Table(box=None, padding=(0, 1, 0, 0))
    for head, _ in used:
        table.add_column(head, overflow="ellipsis", no_wrap=True, max_width=NAME_WIDTH)
    for board in status.boards:
        style = "" if board.well else "red"
        table.add_row(*(Text(cell(board), style=style) for _, cell in used))
    console.print(table, width=min(WIDTH, console.width))
    if status.server is not None:
        console.print(Text(_server_line(status.server)))
    hosts: list[Board | Server] = [*([status.server] if status.server else []), *status.boards]
    for host in hosts:
        if not host.well:
            _findings(console, host)
    _notes(console, [host for host in hosts if host.well])
    unwell = sum(not board.well for board in status.boards)
    console.print(Text(f"\n{len(status.boards)} boards, {unwell} with something wrong"))


def _tells(head: str, cell: Callable[[Board], str], boards: Sequence[Board]) -> bool:
    """Whether a column has anything to say; one version everywhere has not."""
    said = {cell(board) for board in boards} - {""}
    return len(said) > (1 if head in VERSIONS else 0)


def _server_line(server: Server) -> str:
    services = ", ".join(f"{name} {state}" for name, state in server.services.items()) or server.state
    return f"server {server.name}: {services}; runs: {', '.join(server.runs) or 'none'}"


def _findings(console: Console, host: Board | Server) -> None:
    """Everything about a host that is not well."""
    console.print(Text(f"\n{host.name}"))
    for finding in host.findings:
        console.print(Text(f"  {finding.severity}: {finding.what}"), soft_wrap=True)
        if finding.cure:
            console.print(Text(f"    do: {finding.cure}"), soft_wrap=True)


def _notes(console: Console, hosts: Sequence[Board | Server]) -> None:
    """What is worth knowing of hosts that are well: each thing once, with those that it is true of."""
    noted: dict[str, list[str]] = {}
    for host in hosts:
        for finding in host.findings:
            noted.setdefault(finding.what, []).append(host.name)
    for what, names in noted.items():
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        console.print(Text(f"note: {', '.join(names[:MOST_NAMES])}{more}: {what}"), soft_wrap=True)


def write(out: Path, status: Status) -> None:
    """The records as JSON; the file appears whole or not at all."""
    made = out.with_name(f".{out.name}.new")
    hosts = [{**asdict(board), "well": board.well} for board in status.boards]
    server = None if status.server is None else {**asdict(status.server), "well": status.server.well}
    text = json.dumps(_plain({"well": status.well, "server": server, "boards": hosts}), indent=2, allow_nan=False)
    try:
        made.write_text(f"{text}\n", encoding="utf-8")
        made.replace(out)
    except OSError as error:
        raise BadInput("--json", f"{out} ({error.strerror})", "a file that you may write") from error
    finally:
        made.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """Only what JSON knows: no half surrogates, which a host may have sent, and no infinities."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
